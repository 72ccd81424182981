"""The Avro schema of rows, derived from their Arrow types."""

import re
from typing import Any, Final

import pyarrow as pa

from sidetier.segments.errors import ConfigurationError

PLAIN_TYPES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
LOGICAL_TYPES: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOGICAL_NAMES: Final = {kind: names for names, kind in LOGICAL_TYPES.items()}
_PLAIN_NAMES: Final = {kind: name for name, kind in PLAIN_TYPES.items()} | {
    pa.int8(): "int",
    pa.int16(): "int",
    pa.large_string(): "string",
}


def avro_schema(schema: pa.Schema, name: str) -> dict[str, Any]:
    """Return the Avro schema of rows. Every field may be null.

    Raises:
        ConfigurationError: Avro does not allow a column's name.
    """
    return _record(list(schema), name)


def _record(fields: list[pa.Field], name: str) -> dict[str, Any]:
    for col in fields:
        if not _NAME.fullmatch(col.name):
            raise ConfigurationError(
                f"the Avro schema: {col.name}: Avro has no such names: letters, digits and _ alone"
            )
    columns = [
        {"name": col.name, "type": ["null", _avro(col.type, f"{name}_{col.name}")]}
        for col in fields
    ]
    return {"type": "record", "name": name, "fields": columns}


def _avro(kind: pa.DataType, name: str) -> Any:  # noqa: ANN401
    if kind in _LOGICAL_NAMES:
        plain, logical = _LOGICAL_NAMES[kind]
        return {"type": plain, "logicalType": logical}
    if pa.types.is_nested(kind):
        return _nested(kind, name)
    if pa.types.is_decimal(kind):
        parameters = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **parameters}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": f"{name}_fixed", "size": kind.byte_width}
    return _PLAIN_NAMES[kind]


def _nested(kind: pa.DataType, name: str) -> Any:  # noqa: ANN401
    if pa.types.is_struct(kind):
        return _record([kind.field(at) for at in range(kind.num_fields)], name)
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _avro(kind.item_type, name)]}
    return {"type": "array", "items": ["null", _avro(kind.value_type, name)]}
