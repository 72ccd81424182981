"""One partition of a plan: which segments hold what is asked for, and what is missing."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sidetier.archive.holes import HoleReason
from sidetier.archive.holes import Missing as Unstored
from sidetier.archive.locate import Locator, ReadRange
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.stored_log import StoredLog
from sidetier.archive.times import SegmentTimes
from sidetier.archive.view import ArchiveView
from sidetier.pipeline.planning.holes import holes, logs_for, recorded_holes
from sidetier.pipeline.planning.request import Filters
from sidetier.pipeline.planning.spans import Span, cut, pack, without
from sidetier.pipeline.planning.split import (
    UNDECIDED,
    Missing,
    OffsetRange,
    Origin,
    Piece,
    Split,
)
from sidetier.segments.offsets import Offset, TopicPartition

_AT_ONCE: Final = 8


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


@dataclass(frozen=True, slots=True)
class PartitionPlanner:
    """Plans one partition, as one look at its archive has shown it.

    `stable` is where what may be shown ends: the last stable offset, or the readable end. With
    `find_holes` each segment is asked where it ends.
    """

    archive: PartitionArchive
    view: ArchiveView
    stable: Offset
    locator: Locator
    read: ReadRange
    times: SegmentTimes
    find_holes: bool = False

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.archive.tp

    def plan(self, asked: OffsetRange, filters: Filters) -> PartitionPlan:
        """Where the offsets lie that are asked for.

        Raises:
            StorageError: as the port says.
        """
        wanted = _narrowed(asked, filters)
        missing = tuple(self._missing(wanted))
        stored = without(wanted, [one.range for one in missing])
        spans = tuple(span for part in stored for span in self._spans(part))
        kept, pruned = self._late_enough(spans, filters.since_ms)
        return PartitionPlan(asked, kept, missing, pruned)

    def splits(self, spans: tuple[Span, ...], most: int) -> Iterator[Split]:
        """The spans as splits of at most so many bytes, where that can be."""
        whole = (part for span in spans for part in self._cut(span, most))
        for together in pack(whole, most):
            span = OffsetRange(together[0].range.first, together[-1].range.until)
            pieces = tuple(one.piece for one in together)
            yield Split(self.tp, span, pieces, self._origin(together[-1].log))

    def _spans(self, part: OffsetRange) -> Iterator[Span]:
        offset = part.first
        log = self.view.holder(offset)
        while log is not None and offset < part.until:
            until = min(self.view.until(offset), part.until)
            yield self._span(log, OffsetRange(offset, until))
            offset = until
            log = self.view.holder(offset)

    def _span(self, log: StoredLog, wanted: OffsetRange) -> Span:
        start = self.locator.spot(self.read, log, wanted.first).position
        if wanted.until >= self.view.until(wanted.first):
            return Span(log, wanted, start, log.size)
        extent = self.locator.extent(self.read, log, wanted.first, Offset(wanted.until - 1))
        return Span(log, wanted, start, log.size if extent is None else extent[1])

    def _cut(self, span: Span, most: int) -> list[Span]:
        entries = self.locator.offsets(self.read, span.log) if span.size > most else None
        return [span] if entries is None else cut(span, entries, most)

    def _late_enough(
        self, spans: tuple[Span, ...], since: int | None
    ) -> tuple[tuple[Span, ...], int]:
        """Those that may hold a record of this time or later, and the bytes of the others."""
        if since is None:
            return spans, 0
        largest = self.times.largest([span.log for span in spans])
        kept = tuple(span for span, latest in zip(spans, largest, strict=True) if latest >= since)
        return kept, sum(span.size for span in spans) - sum(span.size for span in kept)

    def _origin(self, last: StoredLog) -> Origin:
        following = self.view.after(last.base_offset)
        behind: tuple[Piece, ...] = ()
        until = self.view.until(last.base_offset)
        if following is not None:
            until = self.view.until(following.base_offset)
            behind = (Span(following, OffsetRange(until, until), 0, following.size).piece,)
        return Origin(self.view.watermark.topic_id, self.view.is_peers, until, behind)

    def _missing(self, wanted: OffsetRange) -> Iterator[Missing]:
        """What is known not to be there, in order."""
        if wanted.first >= wanted.until:
            return
        below = min(wanted.until, self.view.start)
        if wanted.first < below:
            yield self._told(Unstored(wanted.first, below, HoleReason.BELOW_START))
        yield from map(self._told, self._holes(wanted))
        yield from self._beyond(wanted)

    def _holes(self, wanted: OffsetRange) -> Iterator[Unstored]:
        gaps = [] if self.view.is_peers else self.archive.gaps()
        if not self.find_holes:
            return recorded_holes(self.view, wanted, self._end_of, gaps)
        logs = logs_for(self.view, wanted)
        with ThreadPoolExecutor(_AT_ONCE, "plan-holes") as helpers:
            ends = dict(zip(logs, helpers.map(self._end_of, logs), strict=True))
        return holes(self.view, wanted, ends.__getitem__, gaps)

    def _end_of(self, log: StoredLog) -> Offset:
        noted = self.archive.noted_end(log)
        return self.archive.end_of(log) if noted is None else noted

    def _beyond(self, wanted: OffsetRange) -> Iterator[Missing]:
        undecided = OffsetRange(max(wanted.first, self.stable), min(wanted.until, self.view.end))
        if undecided.first < undecided.until:
            yield Missing(self.tp, undecided, f"{self.view.where}: {UNDECIDED}")
        above = OffsetRange(max(wanted.first, self.view.end), wanted.until)
        if above.first < above.until:
            detail = f"they lie above what is stored, which ends at {self.view.end}"
            yield Missing(self.tp, above, f"{self.view.where}: {detail}")

    def _told(self, unstored: Unstored) -> Missing:
        span = OffsetRange(unstored.first, unstored.end)
        return Missing(self.tp, span, unstored.detail(self.view.where))


def _narrowed(asked: OffsetRange, filters: Filters) -> OffsetRange:
    first = asked.first if filters.first is None else max(asked.first, filters.first)
    until = asked.until if filters.until is None else min(asked.until, filters.until)
    return OffsetRange(first, max(first, until))
