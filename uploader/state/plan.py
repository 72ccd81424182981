"""The plan of a partition: the segments that follow the archive end offset, and a gap.

Pure functions.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A closed segment to store, from the batch that has the offset `start`.

    Usually `start` is the base offset of the segment. It is higher if an earlier part of the
    segment is already stored, because an earlier leader had segments with other base offsets. It is
    lower if compaction has left no record in the segments before it.
    """

    segment: ClosedSegment
    start: Offset

    @property
    def is_slice(self) -> bool:
        """Whether only a part of the segment is stored."""
        return self.start > self.segment.base_offset


@dataclass(frozen=True, slots=True)
class Conflict:
    """The archive ends at `start`, within a record batch of this log that ends at `end`.

    So the archive has another history there, and no record of this log before `end` can follow.
    """

    start: Offset
    end: Offset


_NO_CONFLICTS: Final[Mapping[BaseOffset, Conflict]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Plan:
    """The segments that follow the archive end offset without a gap, and the gap behind them.

    Attributes:
        segments: The segments before the gap, in order.
        gap: The offsets that this log does not have; None if there is no gap.
    """

    segments: tuple[PlannedSegment, ...] = ()
    gap: OffsetRange | None = None


def available(
    listing: PartitionListing, pinned: Iterable[ClosedSegment]
) -> tuple[ClosedSegment, ...]:
    """Return the closed segments that can be read and belong to this log, by rising base offset.

    Retention deletes from the log start, so a `.deleted` segment belongs to the log only below the
    first live segment. Above it, the segment was removed by truncation or compaction. The same
    applies to a pinned segment whose files no longer have a name.
    """
    live = [segment.base_offset for segment in listing.closed if not segment.marked_for_deletion]
    if listing.active is not None:
        live.append(listing.active)
    start = min(live, default=None)
    by_base = {
        segment.base_offset: segment
        for segment in listing.closed
        if not segment.marked_for_deletion or (start is not None and segment.base_offset < start)
    }
    for segment in pinned:
        if start is None or segment.base_offset < start:
            by_base.setdefault(segment.base_offset, segment)
    return tuple(sorted(by_base.values()))


def first_base(segments: Sequence[ClosedSegment], active: BaseOffset | None) -> Offset | None:
    """Return the offset at which this broker's copy of the log begins."""
    if segments:
        return Offset(segments[0].base_offset)
    return None if active is None else Offset(active)


def plan(
    next_offset: Offset,
    segments: Sequence[ClosedSegment],
    active: BaseOffset | None,
    conflicts: Mapping[BaseOffset, Conflict] = _NO_CONFLICTS,
    empty: Collection[BaseOffset] = (),
) -> Plan:
    """Return the segments that follow `next_offset` without a gap, and the gap behind them.

    Args:
        next_offset: The archive end offset.
        segments: The available segments by rising base offset. The end of a closed segment is the
            base offset of the next one.
        active: Base offset of the active segment. No record at or above it is gone. A pinned
            segment may be above it: it was pinned in a log dir that the partition has left, and the
            copy in the new log dir has not rolled yet.
        conflicts: By base offset of the segment. The gap before such a segment ends with the batch
            of the conflict.
        empty: Base offsets of segments in which compaction has left no record. They are not a gap:
            their offsets are stored with the next segment.
    """
    chosen: list[PlannedSegment] = []
    # `expected` is where the next stored segment must begin. `accounted` is higher if compaction
    # has emptied segments: their offsets are not a gap, but are stored only with the next segment.
    expected = accounted = next_offset
    following = None if active is None else Offset(active)
    for segment in segments:
        base = _first_to_follow(segment, expected, conflicts.get(segment.base_offset))
        # Archived already, or its end is not known: without an end, nothing can follow it.
        if segment.next_base is None or segment.next_base <= accounted:
            continue
        if base > accounted:
            following = base if following is None else min(base, following)
            break
        accounted = Offset(segment.next_base)
        if segment.base_offset not in empty:
            chosen.append(PlannedSegment(segment, expected))
            expected = accounted
    if following is None or following <= accounted:
        return Plan(tuple(chosen))
    return Plan(tuple(chosen), OffsetRange(expected, following))


def _first_to_follow(segment: ClosedSegment, expected: Offset, conflict: Conflict | None) -> Offset:
    if conflict is not None and conflict.start == expected:
        return conflict.end
    return Offset(segment.base_offset)
