"""Reads as a DataFrame of splits and `mapInArrow`, for PySpark 3.5 and later."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from sidetier.pipeline.spark.columns import spark_schema
from sidetier.pipeline.spark.python_workers import check_python_workers
from sidetier.pipeline.spark.report import ReadReport, describe_plan
from sidetier.pipeline.spark.settings import COLUMNS, read_settings
from sidetier.pipeline.spark.task_runner import task_rows
from sidetier.pipeline.spark.tasks import plan_batch, read_task

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
    work = partial(read_task, settings, done=None if report is None else report.task_reporter())
    schema = spark_schema(settings.columns)
    return task_rows(spark, f"sidetier {describe_plan(plan)}", plan.splits, work, schema)
