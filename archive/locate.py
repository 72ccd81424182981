"""Find the byte position of an offset in a stored segment.

The position comes from the segment's index. Without a usable index, the segment is read from its
first byte. An index is read whole, in one ranged request, and searched in memory: at most 2 MiB for
a segment of 1 GiB. A bounded cache keeps the indexes that were read last.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.archive.objects.segment import PackedLog, StoredLog, Version
from sidetier.segments.errors import (
    DamagedSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.lru import Lru
from sidetier.storage.port import ObjectSummary
from sidetier.storage.ranges import ReadRange

FellBack = Callable[[str, str], None]
"""Called once for each `.log` key whose index cannot be used, with the key and the reason."""

_SMALL_LOG: Final = 64 * 1024
"""Bytes. The index of a log up to this size may be empty: the broker adds an entry only every
`index.interval.bytes`.
"""
_MAX_FOUND: Final = 64
_MIN_WEIGHT: Final = 64
"""Bytes that a kept index counts at least."""

log = logging.getLogger("sidetier.consumer")


# Indexes are parsed by numpy, without a Python object for each entry: the index of a 1 GiB segment
# has about 250,000 entries. `sidetier.segments.indexes` describes the formats.

_INDEX: Final = np.dtype([("relative", ">u4"), ("position", ">u4")])
_TIMEINDEX: Final = np.dtype([("timestamp", ">i8"), ("relative", ">u4")])

Entries = npt.NDArray[np.void]


def offset_entries(data: bytes, log_size: int, name: str) -> Entries:
    """Parse an `.index`, without the zeros at its end.

    Raises:
        DamagedSegmentError: The file ends within an entry, entries do not ascend, or an entry
            points beyond the log.
    """
    entries = _entries(data, _INDEX, name)
    _check_rising(entries["relative"], name, strictly=True)
    _check_rising(entries["position"], name, strictly=True)
    if len(entries) and int(entries["position"][-1]) >= log_size:
        raise DamagedSegmentError(
            f"{name}: its last entry points to byte {entries['position'][-1]} of {log_size}"
        )
    return entries


def time_entries(data: bytes, name: str) -> Entries:
    """Parse a `.timeindex`, without the zeros at its end.

    Raises:
        DamagedSegmentError: The file ends within an entry, or entries do not ascend.
    """
    entries = _entries(data, _TIMEINDEX, name)
    _check_rising(entries["timestamp"], name, strictly=True)
    _check_rising(entries["relative"], name, strictly=False)
    return entries


def position_of(entries: Entries, relative: int) -> int:
    """Return a byte position at or before the batch of an offset, given relative to the base
    offset.
    """
    at = int(np.searchsorted(entries["relative"].astype(np.int64), relative, side="right")) - 1
    return int(entries["position"][at]) if at >= 0 else 0


def position_behind(entries: Entries, relative: int, log_size: int) -> int:
    """Return a byte position at or after the end of the batch that holds the relative offset."""
    # An entry has the last offset of the batches that were appended at its position. So only the
    # position of the next entry is certain to be after the batch.
    after = int(np.searchsorted(entries["relative"].astype(np.int64), relative, side="left")) + 1
    return int(entries["position"][after]) if after < len(entries) else log_size


def relatives_of(entries: Entries, timestamp: int) -> tuple[int, int | None]:
    """Bound the position of the first record with at least this timestamp.

    Returns:
        Two relative offsets: one in or before the batch of that record, and one in or after it. The
        second is None if no entry has so high a timestamp.
    """
    at = int(np.searchsorted(entries["timestamp"].astype(np.int64), timestamp, side="left"))
    before = int(entries["relative"][at - 1]) if at > 0 else 0
    return before, int(entries["relative"][at]) if at < len(entries) else None


def _entries(data: bytes, kind: np.dtype[np.void], name: str) -> Entries:
    if len(data) % kind.itemsize:
        text = f"{name}: {len(data)} bytes are not a multiple of {kind.itemsize}"
        raise DamagedSegmentError(text)
    # As in `segments.indexes`: `rstrip` also removes zeros at the end of the last entry.
    used = -(-len(data.rstrip(b"\0")) // kind.itemsize)
    # Only the used bytes are kept: an index may end in megabytes of zeros.
    return np.frombuffer(data[: used * kind.itemsize], kind)


def _check_rising(column: npt.NDArray[np.integer], name: str, *, strictly: bool) -> None:
    later, before = column[1:], column[:-1]
    wrong = later <= before if strictly else later < before
    if wrong.any():
        at = int(wrong.argmax()) + 1
        raise DamagedSegmentError(
            f"{name}: entry {at} ({column[at]}) does not rise from {column[at - 1]}"
        )


def _weight(entries: Entries) -> int:
    # An index without entries has a weight, too: the number of indexes is limited.
    return max(entries.nbytes, _MIN_WEIGHT)


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """A byte position in a segment where a batch begins."""

    log: StoredLog
    position: int


class Locator:
    """Finds offsets in the segments of all partitions. Thread-safe.

    Args:
        index_bytes: Maximum bytes of the indexes that are kept.
        fell_back: Receives the segments whose index cannot be used.
    """

    def __init__(self, index_bytes: int, fell_back: FellBack) -> None:
        self._indexes = Lru[Version, Entries](index_bytes, _weight)
        self._fell_back = fell_back
        self._guard = threading.Lock()
        self._said: set[str] = set()
        self._found = Lru[tuple[Version, int], int](_MAX_FOUND)

    def found(self, stored: StoredLog, offset: int, position: int) -> None:
        """Remember the byte position of the batch with this offset, so that it needs no index."""
        self._found.put((stored.version, offset), position)

    def segment_position(self, read: ReadRange, stored: StoredLog, offset: int) -> SegmentPosition:
        """Return a position at or before the batch that holds the offset. At most one request.

        Raises:
            StorageError: As `RemoteStorage` says.
        """
        if offset <= stored.base_offset:
            return SegmentPosition(stored, 0)
        known_position = self._found.get((stored.version, int(offset)))
        if known_position is not None:
            return SegmentPosition(stored, known_position)
        entries = self.offsets(read, stored)
        if entries is None:
            return SegmentPosition(stored, 0)
        return SegmentPosition(stored, position_of(entries, offset - stored.base_offset))

    def extent(
        self, read: ReadRange, stored: StoredLog, first: int, last: int
    ) -> tuple[int, int] | None:
        """Return the byte range that contains the batches with the offsets from `first` to `last`.

        Needs at most one request.

        Returns:
            Start byte and end byte, exclusive; None if the segment has no usable index.

        Raises:
            StorageError: As `RemoteStorage` says.
        """
        entries = self.offsets(read, stored)
        if entries is None:
            return None
        base, size = stored.base_offset, stored.size
        return position_of(entries, first - base), position_behind(entries, last - base, size)

    def offsets(self, read: ReadRange, stored: StoredLog) -> Entries | None:
        """Return the offset index; None if it is missing, empty or damaged."""
        return self._usable(
            stored.index,
            "index",
            stored,
            lambda row: offset_entries(read(row, 0, row.size), stored.size, row.key),
        )

    def times(self, read: ReadRange, stored: StoredLog) -> Entries | None:
        """Return the time index; None if it is missing, empty or damaged."""
        return self._usable(
            stored.timeindex,
            "time index",
            stored,
            lambda row: time_entries(read(row, 0, row.size), row.key),
        )

    def _usable(
        self,
        row: ObjectSummary | None,
        index: str,
        stored: StoredLog,
        load: Callable[[ObjectSummary], Entries],
    ) -> Entries | None:
        if row is None:
            # A range of a pack has no index, which is no reason for a warning.
            is_packed = isinstance(stored, PackedLog)
            return None if is_packed else self._none(stored, f"its {index} is not stored")
        if row.size == 0:
            if stored.size <= _SMALL_LOG:
                return None
            return self._none(stored, f"its {index} is empty")
        try:
            return self._indexes.get_or((row.key, row.etag, row.size), lambda: load(row))
        except (ObjectNotFoundError, PreconditionFailedError):
            # A sidecar may have emptied the index since: an empty one fits any log.
            return self._none(stored, f"its {index} is not the one that was listed")
        except DamagedSegmentError as error:
            return self._none(stored, f"its {index} is damaged: {error}")

    def _none(self, stored: StoredLog, reason: str) -> Entries | None:
        with self._guard:
            known = stored.key in self._said
            self._said.add(stored.key)
        if not known:
            log.warning("%s is read from its first byte: %s", stored.key, reason)
            self._fell_back(stored.key, reason)
        return None
