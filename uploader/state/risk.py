"""Decide which segments of a follower's copy the broker is about to delete. Pure functions."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.state.segment import TrackedSegment

KEPT_OPEN: Final = 1
"""Segments that are held in addition to those at risk: the oldest, which the broker deletes next,
perhaps by size and without a warning. All others are seen with the suffix `.deleted` first.
"""

_SHARE: Final = 0.25
"""The share of a short retention for which a segment is at risk: a longer time would cost a request
for each rolled segment.
"""


@dataclass(frozen=True, slots=True)
class RiskRule:
    """Decides when a segment is at risk: the broker deletes it soon.

    Segments that the broker has renamed to `.deleted` or unlinked are always at risk.

    Attributes:
        before: A segment is at risk from this many seconds before the end of its retention.
        retention: `retention.ms`, in seconds; None if it is unlimited or not known.
        retention_bytes: `retention.bytes`; None if it is unlimited or not known. A segment is at
            risk if one more segment of its size would let the broker delete it.
    """

    before: float
    retention: float | None
    retention_bytes: int | None = None

    def begins(self, largest_timestamp: float) -> float:
        """Return when a segment begins to be at risk, in seconds since 1970; infinity for never.

        `largest_timestamp` is Kafka's `LogSegment.largestTimestamp`, in seconds since 1970.
        """
        if self.retention is None:
            return float("inf")
        return largest_timestamp + self.retention - min(self.before, self.retention * _SHARE)

    def end_by_size(self, active_size: int, closed: Iterable[tuple[Offset, int]]) -> Offset | None:
        """Return the offset below which segments are at risk by size; None if none is.

        Kafka deletes segments from the log start on while the remaining ones have `retention.bytes`
        or more (`UnifiedLog.deleteRetentionSizeBreachedSegments`).

        Args:
            active_size: Bytes of the active segment.
            closed: Next offset and bytes of the closed segments, from the newest back.
        """
        if self.retention_bytes is None:
            return None
        behind = active_size
        for next_offset, size in closed:
            if behind + size >= self.retention_bytes:
                return next_offset
            behind += size
        return None


@dataclass(frozen=True, slots=True)
class Risk:
    """The segments of a partition that are at risk.

    Attributes:
        end: The offset below which the copy is at risk; None if no segment is.
        segments: Number of segments at risk.
        next_at: When the next segment begins to be at risk, in seconds since 1970; infinity if that
            is not known.
    """

    end: Offset | None
    segments: int
    next_at: float


def risk_of(
    tracked: Mapping[BaseOffset, TrackedSegment],
    rule: RiskRule,
    wall: float,
    end_by_size: Offset | None = None,
    unlinked: Collection[BaseOffset] = (),
) -> Risk:
    """Return which segments of a followed partition are at risk now.

    Args:
        tracked: The closed segments that are not stored, by base offset.
        rule: When the broker deletes segments of the topic.
        wall: Seconds since 1970.
        end_by_size: Offset below which segments are at risk by size; None if none is.
        unlinked: Base offsets of the pinned segments that the broker has unlinked.
    """
    end, count, next_at = None, 0, float("inf")
    for base, segment in sorted(tracked.items()):
        deletes = segment.segment.marked_for_deletion or base in unlinked
        is_due = deletes or is_below(base, end_by_size)
        begins = float("-inf") if is_due else rule.begins(segment.largest_timestamp)
        if begins > wall:
            next_at = min(next_at, begins)
            continue
        count += 1
        if segment.segment.next_base is not None:
            end = Offset(segment.segment.next_base)
    return Risk(end, count, next_at)


def is_below(base: BaseOffset, end: Offset | None) -> bool:
    """Return whether a segment begins below `end`; False if `end` is None."""
    return end is not None and base < end


def worth_holding(
    listing: PartitionListing,
    stored_below: Offset | None,
    is_at_risk: Callable[[BaseOffset], bool],
) -> PartitionListing:
    """Reduce a listing to the closed segments that a follower pins.

    These are the segments at risk that are not known to be stored, and the next segment. A follower
    need not pin its whole log, because retention deletes from the log start.
    """
    ours = of_the_log(listing)
    unstored = (segment for segment in ours if not _is_stored(segment, stored_below))
    return PartitionListing(tuple(_held(unstored, is_at_risk)), listing.active)


def of_the_log(listing: PartitionListing) -> Iterator[ClosedSegment]:
    """Yield the closed segments that belong to the log.

    A `.deleted` segment above the first live segment was removed by truncation.
    """
    live = [segment.base_offset for segment in listing.closed if not segment.marked_for_deletion]
    start = live[0] if live else listing.active
    for segment in listing.closed:
        if not segment.marked_for_deletion or (start is not None and segment.base_offset < start):
            yield segment


def _held(
    segments: Iterable[ClosedSegment], is_at_risk: Callable[[BaseOffset], bool]
) -> Iterator[ClosedSegment]:
    spare = KEPT_OPEN
    for segment in segments:
        if not segment.marked_for_deletion and not is_at_risk(segment.base_offset):
            if spare == 0:
                return
            spare -= 1
        yield segment


def _is_stored(segment: ClosedSegment, stored_below: Offset | None) -> bool:
    end = segment.next_base
    return stored_below is not None and end is not None and end <= stored_below
