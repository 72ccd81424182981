"""What of Pinterest's archive is taken over, and where ours goes on: pure decisions.

Pinterest's watermark proves little: it may name a segment that is not stored, lie behind a gap, or
far behind what is stored. What counts is which segments are whole, where each of them ends, and
whether this broker's log can still fill what is missing between them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A whole segment of Pinterest's, from its base offset up to, not including, `end`.

    `same` says whether this broker's log holds its last batch: None where that cannot be told,
    because that part of the log is gone.
    """

    base: BaseOffset
    end: Offset
    same: bool | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The segments that ours goes on from, without a gap, except `gaps`; `next_offset` is where.

    `foreign` are not of this broker's log. Nothing may be taken at all: then `next_offset` is None.
    """

    taken: tuple[Span, ...]
    gaps: tuple[OffsetRange, ...]
    next_offset: Offset | None
    foreign: tuple[Span, ...]


def decide(spans: Iterable[Span], named: BaseOffset | None, log_start: Offset | None) -> Decision:
    """Up to the first gap that this broker's log, which begins at `log_start`, can fill.

    Gaps below the log's start are recorded and passed: nobody can fill them any more. Above the
    segment that the watermark names, what the log still holds is left to be uploaded again, since
    Pinterest's uploader asks for no high watermark; what it holds no more is taken as it is.
    Overlaps are. Without a watermark nothing is `named`, and so that holds for everything.
    """
    ordered = sorted(spans)
    taken: list[Span] = []
    gaps: list[OffsetRange] = []
    position: Offset | None = None
    for span in ordered:
        if span.same is False:
            continue
        above = named is None or span.base > named
        if above and not _is_gone(span.base, log_start):
            break
        if position is not None and span.base > position:
            if log_start is None or span.base > log_start:
                break
            gaps.append(OffsetRange(position, Offset(span.base)))
        taken.append(span)
        position = span.end if position is None else max(position, span.end)
    foreign = tuple(span for span in ordered if span.same is False)
    return Decision(tuple(taken), tuple(gaps), position, foreign)


def _is_gone(offset: int, log_start: Offset | None) -> bool:
    """This broker's log holds nothing at the offset any more."""
    return log_start is not None and offset < log_start


def is_of_another_log(spans: Iterable[Span]) -> bool:
    """Of all segments that could be compared with this broker's log, it holds none."""
    verdicts = {span.same for span in spans}
    return False in verdicts and True not in verdicts
