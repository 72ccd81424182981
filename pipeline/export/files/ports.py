"""Ports of the export to files: the source of records, and the engine that runs tasks."""

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
    """Return spans of a topic as offset ranges by topic partition."""
    return {
        TopicPartition(topic, partition): OffsetRange(Offset(span.first), Offset(span.until))
        for partition, span in spans.items()
    }


@dataclass(frozen=True, slots=True)
class Task:
    """The work on one Kafka partition. A task can be pickled for Spark executors.

    Attributes:
        on_broker: ranges behind the splits, which only the brokers have.
        schemas: schema ids of the last rows before this task.
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
    """The result of a task: the files it wrote, and the ranges that were not stored."""

    tp: TopicPartition
    written: Written
    missing: tuple[Missing, ...] = ()


class Source(Protocol):
    """The records that there are to export."""

    def truncated(self, positions: Mapping[int, Position]) -> tuple[Truncated, ...]:
        """Return the ranges below these positions that the brokers have discarded since, where
        known.
        """
        ...

    def spans(
        self,
        next_offsets: Mapping[int, int],
        tail: Mapping[int, int],
        behind: list[BehindError] | None = None,
    ) -> Spans:
        """Return the range of each Kafka partition from its next offset to the end that is safe to
        read.

        A partition without a next offset starts where the export starts. Empty ranges are left out.

        Args:
            next_offsets: next offsets by Kafka partition.
            tail: offsets up to which records were read from the brokers. If a next offset equals
                its entry here, the archive may end below it.
            behind: receives the errors of partitions whose log ends below their next offset. They
                are left out of the result.

        Raises:
            BehindError: there is such a partition, and `behind` is None.
        """
        ...

    def undecided(self, next_offsets: Mapping[int, int]) -> Mapping[int, UndecidedTail]:
        """Return the open transactions that partitions have reached.

        The result has the partitions whose next offset is the last stable offset and that have
        records of an undecided transaction there. It uses the archive snapshot of the last `spans`
        call.
        """
        ...

    def within(self, spans: Spans, most_bytes: int) -> Spans:
        """Return first parts of these spans with about `most_bytes` archived bytes in total.

        Equal snapshots of the archive give equal parts. Records that only the brokers have count as
        0 bytes.
        """
        ...

    def plan(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        options: FilesOptions,
        tail: Mapping[int, int],
    ) -> Plan:
        """Plan the reading of fixed ranges.

        Args:
            ranges: the ranges of a run.
            options: the options of that run.
            tail: ends of the ranges that went beyond the archive when the run was begun.

        Raises:
            MissingRecordsError: some records are not stored, and `options.fail_on_data_loss` is
                set.
            StillOnBrokerError: the archive still ends below a range, and this source does not read
                from brokers.
        """
        ...

    def tail(self, spans: Spans) -> Tail:
        """Return which of these spans end on the brokers, and the epoch history below their ends.

        The spans are those of `spans`, or shorter.
        """
        ...

    def topic_id(self) -> str | None:
        """Return the id of the topic that the records belong to; None if unknown."""
        ...


class Engine(Protocol):
    """Runs tasks, each with `write_range`: several at once, and again if one fails.

    Its methods may be called from several threads.
    """

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """Run tasks; return their results in any order.

        Raises:
            SidetierError: a task has failed. No other task of this call runs any more.
        """
        ...

    def cancel(self) -> None:
        """Make all tasks, of every call of `run`, end with an error as soon as possible."""
        ...
