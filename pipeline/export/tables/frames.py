"""The records of a plan as rows for a table: a task for each split, values decoded where asked."""

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
    """How keys and values become columns beside those of the record."""
    kafka = pa.schema([(name, TYPES[name]) for name in COLUMNS])
    return ValueColumns(values, flat, kafka, letters, null_values, keys, registry)


def table_frames(
    spark: SparkSession,
    settings: ReadSettings,
    columns: ValueColumns,
    report: ReadReport,
    kafka: KafkaSource | None = None,
) -> Frames:
    """Rows with the columns of Spark's Kafka source, headers too, and values as they are asked for,
    by the schemas that the registry has when the rows are planned. `kafka` reads what only the
    brokers have.

    Raises:
        ConfigurationError: a schema of values cannot be used, or a field has the name of a column.
    """
    columns.decoded_schema()  # what is wrong with it is told before anything is read

    def frame(plan: Plan) -> DataFrame:
        now = columns.with_newest_schemas()
        schema = from_arrow_schema(now.decoded_schema())
        report.expect(plan)
        count = len(plan.splits)
        numbers = spark.range(0, count, 1, max(count, 1))
        work = _RowWork(SplitWork(settings, replace(plan, on_broker=()), report.teller()), now)
        stored = numbers.mapInArrow(work, schema)
        if kafka is None or not plan.on_broker:
            return stored
        behind = kafka.frame(plan.on_broker, now)
        return stored.unionByName(behind) if plan.splits else behind

    return frame


class _RowWork:
    """What is sent to executors: a split's records, and their values decoded."""

    def __init__(self, work: SplitWork, values: ValueColumns) -> None:
        self.__name__ = work.__name__
        self._work = work
        self._values = values

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._values(self._work(iter(numbers)))
