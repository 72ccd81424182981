"""Rebuild the indexes of a segment from its batches, as a broker does (`LogSegment.append`), and
compare existing indexes with the batches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.indexes import INDEX_ENTRY, TIMEINDEX_ENTRY
from sidetier.segments.offsets import BaseOffset

_INT_MAX = 2**31 - 1
NEVER: Final = 1 << 62
"""A position that no segment reaches."""
NO_TIME: Final = 1 << 64
"""A timestamp that no batch has."""


@dataclass(frozen=True, slots=True)
class RebuiltIndexes:
    """The bytes of a segment's offset index and time index."""

    index: bytes
    timeindex: bytes


class IndexBuilder:
    """Collects the entries of both indexes.

    Args:
        name: The log's name, for errors.
        base: The segment's base offset. Offsets in entries are relative to it.
        interval: An entry is added for the first batch that begins more than this many bytes after
            the last indexed batch, or after the segment's start.
    """

    def __init__(self, name: str, base: BaseOffset, interval: int) -> None:
        self._name, self._base, self._interval = name, base, interval
        self._index, self._timeindex = bytearray(), bytearray()
        # A segment without timestamps has -1 in every batch, and so no entry.
        self._timestamp = -1

    def add(self, last_offset: int, position: int, timestamp: int, timestamp_offset: int) -> int:
        """Add entries for a batch. Return the position after which the next entry is added.

        Args:
            last_offset: The batch's last offset.
            position: Where the batch begins.
            timestamp: The largest timestamp so far in ms, including this batch; -1 for none.
            timestamp_offset: The last offset of the batch that has it.

        Raises:
            DamagedSegmentError: Offset or position do not fit into an entry.
        """
        # As in the broker's index, the entry has the batch's last offset
        # and first byte: a lookup takes the last entry at or below an
        # offset, and so never starts behind the batch that has it.
        self._index += INDEX_ENTRY.pack(self._relative(last_offset), self._checked(position))
        self._add_time(timestamp, timestamp_offset)
        return position + self._interval

    def finish(self, timestamp: int, timestamp_offset: int) -> RebuiltIndexes:
        """Return both indexes. The time index gets the segment's largest timestamp, as on a
        roll.
        """
        self._add_time(timestamp, timestamp_offset)
        return RebuiltIndexes(bytes(self._index), bytes(self._timeindex))

    def _add_time(self, timestamp: int, offset: int) -> None:
        # As `TimeIndex.maybeAppend`, which skips an entry that is not later than the last one.
        if timestamp > self._timestamp:
            self._timeindex += TIMEINDEX_ENTRY.pack(timestamp, self._relative(offset))
            self._timestamp = timestamp

    def _relative(self, offset: int) -> int:
        return self._checked(offset - self._base)

    def _checked(self, value: int) -> int:
        # Kafka writes the fields as signed ints, and rolls the segment before one overflows.
        if value > _INT_MAX:
            raise DamagedSegmentError(
                f"{self._name}: the segment does not fit into an index: an offset or a byte "
                f"position {value} after its start at {self._base}"
            )
        return value


class IndexCheck:
    """Compares an offset index, entry by entry, with the batches of its segment as they pass.

    An entry fits if a batch begins at its position, and not above its offset: a reader that starts
    there misses no record. Entries must ascend, and stay within the segment.

    Args:
        pieces: The bytes of the `.index` in order. Each piece has whole entries, except a damaged
            last one. Pieces are read as the segment is read.
        base: The segment's base offset.
    """

    def __init__(self, pieces: Iterable[bytes], base: BaseOffset) -> None:
        self._base = base
        self._fits = True
        self._entries = self._unpacked(pieces)
        self._offset, self._position = -1, -1
        self.next_position = self._next()
        """Where the batch of the next entry must begin; `NEVER` after the last entry."""

    def at_batch(self, base_offset: int, position: int) -> int:
        """Check a batch that begins at or after `next_position`. Return the new `next_position`."""
        # An entry may name any offset within the batch, because the broker adds it with the last
        # offset of an append of several batches, and the position of the first one.
        if position != self._position or base_offset > self._base + self._offset:
            self._fits = False
        self.next_position = self._next()
        return self.next_position

    def finish(self, next_offset: int) -> bool:
        """Return whether the whole index fits a segment that ends at this offset, exclusive."""
        return (
            self._fits and self.next_position == NEVER and self._base + self._offset < next_offset
        )

    def _next(self) -> int:
        if not self._fits:
            return NEVER
        # The default marks the end. It is also returned after a
        # damaged piece, for which `_unpacked` has cleared `_fits`.
        offset, position = next(self._entries, (None, NEVER))
        if offset is None:
            return NEVER
        if offset <= self._offset or position <= self._position:
            self._fits = False
            return NEVER
        self._offset, self._position = offset, position
        return position

    def _unpacked(self, pieces: Iterable[bytes]) -> Iterator[tuple[int, int]]:
        for piece in pieces:
            if len(piece) % INDEX_ENTRY.size:
                self._fits = False
                return
            yield from INDEX_ENTRY.iter_unpack(piece)


class TimeIndexCheck:
    """Compares a time index, entry by entry, with the batches of its segment as they pass.

    An entry fits if its timestamp is the largest one up to the batch that holds its offset, and no
    earlier batch has it: a reader that seeks a later timestamp from there misses no record.
    Timestamps must ascend, and offsets must not fall.

    Args:
        pieces: The bytes of the `.timeindex` in order. Each piece has whole entries, except a
            damaged last one. Pieces are read as the segment is read.
        base: The segment's base offset.
    """

    def __init__(self, pieces: Iterable[bytes], base: BaseOffset) -> None:
        self._base = base
        self._fits = True
        self._entries = self._unpacked(pieces)
        # Below every timestamp of 64 bits, so that the first entry ascends.
        self._timestamp, self._offset = -(1 << 63) - 1, -1
        self.next_timestamp = self._next()
        """The timestamp of the next entry; `NO_TIME` after the last one."""

    def at_maximum(self, base_offset: int, last_offset: int, timestamp: int) -> int:
        """Check a batch with a new largest timestamp that is at least `next_timestamp`.

        Return the new `next_timestamp`.
        """
        offset = self._base + self._offset
        # A larger maximum has passed without the entry's
        # timestamp: no batch has it as the largest so far.
        if timestamp != self._timestamp or not base_offset <= offset <= last_offset:
            self._fits = False
        self.next_timestamp = self._next()
        return self.next_timestamp

    def finish(self) -> bool:
        """Return whether the whole time index fits the segment."""
        return self._fits and self.next_timestamp == NO_TIME

    def _next(self) -> int:
        if not self._fits:
            return NO_TIME
        timestamp, offset = next(self._entries, (NO_TIME, None))
        if offset is None:
            return NO_TIME
        if timestamp <= self._timestamp or offset < self._offset:
            self._fits = False
            return NO_TIME
        self._timestamp, self._offset = timestamp, offset
        return timestamp

    def _unpacked(self, pieces: Iterable[bytes]) -> Iterator[tuple[int, int]]:
        for piece in pieces:
            if len(piece) % TIMEINDEX_ENTRY.size:
                self._fits = False
                return
            yield from TIMEINDEX_ENTRY.iter_unpack(piece)
