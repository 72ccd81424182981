"""Source of archived records, and behind them records that only the brokers have, for tables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.histories import Positions
from sidetier.pipeline.export.tables.archived import (
    ArchivedRecords,
    epoch_histories_of,
    require_below,
    within_stored,
)
from sidetier.pipeline.export.tables.chunks import Ranges
from sidetier.pipeline.export.tables.progress import Offsets, Tail
from sidetier.pipeline.export.tail.logs import BrokerBehindError, Log
from sidetier.pipeline.export.tail.plans import with_tail
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.request import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimes,
    Edge,
    Limit,
)
from sidetier.pipeline.planning.resolving import check_covered
from sidetier.pipeline.planning.split import Plan, in_words
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition


def limited(
    logs: Mapping[TopicPartition, Log], starting: Limit, ending: Limit
) -> dict[TopicPartition, OffsetRange]:
    """Return the range of each partition; an empty one if it would end before its start.

    Raises:
        ConfigurationError: offsets do not name exactly these partitions, or a limit is a time.
    """
    check_covered(starting, logs, "startingOffsets")
    check_covered(ending, logs, "endingOffsets")
    ranges = {}
    for tp, log in logs.items():
        first = _at(starting, tp, log)
        ranges[tp] = OffsetRange(first, max(first, _at(ending, tp, log)))
    return ranges


def _at(limit: Limit, tp: TopicPartition, log: Log) -> Offset:
    if isinstance(limit, AtTimes):
        raise ConfigurationError("a range by time is of what is archived: leave --tail kafka away")
    given = limit.offsets[tp] if isinstance(limit, AtOffsets) else None
    if limit is Edge.EARLIEST or given == EARLIEST_OFFSET:
        return log.earliest
    if given is None or given == LATEST_OFFSET:
        return log.latest
    return Offset(given)


@dataclass(frozen=True, slots=True)
class TailedRecords:
    """A `Source` of archive and brokers. The last `stored` call decides where records are read."""

    archived: ArchivedRecords
    logs: TopicLogs

    @property
    def cluster(self) -> str:
        """See `Source.cluster`."""
        return self.archived.cluster

    def stored(
        self,
        held: Offsets,
        tail: Offsets | None = None,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        """See `Source.stored`. Ranges go up to the end of the brokers' logs.

        Raises:
            ConfigurationError: the requested offsets do not name exactly the partitions that are
                read.
            BrokerBehindError: archive and broker both end below the table's offset.
            SidetierError: see `TopicLogs.look`.
        """
        del tail  # the log offsets of the brokers are used instead
        request = self.archived.request
        logs = self.logs.look(request.isolation, behind)
        starting = Edge.EARLIEST if held else request.starting
        asked = limited(logs, starting, request.ending)
        spans = {}
        for tp, log in logs.items():
            try:
                spans[tp] = self._span(tp, asked[tp], log, held.get(tp))
            except BehindError as error:
                if behind is None:
                    raise
                behind.append(error)
        return spans

    def undecided(self, reached: Offsets) -> dict[TopicPartition, UndecidedTail]:
        """See `Source.undecided` and `TopicLogs.undecided`."""
        return self.logs.undecided(self.archived.undecided(reached), reached.get)

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        """See `Source.within`. A range whose archived part fits entirely keeps its part on the
        brokers.
        """
        logs = self.logs.logs
        stored = {
            tp: OffsetRange(span.start, min(span.end, max(span.start, logs[tp].cut)))
            for tp, span in ranges.items()
        }
        limited_ranges = self.archived.within(stored, most_bytes)
        return {
            tp: span if limited_ranges[tp] == stored[tp] else limited_ranges[tp]
            for tp, span in ranges.items()
        }

    def plan(self, ranges: Ranges) -> Plan:
        """Return the plan of `frame`. Raises the same errors."""
        request = self.archived.request
        logs = self.logs.known(request.isolation)
        return with_tail(self.archived.planner, logs, ranges, request)

    def frame(self, ranges: Ranges) -> DataFrame:
        """See `Source.frame`.

        Raises:
            MissingRecordsError, ArchiveError, StorageError: see `with_tail`.
        """
        return self.archived.frames(self.plan(ranges))

    def tail(self, ranges: Ranges) -> Tail:
        """See `Source.tail`."""
        logs: Mapping[TopicPartition, Log] = self.logs.logs
        offsets = {
            tp: span.end
            for tp, span in ranges.items()
            if span.end > logs[tp].cut or not logs[tp].stored
        }
        news = {tp: span for tp, span in ranges.items() if span.start < span.end}
        return Tail(offsets, self.topic_ids(ranges), epoch_histories_of(self.logs.positions(news)))

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        """See `Source.topic_ids`. Ids from the brokers take precedence over those of the
        archive.
        """
        return {**self.archived.topic_ids(tps), **self.logs.topic_ids}

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        """See `Source.truncated`."""
        return self.archived.truncated(positions)

    def _span(
        self, tp: TopicPartition, asked: OffsetRange, log: Log, held: Offset | None
    ) -> OffsetRange:
        _require_reached(tp, log, held)
        if held is None:
            require_below(asked, log.latest, tp, "the broker's log ends")
        first = asked.start if held is None else held
        # An export that ends within the archive need not wait for later records.
        end = self.logs.reach(tp, first) if asked.end > log.cut else log.latest
        return within_stored(asked, max(first, end), held)


def _require_reached(tp: TopicPartition, log: Log, held: Offset | None) -> None:
    if held is not None and held > log.latest:
        raise BrokerBehindError(
            tp,
            f"the table holds the records of {in_words(tp)} below offset {held}, but the broker's "
            f"log ends at {log.latest}",
            "the topic was created anew. Export it into another table",
        )
