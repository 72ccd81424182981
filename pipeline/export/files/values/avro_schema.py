"""Avro schemas and Arrow types, each from the other."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import pyarrow as pa

from sidetier.segments.errors import ConfigurationError

_PLAIN: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FEW_DIGITS: Final = 38
_MOST_DIGITS: Final = 76
"""What a decimal of 128 bits holds, and what one of 256."""
_LOGICAL_NAMES: Final = {kind: names for names, kind in _LOGICAL.items()}
_PLAIN_NAMES: Final = {kind: name for name, kind in _PLAIN.items()} | {
    pa.int8(): "int",
    pa.int16(): "int",
    pa.large_string(): "string",
}


def parsed_schema(text: str) -> Any:  # noqa: ANN401 -- JSON
    """An Avro schema, logical types that Arrow has no type for taken out.

    Raises:
        ConfigurationError: it is no JSON.
    """
    try:
        return _without_uuid(json.loads(text))
    except ValueError as error:
        raise ConfigurationError(f"the Avro schema is no JSON: {error}") from None


def _without_uuid(schema: Any) -> Any:  # noqa: ANN401
    """Identifiers are kept as the text that they are."""
    if isinstance(schema, list):
        return [_without_uuid(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain = {name: _without_uuid(one) for name, one in schema.items()}
    if plain.get("logicalType") == "uuid" and plain.get("type") == "string":
        del plain["logicalType"]
    return plain


def arrow_type(schema: Any) -> pa.DataType:  # noqa: ANN401
    """The type of a column for values of a schema.

    Raises:
        ConfigurationError: a union of several types, or a schema within itself: no column can be
            that.
    """
    return _Reader().type(schema, "value", "")


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}
        """None while a type is being read: it holds itself then."""

    def type(self, schema: Any, path: str, space: str) -> pa.DataType:  # noqa: ANN401
        if isinstance(schema, list):
            return self._union(schema, path, space)
        if isinstance(schema, str):
            return _PLAIN[schema] if schema in _PLAIN else self._reference(schema, path, space)
        if not isinstance(schema, Mapping) or "type" not in schema:
            _refuse(path, f"{schema!r} is no schema")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.type(kind, path, space)
        if kind in {"record", "enum", "fixed"}:
            return self._named_type(kind, schema, path, space)
        return self._plain_type(kind, schema, path, space)

    def _plain_type(
        self, kind: str, schema: Mapping[str, Any], path: str, space: str
    ) -> pa.DataType:
        if kind == "array":
            return pa.list_(self.type(schema["items"], f"{path}[]", space))
        if kind == "map":
            return pa.map_(pa.string(), self.type(schema["values"], f"{path}.*", space))
        return _logical(kind, schema) or self.type(kind, path, space)

    def _union(self, schema: list[Any], path: str, space: str) -> pa.DataType:
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            _refuse(path, "a union of other than null and one type cannot be one column")
        return self.type(others[0], path, space)

    def _named_type(
        self, kind: str, schema: Mapping[str, Any], path: str, space: str
    ) -> pa.DataType:
        name = str(schema.get("name", ""))
        space = str(schema.get("namespace", space))
        full = name if "." in name or not space else f"{space}.{name}"
        self._named[full] = None
        if kind == "record":
            space = full.rpartition(".")[0]
            fields = [
                pa.field(one["name"], self.type(one["type"], f"{path}.{one['name']}", space))
                for one in schema["fields"]
            ]
            found = pa.struct(fields)
        elif kind == "enum":
            found = pa.string()
        else:
            found = _logical("bytes", schema) or pa.binary(int(schema["size"]))
        self._named[full] = found
        return found

    def _reference(self, name: str, path: str, space: str) -> pa.DataType:
        for full in (f"{space}.{name}", name):
            if full in self._named:
                found = self._named[full]
                return found if found is not None else _refuse(path, f"{name} is within itself")
        return _refuse(path, f"there is no type {name!r}")


def _logical(kind: str, schema: Mapping[str, Any]) -> pa.DataType | None:
    logical = schema.get("logicalType")
    if logical == "decimal" and kind == "bytes":
        return _decimal(int(schema["precision"]), int(schema.get("scale", 0)))
    return _LOGICAL.get((kind, str(logical)))


def _decimal(precision: int, scale: int) -> pa.DataType:
    if precision > _MOST_DIGITS:
        _refuse(
            "value", f"a decimal of {precision} digits cannot be a column: {_MOST_DIGITS} at most"
        )
    kind = pa.decimal128 if precision <= _FEW_DIGITS else pa.decimal256
    return kind(precision, scale)


def _refuse(path: str, reason: str) -> NoReturn:
    raise ConfigurationError(f"the Avro schema: {path}: {reason}")


def avro_schema(schema: pa.Schema, name: str) -> dict[str, Any]:
    """The Avro schema of rows; every field may be null.

    Raises:
        ConfigurationError: a column has a name that Avro does not allow.
    """
    return _record(list(schema), name)


def _record(fields: list[pa.Field], name: str) -> dict[str, Any]:
    for one in fields:
        if not _NAME.fullmatch(one.name):
            _refuse(one.name, "Avro has no such names: letters, digits and _ alone")
    columns = [
        {"name": one.name, "type": ["null", _avro(one.type, f"{name}_{one.name}")]}
        for one in fields
    ]
    return {"type": "record", "name": name, "fields": columns}


def _avro(kind: pa.DataType, name: str) -> Any:  # noqa: ANN401
    if kind in _LOGICAL_NAMES:
        plain, logical = _LOGICAL_NAMES[kind]
        return {"type": plain, "logicalType": logical}
    if pa.types.is_nested(kind):
        return _nested(kind, name)
    if pa.types.is_decimal(kind):
        of = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **of}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": f"{name}_fixed", "size": kind.byte_width}
    return _PLAIN_NAMES[kind]


def _nested(kind: pa.DataType, name: str) -> Any:  # noqa: ANN401
    if pa.types.is_struct(kind):
        return _record([kind.field(at) for at in range(kind.num_fields)], name)
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _avro(kind.item_type, name)]}
    return {"type": "array", "items": ["null", _avro(kind.value_type, name)]}
