"""Offsets that an archive lacks, and why. Pure functions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sidetier.segments.offsets import Offset, OffsetRange


class GapReason(StrEnum):
    """Why offsets are missing."""

    RECORDED_GAP = "recorded_gap"
    """The broker deleted the records before they were archived, and a sidecar recorded the gap."""
    NOT_STORED = "not_stored"
    """No segment holds them, and no gap is recorded."""
    BELOW_START = "below_start"
    """They are below the archive's start: never stored, or deleted from the store since. Kafka
    calls this offset out of range.
    """


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Missing offsets, with one reason for all of them."""

    offsets: OffsetRange
    reason: GapReason

    def detail(self, where: str) -> str:
        """Describe the missing offsets in words, for messages."""
        return f"{where}: offsets {self.offsets} {_WORDS[self.reason]}"


_WORDS = {
    GapReason.RECORDED_GAP: "are missing: the broker had deleted them before they were stored",
    GapReason.NOT_STORED: "are missing: no stored segment holds them, and no gap is recorded",
    GapReason.BELOW_START: "are below the start of the archive",
}


def first_missing(
    missing: OffsetRange, gaps: Iterable[OffsetRange], start: Offset
) -> MissingOffsets:
    """Return the first part of the missing offsets that has one reason.

    Args:
        missing: Offsets up to the next stored one, or up to the end of the readable range.
        gaps: The recorded gaps, in any order.
        start: The archive's start offset.
    """
    first, end = missing
    if first < start:
        return MissingOffsets(OffsetRange(first, min(end, start)), GapReason.BELOW_START)
    reached = first
    following = end
    for gap in sorted(gaps):
        if reached in gap:  # recorded gaps may overlap: a shortened one stays beside the longer one
            reached = gap.end
        elif gap.start > reached:
            following = min(following, gap.start)
    if reached > first:
        return MissingOffsets(OffsetRange(first, min(end, reached)), GapReason.RECORDED_GAP)
    return MissingOffsets(OffsetRange(first, following), GapReason.NOT_STORED)


def without_gaps(offsets: OffsetRange, gaps: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the parts of a range that are in no gap. `gaps` ascend by start and may overlap."""
    start = offsets.start
    for gap in gaps:
        if gap.end <= start:
            continue
        if gap.start >= offsets.end:
            break
        if gap.start > start:
            yield OffsetRange(start, gap.start)
        start = gap.end
    if start < offsets.end:
        yield OffsetRange(start, offsets.end)
