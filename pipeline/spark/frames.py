"""Reads as a DataFrame of splits and `mapInArrow`, for PySpark 3.5 and later."""

import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from sidetier.pipeline.planning.split import Plan, Split
from sidetier.pipeline.spark.columns import spark_schema
from sidetier.pipeline.spark.python_workers import check_python_workers
from sidetier.pipeline.spark.report import ReadReport, TaskReporter, describe_plan
from sidetier.pipeline.spark.settings import COLUMNS, ReadSettings, read_settings
from sidetier.pipeline.spark.tasks import Counts, plan_batch, read_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("sidetier.pipeline")


def read(
    spark: "SparkSession",
    options: Mapping[str, str] | None = None,
    *,
    columns: Iterable[str] | None = None,
    report: ReadReport | None = None,
    **more: str,
) -> "DataFrame":
    """Return archived records as a DataFrame, with the columns of Spark's own Kafka source.

    The read is planned now, so the DataFrame has the same records every time it is used. Only the
    requested columns are decoded: pass `columns` unless all are needed.

    Args:
        spark: session.
        options: options of Spark's Kafka source, and `tiered.storage.*`; see docs/spark.md.
        columns: some of `key, value, topic, partition, offset, timestamp, timestampType, headers`.
        report: receives counts of records and missing offsets.
        more: options whose names are valid in Python, such as `subscribe="orders"`.

    Raises:
        ConfigurationError, NoSuchTopicError: an option or a named topic is wrong; or Spark's
            workers run on a Python without this package.
        MissingRecordsError: offsets are not stored, and `failOnDataLoss` is not false.
        ArchiveError, StorageError: the archive cannot be read.
    """
    given = {**(options or {}), **more}
    if columns is not None:
        given[COLUMNS] = ",".join(columns)
    settings = read_settings(given)
    check_python_workers(spark)
    plan = plan_batch(settings)
    log.info("reading %s", describe_plan(plan))
    if report is not None:
        report.expect(plan)
    count = len(plan.splits)
    work = SplitWork(settings, plan, None if report is None else report.task_reporter())
    # One row and one Spark partition for each split: one task each. Spark refuses 0 partitions.
    frame = spark.range(0, count, 1, max(count, 1))
    return frame.mapInArrow(work, spark_schema(settings.columns))


class SplitWork:
    """Function that executors run. Each input row is the number of a split to read.

    Spark shows its name in plans and in the UI. Each split is pickled alone, so that a task
    unpickles only its own split.
    """

    def __init__(self, settings: ReadSettings, plan: Plan, reporter: TaskReporter | None) -> None:
        self.__name__ = f"sidetier {describe_plan(plan)}"
        self._settings = settings
        self._splits = [pickle.dumps(split) for split in plan.splits]
        self._reporter = reporter

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of each split."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(pickle.loads(self._splits[number]))  # noqa: S301 -- pickled by the driver

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        reporter = self._reporter

        def done(counts: Counts) -> None:
            if reporter is not None:
                reporter(split, counts)

        return read_task(self._settings, split, done)
