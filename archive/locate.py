"""Where an offset lies in a stored segment: by its index, or, without one, from its first byte on.

An index is read whole, in one ranged request, and searched in memory: 2 MiB at most for a segment
of 1 GiB. What was read last is kept within a bound.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sidetier.archive.indexes import (
    Entries,
    offset_entries,
    position_behind,
    position_of,
    time_entries,
)
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.segments.errors import (
    DamagedSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.storage.port import ObjectSummary

ReadRange = Callable[[ObjectSummary, int, int], bytes]
"""An object as it was listed, first byte, and the byte behind the last: the bytes that are there.
Raises PreconditionFailedError where another version is there now."""
FellBack = Callable[[str, str], None]
"""Hears once of each key whose index is of no use, and why."""

_SMALL_LOG: Final = 64 * 1024
"""A log up to this size may have an empty index, and need none."""
_MOST_FOUND: Final = 64

log = logging.getLogger("sidetier.consumer")


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """A byte of a segment where a batch begins."""

    log: StoredLog
    position: int


class IndexCache:
    """The indexes read last, up to so many bytes; may be used from many threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._guard = threading.Lock()
        self._bytes = 0
        self._kept: OrderedDict[Version, Entries] = OrderedDict()

    @property
    def held(self) -> int:
        """Bytes that are kept now."""
        return self._bytes

    def get(self, row: ObjectSummary, load: Callable[[], Entries]) -> Entries:
        """The entries of an index in this version; raises what `load` raises."""
        version = (row.key, row.etag, row.size)
        with self._guard:
            if version in self._kept:
                self._kept.move_to_end(version)
                return self._kept[version]
        entries = load()
        with self._guard:
            if version not in self._kept and row.size <= self._most_bytes:
                self._kept[version] = entries
                self._bytes += row.size
                while self._bytes > self._most_bytes:
                    (_, _, size), _ = self._kept.popitem(last=False)
                    self._bytes -= size
        return entries


class Locator:
    """Finds offsets in the segments of all partitions; may be used from many threads."""

    def __init__(self, cache: IndexCache, fell_back: FellBack) -> None:
        self._cache = cache
        self._fell_back = fell_back
        self._guard = threading.Lock()
        self._said: set[str] = set()
        self._found: OrderedDict[tuple[Version, int], int] = OrderedDict()

    def found(self, stored: StoredLog, offset: int, position: int) -> None:
        """Remember the byte where the batch with this offset begins: no index is needed for it."""
        with self._guard:
            self._found[stored.version, offset] = position
            while len(self._found) > _MOST_FOUND:
                self._found.popitem(last=False)

    def segment_position(self, read: ReadRange, stored: StoredLog, offset: int) -> SegmentPosition:
        """A spot at or before the batch that holds the offset; one request, or none.

        Raises:
            StorageError: as the port says.
        """
        if offset <= stored.base_offset:
            return SegmentPosition(stored, 0)
        with self._guard:
            found = self._found.get((stored.version, int(offset)))
        if found is not None:
            return SegmentPosition(stored, found)
        entries = self.offsets(read, stored)
        if entries is None:
            return SegmentPosition(stored, 0)
        return SegmentPosition(stored, position_of(entries, offset - stored.base_offset))

    def extent(
        self, read: ReadRange, stored: StoredLog, first: int, last: int
    ) -> tuple[int, int] | None:
        """Bytes between which the batches with these offsets lie; None where no index says; one
        request, or none. Raises as `segment_position`.
        """
        entries = self.offsets(read, stored)
        if entries is None:
            return None
        base, size = stored.base_offset, stored.size
        return position_of(entries, first - base), position_behind(entries, last - base, size)

    def offsets(self, read: ReadRange, stored: StoredLog) -> Entries | None:
        """The index; None where it is missing, empty or damaged."""
        return self._usable(
            stored.index,
            "index",
            stored,
            lambda row: offset_entries(read(row, 0, row.size), stored.size, row.key),
        )

    def times(self, read: ReadRange, stored: StoredLog) -> Entries | None:
        """The time index; None where it is missing, empty or damaged."""
        return self._usable(
            stored.timeindex,
            "time index",
            stored,
            lambda row: time_entries(read(row, 0, row.size), row.key),
        )

    def _usable(
        self,
        row: ObjectSummary | None,
        what: str,
        stored: StoredLog,
        load: Callable[[ObjectSummary], Entries],
    ) -> Entries | None:
        if row is None:
            return self._none(stored, f"its {what} is not stored")
        if row.size == 0:
            if stored.size <= _SMALL_LOG:
                return None
            return self._none(stored, f"its {what} is empty")
        try:
            return self._cache.get(row, lambda: load(row))
        except (ObjectNotFoundError, PreconditionFailedError):
            return self._none(stored, f"its {what} is not the one that was listed")
        except DamagedSegmentError as error:
            return self._none(stored, f"its {what} is damaged: {error}")

    def _none(self, stored: StoredLog, reason: str) -> Entries | None:
        with self._guard:
            known = stored.key in self._said
            self._said.add(stored.key)
        if not known:
            log.warning("%s is read from its first byte: %s", stored.key, reason)
            self._fell_back(stored.key, reason)
        return None
