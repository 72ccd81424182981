"""Segments as ranges of offsets and bytes, cut and put together to splits: pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sidetier.archive.indexes import Entries
from sidetier.archive.objects.segment import StoredLog
from sidetier.pipeline.planning.split import IndexVersion, Piece
from sidetier.segments.offsets import Offset, OffsetRange


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets that one segment is read for, and the bytes between which they lie."""

    log: StoredLog
    range: OffsetRange
    start: int
    end: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.start

    @property
    def piece(self) -> Piece:
        """The same as a part of a split."""
        row, beside = self.log.row, self.log.index
        index = None if beside is None else IndexVersion(beside.size, beside.etag)
        base = self.log.base_offset
        return Piece(row.key, base, self.start, self.end, row.size, row.etag, index)


def cut(span: Span, entries: Entries, most: int) -> list[Span]:
    """The span in about equal parts of at most `most` bytes, as far as index entries allow.

    An entry has the last offset of what was appended at its position, so a part begins one behind
    it; a part has the bytes of one entry's interval in common with the one before.
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
    """The entries behind which parts end: the next one's position is at or below a target."""
    parts = -(-span.size // most)
    targets = [span.start + span.size * part // parts for part in range(1, parts)]
    positions = entries["position"]
    found = (bisect_right(positions, target) - 2 for target in targets)
    return [entry for entry in found if entry >= 0]


def first_part(span: Span, entries: Entries, most: int) -> Offset:
    """Where the first part of the span ends that has at most `most` bytes, and is no smaller than
    what lies between two index entries; the span's end where no entry lies within it.
    """
    relative = span.range.start - span.log.base_offset
    least = bisect_right(entries["relative"], relative - 1)
    entry = max(bisect_right(entries["position"], span.start + most) - 2, least)
    if entry >= len(entries):
        return span.range.end
    return min(Offset(span.log.base_offset + int(entries["relative"][entry]) + 1), span.range.end)


def pack(spans: Iterable[Span], most: int) -> Iterator[tuple[Span, ...]]:
    """Neighbours together, up to so many bytes; what does not touch stays apart."""
    together: list[Span] = []
    size = 0
    for span in spans:
        touches = not together or together[-1].range.end == span.range.start
        if together and (not touches or size + span.size > most):
            yield tuple(together)
            together, size = [], 0
        together.append(span)
        size += span.size
    if together:
        yield tuple(together)


def without(wanted: OffsetRange, gaps: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
    """What is left of a range; the gaps rise, and do not overlap."""
    first = wanted.start
    for gap in gaps:
        if gap.start > first:
            yield OffsetRange(first, min(gap.start, wanted.end))
        first = max(first, gap.end)
    if first < wanted.end:
        yield OffsetRange(first, wanted.end)
