"""The records of a plan as rows of a table: one task for each split, with decoded values."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sidetier.pipeline.export.files.options import AS_BYTES, ValueOptions
from sidetier.pipeline.export.files.values.registry import RegistryConfig
from sidetier.pipeline.export.tables.archived import Frames
from sidetier.pipeline.export.tables.dead_letters import DeadLetters
from sidetier.pipeline.export.tables.kafka_source import KafkaSource
from sidetier.pipeline.export.tables.values import ValueColumns
from sidetier.pipeline.planning.split import Plan
from sidetier.pipeline.spark.columns import TYPES, all_columns
from sidetier.pipeline.spark.frames import SplitWork
from sidetier.pipeline.spark.report import ReadReport
from sidetier.pipeline.spark.settings import ReadSettings

COLUMNS: Final = all_columns(headers=True)


def value_columns(
    values: ValueOptions,
    letters: DeadLetters | None = None,
    *,
    flat: bool,
    null_values: Literal["keep", "skip"] = "keep",
    keys: ValueOptions = AS_BYTES,
    registry: RegistryConfig | None = None,
) -> ValueColumns:
    """Return how keys and values become columns, beside the other columns of a record."""
    kafka = pa.schema([(name, TYPES[name]) for name in COLUMNS])
    return ValueColumns(values, flat, kafka, letters, null_values, keys, registry)


def table_frames(
    spark: SparkSession,
    settings: ReadSettings,
    columns: ValueColumns,
    report: ReadReport,
    kafka: KafkaSource | None = None,
) -> Frames:
    """Return a function that makes rows of a plan.

    The rows have the columns of Spark's Kafka source, headers included, and decoded values. The
    schemas of values are those that the registry has when the rows are planned.

    Args:
        spark: the session.
        settings: how tasks read the archive.
        columns: how keys and values become columns.
        report: receives the results of tasks.
        kafka: reads records that only the brokers have; None if there are none to read.

    Raises:
        ConfigurationError: a schema of values cannot be used, or a field has the name of another
            column.
    """
    columns.decoded_schema()  # raise its errors before anything is read

    def frame(plan: Plan) -> DataFrame:
        current = columns.with_newest_schemas()
        schema = from_arrow_schema(current.decoded_schema())
        report.expect(plan)
        count = len(plan.splits)
        numbers = spark.range(0, count, 1, max(count, 1))
        work = _RowWork(
            SplitWork(settings, replace(plan, on_broker=()), report.task_reporter()), current
        )
        stored = numbers.mapInArrow(work, schema)
        if kafka is None or not plan.on_broker:
            return stored
        behind = kafka.frame(plan.on_broker, current)
        return stored.unionByName(behind) if plan.splits else behind

    return frame


class _RowWork:
    """The function that Spark runs on executors: it reads splits and decodes their values."""

    def __init__(self, work: SplitWork, values: ValueColumns) -> None:
        self.__name__ = work.__name__
        self._work = work
        self._values = values

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._values(self._work(iter(numbers)))
