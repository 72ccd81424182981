"""What is missing between the segments of an archive, told from where each of them ends."""

from collections.abc import Callable, Iterator
from itertools import takewhile

from sidetier.archive.holes import Missing as Unstored
from sidetier.archive.holes import first_missing
from sidetier.archive.stored_log import StoredLog
from sidetier.archive.view import ArchiveView
from sidetier.pipeline.planning.split import OffsetRange
from sidetier.segments.offsets import Offset
from sidetier.storage.stored_gaps import Gaps

_MOST_BELOW = 8
"""Segments with lower bases that may reach into a range, as many as a reader asks."""


def logs_for(view: ArchiveView, wanted: OffsetRange) -> list[StoredLog]:
    """The segments that may hold an offset of the range, by rising base."""
    below = list(view.below(wanted.first))[:_MOST_BELOW]
    within = takewhile(
        lambda log: log.base_offset < wanted.until,
        (log for log in view.logs if log.base_offset >= wanted.first),
    )
    return [*reversed(below), *within]


def holes(
    view: ArchiveView, wanted: OffsetRange, end_of: Callable[[StoredLog], Offset], gaps: Gaps
) -> Iterator[Unstored]:
    """The offsets of the range within the archive that no segment holds, by reason: pure but for
    `end_of`, one past the last offset of a segment.
    """
    reached = max(wanted.first, view.start)
    end = min(wanted.until, view.end)
    for log in logs_for(view, wanted):
        yield from _by_reason(reached, min(Offset(log.base_offset), end), gaps, view.start)
        reached = max(reached, end_of(log))
    yield from _by_reason(reached, end, gaps, view.start)


def recorded_holes(
    view: ArchiveView, wanted: OffsetRange, end_of: Callable[[StoredLog], Offset], gaps: Gaps
) -> Iterator[Unstored]:
    """Those of them that a sidecar has recorded: only the segments before a gap are asked for their
    ends.
    """
    floor = max(wanted.first, view.start)
    for first, until in sorted(gaps):
        span = OffsetRange(max(first, floor), max(first, min(until, wanted.until)))
        if span.first < span.until:
            yield from holes(view, span, end_of, [(first, until)])
            floor = span.until


def _by_reason(first: Offset, end: Offset, gaps: Gaps, start: Offset) -> Iterator[Unstored]:
    while first < end:
        missing = first_missing(first, end, gaps, start)
        yield missing
        first = missing.end
