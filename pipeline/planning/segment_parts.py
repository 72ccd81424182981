"""Parts of segments, as ranges of offsets and bytes: cut at index entries, combined to splits.

Pure functions.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sidetier.archive.locate import Entries
from sidetier.archive.objects.segment import PackedLog, StoredLog
from sidetier.pipeline.planning.split import IndexVersion, PackRange, Piece
from sidetier.segments.offsets import Offset, OffsetRange
from sidetier.storage.port import ObjectPart


@dataclass(frozen=True, slots=True)
class SegmentPart:
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
        """The part as a piece of a split."""
        log_object, index_object = self.log.row, self.log.index
        version = (
            None if index_object is None else IndexVersion(index_object.size, index_object.etag)
        )
        base, pack = self.log.base_offset, None
        if isinstance(self.log, PackedLog) and isinstance(log_object, ObjectPart):
            key, position = log_object.object_key, log_object.position
            pack = PackRange(key, position, self.log.end, self.log.reaches)
        size, etag = log_object.size, log_object.etag
        return Piece(log_object.key, base, self.start, self.end, size, etag, version, pack)


def cut(part: SegmentPart, entries: Entries, most: int) -> list[SegmentPart]:
    """Cut the part into about equal parts of at most `most` bytes, as far as index entries allow.

    An index entry has the last offset of the batch at its position, so a part begins one offset
    behind an entry. The bytes of this entry's interval belong to both neighbouring parts.
    """
    parts: list[SegmentPart] = []
    first, start = part.range.start, part.start
    for entry in _cuts(part, entries, most):
        bound = Offset(part.log.base_offset + int(entries["relative"][entry]) + 1)
        if first < bound < part.range.end:
            end = int(entries["position"][entry + 1])
            parts.append(SegmentPart(part.log, OffsetRange(first, bound), start, end))
            first, start = bound, int(entries["position"][entry])
    return [*parts, SegmentPart(part.log, OffsetRange(first, part.range.end), start, part.end)]


def _cuts(part: SegmentPart, entries: Entries, most: int) -> list[int]:
    """Return the entries after which parts end: the next entry is at or below a target position."""
    count = -(-part.size // most)
    targets = [part.start + part.size * number // count for number in range(1, count)]
    positions = entries["position"]
    entries_below = (bisect_right(positions, target) - 2 for target in targets)
    return [entry for entry in entries_below if entry >= 0]


def first_part(part: SegmentPart, entries: Entries, most: int) -> Offset:
    """Return the end (exclusive) of the beginning of the part that has at most `most` bytes.

    The beginning has at least one interval between two index entries, even if that is larger.
    Without an entry inside the part, it is the whole part.
    """
    relative = part.range.start - part.log.base_offset
    least = bisect_right(entries["relative"], relative - 1)
    entry = max(bisect_right(entries["position"], part.start + most) - 2, least)
    if entry >= len(entries):
        return part.range.end
    return min(Offset(part.log.base_offset + int(entries["relative"][entry]) + 1), part.range.end)


def pack(parts: Iterable[SegmentPart], most: int) -> Iterator[tuple[SegmentPart, ...]]:
    """Combine adjacent parts up to `most` bytes. Parts that are not adjacent stay apart."""
    group: list[SegmentPart] = []
    size = 0
    for part in parts:
        is_adjacent = not group or group[-1].range.end == part.range.start
        if group and (not is_adjacent or size + part.size > most):
            yield tuple(group)
            group, size = [], 0
        group.append(part)
        size += part.size
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
