"""Segments as ranges of offsets and bytes, cut and combined to splits. Pure functions."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sidetier.archive.indexes import Entries
from sidetier.archive.objects.segment import StoredLog
from sidetier.pipeline.planning.split import IndexVersion, Piece
from sidetier.segments.offsets import Offset, OffsetRange


@dataclass(frozen=True, slots=True)
class Span:
    """The part of one segment that is read.

    Attributes:
        range: the offsets to read.
        start, end: byte range of the `.log` that contains them; `end` is exclusive.
    """

    log: StoredLog
    range: OffsetRange
    start: int
    end: int

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.end - self.start

    @property
    def piece(self) -> Piece:
        """The span as a piece of a split."""
        log_object, index_object = self.log.row, self.log.index
        version = (
            None if index_object is None else IndexVersion(index_object.size, index_object.etag)
        )
        base = self.log.base_offset
        return Piece(
            log_object.key, base, self.start, self.end, log_object.size, log_object.etag, version
        )


def cut(span: Span, entries: Entries, most: int) -> list[Span]:
    """Cut the span into about equal parts of at most `most` bytes, as far as index entries allow.

    An index entry has the last offset of the batch at its position, so a part begins one offset
    behind an entry. The bytes of this entry's interval belong to both neighbouring parts.
    """
    parts: list[Span] = []
    first, start = span.range.start, span.start
    for entry in _cuts(span, entries, most):
        bound = Offset(span.log.base_offset + int(entries["relative"][entry]) + 1)
        if first < bound < span.range.end:
            end = int(entries["position"][entry + 1])
            parts.append(Span(span.log, OffsetRange(first, bound), start, end))
            first, start = bound, int(entries["position"][entry])
    return [*parts, Span(span.log, OffsetRange(first, span.range.end), start, span.end)]


def _cuts(span: Span, entries: Entries, most: int) -> list[int]:
    """Return the entries after which parts end: the next entry is at or below a target position."""
    parts = -(-span.size // most)
    targets = [span.start + span.size * part // parts for part in range(1, parts)]
    positions = entries["position"]
    entries_below = (bisect_right(positions, target) - 2 for target in targets)
    return [entry for entry in entries_below if entry >= 0]


def first_part(span: Span, entries: Entries, most: int) -> Offset:
    """Return the end (exclusive) of the span's first part that has at most `most` bytes.

    The part has at least one interval between two index entries, even if that is larger. Without an
    entry inside the span, the part is the whole span.
    """
    relative = span.range.start - span.log.base_offset
    least = bisect_right(entries["relative"], relative - 1)
    entry = max(bisect_right(entries["position"], span.start + most) - 2, least)
    if entry >= len(entries):
        return span.range.end
    return min(Offset(span.log.base_offset + int(entries["relative"][entry]) + 1), span.range.end)


def pack(spans: Iterable[Span], most: int) -> Iterator[tuple[Span, ...]]:
    """Combine adjacent spans up to `most` bytes. Spans that are not adjacent stay apart."""
    group: list[Span] = []
    size = 0
    for span in spans:
        is_adjacent = not group or group[-1].range.end == span.range.start
        if group and (not is_adjacent or size + span.size > most):
            yield tuple(group)
            group, size = [], 0
        group.append(span)
        size += span.size
    if group:
        yield tuple(group)


def without(wanted: OffsetRange, gaps: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the parts of a range that are not in the gaps.

    Args:
        wanted: the range.
        gaps: in offset order, not overlapping.
    """
    start = wanted.start
    for gap in gaps:
        if gap.start > start:
            yield OffsetRange(start, min(gap.start, wanted.end))
        start = max(start, gap.end)
    if start < wanted.end:
        yield OffsetRange(start, wanted.end)
