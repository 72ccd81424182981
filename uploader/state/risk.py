"""Which segments of a follower's copy are about to be deleted: pure decisions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.state.segment import TrackedSegment

KEPT_OPEN: Final = 1
"""Segments beyond those at risk that are held: the oldest, which the broker deletes next, perhaps
by size and without a warning. Every other one passes through `.deleted` and is seen there.
"""

_SHARE: Final = 0.25
"""Of a short retention: what is at risk for longer costs a request per roll."""


@dataclass(frozen=True, slots=True)
class RiskRule:
    """When the broker's deletion of a segment is near.

    By time: `before` seconds ahead of the end of `retention` (retention.ms, in seconds). By size:
    when one more segment of its size would let `retention_bytes` (retention.bytes) delete it. None
    where there is no such bound or it is not known: then only what the broker has renamed or
    unlinked is at risk.
    """

    before: float
    retention: float | None
    retention_bytes: int | None = None

    def begins(self, largest_timestamp: float) -> float:
        """From when on a segment is at risk by time, in seconds since 1970; infinity for never.

        Args:
            largest_timestamp: As Kafka's `LogSegment.largestTimestamp`, in seconds since 1970.
        """
        if self.retention is None:
            return float("inf")
        return largest_timestamp + self.retention - min(self.before, self.retention * _SHARE)

    def end_by_size(self, active_size: int, closed: Iterable[tuple[Offset, int]]) -> Offset | None:
        """The offset below which segments are at risk by size; None where none is.

        Kafka deletes from the log's start on while what remains has retention.bytes or more
        (`UnifiedLog.deleteRetentionSizeBreachedSegments`).

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
    """`end` is the offset below which the copy is at risk, None for nothing; `next_at` is when the
    next segment will be, in seconds since 1970, infinity for none that is known of.
    """

    end: Offset | None
    segments: int
    next_at: float


def risk_of(
    tracked: Mapping[BaseOffset, TrackedSegment],
    rule: RiskRule,
    wall: float,
    end_by_size: Offset | None = None,
) -> Risk:
    """Return which segments of a followed partition are at risk now.

    Args:
        tracked: The closed segments that are not stored, by base offset.
        rule: When the broker deletes segments of the topic.
        wall: Seconds since 1970.
        end_by_size: See `RiskRule.end_by_size`.
    """
    end, count, next_at = None, 0, float("inf")
    for _, segment in sorted(tracked.items()):
        begins = _begins(segment, rule, end_by_size)
        if begins > wall:
            next_at = min(next_at, begins)
            continue
        count += 1
        if segment.segment.next_base is not None:
            end = Offset(segment.segment.next_base)
    return Risk(end, count, next_at)


def _begins(tracked: TrackedSegment, rule: RiskRule, end_by_size: Offset | None) -> float:
    by_size = is_below(tracked.segment.base_offset, end_by_size)
    if by_size or tracked.unlinked() or tracked.segment.marked_for_deletion:
        return float("-inf")
    return rule.begins(tracked.largest_timestamp)


def is_below(base: BaseOffset, end: Offset | None) -> bool:
    """Whether a segment begins below an offset, if there is one."""
    return end is not None and base < end


def worth_holding(
    listing: PartitionListing,
    stored_below: Offset | None,
    is_at_risk: Callable[[BaseOffset], bool],
) -> PartitionListing:
    """The listing with those of the closed segments that a follower holds: from the first that is
    not known to be stored on, all that are at risk, and the next.

    A follower cannot hold its whole log open, and need not: retention deletes from its start.
    """
    ours = of_the_log(listing)
    unstored = (segment for segment in ours if not _is_stored(segment, stored_below))
    return PartitionListing(tuple(_held(unstored, is_at_risk)), listing.active)


def of_the_log(listing: PartitionListing) -> Iterator[ClosedSegment]:
    """Without what truncation has left behind: `.deleted` above the first live segment."""
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
