"""What an export into a table reads: archived records, and behind them what the brokers have."""

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
from sidetier.pipeline.export.tail.errors import BrokerBehindError
from sidetier.pipeline.export.tail.limits import limited
from sidetier.pipeline.export.tail.logs import Log
from sidetier.pipeline.export.tail.plans import with_tail
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.limits import Edge
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class TailedRecords:
    """A `Source`. Where records come from goes by the look that `stored` takes."""

    archived: ArchivedRecords
    logs: TopicLogs

    @property
    def cluster(self) -> str:
        """See `Source`."""
        return self.archived.cluster

    def stored(
        self,
        held: Offsets,
        tail: Offsets | None = None,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        """See `Source`: up to what the brokers have.

        Raises:
            ConfigurationError: offsets do not name just the partitions that are read.
            BrokerBehindError: neither the archive nor the broker goes as far as the table.
            As `TopicLogs.look`.
        """
        del tail  # the brokers tell how far they go
        request = self.archived.request
        logs = self.logs.look(request.isolation, behind)
        starting = Edge.EARLIEST if held else request.starting
        asked = limited(logs, starting, request.ending)
        found = {}
        for tp, log in logs.items():
            try:
                found[tp] = self._span(tp, asked[tp], log, held.get(tp))
            except BehindError as error:
                if behind is None:
                    raise
                behind.append(error)
        return found

    def undecided(self, reached: Offsets) -> dict[TopicPartition, UndecidedTail]:
        """See `Source`, and `TopicLogs.undecided`."""
        return self.logs.undecided(self.archived.undecided(reached), reached.get)

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        """See `Source`: where all that is archived of a range fits, it goes on as far as before."""
        logs = self.logs.logs
        stored = {
            tp: OffsetRange(span.start, min(span.end, max(span.start, logs[tp].cut)))
            for tp, span in ranges.items()
        }
        found = self.archived.within(stored, most_bytes)
        return {tp: span if found[tp] == stored[tp] else found[tp] for tp, span in ranges.items()}

    def plan(self, ranges: Ranges) -> Plan:
        """What `frame` reads; raises as it does."""
        request = self.archived.request
        logs = self.logs.known(request.isolation)
        return with_tail(self.archived.planner, logs, ranges, request)

    def frame(self, ranges: Ranges) -> DataFrame:
        """See `Source`.

        Raises:
            MissingRecordsError, ArchiveError, StorageError: as `with_tail`.
        """
        return self.archived.frames(self.plan(ranges))

    def tail(self, ranges: Ranges) -> Tail:
        """See `Source`."""
        logs: Mapping[TopicPartition, Log] = self.logs.logs
        offsets = {
            tp: span.end
            for tp, span in ranges.items()
            if span.end > logs[tp].cut or not logs[tp].stored
        }
        news = {tp: span for tp, span in ranges.items() if span.start < span.end}
        return Tail(offsets, self.topic_ids(ranges), epoch_histories_of(self.logs.positions(news)))

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        """See `Source`: the brokers' go before the archive's."""
        return {**self.archived.topic_ids(tps), **self.logs.topic_ids}

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        """See `Source`."""
        return self.archived.truncated(positions)

    def _span(
        self, tp: TopicPartition, asked: OffsetRange, log: Log, held: Offset | None
    ) -> OffsetRange:
        _require_reached(tp, log, held)
        if held is None:
            require_below(asked, log.latest, tp, "the broker's log ends")
        first = asked.start if held is None else held
        # Who is to end in the archive waits for nothing behind it.
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
