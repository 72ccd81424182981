"""Decide which segments of Pinterest's archive are taken over, and where the archive then ends.

The `offset.wm` of Pinterest's uploader proves little: it may name a segment that is not stored,
have a gap below it, or be far behind the stored segments. The decision depends on which segments
are whole, where each of them ends, and whether this broker's log can still fill the gaps between
them. The functions are pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A whole segment of Pinterest's, from its base offset (inclusive) to `end` (exclusive).

    `same` says whether this broker's log holds its last batch. It is None where that part of the
    log was deleted.
    """

    base: BaseOffset
    end: Offset
    same: bool | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of `decide`.

    Attributes:
        taken: The segments that are taken over, by rising base offset.
        gaps: The gaps between them, to be recorded.
        next_offset: The archive end offset after the takeover; None where no segment is taken.
        foreign: The segments that are not of this broker's log.
    """

    taken: tuple[Span, ...]
    gaps: tuple[OffsetRange, ...]
    next_offset: Offset | None
    foreign: tuple[Span, ...]


def decide(spans: Iterable[Span], named: BaseOffset | None, log_start: Offset | None) -> Decision:
    """Take segments up to the first gap that this broker's log can fill.

    Gaps below the log start are recorded and passed, because no broker can fill them. Segments
    above the one that `offset.wm` names are taken only if the log does not hold their base offset
    any more. The others are uploaded again, because Pinterest's uploader does not check the high
    watermark. Overlapping segments are taken.

    Args:
        spans: The whole segments that are stored.
        named: Base offset of the segment that `offset.wm` names; None where there is no
            `offset.wm`, and then every segment counts as above it.
        log_start: First offset of this broker's log; None where it has none.
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
    """Return whether the broker has deleted the record at the offset from this log."""
    return log_start is not None and offset < log_start


def is_of_another_log(spans: Iterable[Span]) -> bool:
    """Return whether segments could be compared with this broker's log, and it holds none."""
    verdicts = {span.same for span in spans}
    return False in verdicts and True not in verdicts
