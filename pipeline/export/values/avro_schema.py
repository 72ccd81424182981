"""The Avro schema of rows, derived from their Arrow types."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.json_text import parse_json

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
    return _record(list(schema), name, ())


def _record(fields: list[pa.Field], name: str, around: tuple[str, ...]) -> dict[str, Any]:
    columns = []
    for col in fields:
        path = (*around, col.name)
        if not _NAME.fullmatch(col.name):
            raise ConfigurationError(
                f"the Avro schema: {'.'.join(path)}: Avro has no such names: letters, digits and _ "
                "alone"
            )
        kind = _avro(col.type, f"{name}_{col.name}", path)
        columns.append({"name": col.name, "type": ["null", kind]})
    return {"type": "record", "name": name, "fields": columns}


def _avro(kind: pa.DataType, name: str, path: tuple[str, ...]) -> Any:  # noqa: ANN401
    if kind in _LOGICAL_NAMES:
        plain, logical = _LOGICAL_NAMES[kind]
        return {"type": plain, "logicalType": logical}
    if pa.types.is_nested(kind):
        return _nested(kind, name, path)
    if pa.types.is_decimal(kind):
        parameters = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **parameters}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": f"{name}_fixed", "size": kind.byte_width}
    return _PLAIN_NAMES[kind]


def _nested(kind: pa.DataType, name: str, path: tuple[str, ...]) -> Any:  # noqa: ANN401
    if pa.types.is_struct(kind):
        return _record([kind.field(at) for at in range(kind.num_fields)], name, path)
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _avro(kind.item_type, name, path)]}
    return {"type": "array", "items": ["null", _avro(kind.value_type, name, path)]}


# Combine an Avro schema with the types of other schemas that it uses, into one schema. Pure.
#
# Each of those types is defined at its first use, as Avro requires, under its full name. Source:
# "Names" in Avro's specification.

_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_BUILT_IN: Final = _NAMED.union(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map")
)


def inlined(text: str, needed: Iterable[str]) -> str:
    """Return the schema with the types that it uses from the `needed` schemas.

    Raises:
        ValueError: one of the schemas is not JSON.
    """
    known: dict[str, Any] = {}
    for needed_text in needed:
        known.update(_defined(parse_json(needed_text), ""))
    return json.dumps(_Inliner(known).schema(parse_json(text), ""), ensure_ascii=False)


class _Inliner:
    """Replaces references by definitions. `known` has definitions by full name.

    Invalid parts are left as they are. The parser of the whole schema reports them.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._done: set[str] = set()

    def schema(self, schema: Any, space: str) -> Any:  # noqa: ANN401 -- JSON
        if isinstance(schema, list):
            return [self.schema(branch, space) for branch in schema]
        if isinstance(schema, str):
            return schema if schema in _BUILT_IN else self._reference(schema, space)
        if not isinstance(schema, Mapping) or "type" not in schema:
            return schema
        kind = schema["type"]
        if not isinstance(kind, str) or kind not in _BUILT_IN:
            return self.schema(kind, space)  # parsers accept no definition inside `type`
        if kind in _NAMED:
            return self._definition(_fully_named(schema, space))
        parts = {name: self.schema(schema[name], space) for name in _parts(schema)}
        return {**schema, **parts}

    def _definition(self, schema: Mapping[str, Any]) -> Any:  # noqa: ANN401
        full = _full_name(schema)
        if full in self._done and full in self._known:
            return full
        self._done.add(full)
        fields = [self._field(field, schema["namespace"]) for field in _fields(schema)]
        return {**schema, "fields": fields} if fields else schema

    def _field(self, field: Any, space: str) -> Any:  # noqa: ANN401
        if not isinstance(field, Mapping) or "type" not in field:
            return field
        return {**field, "type": self.schema(field["type"], space)}

    def _reference(self, name: str, space: str) -> Any:  # noqa: ANN401
        """Resolve a name in the enclosing namespace, or else in none, as Java's parser does."""
        for full in (_qualified(name, space), name):
            if full in self._done:
                return full
            if full in self._known:
                return self._definition(self._known[full])
        return name


def _defined(schema: Any, space: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield all types that a schema defines, nested ones included."""
    if isinstance(schema, list):
        for part in schema:
            yield from _defined(part, space)
    if not isinstance(schema, Mapping):
        return
    if schema.get("type") in tuple(_NAMED):
        schema = _fully_named(schema, space)
        space = schema["namespace"]
        yield _full_name(schema), schema
    for name in _parts(schema):
        yield from _defined(schema[name], space)
    for part in (schema, *_fields(schema)):
        if isinstance(part, Mapping) and not isinstance(part.get("type"), str):
            yield from _defined(part.get("type"), space)


def _parts(schema: Mapping[str, Any]) -> list[str]:
    return [name for name in ("items", "values") if name in schema]


def _fields(schema: Mapping[str, Any]) -> list[Any]:
    fields = schema.get("fields")
    return fields if isinstance(fields, list) else []


def _fully_named(schema: Mapping[str, Any], space: str) -> dict[str, Any]:
    """Make the namespace explicit, even if it is empty: then the enclosing one does not apply."""
    full = _qualified(str(schema.get("name", "")), str(schema.get("namespace", space)))
    space, _, name = full.rpartition(".")
    return {**schema, "name": name, "namespace": space}


def _full_name(schema: Mapping[str, Any]) -> str:
    return _qualified(schema["name"], schema["namespace"])


def _qualified(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"
