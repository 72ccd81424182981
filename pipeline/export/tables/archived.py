"""What an export reads: archived records, as planning and the data source give them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from sidetier.pipeline.errors import NoSuchTopicError
from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.histories import Positions, archived_positions, find_truncated
from sidetier.pipeline.export.tables.chunks import Ranges
from sidetier.pipeline.export.tables.progress import Offsets, Tail
from sidetier.pipeline.planning.limits import Edge
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.planning.selection import Topics, is_selected
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

Frames = Callable[[Plan], DataFrame]
"""The records of a plan, as rows."""


@dataclass(frozen=True, slots=True)
class ArchivedRecords:
    """A `Source`. Where `request` begins counts for a table that has no offsets yet; a partition
    that is new to a table with offsets begins at its earliest.
    """

    cluster: str
    planner: Planner
    request: ReadRequest
    frames: Frames
    said: Callable[[str], None] = field(default=lambda _text: None)

    def stored(
        self,
        held: Offsets,
        tail: Offsets | None = None,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        """See `Source`. Nothing need be archived of a topic that was read from the brokers alone.

        Raises:
            NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as `Planner.resolve`.
        """
        del behind  # `continued` compares with the archive's end
        request = replace(self.request, starting=Edge.EARLIEST) if held else self.request
        try:
            resolved = self.planner.resolve(request)
        except NoSuchTopicError:
            request = self._of_archived(request, held, tail or {})
            resolved = self.planner.resolve(request) if request.selection != Topics(()) else {}
        ends = self.planner.ends(resolved, request.isolation)
        for tp in resolved.keys() - held.keys():
            require_below(resolved[tp], ends[tp], tp, "what is archived, and decided, ends")
        return {tp: within_stored(asked, ends[tp], held.get(tp)) for tp, asked in resolved.items()}

    def _of_archived(self, request: ReadRequest, held: Offsets, tail: Offsets) -> ReadRequest:
        """Without topics of which the table has what the brokers gave, and nothing is archived."""
        if not isinstance(request.selection, Topics):
            return request
        others = {tp.topic for tp, offset in held.items() if tail.get(tp) != offset}
        from_brokers = {tp.topic for tp in tail} - others
        names = request.selection.names
        kept = tuple(one for one in names if one not in from_brokers or self._is_archived(one))
        for topic in sorted(set(names) - set(kept)):
            self.said(f"{topic}: nothing of it is archived yet")
        return replace(request, selection=Topics(kept))

    def _is_archived(self, topic: str) -> bool:
        try:
            return bool(self.planner.partitions(Topics((topic,))))
        except NoSuchTopicError:
            return False

    def undecided(self, reached: Offsets) -> dict[TopicPartition, UndecidedTail]:
        """See `Source`; raises as `Planner.ends`."""
        if self.request.isolation is IsolationLevel.READ_UNCOMMITTED:
            return {}
        topics = sorted({tp.topic for tp in reached})
        tails = [one for topic in topics for one in self.planner.undecided(topic).items()]
        return {tp: tail for tp, tail in tails if reached.get(tp, -1) >= tail.first}

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        """See `Source`; raises as `frame`."""
        ends = self.planner.ends_within(ranges, most_bytes)
        return {tp: OffsetRange(span.start, ends[tp]) for tp, span in ranges.items()}

    def frame(self, ranges: Ranges) -> DataFrame:
        """See `Source`.

        Raises:
            MissingRecordsError, ArchiveError, StorageError: as `Planner.plan`.
        """
        return self.frames(self.plan(ranges))

    def plan(self, ranges: Ranges) -> Plan:
        """What `frame` reads; raises as it does."""
        return self.planner.plan_ranges(ranges, self.request)

    def tail(self, ranges: Ranges) -> Tail:
        """See `Source`: nothing but what is known of the archive."""
        found = archived_positions(self.planner, ends_of(ranges))
        return Tail(topic_ids=self.topic_ids(ranges), epoch_histories=epoch_histories_of(found))

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        """See `Source`: of which topics the archive was stored."""
        ids = {topic: self.planner.topic_id(topic) for topic in sorted({tp.topic for tp in tps})}
        return {topic: one for topic, one in ids.items() if one is not None}

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        """See `Source`; raises as `find_truncated`."""
        ours = {tp: at for tp, at in positions.items() if is_selected(self.request.selection, tp)}
        return find_truncated(self.planner, ours)


def ends_of(ranges: Ranges) -> dict[TopicPartition, Offset]:
    """Where those end that are not empty."""
    return {tp: span.end for tp, span in ranges.items() if span.start < span.end}


def epoch_histories_of(positions: Positions) -> dict[TopicPartition, EpochHistory]:
    """What is known of epoch histories."""
    return {tp: one.epoch_history for tp, one in positions.items() if one.epoch_history.entries}


def require_below(asked: OffsetRange, end: Offset, tp: TopicPartition, ends: str) -> None:
    """Raises ConfigurationError where a table that has no offsets would begin above the end: the
    next run could not tell that from another log.
    """
    if asked.start > end:
        raise ConfigurationError(
            f"--starting-offsets: {in_words(tp)}: offset {asked.start} is above {end}, where {ends}"
        )


def within_stored(asked: OffsetRange, end: Offset, held: Offset | None) -> OffsetRange:
    """A range that ends where what is stored ends, if not before.

    One that ends below what a table holds already is behind us: nothing of it is left. But where
    the archive itself ends there, it ends there.
    """
    until = min(asked.end, end)
    if held is not None and until < held <= end:
        until = held
    return OffsetRange(asked.start, until if held is not None else max(asked.start, until))
