"""Search in the indexes of a stored segment, without a Python object for each entry.

The index of a 1 GiB segment has about 250,000 entries. `sidetier.segments.indexes` describes the
formats.
"""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.errors import DamagedSegmentError

_INDEX: Final = np.dtype([("relative", ">u4"), ("position", ">u4")])
_TIMEINDEX: Final = np.dtype([("timestamp", ">i8"), ("relative", ">u4")])
_LAST: Final = struct.Struct(">qI")
TIME_ENTRY_BYTES: Final = _LAST.size

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


def last_timestamp(data: bytes) -> int | None:
    """Return the largest timestamp of a segment, in ms, from the last 12 bytes of its `.timeindex`.

    Returns:
        None if the bytes are not an entry, or are zeros: an index that was uploaded before the
        broker trimmed it need not have the entry with the largest timestamp.
    """
    if len(data) != TIME_ENTRY_BYTES or not any(data):
        return None
    timestamp, _ = _LAST.unpack(data)
    return int(timestamp)


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
        raise DamagedSegmentError(f"{name}: {len(data)} bytes are no multiple of {kind.itemsize}")
    used = -(-len(data.rstrip(b"\0")) // kind.itemsize)
    return np.frombuffer(data, kind, used)


def _check_rising(column: npt.NDArray[np.integer], name: str, *, strictly: bool) -> None:
    later, before = column[1:], column[:-1]
    wrong = later <= before if strictly else later < before
    if wrong.any():
        at = int(wrong.argmax()) + 1
        raise DamagedSegmentError(
            f"{name}: entry {at} ({column[at]}) does not rise from {column[at - 1]}"
        )
