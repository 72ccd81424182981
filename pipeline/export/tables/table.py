"""Ports of the export to tables: a table of any format, and the source of records."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from pyspark.sql import DataFrame

from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.histories import Positions
from sidetier.pipeline.export.tables.chunks import Ranges
from sidetier.pipeline.export.tables.progress import Offsets, Progress, Tail
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.segments.offsets import TopicPartition


class Table(Protocol):
    """A table whose commits store a `Progress`."""

    @property
    def name(self) -> str:
        """The table's name, for errors."""
        ...

    def recover(self) -> None:
        """Undo what dead writers have left. Called only while no writer is at work."""
        ...

    def progress(self) -> Progress | None:
        """Return the state of the last visible commit of an export; None if there is none yet.

        Raises:
            LostProgressError: there is, or may have been, such a commit, and it is not found.
            BrokenProgressError: the last commits do not follow each other.
            NewerStateError, MalformedObjectError: see `from_properties`.
        """
        ...

    def write(self, frame: DataFrame, progress: Progress, seconds: float) -> None:
        """Write the rows and `progress` in one commit, or nothing.

        A kill at any moment leaves the table as before, or with the whole commit. A frame without
        rows is committed too.

        Args:
            frame: the rows.
            progress: the state after the commit.
            seconds: time limit.

        Raises:
            OtherWriterError: the table's offsets are not `progress.since`. Nothing is written.
            CommitTimedOutError: the write took longer than `seconds`.
            NotCommittedError: Spark or the table has refused the write.
        """
        ...


class Source(Protocol):
    """The records that there are to export."""

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        ...

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        """Return the ranges below these positions that the brokers have discarded since, where
        known.

        Only exported topics are included.
        """
        ...

    def stored(
        self,
        held: Offsets,
        tail: Offsets | None = None,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        """Return the range of each exported partition whose records can be read now.

        The range of a partition that is not in `held` starts where its export starts.

        Args:
            held: next offsets of the table.
            tail: offsets up to which records were read from the brokers. The archive may end below
                them.
            behind: receives the errors of partitions whose log on the brokers ends below `held`.
                They are left out of the result.

        Raises:
            BehindError: there is such a partition, and `behind` is None.
        """
        ...

    def undecided(self, reached: Offsets) -> Mapping[TopicPartition, UndecidedTail]:
        """Return the open transactions that partitions have reached.

        The result has the partitions whose next offset is the last stable offset and that have
        records of an undecided transaction there. It uses the snapshot of the last `stored` call.
        """
        ...

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        """Return first parts of these ranges with about `most_bytes` archived bytes in total.

        Records that only the brokers have count as 0 bytes.
        """
        ...

    def frame(self, ranges: Ranges) -> DataFrame:
        """Return the records of these ranges as rows."""
        ...

    def topic_ids(self, tps: Iterable[TopicPartition]) -> Mapping[str, str]:
        """Return the ids of these partitions' topics, as far as the last snapshot has them."""
        ...

    def tail(self, ranges: Ranges) -> Tail:
        """Return the tail of these ranges, which are those of `stored` or shorter.

        It has the ends that only the brokers have, the topic ids, and the epoch history below the
        ends. An empty range has no epoch history.
        """
        ...
