"""Source of archived records for exports to tables."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from sidetier.pipeline.errors import NoSuchTopicError
from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.histories import Positions, archived_positions, find_truncated
from sidetier.pipeline.export.tables.chunks import Ranges
from sidetier.pipeline.export.tables.progress import Offsets, Tail
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import Edge, ReadRequest, Topics, is_selected
from sidetier.pipeline.planning.split import Plan, in_words
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

Frames = Callable[[Plan], DataFrame]
"""Returns the records of a plan as rows."""


@dataclass(frozen=True, slots=True)
class ArchivedRecords:
    """A `Source` of archived records.

    The starting offsets of `request` apply to a table without offsets. In a table with offsets, a
    new partition starts at its earliest offset.
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
        """See `Source.stored`. A topic that was read only from brokers need not be in the archive.

        Raises:
            NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: see `Planner.resolve`.
        """
        del behind  # `continued` makes this comparison
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
        """Drop topics whose records all came from the brokers and of which the archive has none."""
        if not isinstance(request.selection, Topics):
            return request
        others = {tp.topic for tp, offset in held.items() if tail.get(tp) != offset}
        from_brokers = {tp.topic for tp in tail} - others
        names = request.selection.names
        kept = tuple(name for name in names if name not in from_brokers or self._is_archived(name))
        for topic in sorted(set(names) - set(kept)):
            self.said(f"{topic}: nothing of it is archived yet")
        return replace(request, selection=Topics(kept))

    def _is_archived(self, topic: str) -> bool:
        try:
            return bool(self.planner.partitions(Topics((topic,))))
        except NoSuchTopicError:
            return False

    def undecided(self, reached: Offsets) -> dict[TopicPartition, UndecidedTail]:
        """See `Source.undecided`. Raises the errors of `Planner.ends`."""
        if self.request.isolation is IsolationLevel.READ_UNCOMMITTED:
            return {}
        topics = sorted({tp.topic for tp in reached})
        tails = [item for topic in topics for item in self.planner.undecided(topic).items()]
        return {tp: tail for tp, tail in tails if reached.get(tp, -1) >= tail.first}

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        """See `Source.within`. Raises the errors of `frame`."""
        ends = self.planner.ends_within(ranges, most_bytes)
        return {tp: OffsetRange(span.start, ends[tp]) for tp, span in ranges.items()}

    def frame(self, ranges: Ranges) -> DataFrame:
        """See `Source.frame`.

        Raises:
            MissingRecordsError, ArchiveError, StorageError: see `Planner.plan`.
        """
        return self.frames(self.plan(ranges))

    def plan(self, ranges: Ranges) -> Plan:
        """Return the plan of `frame`. Raises the same errors."""
        return self.planner.plan_ranges(ranges, self.request)

    def tail(self, ranges: Ranges) -> Tail:
        """See `Source.tail`. Only topic ids and epoch histories are set."""
        positions = archived_positions(self.planner, ends_of(ranges))
        return Tail(topic_ids=self.topic_ids(ranges), epoch_histories=epoch_histories_of(positions))

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        """See `Source.topic_ids`. The ids are those of the archive."""
        ids = {topic: self.planner.topic_id(topic) for topic in sorted({tp.topic for tp in tps})}
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        """See `Source.truncated`. Raises the errors of `find_truncated`."""
        ours = {
            tp: position
            for tp, position in positions.items()
            if is_selected(self.request.selection, tp)
        }
        return find_truncated(self.planner, ours)


def ends_of(ranges: Ranges) -> dict[TopicPartition, Offset]:
    """Return the ends of ranges that are not empty."""
    return {tp: span.end for tp, span in ranges.items() if span.start < span.end}


def epoch_histories_of(positions: Positions) -> dict[TopicPartition, EpochHistory]:
    """Return the epoch histories of positions where they are known."""
    return {
        tp: position.epoch_history
        for tp, position in positions.items()
        if position.epoch_history.entries
    }


def require_below(asked: OffsetRange, end: Offset, tp: TopicPartition, ends: str) -> None:
    """Raise ConfigurationError if a table without offsets would start above the end of the log.

    The next run could not distinguish that from another log.
    """
    if asked.start > end:
        raise ConfigurationError(
            f"--starting-offsets: {in_words(tp)}: offset {asked.start} is above {end}, where {ends}"
        )


def within_stored(asked: OffsetRange, end: Offset, held: Offset | None) -> OffsetRange:
    """Return a range cut at the end of the stored records.

    If it ends below `held` and the stored records do not, it is extended to `held`: nothing of it
    is left to export. If the stored records end below `held`, it ends where they end.
    """
    until = min(asked.end, end)
    if held is not None and until < held <= end:
        until = held
    return OffsetRange(asked.start, until if held is not None else max(asked.start, until))
