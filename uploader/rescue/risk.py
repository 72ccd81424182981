"""Which segments of a follower's copy are about to be deleted: pure decisions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.tracked import Tracked

KEPT_OPEN: Final = 1
"""Segments beyond those at risk that are held: the oldest, which the broker deletes next, perhaps
by size and without a warning. Every other one passes through `.deleted` and is seen there.
"""

_SHARE: Final = 0.25
"""Of a short retention: what is at risk for longer costs a request per roll."""


@dataclass(frozen=True, slots=True)
class RiskRule:
    """When deletion by time is near: `before` seconds ahead of the end of `retention`, None where
    that is for ever or not known. Then only what the broker has renamed or unlinked is at risk.
    """

    before: float
    retention: float | None

    def begins(self, modified_ns: int) -> float:
        """From when on a segment is at risk, in seconds since 1970; infinity for never."""
        if self.retention is None:
            return float("inf")
        return modified_ns / 1e9 + self.retention - min(self.before, self.retention * _SHARE)


@dataclass(frozen=True, slots=True)
class Risk:
    """`end` is the offset below which the copy is at risk, None for nothing; `next_at` is when the
    next segment will be, in seconds since 1970, infinity for none that is known of.
    """

    end: Offset | None
    segments: int
    next_at: float


def risk_of(tracked: Mapping[BaseOffset, Tracked], rule: RiskRule, wall: float) -> Risk:
    """What of a followed partition is at risk now."""
    end, count, next_at = None, 0, float("inf")
    for _, one in sorted(tracked.items()):
        begins = _begins(one, rule)
        if begins > wall:
            next_at = min(next_at, begins)
            continue
        count += 1
        if one.segment.next_base is not None:
            end = Offset(one.segment.next_base)
    return Risk(end, count, next_at)


def _begins(tracked: Tracked, rule: RiskRule) -> float:
    if tracked.unlinked() or tracked.segment.staged:
        return float("-inf")
    return rule.begins(tracked.modified_ns)


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
    live = [segment.base_offset for segment in listing.closed if not segment.staged]
    start = live[0] if live else listing.active
    for segment in listing.closed:
        if not segment.staged or (start is not None and segment.base_offset < start):
            yield segment


def _held(
    segments: Iterable[ClosedSegment], is_at_risk: Callable[[BaseOffset], bool]
) -> Iterator[ClosedSegment]:
    spare = KEPT_OPEN
    for segment in segments:
        if not segment.staged and not is_at_risk(segment.base_offset):
            if spare == 0:
                return
            spare -= 1
        yield segment


def _is_stored(segment: ClosedSegment, stored_below: Offset | None) -> bool:
    end = segment.next_base
    return stored_below is not None and end is not None and end <= stored_below
