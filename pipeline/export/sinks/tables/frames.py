"""The records of a plan as rows of a table: from the archive, and from the brokers.

Archived records are read by one task for each split, with decoded values. Records that only the
brokers have are read by Spark's own Kafka source over fixed offsets, with `failOnDataLoss` set: if
the broker has deleted records since they were planned, the write fails and nothing is committed.
The next run plans again, and may find the records in the archive. Spark's source shows its options
in no plan, and Kafka's client hides passwords where it logs its settings.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sidetier.pipeline.export.sinks.tables.columns import ValueColumns
from sidetier.pipeline.export.sinks.tables.dead_letters import DeadLetters
from sidetier.pipeline.export.sinks.tables.gateway import require_class
from sidetier.pipeline.export.sinks.tables.row_checks import RowCheck
from sidetier.pipeline.export.sinks.tables.row_counts import (
    RowCounts,
    Tally,
    TaskCounter,
    part_of_task,
)
from sidetier.pipeline.export.sinks.tables.spark_jars import TableJar
from sidetier.pipeline.export.values.options import AS_BYTES, ValueOptions
from sidetier.pipeline.export.values.registry import RegistryConfig
from sidetier.pipeline.planning.offsets_json import numbers_json, partitions_json
from sidetier.pipeline.planning.split import BrokerRange, Plan, Split
from sidetier.pipeline.spark.columns import TYPES, all_columns
from sidetier.pipeline.spark.report import ReadReport, describe_plan
from sidetier.pipeline.spark.settings import ReadSettings
from sidetier.pipeline.spark.task_runner import task_rows
from sidetier.pipeline.spark.tasks import read_task
from sidetier.segments.arrow import HEADERS_TYPE
from sidetier.segments.isolation import IsolationLevel


@dataclass(frozen=True, slots=True)
class Rows:
    """The records of a plan as rows.

    Attributes:
        frame: the rows.
        count: returns how many rows the tasks of the frame have returned. Valid after an action.
    """

    frame: DataFrame
    count: Callable[[], int]


Frames = Callable[[Plan], Rows]
"""Returns the records of a plan as rows."""

COLUMNS: Final = all_columns(headers=True)


_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """Reads ranges from the brokers.

    Attributes:
        properties: properties of Kafka's Java client, `bootstrap.servers` included; with secrets.
    """

    spark: SparkSession
    properties: Mapping[str, str] = field(repr=False)
    isolation: IsolationLevel

    def __post_init__(self) -> None:
        """Raise MissingJarsError if Spark does not have its Kafka source."""
        require_class(self.spark, _CLASS, TableJar.KAFKA)

    def frame(
        self, ranges: tuple[BrokerRange, ...], columns: ValueColumns, counter: TaskCounter
    ) -> DataFrame:
        """Return the records of ranges as rows with the same columns as rows from the archive.

        `columns` decodes keys and values, and `counter` receives the numbers of rows.
        """
        names = columns.schema.names
        frame = self.spark.read.format("kafka").options(**self._options(ranges)).load()
        decoded = _Decoded(columns, counter)
        return frame.select(*names).mapInArrow(decoded, _spark_schema(columns))

    def _options(self, ranges: tuple[BrokerRange, ...]) -> dict[str, str]:
        return {
            **{f"kafka.{name}": value for name, value in self.properties.items()},
            "assign": partitions_json(broker_range.tp for broker_range in ranges),
            "startingOffsets": numbers_json(
                {broker_range.tp: broker_range.range.start for broker_range in ranges}
            ),
            "endingOffsets": numbers_json(
                {broker_range.tp: broker_range.range.end for broker_range in ranges}
            ),
            "kafka.isolation.level": self.isolation.value,
            "failOnDataLoss": "true",
            "includeHeaders": "true",
        }


class _Decoded:
    """The function that Spark runs on executors: it decodes values as those from the archive."""

    def __init__(self, columns: ValueColumns, counter: TaskCounter) -> None:
        self.__name__ = "sidetier values of Kafka's records"
        self._columns = columns
        self._counter = counter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema, tally = self._columns.schema, Tally()
        yield from self._columns((as_stored(batch, schema) for batch in batches), tally)
        self._counter(("broker", part_of_task()), tally.rows)


def as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of Spark to the types of batches from the archive.

    Spark returns times in the session's time zone, and headers with its own field names.
    """
    arrays = [_typed(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind != HEADERS_TYPE:
        return column.cast(kind)
    pairs = column.flatten()
    keys, values = pairs.field(0).cast(pa.string()), pairs.field(1).cast(pa.binary())
    fields = [HEADERS_TYPE.value_type.field(index) for index in range(2)]
    structs = pa.StructArray.from_arrays([keys, values], fields=fields)
    # Built from the lengths: `flatten` leaves out what is under null lists
    # and outside of the slice, so the column's own offsets do not fit.
    ends = pc.cumulative_sum(column.value_lengths().fill_null(0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(offsets, structs, type=HEADERS_TYPE, mask=mask)


def value_columns(  # noqa: PLR0913 -- as the fields of `ValueColumns`
    values: ValueOptions,
    letters: DeadLetters | None = None,
    *,
    flat: bool,
    null_values: Literal["keep", "skip"] = "keep",
    keys: ValueOptions = AS_BYTES,
    registry: RegistryConfig | None = None,
    checks: tuple[RowCheck, ...] = (),
) -> ValueColumns:
    """Return how keys and values become columns, beside the other columns of a record."""
    kafka = pa.schema([(name, TYPES[name]) for name in COLUMNS])
    return ValueColumns(values, flat, kafka, letters, null_values, keys, registry, checks)


def _spark_schema(columns: ValueColumns) -> StructType:
    """Return the columns of rows. Times without a zone stay without one (TIMESTAMP_NTZ)."""
    return from_arrow_schema(columns.decoded_schema(), prefer_timestamp_ntz=True)


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
    counts = RowCounts.on(spark)

    def rows(plan: Plan) -> Rows:
        counter = counts.of_new_frame()
        return Rows(frame(plan, counter), counts.rows)

    def frame(plan: Plan, counter: TaskCounter) -> DataFrame:
        current = columns.with_newest_schemas()
        schema = _spark_schema(current)
        report.expect(plan)
        read = partial(read_task, settings, done=report.task_reporter())
        work = partial(decoded_rows, read, current, counter)
        name = f"sidetier {describe_plan(plan)}"
        stored = task_rows(spark, name, enumerate(plan.splits), work, schema)
        if kafka is None or not plan.on_broker:
            return stored
        behind = kafka.frame(plan.on_broker, current, counter)
        return stored.unionByName(behind) if plan.splits else behind

    return rows


def decoded_rows(
    read: Callable[[Split], Iterator[pa.RecordBatch]],
    values: ValueColumns,
    counter: TaskCounter,
    numbered: tuple[int, Split],
) -> Iterator[pa.RecordBatch]:
    """Read a split and decode its values. Runs on executors.

    Args:
        read: yields the records of a split.
        values: decodes them.
        counter: receives the number of rows at the end.
        numbered: the split, and its number in the frame.
    """
    number, split = numbered
    tally = Tally()
    yield from values(read(split), tally)
    counter(("archive", number), tally.rows)
