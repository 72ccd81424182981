"""Generator of `docs/column-types.md`: the column of each type of a schema, in each sink."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2
from pyspark.sql.pandas.types import from_arrow_type

from sidetier.pipeline.export.values.avro_columns import column_of
from sidetier.pipeline.export.values.avro_schema import avro_schema
from sidetier.pipeline.export.values.framing import Framing
from sidetier.pipeline.export.values.json_values import JsonDecoder
from sidetier.pipeline.export.values.protobuf_values import ProtobufDecoder, file_set
from sidetier.pipeline.export.values.references import Registered
from sidetier.pipeline.export.values.table_types import table_type
from sidetier.segments.errors import ConfigurationError

_ONE: Final = [{"name": "x", "type": "int"}]


def _logical(kind: str, logical: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": logical, **more}


AVRO: Final[Mapping[str, Any]] = {
    "null": "null",
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
    "enum": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]},
    "fixed": {"type": "fixed", "name": "Three", "size": 3},
    "array": {"type": "array", "items": ["null", "string"]},
    "map": {"type": "map", "values": "long"},
    "record": {"type": "record", "name": "One", "fields": _ONE},
    "record_without_fields": {"type": "record", "name": "Empty", "fields": []},
    "recursive_record": {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    },
    "union_with_null": ["null", "int"],
    "union_of_several": ["null", "int", "string"],
    "uuid": _logical("string", "uuid"),
    "uuid_fixed": _logical("fixed", "uuid", name="Uuid", size=16),
    "decimal": _logical("bytes", "decimal", precision=20, scale=4),
    "decimal_fixed": _logical("fixed", "decimal", name="Cents", size=8, precision=10, scale=2),
    "decimal_of_64_digits": _logical("bytes", "decimal", precision=64, scale=2),
    "decimal_of_scale_40": _logical("bytes", "decimal", precision=50, scale=40),
    "decimal_of_scale_80": _logical("bytes", "decimal", precision=90, scale=80),
    "date": _logical("int", "date"),
    "time_millis": _logical("int", "time-millis"),
    "time_micros": _logical("long", "time-micros"),
    "timestamp_millis": _logical("long", "timestamp-millis"),
    "timestamp_micros": _logical("long", "timestamp-micros"),
    "timestamp_nanos": _logical("long", "timestamp-nanos"),
    "local_timestamp_millis": _logical("long", "local-timestamp-millis"),
    "local_timestamp_micros": _logical("long", "local-timestamp-micros"),
    "local_timestamp_nanos": _logical("long", "local-timestamp-nanos"),
    "duration": _logical("fixed", "duration", name="Months", size=12),
}
"""A schema for each type of Avro."""

JSON: Final[Mapping[str, Any]] = {
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "string, format date": {"type": "string", "format": "date"},
    "string, format date-time": {"type": "string", "format": "date-time"},
    "string, another format": {"type": "string", "format": "time"},
    "array": {"type": "array", "items": {"type": "string"}},
    "object with properties": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "object with additionalProperties": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
    },
    "one type, or null": {"type": ["null", "integer"]},
    "oneOf with null": {"oneOf": [{"type": "null"}, {"type": "integer"}]},
    "object without properties": {"type": "object"},
    "null": {"type": "null"},
    "several types": {"type": ["integer", "string"]},
    "oneOf of several types": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "no type": {"enum": ["a", "b"]},
}
"""A schema for each type of JSON Schema."""

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
_MESSAGES: Final = (
    *("Timestamp", "Duration", "DoubleValue", "FloatValue", "Int64Value", "UInt64Value"),
    *("Int32Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue"),
    *("Struct", "Value", "ListValue", "Any", "Empty", "FieldMask"),
)


def column_types_page() -> str:
    """Return the page."""
    avro = (_row(f"`{_shown(schema)}`", _avro_type(schema)) for schema in AVRO.values())
    protobuf = (
        _row(name, lambda kind=kind: kind)  # type: ignore[misc]
        for name, kind in _protobuf_types()
    )
    described = (
        _row(f"{name}: `{json.dumps(schema)}`", _json_type(schema)) for name, schema in JSON.items()
    )
    parts = [
        _INTRODUCTION,
        _AVRO,
        _HEAD,
        *avro,
        _PROTOBUF,
        _HEAD,
        *protobuf,
        _JSON,
        _HEAD,
        *described,
    ]
    return "".join(parts)


def _avro_type(schema: object) -> Callable[[], pa.DataType]:
    return lambda: column_of(schema).type


def _json_type(schema: object) -> Callable[[], pa.DataType]:
    return lambda: JsonDecoder(json.dumps(schema)).type


def _shown(schema: Any) -> str:  # noqa: ANN401 -- JSON
    if isinstance(schema, dict):
        schema = {name: part for name, part in schema.items() if name != "name"} | (
            {"name": schema["name"]} if schema["type"] == "record" else {}
        )
    return json.dumps(schema)


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    """Return a file whose message `Every` has a field of each type."""
    optional, repeated = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
    fields: list[tuple[str, int, str, Any]] = [
        (f"{name}_field", _FIELD.Type.Value(f"TYPE_{name.upper()}"), "", optional)
        for name in _SCALARS
    ]
    message = _FIELD.TYPE_MESSAGE
    fields += [(name, message, f".google.protobuf.{name}", optional) for name in _MESSAGES]
    fields += [
        ("enum", _FIELD.TYPE_ENUM, ".every.Color", optional),
        ("message", message, ".every.One", optional),
        ("recursive message", message, ".every.Every", optional),
        ("repeated", _FIELD.TYPE_STRING, "", repeated),
        ("map", message, ".every.Every.MapEntry", repeated),
    ]
    every = descriptor_pb2.DescriptorProto(name="Every")
    for number, (name, kind, of_type, label) in enumerate(fields, 1):
        field = every.field.add(name=name.replace(" ", "_"), number=number, label=label)
        field.type = kind
        if of_type:
            field.type_name = of_type
    entry = every.nested_type.add(name="MapEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=optional, type=_FIELD.TYPE_STRING)
    entry.field.add(name="value", number=2, label=optional, type=_FIELD.TYPE_INT32)
    file = descriptor_pb2.FileDescriptorProto(name="every.proto", package="every", syntax="proto3")
    file.dependency.extend(
        f"google/protobuf/{name}.proto"
        for name in ("timestamp", "duration", "wrappers", "struct", "any", "empty", "field_mask")
    )
    file.message_type.append(every)
    one = file.message_type.add(name="One")
    one.field.add(name="x", number=1, label=optional, type=_FIELD.TYPE_INT32)
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    return file


def protobuf_decoder() -> ProtobufDecoder:
    """Return a decoder of the message `Every`."""
    text = base64.b64encode(protobuf_file().SerializeToString()).decode()
    files = file_set(Registered(text), {})
    return ProtobufDecoder(files, Framing("Protobuf", lambda _number: files), "every.Every")


def _protobuf_types() -> Iterator[tuple[str, pa.DataType]]:
    kind = protobuf_decoder().type
    for at in range(kind.num_fields):
        field = kind.field(at)
        name = field.name.removesuffix("_field").replace("_", " ")
        yield f"`google.protobuf.{name}`" if name in _MESSAGES else f"`{name}`", field.type


def _row(name: str, kind_of: Callable[[], pa.DataType]) -> str:
    try:
        kind = kind_of()
    except ConfigurationError as error:
        return f"| {name} | refused: *{_reason(error)}* | | | |\n"
    cells = [f"`{kind}`", f"`{_avro(kind)}`", _json(kind)]
    try:
        spark = from_arrow_type(table_type(kind), prefer_timestamp_ntz=True).simpleString()
        cells.append(f"`{spark}`")
    except ConfigurationError as error:
        cells.append(f"refused: *{_reason(error)}*")
    return f"| {name} | {' | '.join(cells)} |\n"


def _reason(error: ConfigurationError) -> str:
    return str(error).replace("|", "\\|")


def _avro(kind: pa.DataType) -> str:
    [field] = avro_schema(pa.schema([("x", kind)]), "r")["fields"]
    return json.dumps(field["type"][1])


_FORMS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "`true` or `false`"),
    (pa.types.is_integer, "number"),
    (pa.types.is_floating, 'number; `"NaN"`, `"Infinity"`, `"-Infinity"`'),
    (pa.types.is_decimal, "text of the number"),
    (pa.types.is_binary, "text in base64"),
    (pa.types.is_fixed_size_binary, "text in base64"),
    (pa.types.is_date, '`"2026-11-21"`'),
    (pa.types.is_time, '`"08:00:00.001000"`'),
    (pa.types.is_struct, "object"),
    (pa.types.is_map, "object"),
    (pa.types.is_list, "array"),
)


def _json(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        zone = "+00:00" if kind.tz else ""
        return f'`"2026-11-21T08:00:00{zone}"`'
    return next((form for matches, form in _FORMS if matches(kind)), "text")


_HEAD: Final = """
| type | Parquet files (Arrow) | Avro files | JSON files | Hudi and Iceberg tables (Spark) |
|---|---|---|---|---|
"""
_INTRODUCTION: Final = """\
# Column types

`make docs` generates this page from the code that makes the columns.

The tables below show the column that an export makes of each type of a schema. They apply to the
fields of a value or key at any depth. Every column may be null. Files hold a value as its schema
describes it. Spark has fewer types, so in Hudi and Iceberg tables:

- Times have microseconds. A time without a zone (`local-timestamp-*`) stays without one
  (`timestamp_ntz`), and does not depend on the time zone of the session.
- A time of day is the number that Avro encodes: milliseconds or microseconds since midnight.
- `fixed` is `binary`.
- A decimal has at most 38 digits, and keeps its scale. A value with more digits does not fit.

A value that does not fit its column ends the run, or becomes a dead letter with `--dead-letters`.
The message names the field, such as `value.price`. A type that no column can hold is refused before
anything is written, also by the name of its field.

Hudi needs names of letters, digits and `_` that do not begin with a digit, and so do Avro files. A
reader of a Hudi table with dates before 1582 or times before 1900 needs
`spark.sql.parquet.datetimeRebaseModeInRead=CORRECTED`; the export sets it for itself.
"""
_AVRO: Final = """
## Avro

A decimal of more than 76 digits is one of 76 digits in files. A value does not fit if it has more
digits than its column, or if a date or time is outside the years 1 to 9999 or the hours of a day.
"""
_PROTOBUF: Final = """
## Protobuf

A member of a `oneof` is a column that may be null. A `uint64` above 9223372036854775807 does not
fit, nor does a `Timestamp` outside the years 1 to 9999. A `Timestamp` is cut to microseconds.
Text in place of a message is its JSON form.
"""
_JSON: Final = """
## JSON Schema

A time without a zone is UTC. An integer beyond 64 bits does not fit. `enum`, `const`, patterns and
ranges are not checked.
"""
