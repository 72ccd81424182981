"""Plan of one partition: the segments that have the requested offsets, and the missing offsets."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile

from sidetier.archive.locate import Locator
from sidetier.archive.missing_offsets import GapReason, MissingOffsets, first_missing
from sidetier.archive.objects.gaps import Gaps
from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.reader.time_search import SegmentTimes
from sidetier.archive.view import ArchiveView
from sidetier.pipeline.planning.request import Filters
from sidetier.pipeline.planning.segment_parts import SegmentPart, cut, first_part, pack, without
from sidetier.pipeline.planning.split import UNDECIDED, Missing, Origin, Piece, Split
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.ranges import ReadRange

_MAX_SEGMENTS_BELOW = 8
"""Maximum segments with a lower base offset that are checked for the range, as in the archive
reader: after an election, a segment may reach beyond the base offset of later ones.
"""


def logs_for(view: ArchiveView, wanted: OffsetRange) -> list[StoredLog]:
    """Return the segments that may have an offset of the range, by increasing base offset."""
    below = list(view.below(wanted.start))[:_MAX_SEGMENTS_BELOW]
    within = takewhile(
        lambda log: log.base_offset < wanted.end,
        (log for log in view.logs if log.base_offset >= wanted.start),
    )
    # `below` has the highest base offset first.
    return [*reversed(below), *within]


def missing_offsets(
    view: ArchiveView, wanted: OffsetRange, end_of: Callable[[StoredLog], Offset], gaps: Gaps
) -> Iterator[MissingOffsets]:
    """Yield the offsets of the range, within the archive, that no segment has, by reason.

    Args:
        view: snapshot of the archive.
        wanted: the range.
        end_of: returns the end (exclusive) of a segment; the only part of this that may make
            requests.
        gaps: the recorded gaps.
    """
    position = max(wanted.start, view.start)
    end = min(wanted.end, view.end)
    for log in logs_for(view, wanted):
        yield from _by_reason(position, min(Offset(log.base_offset), end), gaps, view.start)
        position = max(position, end_of(log))
    yield from _by_reason(position, end, gaps, view.start)


def recorded_missing(
    view: ArchiveView, wanted: OffsetRange, end_of: Callable[[StoredLog], Offset], gaps: Gaps
) -> Iterator[MissingOffsets]:
    """Yield only those missing offsets that a sidecar has recorded as a gap.

    Requests only the ends of the segments before a gap. Arguments as for `missing_offsets`.
    """
    floor = max(wanted.start, view.start)
    for gap in sorted(gaps):
        within = OffsetRange(max(gap.start, floor), max(gap.start, min(gap.end, wanted.end)))
        if within.start < within.end:
            # A segment may have offsets of a recorded gap: these are not missing.
            yield from missing_offsets(view, within, end_of, [gap])
            floor = within.end


def _by_reason(first: Offset, end: Offset, gaps: Gaps, start: Offset) -> Iterator[MissingOffsets]:
    while first < end:
        missing = first_missing(OffsetRange(first, end), gaps, start)
        yield missing
        first = missing.offsets.end


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Plan of one partition; see `Plan`. The parts of segments are not cut yet."""

    range: OffsetRange
    parts: tuple[SegmentPart, ...] = ()
    missing: tuple[Missing, ...] = ()
    pruned: int = 0

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(part.size for part in self.parts)

    def since(self, timestamp_ms: int, largest: Sequence[int]) -> "PartitionPlan":
        """Return the plan without segments that have no record at or after this time.

        Args:
            timestamp_ms: earliest wanted timestamp.
            largest: largest timestamp of the segment of each part, in the order of `parts`.
        """
        late = zip(self.parts, largest, strict=True)
        kept = tuple(part for part, latest in late if latest >= timestamp_ms)
        return replace(self, parts=kept, pruned=self.size - sum(part.size for part in kept))


@dataclass(frozen=True, slots=True)
class PartitionPlanner:
    """Plans one partition with one snapshot of its archive.

    Attributes:
        last_stable_offset: end (exclusive) of the offsets that may be returned; with
            read_uncommitted, the archive's end.
        noted_end: returns a segment's end from a chapter or from object metadata; None if neither
            has it.
    """

    archive: PartitionArchive
    view: ArchiveView
    last_stable_offset: Offset
    locator: Locator
    read: ReadRange
    times: SegmentTimes
    noted_end: Callable[[StoredLog], Offset | None]

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.archive.tp

    def logs_for(self, requested: OffsetRange, filters: Filters) -> list[StoredLog]:
        """Return the segments that may have requested offsets."""
        wanted = _narrowed(requested, filters)
        return logs_for(self.view, wanted) if wanted.start < wanted.end else []

    def end_of(self, log: StoredLog) -> Offset:
        """Return the end (exclusive) of a segment. Costs a request or two; raises StorageError."""
        noted = self.noted_end(log)
        return self.archive.end_of(log) if noted is None else noted

    def plan(
        self,
        requested: OffsetRange,
        filters: Filters,
        gaps: Gaps,
        ends: Mapping[StoredLog, Offset] | None = None,
    ) -> PartitionPlan:
        """Find the byte ranges of the requested offsets. Timestamps are not checked.

        Args:
            requested: the requested offsets.
            filters: offsets that are not needed.
            gaps: the recorded gaps.
            ends: ends of the segments of `logs_for`. With them, gaps that nothing records are
                found, too.
        """
        wanted = _narrowed(requested, filters)
        missing = tuple(self._missing(wanted, gaps, ends))
        stored = without(wanted, [gap.range for gap in missing])
        parts = tuple(part for wanted_range in stored for part in self._parts(wanted_range))
        return PartitionPlan(requested, parts, missing)

    def size(self, requested: OffsetRange) -> int:
        """Return the stored bytes of a range; raises as `plan`."""
        return sum(part.size for part in self._parts(self._stored(requested)))

    def end_within(self, requested: OffsetRange, most: int) -> Offset:
        """Return the end (exclusive) of the part of a range that has at most `most` bytes.

        The part consists of whole segments, and of the next segment up to an index entry. It has at
        least one interval of index entries. A segment without an index is not cut. Raises as
        `plan`.
        """
        stored = self._stored(requested)
        for part in self._parts(stored):
            if part.size > most:
                return self._end_in(part, most, is_first=part.range.start == stored.start)
            most -= part.size
        return requested.end

    def _stored(self, requested: OffsetRange) -> OffsetRange:
        return OffsetRange(max(requested.start, self.view.start), min(requested.end, self.view.end))

    def _end_in(self, part: SegmentPart, most: int, *, is_first: bool) -> Offset:
        entries = self.locator.offsets(self.read, part.log)
        if entries is None:
            return part.range.end if is_first else part.range.start
        return first_part(part, entries, most)

    def cut(self, part: SegmentPart, most: int) -> list[SegmentPart]:
        """Cut the part into parts of at most `most` bytes, if its segment has an index.

        Costs at most one request.
        """
        entries = self.locator.offsets(self.read, part.log) if part.size > most else None
        return [part] if entries is None else cut(part, entries, most)

    def splits(self, parts: Iterable[SegmentPart], most: int) -> Iterator[Split]:
        """Yield the cut parts as splits of at most `most` bytes; small adjacent parts share a
        split.
        """
        packed = pack(parts, most)
        for last, groups in groupby(packed, lambda group: group[-1].log.base_offset):
            origin = self._origin(last)
            for group in groups:
                offsets = OffsetRange(group[0].range.start, group[-1].range.end)
                yield Split(self.tp, offsets, tuple(part.piece for part in group), origin)

    def _parts(self, wanted: OffsetRange) -> Iterator[SegmentPart]:
        offset = wanted.start
        log = self.view.holder(offset)
        while log is not None and offset < wanted.end:
            until = min(self.view.until(offset), wanted.end)
            yield self._part(log, OffsetRange(offset, until))
            offset = until
            log = self.view.holder(offset)

    def _part(self, log: StoredLog, wanted: OffsetRange) -> SegmentPart:
        start = self.locator.segment_position(self.read, log, wanted.start).position
        if wanted.end >= self.view.until(wanted.start):
            return SegmentPart(log, wanted, start, log.size)
        # The part ends behind the batch that has the last wanted offset. Without an index, that
        # batch is not known, and the part is the rest of the segment.
        extent = self.locator.extent(self.read, log, wanted.start, Offset(wanted.end - 1))
        return SegmentPart(log, wanted, start, log.size if extent is None else extent[1])

    def _origin(self, last: BaseOffset) -> Origin:
        # A transaction that is open at the split's end is usually decided in the next segment. With
        # this segment in the split, the task usually finds the marker without a listing.
        following = self.view.after(last)
        behind: tuple[Piece, ...] = ()
        until = self.view.until(last)
        if following is not None:
            until = self.view.until(following.base_offset)
            behind = (SegmentPart(following, OffsetRange(until, until), 0, following.size).piece,)
        return Origin(self.view.watermark.topic_id, self.view.is_pinterest, until, behind)

    def _missing(
        self, wanted: OffsetRange, gaps: Gaps, ends: Mapping[StoredLog, Offset] | None
    ) -> Iterator[Missing]:
        """Yield the offsets that are known to be missing, in offset order."""
        if wanted.start >= wanted.end:
            return
        below = min(wanted.end, self.view.start)
        if wanted.start < below:
            yield self._missing_of(
                MissingOffsets(OffsetRange(wanted.start, below), GapReason.BELOW_START)
            )
        inside = (
            recorded_missing(self.view, wanted, self.end_of, gaps)
            if ends is None
            else missing_offsets(self.view, wanted, ends.__getitem__, gaps)
        )
        yield from map(self._missing_of, inside)
        yield from self._beyond(wanted)

    def _beyond(self, wanted: OffsetRange) -> Iterator[Missing]:
        undecided = OffsetRange(
            max(wanted.start, self.last_stable_offset), min(wanted.end, self.view.end)
        )
        if undecided.start < undecided.end:
            yield Missing(self.tp, undecided, f"{self.view.where}: {UNDECIDED}")
        above = OffsetRange(max(wanted.start, self.view.end), wanted.end)
        if above.start < above.end:
            detail = f"they are above the end of the archive, {self.view.end}"
            yield Missing(self.tp, above, f"{self.view.where}: {detail}")

    def _missing_of(self, missing: MissingOffsets) -> Missing:
        return Missing(self.tp, missing.offsets, missing.detail(self.view.where))


def _narrowed(requested: OffsetRange, filters: Filters) -> OffsetRange:
    first = requested.start if filters.first is None else max(requested.start, filters.first)
    until = requested.end if filters.until is None else min(requested.end, filters.until)
    return OffsetRange(first, max(first, until))
