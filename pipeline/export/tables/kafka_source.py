"""Records that only the brokers have, as rows: Spark's own Kafka source over fixed offsets.

What it is told is `failOnDataLoss`: where the broker has deleted some of the records since they
were planned, the write fails and nothing is committed; the next run plans anew, and may find them
in the archive. Options that Spark's source takes are shown in no plan, and Kafka's client hides
passwords where it logs its settings.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sidetier.pipeline.export.tables.gateway import require_class
from sidetier.pipeline.export.tables.spark_jars import TableJar
from sidetier.pipeline.export.tables.values import ValueColumns
from sidetier.pipeline.planning.offsets_json import numbers_json, partitions_json
from sidetier.pipeline.planning.split import BrokerRange
from sidetier.segments.arrow import HEADERS_TYPE
from sidetier.segments.isolation import IsolationLevel

_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """Reads ranges from the brokers.

    Attributes:
        properties: of Kafka's Java client, `bootstrap.servers` among them; with secrets.
    """

    spark: SparkSession
    properties: Mapping[str, str] = field(repr=False)
    isolation: IsolationLevel

    def __post_init__(self) -> None:
        """Raises MissingJarsError where Spark does not know Kafka."""
        require_class(self.spark, _CLASS, TableJar.KAFKA)

    def frame(self, ranges: tuple[BrokerRange, ...], columns: ValueColumns) -> DataFrame:
        """The records of ranges on the brokers, as rows with the columns of those from the archive.
        `columns` decodes keys and values.
        """
        names = columns.schema.names
        frame = self.spark.read.format("kafka").options(**self._options(ranges)).load()
        chosen = frame.select(*names)
        if not columns.decodes:
            return chosen
        return chosen.mapInArrow(_Decoded(columns), from_arrow_schema(columns.decoded_schema()))

    def _options(self, ranges: tuple[BrokerRange, ...]) -> dict[str, str]:
        return {
            **{f"kafka.{name}": value for name, value in self.properties.items()},
            "assign": partitions_json(one.tp for one in ranges),
            "startingOffsets": numbers_json({one.tp: one.range.start for one in ranges}),
            "endingOffsets": numbers_json({one.tp: one.range.end for one in ranges}),
            "kafka.isolation.level": self.isolation.value,
            "failOnDataLoss": "true",
            "includeHeaders": "true",
        }


class _Decoded:
    """What is sent to executors: values are decoded as those from the archive are."""

    def __init__(self, columns: ValueColumns) -> None:
        self.__name__ = "sidetier values of Kafka's records"
        self._columns = columns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self._columns.schema
        return self._columns(as_stored(one, schema) for one in batches)


def as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch that Spark has made, in the types of those from the archive: Spark gives times in
    the session's zone, and headers under names of its own.
    """
    arrays = [_typed(batch.column(one.name), one.type) for one in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind != HEADERS_TYPE:
        return column.cast(kind)
    pairs = column.flatten()
    keys, values = pairs.field(0).cast(pa.string()), pairs.field(1).cast(pa.binary())
    fields = [HEADERS_TYPE.value_type.field(at) for at in range(2)]
    structs = pa.StructArray.from_arrays([keys, values], fields=fields)
    ends = pc.cumulative_sum(column.value_lengths().fill_null(0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(offsets, structs, type=HEADERS_TYPE, mask=mask)
