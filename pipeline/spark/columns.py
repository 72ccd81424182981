"""Columns of Spark's own Kafka source, built from a split's records. Independent of Spark.

Source: Spark's "Structured Streaming + Kafka Integration Guide", and the output of
`format("kafka")`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sidetier.config.problems import suggestion
from sidetier.pipeline.errors import TimestampRangeError
from sidetier.pipeline.reading import timestamps
from sidetier.segments.arrow import HEADERS_TYPE
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the schema of these columns, with the types of `format("kafka")`."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def columns_of(schema: StructType, known: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a user's schema, in its order.

    Raises:
        ConfigurationError: a column does not exist, or has another type.
    """
    for wanted in schema.fields:
        if wanted.name not in known:
            raise ConfigurationError(
                f"schema: there is no column {wanted.name}, only {', '.join(known)}"
            )
        if wanted.dataType != _TYPES[wanted.name]:
            kind = _TYPES[wanted.name].simpleString()
            raise ConfigurationError(
                f"schema: {wanted.name} is {kind}, not {wanted.dataType.simpleString()}; read it "
                f"as {kind} and cast it"
            )
    return tuple(schema.names)


TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": timestamps.TYPE,
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""Every column, in the order of Spark's Kafka source; `headers` only with `includeHeaders`."""

_SOURCES: Final[Mapping[str, str]] = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
}
"""Column of the records for each Spark column. The others are constant within a split."""


def all_columns(*, headers: bool) -> tuple[str, ...]:
    """Return the columns of a read that does not name any."""
    return tuple(name for name in TYPES if headers or name != "headers")


def chosen_columns(names: str | Iterable[str], *, headers: bool) -> tuple[str, ...]:
    """Return the named columns, in this order.

    Args:
        names: a list, or text separated by commas.
        headers: whether the column `headers` exists.

    Raises:
        ConfigurationError: no column is named, one is named twice, or one does not exist.
    """
    listed = names.split(",") if isinstance(names, str) else names
    chosen = tuple(name.strip() for name in listed)
    known = all_columns(headers=headers)
    unknown = [name for name in chosen if name not in known]
    if unknown == ["headers"]:
        raise ConfigurationError("columns: headers exist only with includeHeaders=true")
    if unknown or not chosen:
        problem = (
            f"there is no {unknown[0]!r}{suggestion(unknown[0], known)}" if unknown else "none"
        )
        raise ConfigurationError(f"columns: {problem}; give some of {', '.join(known)}")
    if len(set(chosen)) != len(chosen):
        raise ConfigurationError(f"columns: a column is named twice in {', '.join(chosen)}")
    return chosen


def decoded_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of records that must be decoded for these columns.

    With `timestamp`, `offset` is decoded, too: the error for a timestamp that is out of range names
    the record's offset.
    """
    sources = [_SOURCES[name] for name in columns if name in _SOURCES] or ["offset"]
    if "timestamp" in sources and "offset" not in sources:
        sources.append("offset")
    return tuple(sources)


@dataclass(frozen=True, slots=True)
class Shape:
    """Builds these columns from the records of one partition.

    Attributes:
        raw_timestamps: whether timestamps stay numbers of milliseconds.
    """

    tp: TopicPartition
    columns: tuple[str, ...]
    raw_timestamps: bool = False

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns for `records`, without copying values.

        Args:
            records: with the columns of `decoded_columns`.

        Raises:
            TimestampRangeError: a timestamp does not fit into its column.
        """
        arrays = [self._column(name, records) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))

    def _column(self, name: str, records: pa.RecordBatch) -> pa.Array:
        if name == "topic":
            return pa.repeat(pa.scalar(self.tp.topic, TYPES[name]), records.num_rows)
        if name == "partition":
            return pa.repeat(pa.scalar(self.tp.partition, TYPES[name]), records.num_rows)
        if name == "timestamp":
            return self._timestamps(records)
        convert = _CONVERSIONS.get(name)
        column = records.column(_SOURCES[name])
        return column if convert is None else convert(column)

    def _timestamps(self, records: pa.RecordBatch) -> pa.Array:
        column = records.column("timestamp")
        if self.raw_timestamps:
            return column
        wrong = timestamps.out_of_range(column)
        if len(wrong):
            offset, timestamp = (
                records.column(name)[int(wrong[0])].as_py() for name in ("offset", "timestamp")
            )
            raise TimestampRangeError(self.tp, Offset(offset), timestamp)
        return timestamps.as_timestamps(column)


def _timestamp_type(values: pa.Array) -> pa.Array:
    return values.cast(TYPES["timestampType"])


def _headers(lists: pa.Array) -> pa.Array:
    """Replace empty lists with null, as Spark's source does for records without headers."""
    empty = pc.equal(pc.list_value_length(lists), 0)
    if not pc.any(empty).as_py():
        return lists
    return pa.ListArray.from_arrays(_offsets(lists), lists.values, type=HEADERS_TYPE, mask=empty)


def _offsets(lists: pa.Array) -> pa.Array:
    """Return the list offsets, copied for a slice.

    Arrow's `ListArray.from_arrays` takes a mask only with offsets that are not a slice themselves.
    """
    offsets = lists.offsets
    return pa.array(offsets.to_numpy()) if offsets.offset else offsets


_CONVERSIONS: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    "timestampType": _timestamp_type,
    "headers": _headers,
}
