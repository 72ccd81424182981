"""Lookups in parsed indexes as Kafka's `OffsetIndex` and `TimeIndex` define them: a test oracle."""

from bisect import bisect_right
from operator import itemgetter

from sidetier.segments.indexes import OffsetIndex, TimeIndex
from sidetier.segments.offsets import Offset


def lookup_position(index: OffsetIndex, offset: int) -> int:
    """Return the byte position of the last entry at or below `offset`; 0 below the first entry."""
    at = bisect_right(index.entries, offset, key=itemgetter(0)) - 1
    return index.entries[at][1] if at >= 0 else 0


def lookup_timestamp(index: TimeIndex, timestamp: int) -> Offset:
    """Return the offset of the last entry at or below `timestamp`, or else the base offset."""
    at = bisect_right(index.entries, timestamp, key=itemgetter(0)) - 1
    return index.entries[at][1] if at >= 0 else Offset(index.base_offset)
