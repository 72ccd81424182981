"""Counts of the records that tasks read and the rows that they return, for each commit.

Records in equal rows out plus dead letters plus records that are left out. Each task checks this,
and the table compares the sum over all tasks with the number of rows that its own commit states.
"""

from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sidetier.pipeline.export.errors import RecordCountError
from sidetier.pipeline.spark.report import MergedByKey

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

_OFFSET = "offset"
_Counted = dict[tuple[int, Hashable], int]


@dataclass(slots=True)
class Tally:
    """Counts of one task so far.

    Attributes:
        read: records that were read.
        left_out: records without a value that the options leave out.
        dead: records that were stored as dead letters.
        rows: rows that were returned.
    """

    read: int = 0
    left_out: int = 0
    dead: int = 0
    rows: int = 0

    def reading(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, and count their records."""
        for batch in batches:
            self.read += len(batch.column(_OFFSET))
            yield batch

    def returning(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, and count their rows.

        Raises:
            RecordCountError: at the end, if a record is missing, or was returned twice.
        """
        for batch in batches:
            self.rows += len(batch.column(_OFFSET))
            yield batch
        if self.rows + self.dead + self.left_out != self.read:
            raise RecordCountError(
                "a task",
                f"{self.read} records were read: {self.rows} are rows, {self.dead} dead letters, "
                f"and {self.left_out} without a value were left out",
            )


@dataclass(frozen=True, slots=True)
class TaskCounter:
    """Sends the rows of tasks of one frame to the driver. Sent to executors."""

    counted: "Accumulator[_Counted]"
    frame: int

    def __call__(self, part: Hashable, rows: int) -> None:
        """Report a part of the frame that a task has returned completely.

        A part counts once, also if it is returned again: by another attempt, or for another job.
        """
        self.counted.add({(self.frame, part): rows})


@dataclass(slots=True)
class RowCounts:
    """The rows of the newest frame, on the driver."""

    counted: "Accumulator[Any]"
    frame: int = field(default=0)

    @classmethod
    def on(cls, spark: "SparkSession") -> "RowCounts":
        """Create the counts of a session's frames."""
        nothing: _Counted = {}
        return cls(spark.sparkContext.accumulator(nothing, MergedByKey()))

    def of_new_frame(self) -> TaskCounter:
        """Return the counter for a new frame. The counts of earlier frames are forgotten."""
        self.counted.value.clear()
        self.frame += 1
        return TaskCounter(self.counted, self.frame)

    def rows(self) -> int:
        """Return the rows of the newest frame whose tasks have ended."""
        counted: _Counted = self.counted.value
        return sum(rows for (frame, _), rows in counted.items() if frame == self.frame)


def require_rows(where: str, given: int, written: int, *, merges: bool = False) -> None:
    """Raise RecordCountError unless a commit has `given` rows; fewer pass if the table `merges`
    rows with the same key.
    """
    if written == given or (merges and written < given):
        return
    raise RecordCountError(where, f"tasks returned {given} rows, and the commit has {written}")


def part_of_task() -> int:
    """Return the number of the running task's partition."""
    from pyspark import TaskContext  # noqa: PLC0415 -- only on executors

    with suppress(AttributeError):
        return int(TaskContext.get().partitionId())  # type: ignore[union-attr]
    return 0
