"""Schema of Spark's own Kafka source."""

from collections.abc import Mapping, Sequence
from typing import Final

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

from sidetier.segments.errors import ConfigurationError

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
                "so, and cast it"
            )
    return tuple(schema.names)
