"""What an export of files is made of: what there is to be exported, and who carries it out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sidetier.pipeline.export.epoch_history import Position, Truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.files.task import Written
from sidetier.pipeline.export.state.changes import Tail
from sidetier.pipeline.export.state.manifest import NO_SCHEMAS, SchemaIds, Span
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.split import BrokerRange, Missing, Plan, Split
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

Spans = Mapping[int, Span]


def ranges_of(topic: str, spans: Spans) -> dict[TopicPartition, OffsetRange]:
    """The same of a topic's partitions."""
    return {
        TopicPartition(topic, one): OffsetRange(Offset(span.first), Offset(span.until))
        for one, span in spans.items()
    }


@dataclass(frozen=True, slots=True)
class Task:
    """What is written of one Kafka partition; a value that can be sent to executors.

    `on_broker` is what is read behind the splits: the brokers alone have it. `schemas` are those of
    the rows before it.
    """

    tp: TopicPartition
    span: Span
    splits: tuple[Split, ...]
    options: FilesOptions
    run: str
    on_broker: tuple[BrokerRange, ...] = ()
    schemas: SchemaIds = NO_SCHEMAS


@dataclass(frozen=True, slots=True)
class Done:
    """What a task has written, and what of its range was not stored."""

    tp: TopicPartition
    written: Written
    missing: tuple[Missing, ...] = ()


class Source(Protocol):
    """What there is to be exported."""

    def truncated(self, positions: Mapping[int, Position]) -> tuple[Truncated, ...]:
        """What below these was thrown away since by the brokers, as far as that can be known."""
        ...

    def spans(
        self,
        next_offsets: Mapping[int, int],
        tail: Mapping[int, int],
        behind: list[BehindError] | None = None,
    ) -> Spans:
        """The range of each Kafka partition from its next offset to the end that is safe to read;
        a partition that has none begins where the export begins. Empty ranges are left out.

        An archive may end below a next offset that is in `tail`: it came from the brokers. `behind`
        collects the errors of partitions whose log ends below their next offset; they are left out.

        Raises:
            BehindError: there is such a partition, and no list for it.
        """
        ...

    def undecided(self, next_offsets: Mapping[int, int]) -> Mapping[int, UndecidedTail]:
        """Of the partitions whose next offset is the last stable offset, what waits there for a
        transaction; by the look that `spans` has taken.
        """
        ...

    def within(self, spans: Spans, most_bytes: int) -> Spans:
        """The first parts of these spans that have about so many archived bytes in all; equal looks
        at the archive give equal parts. What only the brokers have counts nothing.
        """
        ...

    def plan(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        options: FilesOptions,
        tail: Mapping[int, int],
    ) -> Plan:
        """What is read of fixed ranges; those in `tail` went on behind the archive when they were
        fixed.

        Raises:
            MissingRecordsError: some are not stored, and `options.fail_on_data_loss` is set.
            StillOnBrokerError: the archive does not go so far yet, and nothing else is read.
        """
        ...

    def tail(self, spans: Spans) -> Tail:
        """What of these spans, as `spans` has given them or less, only the brokers have; and what
        is known of the epoch history below their ends.
        """
        ...

    def topic_id(self) -> str | None:
        """The topic's, of which these records are; None where nobody knows one."""
        ...


class Engine(Protocol):
    """Carries out tasks, each by `write_range`; several at once, and again where one fails. May be
    called from several threads.
    """

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """What they have written, in any order.

        Raises:
            SidetierError: a task cannot be carried out; no other one still runs by then.
        """
        ...

    def cancel(self) -> None:
        """Let all tasks, of every call of `run`, end with an error as soon as they can."""
        ...
