"""Reasons why the archive lacks offsets. Pure functions."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sidetier.segments.offsets import Offset


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
class Missing:
    """Missing offsets from `first` up to `end`, exclusive, with one reason for all of them."""

    first: Offset
    end: Offset
    reason: GapReason

    def detail(self, where: str) -> str:
        """Describe the missing offsets in words, for messages."""
        return f"{where}: offsets [{self.first}, {self.end}) {_WORDS[self.reason]}"


_WORDS = {
    GapReason.RECORDED_GAP: "are missing: the broker had deleted them before they were stored",
    GapReason.NOT_STORED: "are missing: no stored segment holds them, and no gap is recorded",
    GapReason.BELOW_START: "lie below the start of the archive",
}


def first_missing(
    first: Offset, end: Offset, gaps: Iterable[tuple[Offset, Offset]], start: Offset
) -> Missing:
    """Return the first part of the missing offsets from `first` up to `end` that has one reason.

    Args:
        first: The first missing offset.
        end: The next stored offset, or the end of the readable range.
        gaps: Start and end of each recorded gap, in any order.
        start: The archive's start offset.
    """
    if first < start:
        return Missing(first, min(end, start), GapReason.BELOW_START)
    reached = first
    following = end
    for gap_start, gap_end in sorted(gaps):
        if gap_start <= reached < gap_end:
            reached = gap_end
        elif gap_start > reached:
            following = min(following, gap_start)
    if reached > first:
        return Missing(first, min(end, reached), GapReason.RECORDED_GAP)
    return Missing(first, following, GapReason.NOT_STORED)
