"""Source that exports archived records, and behind them records that only the brokers have."""

from collections.abc import Mapping
from dataclasses import dataclass

from sidetier.pipeline.export.epoch_history import Position, Truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.files.ports import ranges_of
from sidetier.pipeline.export.files.source import ArchiveSource
from sidetier.pipeline.export.state.changes import Tail, epochs_of
from sidetier.pipeline.export.state.manifest import Span
from sidetier.pipeline.export.tail.logs import BrokerBehindError
from sidetier.pipeline.export.tail.plans import with_tail
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class TailedSource:
    """A `Source` of archive and brokers.

    One call of `TopicLogs.look` determines the ranges and where their records are read.
    """

    archived: ArchiveSource
    logs: TopicLogs

    def truncated(self, positions: Mapping[int, Position]) -> tuple[Truncated, ...]:
        """See `Source.truncated`."""
        return self.archived.truncated(positions)

    def spans(
        self,
        next_offsets: Mapping[int, int],
        tail: Mapping[int, int],
        behind: list[BehindError] | None = None,
    ) -> dict[int, Span]:
        """See `Source.spans`. Also raises the errors of `TopicLogs.look`.

        Raises:
            BrokerBehindError: archive and broker both end below what was exported.
        """
        del tail  # the log offsets of the brokers are used instead
        spans = {}
        for tp, log in self.logs.look(self.archived.isolation, behind).items():
            first = Offset(next_offsets.get(tp.partition, log.earliest))
            if first > log.latest:
                error = BrokerBehindError(
                    tp,
                    f"{tp}: is exported up to offset {first}, and the broker's log ends at "
                    f"{log.latest}",
                    "the topic was created anew; export it into another directory",
                )
                if behind is None:
                    raise error
                behind.append(error)
                continue
            spans[tp.partition] = Span(first=first, until=max(first, self.logs.reach(tp, first)))
        return {partition: span for partition, span in spans.items() if span.first < span.until}

    def undecided(self, next_offsets: Mapping[int, int]) -> dict[int, UndecidedTail]:
        """See `Source.undecided` and `TopicLogs.undecided`."""
        archived = {
            TopicPartition(self.archived.topic, item): tail
            for item, tail in self.archived.undecided(next_offsets).items()
        }

        def reached(tp: TopicPartition) -> int:
            return next_offsets.get(tp.partition, self.logs.logs[tp].earliest)

        return {tp.partition: item for tp, item in self.logs.undecided(archived, reached).items()}

    def within(self, spans: Mapping[int, Span], most_bytes: int) -> dict[int, Span]:
        """See `Source.within`. A span whose archived part fits entirely keeps its part on the
        brokers.
        """
        cuts = {tp.partition: log.cut for tp, log in self.logs.logs.items()}
        stored = {
            partition: Span(
                first=span.first, until=min(span.until, max(span.first, cuts[partition]))
            )
            for partition, span in spans.items()
        }
        limited = self.archived.within(stored, most_bytes)
        return {
            partition: spans[partition]
            if limited[partition] == stored[partition]
            else limited[partition]
            for partition in spans
        }

    def plan(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        options: FilesOptions,
        tail: Mapping[int, int],
    ) -> Plan:
        """See `Source.plan`. Ranges of an earlier run are divided between archive and brokers
        again.
        """
        del tail
        logs = self.logs.known(IsolationLevel(options.isolation))
        request = self.archived.request(options)
        return with_tail(self.archived.planner, logs, ranges, request)

    def tail(self, spans: Mapping[int, Span]) -> Tail:
        """See `Source.tail`."""
        ends = {
            tp.partition: spans[tp.partition].until
            for tp, log in self.logs.logs.items()
            if tp.partition in spans and spans[tp.partition].until > log.cut
        }
        positions = self.logs.positions(ranges_of(self.archived.topic, spans))
        return Tail(ends, self.topic_id(), epochs_of(positions))

    def topic_id(self) -> str | None:
        """See `Source.topic_id`."""
        return self.logs.topic_ids.get(self.archived.topic) or self.archived.topic_id()
