"""What there is to be exported as files: what is archived, and behind it what the brokers have."""

from collections.abc import Mapping
from dataclasses import dataclass

from sidetier.pipeline.export.epoch_history import Position, Truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.files.ports import ranges_of
from sidetier.pipeline.export.files.source import ArchiveSource
from sidetier.pipeline.export.state.changes import Tail, epochs_of
from sidetier.pipeline.export.state.manifest import Span
from sidetier.pipeline.export.tail.errors import BrokerBehindError
from sidetier.pipeline.export.tail.plans import with_tail
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class TailedSource:
    """A `Source`. What ranges are, and where their records come from, goes by one look."""

    archived: ArchiveSource
    logs: TopicLogs

    def truncated(self, positions: Mapping[int, Position]) -> tuple[Truncated, ...]:
        """See `Source`."""
        return self.archived.truncated(positions)

    def spans(
        self,
        next_offsets: Mapping[int, int],
        tail: Mapping[int, int],
        behind: list[BehindError] | None = None,
    ) -> dict[int, Span]:
        """See `Source`.

        Raises:
            BrokerBehindError: neither the archive nor the broker goes as far as the export.
            As `TopicLogs.look`.
        """
        del tail  # the brokers tell how far they go
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
        return {one: span for one, span in spans.items() if span.first < span.until}

    def undecided(self, next_offsets: Mapping[int, int]) -> dict[int, UndecidedTail]:
        """See `Source`, and `TopicLogs.undecided`."""
        archived = {
            TopicPartition(self.archived.topic, one): tail
            for one, tail in self.archived.undecided(next_offsets).items()
        }

        def reached(tp: TopicPartition) -> int:
            return next_offsets.get(tp.partition, self.logs.logs[tp].earliest)

        return {tp.partition: one for tp, one in self.logs.undecided(archived, reached).items()}

    def within(self, spans: Mapping[int, Span], most_bytes: int) -> dict[int, Span]:
        """See `Source`: where all that is archived of a span fits, it goes on as far as before."""
        cuts = {tp.partition: log.cut for tp, log in self.logs.logs.items()}
        stored = {
            one: Span(first=span.first, until=min(span.until, max(span.first, cuts[one])))
            for one, span in spans.items()
        }
        found = self.archived.within(stored, most_bytes)
        return {one: spans[one] if found[one] == stored[one] else found[one] for one in spans}

    def plan(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        options: FilesOptions,
        tail: Mapping[int, int],
    ) -> Plan:
        """See `Source`; ranges that an earlier run has fixed are divided anew."""
        del tail
        logs = self.logs.known(IsolationLevel(options.isolation))
        request = self.archived.request(options)
        return with_tail(self.archived.planner, logs, ranges, request)

    def tail(self, spans: Mapping[int, Span]) -> Tail:
        """See `Source`."""
        found = {
            tp.partition: spans[tp.partition].until
            for tp, log in self.logs.logs.items()
            if tp.partition in spans and spans[tp.partition].until > log.cut
        }
        positions = self.logs.positions(ranges_of(self.archived.topic, spans))
        return Tail(found, self.topic_id(), epochs_of(positions))

    def topic_id(self) -> str | None:
        """See `Source`."""
        return self.logs.topic_ids.get(self.archived.topic) or self.archived.topic_id()
