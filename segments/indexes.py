"""Parse the offset index and the time index of a segment, and find the segment's end through them.

Source: Kafka's `OffsetIndex` and `TimeIndex`. Entries of the offset index have 8 bytes: an offset
relative to the segment's base, and the position of a batch; all offsets before that batch are at
most that offset. Entries of the time index have 12 bytes: the largest timestamp so far in ms, and
the relative offset of its batch's last record. Both ascend strictly. A broker creates index files
at their full size, filled with zeros, and trims them when the segment closes.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import BatchHeader, walk_headers
from sidetier.segments.offsets import BaseOffset, Offset

PREALLOCATED_INDEX_BYTES: Final = 10_485_760
"""Size of the active segment's offset index with Kafka's default `segment.index.bytes`."""
PREALLOCATED_TIMEINDEX_BYTES: Final = 10_485_756
"""Size of the active segment's time index with Kafka's default `segment.index.bytes`."""

# Big-endian, as all of Kafka's file formats: relative offset u32, position u32.
INDEX_ENTRY = struct.Struct(">II")
# Timestamp i64, relative offset u32.
TIMEINDEX_ENTRY = struct.Struct(">qI")
TIMEINDEX_ENTRY_BYTES: Final = TIMEINDEX_ENTRY.size

WHOLE_ENTRIES_BYTES: Final = 96 * 1024
"""A piece of this size has a whole number of entries of either index."""


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """A parsed offset index.

    Attributes:
        base_offset: Base offset of the segment.
        entries: Offset and byte position of each entry.
        padded: Whether zeros follow the entries: the broker has not trimmed the file yet.
    """

    base_offset: BaseOffset
    entries: tuple[tuple[Offset, int], ...]
    padded: bool


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """A parsed time index.

    Attributes:
        base_offset: Base offset of the segment.
        entries: Timestamp in ms and offset of each entry.
        padded: Whether zeros follow the entries: the broker has not trimmed the file yet.
    """

    base_offset: BaseOffset
    entries: tuple[tuple[int, Offset], ...]
    padded: bool


@dataclass(frozen=True, slots=True)
class SegmentTail:
    """The end of a segment.

    Attributes:
        next_offset: The next offset; the base offset of an empty segment.
        max_timestamp: Largest timestamp, in ms; -1 if there is none.
    """

    next_offset: Offset
    max_timestamp: int


def parse_offset_index(data: bytes, base: BaseOffset, name: str = "index") -> OffsetIndex:
    """Parse an `.index`, without the zeros at its end.

    Raises:
        DamagedSegmentError: The file ends within an entry, or offsets or positions do not ascend.
    """
    used = _without_padding(data, INDEX_ENTRY.size, name)
    entries = tuple(
        (Offset(base + relative), position) for relative, position in INDEX_ENTRY.iter_unpack(used)
    )
    for number, (before, after) in enumerate(pairwise(entries), 1):
        if after[0] <= before[0] or after[1] <= before[1]:
            raise DamagedSegmentError(f"{name}: entry {number} {after} does not rise from {before}")
    return OffsetIndex(base, entries, len(used) < len(data))


def position_at_or_below(
    read_index: Callable[[int, int], bytes], size: int, base: BaseOffset, offset: int
) -> int:
    """Return the position of a batch that begins at `offset` or lower, from an offset index.

    Reads some entries by binary search, so also the index of an active segment, which has 10 MiB of
    zeros behind its entries. The result is a hint: a damaged index may lead to any byte.

    Args:
        read_index: Reads the index as `os.pread` does, by position and length.
        size: Size of the index, in bytes.
        base: Base offset of the segment.
        offset: The wanted offset.

    Returns:
        0 if no entry is at or below the offset: the segment's first batch.
    """
    low, high, found = 0, size // INDEX_ENTRY.size, 0
    while low < high:
        middle = (low + high) // 2
        entry = read_index(middle * INDEX_ENTRY.size, INDEX_ENTRY.size)
        relative, position = INDEX_ENTRY.unpack(entry.ljust(INDEX_ENTRY.size, b"\0"))
        # No entry leads to byte 0, so a zero is padding.
        if position and base + relative <= offset:
            low, found = middle + 1, position
        else:
            high = middle
    return found


def parse_time_index(data: bytes, base: BaseOffset, name: str = "timeindex") -> TimeIndex:
    """Parse a `.timeindex`, without the zeros at its end.

    Raises:
        DamagedSegmentError: The file ends within an entry, or timestamps or offsets do not ascend.
    """
    used = _without_padding(data, TIMEINDEX_ENTRY.size, name)
    entries = tuple(
        (timestamp, Offset(base + relative))
        for timestamp, relative in TIMEINDEX_ENTRY.iter_unpack(used)
    )
    for number, (before, after) in enumerate(pairwise(entries), 1):
        if after[0] <= before[0] or after[1] < before[1]:
            raise DamagedSegmentError(f"{name}: entry {number} {after} does not rise from {before}")
    return TimeIndex(base, entries, len(used) < len(data))


def last_timestamp(last_entry: bytes, index_size: int) -> int | None:
    """Return the largest timestamp of a closed segment in ms since 1970, from its last time index
    entry.

    Returns:
        None if the index has no entry, or is preallocated: after a broker was killed, it grows the
        index again, filled with zeros, before it rebuilds it.
    """
    if len(last_entry) != TIMEINDEX_ENTRY_BYTES or index_size % TIMEINDEX_ENTRY_BYTES:
        return None
    timestamp, relative_offset = TIMEINDEX_ENTRY.unpack(last_entry)
    # Only the first entry of an index can have relative offset 0.
    is_padding = relative_offset == 0 and index_size > TIMEINDEX_ENTRY_BYTES
    return None if timestamp < 0 or is_padding else int(timestamp)


def _without_padding(data: bytes, entry_size: int, name: str) -> bytes:
    if len(data) % entry_size:
        raise DamagedSegmentError(f"{name}: {len(data)} bytes are not a multiple of {entry_size}")
    # `rstrip` also removes zeros at the end of the last entry: rounding up restores them.
    used = -(-len(data.rstrip(b"\0")) // entry_size) * entry_size
    return data[:used]


def tail_of(
    read_log: Callable[[int, int], bytes],
    log_size: int,
    index_bytes: bytes,
    timeindex_bytes: bytes,
    base: BaseOffset,
) -> SegmentTail:
    """Return the end of a segment. Only batch headers after the last index entry are read.

    `read_log(position, length)` reads as `os.pread` does. If the indexes are damaged, or do not
    belong to the log, all headers are read.

    Raises:
        DamagedSegmentError: The log is damaged, or ends within a batch.
        UnsupportedFormatError: Message format v0 or v1.
    """
    try:
        return _indexed_tail(read_log, log_size, index_bytes, timeindex_bytes, base)
    # A damaged index does not damage the segment: the broker rebuilds it at its next start.
    except (DamagedSegmentError, UnsupportedFormatError):
        return _walked_tail(read_log, log_size, base)


def _indexed_tail(
    read_log: Callable[[int, int], bytes],
    log_size: int,
    index_bytes: bytes,
    timeindex_bytes: bytes,
    base: BaseOffset,
) -> SegmentTail:
    index = parse_offset_index(index_bytes, base)
    times = parse_time_index(timeindex_bytes, base)
    # Without entries, nothing is known about the largest
    # timestamp of earlier batches: read them all.
    if not index.entries or not times.entries:
        return _walked_tail(read_log, log_size, base)
    offset, position = index.entries[-1]
    if position >= log_size:
        raise DamagedSegmentError(f"the last index entry points to byte {position} of {log_size}")
    tail = _walked_tail(read_log, log_size, base, start=position, holds=offset)
    # Batches before the last index entry may have the largest timestamp: it need not ascend.
    return SegmentTail(tail.next_offset, max(tail.max_timestamp, times.entries[-1][0]))


def _walked_tail(
    read_log: Callable[[int, int], bytes],
    log_size: int,
    base: BaseOffset,
    *,
    start: int = 0,
    holds: int | None = None,
) -> SegmentTail:
    max_timestamp, last = -1, None
    for position, header in walk_headers(read_log, log_size, start=start):
        if position == start:
            _check_first(header, base, holds)
        max_timestamp = max(max_timestamp, header.max_timestamp)
        last = header
    # The index belongs to a longer log: the segment
    # was truncated, or the file is another replica's.
    if holds is not None and (last is None or last.last_offset < holds):
        raise DamagedSegmentError(f"the log does not reach offset {holds}, the index does")
    return SegmentTail(last.next_offset if last else Offset(base), max_timestamp)


def _check_first(header: BatchHeader, base: BaseOffset, holds: int | None) -> None:
    if header.base_offset < base:
        raise DamagedSegmentError(f"base offset {header.base_offset} is below the segment's {base}")
    if holds is not None and header.base_offset > holds:
        raise DamagedSegmentError(f"the index entry for offset {holds} points behind that offset")
