"""Records that only the brokers have, as rows: Spark's own Kafka source over fixed offsets.

The source has `failOnDataLoss` set: if the broker has deleted records since they were planned, the
write fails and nothing is committed. The next run plans again, and may find the records in the
archive. Spark's source shows its options in no plan, and Kafka's client hides passwords where it
logs its settings.
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
        properties: properties of Kafka's Java client, `bootstrap.servers` included; with secrets.
    """

    spark: SparkSession
    properties: Mapping[str, str] = field(repr=False)
    isolation: IsolationLevel

    def __post_init__(self) -> None:
        """Raise MissingJarsError if Spark does not have its Kafka source."""
        require_class(self.spark, _CLASS, TableJar.KAFKA)

    def frame(self, ranges: tuple[BrokerRange, ...], columns: ValueColumns) -> DataFrame:
        """Return the records of ranges as rows with the same columns as rows from the archive.

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

    def __init__(self, columns: ValueColumns) -> None:
        self.__name__ = "sidetier values of Kafka's records"
        self._columns = columns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self._columns.schema
        return self._columns(as_stored(batch, schema) for batch in batches)


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
    ends = pc.cumulative_sum(column.value_lengths().fill_null(0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(offsets, structs, type=HEADERS_TYPE, mask=mask)
