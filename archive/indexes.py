"""The indexes of a stored segment, searched without a Python object per entry.

The index of a segment of 1 GiB has a quarter of a million entries. The formats are described in
`sidetier.segments.indexes`.
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
    """The entries of an `.index`; zeros at its end are left out.

    Raises:
        DamagedSegmentError: half an entry, entries that do not rise, or that point beyond the log.
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
    """The entries of a `.timeindex`; zeros at its end are left out.

    Raises:
        DamagedSegmentError: half an entry, or entries that do not rise.
    """
    entries = _entries(data, _TIMEINDEX, name)
    _check_rising(entries["timestamp"], name, strictly=True)
    _check_rising(entries["relative"], name, strictly=False)
    return entries


def last_timestamp(data: bytes) -> int | None:
    """The largest timestamp of a segment, in ms, by the last bytes of its `.timeindex`; None where
    they are no entry, or zeros: what was sent before it was trimmed need not have the largest.
    """
    if len(data) != TIME_ENTRY_BYTES or not any(data):
        return None
    timestamp, _ = _LAST.unpack(data)
    return int(timestamp)


def position_of(entries: Entries, relative: int) -> int:
    """A byte position at or before the batch that holds the offset, relative to the base."""
    at = int(np.searchsorted(entries["relative"].astype(np.int64), relative, side="right")) - 1
    return int(entries["position"][at]) if at >= 0 else 0


def position_behind(entries: Entries, relative: int, log_size: int) -> int:
    """A byte position at or behind the end of the batch that holds the offset.

    An entry has the last offset of what was appended at its position: the next one lies behind.
    """
    at = int(np.searchsorted(entries["relative"].astype(np.int64), relative, side="left")) + 1
    return int(entries["position"][at]) if at < len(entries) else log_size


def relatives_of(entries: Entries, timestamp: int) -> tuple[int, int | None]:
    """Relative offsets in or before the batch with the first record of at least this time, and in
    or behind it; None where no entry is as late.
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
