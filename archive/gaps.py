"""Why offsets are not there: pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sidetier.segments.offsets import Offset


class GapReason(StrEnum):
    """Why offsets are not there."""

    RECORDED_GAP = "recorded_gap"
    """The broker had deleted them before they were stored; a sidecar has recorded it."""
    NOT_STORED = "not_stored"
    """No segment holds them, and nothing on the store says why."""
    BELOW_START = "below_start"
    """They lie below the archive's start: never stored, or deleted from the store since. What
    Kafka calls offset out of range."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The offsets from `first` up to, not including, `end`, and one reason for all of them."""

    first: Offset
    end: Offset
    reason: GapReason

    def detail(self, where: str) -> str:
        """In words."""
        return f"{where}: offsets [{self.first}, {self.end}) {_WORDS[self.reason]}"


_WORDS = {
    GapReason.RECORDED_GAP: "are missing: the broker had deleted them before they were stored",
    GapReason.NOT_STORED: "are missing: no stored segment holds them, and no gap is recorded",
    GapReason.BELOW_START: "lie below the start of the archive",
}


def first_missing(
    first: Offset, end: Offset, gaps: Iterable[tuple[Offset, Offset]], start: Offset
) -> Missing:
    """The beginning of what is missing from `first` up to `end`, as far as it has one reason.

    Args:
        first: the offset that nothing holds.
        end: the next offset that is stored, or the readable end.
        gaps: start and end of each recorded gap, in any order.
        start: the archive's start offset.
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
