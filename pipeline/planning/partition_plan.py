"""One partition of a plan: which segments hold what is asked for, and what is missing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile

from sidetier.archive.gaps import GapReason, first_missing
from sidetier.archive.gaps import Missing as Unstored
from sidetier.archive.locate import Locator, ReadRange
from sidetier.archive.objects.gaps import Gaps
from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.times import SegmentTimes
from sidetier.archive.view import ArchiveView
from sidetier.pipeline.planning.request import Filters
from sidetier.pipeline.planning.spans import Span, cut, first_part, pack, without
from sidetier.pipeline.planning.split import UNDECIDED, Missing, Origin, Piece, Split
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition

_MOST_BELOW = 8
"""Segments with lower bases that may reach into a range, as many as a reader asks."""


def logs_for(view: ArchiveView, wanted: OffsetRange) -> list[StoredLog]:
    """The segments that may hold an offset of the range, by rising base."""
    below = list(view.below(wanted.start))[:_MOST_BELOW]
    within = takewhile(
        lambda log: log.base_offset < wanted.end,
        (log for log in view.logs if log.base_offset >= wanted.start),
    )
    return [*reversed(below), *within]


def missing_offsets(
    view: ArchiveView, wanted: OffsetRange, end_of: Callable[[StoredLog], Offset], gaps: Gaps
) -> Iterator[Unstored]:
    """The offsets of the range within the archive that no segment holds, by reason: pure but for
    `end_of`, one past the last offset of a segment.
    """
    reached = max(wanted.start, view.start)
    end = min(wanted.end, view.end)
    for log in logs_for(view, wanted):
        yield from _by_reason(reached, min(Offset(log.base_offset), end), gaps, view.start)
        reached = max(reached, end_of(log))
    yield from _by_reason(reached, end, gaps, view.start)


def recorded_missing(
    view: ArchiveView, wanted: OffsetRange, end_of: Callable[[StoredLog], Offset], gaps: Gaps
) -> Iterator[Unstored]:
    """Those of them that a sidecar has recorded: only the segments before a gap are asked for their
    ends.
    """
    floor = max(wanted.start, view.start)
    for gap in sorted(gaps):
        span = OffsetRange(max(gap.start, floor), max(gap.start, min(gap.end, wanted.end)))
        if span.start < span.end:
            yield from missing_offsets(view, span, end_of, [gap])
            floor = span.end


def _by_reason(first: Offset, end: Offset, gaps: Gaps, start: Offset) -> Iterator[Unstored]:
    while first < end:
        missing = first_missing(first, end, gaps, start)
        yield missing
        first = missing.end


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What `Plan` says of one partition; `spans` are not cut yet."""

    range: OffsetRange
    spans: tuple[Span, ...] = ()
    missing: tuple[Missing, ...] = ()
    pruned: int = 0

    @property
    def size(self) -> int:
        """Bytes that are read."""
        return sum(span.size for span in self.spans)

    def since(self, timestamp_ms: int, largest: Sequence[int]) -> "PartitionPlan":
        """Without the segments that hold no record of this time or later; `largest` is the largest
        timestamp of each.
        """
        late = zip(self.spans, largest, strict=True)
        kept = tuple(span for span, latest in late if latest >= timestamp_ms)
        return replace(self, spans=kept, pruned=self.size - sum(span.size for span in kept))


@dataclass(frozen=True, slots=True)
class PartitionPlanner:
    """Plans one partition, as one look at its archive has shown it.

    `stable` is where what may be shown ends: the last stable offset, or the readable end.
    `noted_end` is what is noted of a segment's end, in a chapter or with it.
    """

    archive: PartitionArchive
    view: ArchiveView
    stable: Offset
    locator: Locator
    read: ReadRange
    times: SegmentTimes
    noted_end: Callable[[StoredLog], Offset | None]

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.archive.tp

    def logs_for(self, asked: OffsetRange, filters: Filters) -> list[StoredLog]:
        """The segments that may hold what is asked for."""
        wanted = _narrowed(asked, filters)
        return logs_for(self.view, wanted) if wanted.start < wanted.end else []

    def end_of(self, log: StoredLog) -> Offset:
        """One past the last offset of a segment: a request or two; raises StorageError."""
        noted = self.noted_end(log)
        return self.archive.end_of(log) if noted is None else noted

    def plan(
        self,
        asked: OffsetRange,
        filters: Filters,
        gaps: Gaps,
        ends: Mapping[StoredLog, Offset] | None = None,
    ) -> PartitionPlan:
        """Where the offsets lie that are asked for, but for the recorded gaps; no timestamp is
        looked at. With the `ends` of `logs_for`, gaps are found that nothing records.

        Raises:
            StorageError: as the port says.
        """
        wanted = _narrowed(asked, filters)
        missing = tuple(self._missing(wanted, gaps, ends))
        stored = without(wanted, [one.range for one in missing])
        spans = tuple(span for part in stored for span in self._spans(part))
        return PartitionPlan(asked, spans, missing)

    def size(self, asked: OffsetRange) -> int:
        """Bytes of what is stored of a range; raises as `plan`."""
        return sum(span.size for span in self._spans(self._stored(asked)))

    def end_within(self, asked: OffsetRange, most: int) -> Offset:
        """Where the part of a range ends that has at most so many bytes: whole segments, and of the
        next one up to an index entry, one entry's interval at least. Without an index, a segment is
        taken as a whole. Raises as `plan`.
        """
        stored = self._stored(asked)
        for span in self._spans(stored):
            if span.size > most:
                return self._end_in(span, most, is_first=span.range.start == stored.start)
            most -= span.size
        return asked.end

    def _stored(self, asked: OffsetRange) -> OffsetRange:
        return OffsetRange(max(asked.start, self.view.start), min(asked.end, self.view.end))

    def _end_in(self, span: Span, most: int, *, is_first: bool) -> Offset:
        entries = self.locator.offsets(self.read, span.log)
        if entries is None:
            return span.range.end if is_first else span.range.start
        return first_part(span, entries, most)

    def cut(self, span: Span, most: int) -> list[Span]:
        """The span in parts of at most so many bytes, where that can be; one request, or none."""
        entries = self.locator.offsets(self.read, span.log) if span.size > most else None
        return [span] if entries is None else cut(span, entries, most)

    def splits(self, spans: Iterable[Span], most: int) -> Iterator[Split]:
        """The spans, which are cut, as splits of at most so many bytes: small ones together."""
        packed = pack(spans, most)
        for last, some in groupby(packed, lambda together: together[-1].log.base_offset):
            origin = self._origin(last)
            for together in some:
                span = OffsetRange(together[0].range.start, together[-1].range.end)
                yield Split(self.tp, span, tuple(one.piece for one in together), origin)

    def _spans(self, part: OffsetRange) -> Iterator[Span]:
        offset = part.start
        log = self.view.holder(offset)
        while log is not None and offset < part.end:
            until = min(self.view.until(offset), part.end)
            yield self._span(log, OffsetRange(offset, until))
            offset = until
            log = self.view.holder(offset)

    def _span(self, log: StoredLog, wanted: OffsetRange) -> Span:
        start = self.locator.segment_position(self.read, log, wanted.start).position
        if wanted.end >= self.view.until(wanted.start):
            return Span(log, wanted, start, log.size)
        extent = self.locator.extent(self.read, log, wanted.start, Offset(wanted.end - 1))
        return Span(log, wanted, start, log.size if extent is None else extent[1])

    def _origin(self, last: BaseOffset) -> Origin:
        following = self.view.after(last)
        behind: tuple[Piece, ...] = ()
        until = self.view.until(last)
        if following is not None:
            until = self.view.until(following.base_offset)
            behind = (Span(following, OffsetRange(until, until), 0, following.size).piece,)
        return Origin(self.view.watermark.topic_id, self.view.is_pinterest, until, behind)

    def _missing(
        self, wanted: OffsetRange, gaps: Gaps, ends: Mapping[StoredLog, Offset] | None
    ) -> Iterator[Missing]:
        """What is known not to be there, in order."""
        if wanted.start >= wanted.end:
            return
        below = min(wanted.end, self.view.start)
        if wanted.start < below:
            yield self._told(Unstored(wanted.start, below, GapReason.BELOW_START))
        found = (
            recorded_missing(self.view, wanted, self.end_of, gaps)
            if ends is None
            else missing_offsets(self.view, wanted, ends.__getitem__, gaps)
        )
        yield from map(self._told, found)
        yield from self._beyond(wanted)

    def _beyond(self, wanted: OffsetRange) -> Iterator[Missing]:
        undecided = OffsetRange(max(wanted.start, self.stable), min(wanted.end, self.view.end))
        if undecided.start < undecided.end:
            yield Missing(self.tp, undecided, f"{self.view.where}: {UNDECIDED}")
        above = OffsetRange(max(wanted.start, self.view.end), wanted.end)
        if above.start < above.end:
            detail = f"they lie above what is stored, which ends at {self.view.end}"
            yield Missing(self.tp, above, f"{self.view.where}: {detail}")

    def _told(self, unstored: Unstored) -> Missing:
        span = OffsetRange(unstored.first, unstored.end)
        return Missing(self.tp, span, unstored.detail(self.view.where))


def _narrowed(asked: OffsetRange, filters: Filters) -> OffsetRange:
    first = asked.start if filters.first is None else max(asked.start, filters.first)
    until = asked.end if filters.until is None else min(asked.end, filters.until)
    return OffsetRange(first, max(first, until))
