"""Runs a list of tasks on Spark's executors: one Spark task for each."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TaskT = TypeVar("TaskT")


def task_rows(
    spark: "SparkSession",
    name: str,
    tasks: Iterable[TaskT],
    work: Callable[[TaskT], Iterator[pa.RecordBatch]],
    schema: "StructType | str",
) -> "DataFrame":
    """Return the rows of all tasks as a DataFrame; each action on it runs the tasks again.

    Args:
        spark: the session.
        name: shown by Spark in plans and in the UI.
        tasks: the tasks.
        work: yields the rows of a task. It runs on executors, more than once if an attempt fails.
        schema: columns of the rows.
    """
    numbered = NumberedTasks(name, tasks, work)
    # One row and one Spark partition for each task. Spark refuses 0 partitions.
    numbers = spark.range(0, numbered.count, 1, max(numbered.count, 1))
    return numbers.mapInArrow(numbered, schema)


class NumberedTasks(Generic[TaskT]):
    """Function that executors run. Each input row is the number of a task.

    Each task is pickled alone, so that a Spark task unpickles only its own.
    """

    def __init__(
        self, name: str, tasks: Iterable[TaskT], work: Callable[[TaskT], Iterator[pa.RecordBatch]]
    ) -> None:
        self.__name__ = name
        self._tasks = [pickle.dumps(task) for task in tasks]
        self._work = work

    @property
    def count(self) -> int:
        """Number of tasks."""
        return len(self._tasks)

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each task."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._work(pickle.loads(self._tasks[number]))  # noqa: S301 -- pickled by the driver
