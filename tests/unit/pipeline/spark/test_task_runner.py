"""Tasks run on executors by number: a Spark task gets one number, and reads only its own task."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from sidetier.pipeline.spark.task_runner import NumberedTasks, task_rows


def twice(task: str) -> Iterator[pa.RecordBatch]:
    for _ in range(2):
        yield pa.RecordBatch.from_pydict({"task": [task]})


def rows(tasks: NumberedTasks[Any], *numbers: int) -> list[str]:
    batches = tasks(iter([pa.RecordBatch.from_pydict({"id": list(numbers)})]))
    return [row["task"] for batch in batches for row in batch.to_pylist()]


class Broken:
    """A task that no process can unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


def test_spark_task_unpickles_only_its_own_task() -> None:
    tasks = NumberedTasks[Any]("work", [Broken(), "b"], twice)
    assert rows(tasks, 1) == ["b", "b"]
    with pytest.raises(ValueError, match="not a number"):
        rows(tasks, 0)


@pytest.mark.parametrize(("count", "partitions"), [(0, 1), (1, 1), (3, 3)])
def test_each_task_has_one_row_and_one_spark_partition(count: int, partitions: int) -> None:
    spark = MagicMock()
    task_rows(spark, "3 splits", ["task"] * count, twice, "task string")
    spark.range.assert_called_once_with(0, count, 1, partitions)
    [(work, schema), _] = spark.range.return_value.mapInArrow.call_args
    assert (work.__name__, schema) == ("3 splits", "task string")
    assert rows(work, *range(count)) == ["task"] * 2 * count
