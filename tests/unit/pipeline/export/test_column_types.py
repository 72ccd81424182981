"""The column of each type of a schema, value by value, in files and in batches for tables."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import (
    any_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from devtools.reference.column_types_page import AVRO, JSON, protobuf_decoder, protobuf_file
from sidetier.pipeline.export.sinks.files.formats.avro import AvroForm
from sidetier.pipeline.export.sinks.files.formats.forms import ParquetForm, StreamForm, json_lines
from sidetier.pipeline.export.values.avro_columns import column_of
from sidetier.pipeline.export.values.avro_schema import avro_schema
from sidetier.pipeline.export.values.avro_values import AvroDecoder
from sidetier.pipeline.export.values.decoder import DecodedValues
from sidetier.pipeline.export.values.json_values import JsonDecoder
from sidetier.pipeline.export.values.table_types import table_type, table_values
from sidetier.segments.errors import ConfigurationError
from tests.harness.every_type import VALUES, encoded, in_table, message, names, schema

FILES, TABLES = names("files"), names("tables")


def decoded(fields: list[str], *messages: bytes | None) -> DecodedValues:
    text = json.dumps(schema(fields))
    return AvroDecoder(text, lambda _number: text).decode(pa.array(messages, pa.binary()))


def test_a_value_exists_for_each_type() -> None:
    assert set(VALUES) == set(AVRO)


def rows() -> pa.Table:
    values = decoded(FILES, message(1, FILES), message(1, FILES, **dict.fromkeys(FILES))).values
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(values)])


def test_parquet_files_have_each_type(tmp_path: Path) -> None:
    writer = ParquetForm("snappy").open(path := tmp_path / "f", rows().schema)
    writer.write(rows())
    writer.close()
    first, second = pq.read_table(path).to_pylist()
    assert first == {name: VALUES[name].in_file for name in FILES}
    assert set(map(str, second.values())) <= {"None", str({"int": None, "string": None})}


def test_avro_files_have_each_type(tmp_path: Path) -> None:
    writer = AvroForm("null", "every").open(path := tmp_path / "f", rows().schema)
    writer.write(rows())
    writer.close()
    with path.open("rb") as file:
        first, _ = list(fastavro.reader(file))
    assert first == {name: VALUES[name].in_file for name in FILES} | {"map": {"a": 1}}


def test_json_files_have_each_type(tmp_path: Path) -> None:
    writer = StreamForm("json", json_lines, "none").open(path := tmp_path / "f", rows().schema)
    writer.write(rows())
    writer.close()
    first, _ = map(in_table, path.read_text().splitlines())
    assert first == {name: VALUES[name].in_table for name in FILES} | {
        "decimal_of_scale_40": "1." + "0" * 40,
        "time_millis": "23:59:59.001000",
        "time_micros": "00:00:01.000001",
        "timestamp_millis": "2024-03-10T06:30:00.001000+00:00",
        "timestamp_micros": "2024-03-10T06:30:00.001000+00:00",
    }


def test_batches_of_tables_have_types_that_spark_has() -> None:
    """Both within structs and lists; `in_table` of a real table is in the tests with Spark."""
    values = decoded(TABLES, message(1, TABLES), None).values
    listed = pa.ListArray.from_arrays(pa.array([0, 0, 1, None, 2]), values)
    for column in (values, listed, listed.slice(1), values.slice(1)):
        kind = table_type(column.type)
        found, misfits = table_values(column, kind)
        assert not misfits
        found.validate(full=True)
        assert found.type == kind
        assert found.is_null().to_pylist() == column.is_null().to_pylist()
        assert len(found) == len(column)
    [first, _] = table_values(values, table_type(values.type))[0].to_pylist()
    assert first == {name: VALUES[name].in_file for name in TABLES} | {
        "time_millis": 86_399_001,
        "time_micros": 1_000_001,
    }
    times = {field.name: field.type for field in table_type(values.type) if "stamp_m" in field.name}
    assert set(times.values()) == {pa.timestamp("us", "UTC"), pa.timestamp("us")}


PROTOBUF: dict[str, Any] = {
    **{f"{name}_field": -1.5 for name in ("double", "float")},
    **{f"{name}_field": -7 for name in ("int32", "int64", "sint32", "sint64")},
    **{f"{name}_field": -8 for name in ("sfixed32", "sfixed64")},
    **dict.fromkeys(("uint32_field", "fixed32_field"), 2**32 - 1),
    **dict.fromkeys(("uint64_field", "fixed64_field"), 2**63 - 1),
    "bool_field": True,
    "string_field": "ä",
    "bytes_field": "AP8=",
    "Timestamp": "2026-11-21T08:00:00.000001Z",
    "Duration": "-1.5s",
    **dict.fromkeys(("DoubleValue", "FloatValue"), 0.5),
    **dict.fromkeys(("Int64Value", "UInt64Value", "Int32Value", "UInt32Value"), 0),
    "BoolValue": False,
    "StringValue": "",
    "BytesValue": "",
    "Struct": {"a": [None]},
    "Value": "text",
    "ListValue": [1.0],
    "Any": {"@type": "type.googleapis.com/google.protobuf.BoolValue", "value": True},
    "Empty": {},
    "FieldMask": "a,b",
    "enum": "RED",
    "message": {"x": 3},
    "recursive_message": {"string_field": "x"},
    "repeated": ["a", "b"],
    "map": {"k": 4},
}
"""Values of the message `Every`, in Protobuf's own JSON form."""


def test_protobuf_values_of_each_type() -> None:
    pool = DescriptorPool()
    for file in (
        *(any_pb2, duration_pb2, empty_pb2, field_mask_pb2),
        *(struct_pb2, timestamp_pb2, wrappers_pb2),
    ):
        pool.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
    pool.Add(protobuf_file())
    every = GetMessageClass(pool.FindMessageTypeByName("every.Every"))
    value = ParseDict(PROTOBUF, every(), descriptor_pool=pool).SerializeToString()
    found = protobuf_decoder().decode(pa.array([b"\0\0\0\0\1\0" + value]))
    assert not found.misfits
    [row] = found.values.to_pylist()
    assert set(row) == set(PROTOBUF), "a type without a value"
    texts = ("Struct", "Value", "ListValue", "Any", "Empty", "recursive_message")
    assert {name: json.loads(row[name]) for name in texts} == {
        name: PROTOBUF[name] for name in texts
    }
    assert {name: value for name, value in row.items() if name not in texts} == {
        name: value for name, value in PROTOBUF.items() if name not in texts
    } | {
        "bytes_field": b"\x00\xff",
        "Timestamp": datetime(2026, 11, 21, 8, 0, 0, 1, tzinfo=UTC),
        "Duration": {"seconds": -1, "nanos": -500_000_000},
        "BytesValue": b"",
        "FieldMask": {"paths": ["a", "b"]},
        "map": [("k", 4)],
    }
    assert table_type(found.values.type) == found.values.type, "Spark has each of these types"
    [absent] = protobuf_decoder().decode(pa.array([b"\0\0\0\0\1\0"])).values.to_pylist()
    assert {name for name, value in absent.items() if value is None} == {
        *texts,
        *(name for name in PROTOBUF if name[0].isupper()),
        "message",
    }


JSON_VALUES: dict[str, tuple[object, object]] = {
    "boolean": (True, True),
    "integer": (2**63 - 1, 2**63 - 1),
    "number": (0.5, 0.5),
    "string": ("ä", "ä"),
    "string, format date": ("2026-11-21", date(2026, 11, 21)),
    "string, format date-time": (
        "2026-11-21T09:00:00.000001+01:00",
        datetime(2026, 11, 21, 8, 0, 0, 1, tzinfo=UTC),
    ),
    "string, another format": ("08:00", "08:00"),
    "array": (["a"], ["a"]),
    "object with properties": ({"x": 1, "y": 2}, {"x": 1}),
    "object with additionalProperties": ({"a": 1}, [("a", 1)]),
    "one type, or null": (None, None),
    "oneOf with null": (3, 3),
    "null": (None, None),
}
"""Values as they are written, and as they are read. Other types have no column."""


@pytest.mark.parametrize("name", JSON)
def test_json_value_of_each_type(name: str) -> None:
    text = json.dumps({"type": "object", "properties": {"f": JSON[name]}})
    if name not in JSON_VALUES:
        with pytest.raises(ConfigurationError, match=r"value\.f"):
            JsonDecoder(text)
        return
    written, expected = JSON_VALUES[name]
    found = JsonDecoder(text).decode(pa.array([json.dumps({"f": written}).encode()]))
    assert not found.misfits
    assert found.values.to_pylist() == [{"f": expected}]
    assert table_type(found.values.type) == found.values.type


@pytest.mark.parametrize(
    "schema_of_field",
    [
        {"oneOf": [True, {"type": "null"}]},
        {"anyOf": {}},
        {"oneOf": [{"properties": [1]}]},
        {"type": "object", "properties": {"x": {"type": "integer"}}, "required": 5},
        {"type": 5},
        {"type": [{"a": 1}]},
    ],
)
def test_invalid_json_schema_is_refused_by_the_name_of_its_field(schema_of_field: object) -> None:
    with pytest.raises(ConfigurationError, match=r"value\.f: "):
        JsonDecoder(json.dumps({"type": "object", "properties": {"f": schema_of_field}}))


def test_maps_are_converted() -> None:
    kind = pa.map_(pa.string(), pa.timestamp("ms", "UTC"))
    at = datetime(2026, 11, 21, tzinfo=UTC)
    values = pa.array([[("a", at)], None, [], [("b", None), ("c", at)]], kind)
    for column in (values, values.slice(1)):
        found, _ = table_values(column, table_type(kind))
        assert found.type.item_type == pa.timestamp("us", "UTC")
        assert found.to_pylist() == column.to_pylist()


@pytest.mark.parametrize("name", ["decimal", "decimal_of_64_digits"])
def test_decimal_with_too_many_digits_does_not_fit_alone(name: str) -> None:
    fits = VALUES[name].written
    field = {"name": name, "type": {**AVRO[name], "precision": 64}}
    writer = {**schema([name]), "fields": [field]}
    text = json.dumps(schema([name]))
    decoder = AvroDecoder(text, lambda _number: json.dumps(writer))
    payloads = [encoded(writer, {name: value}) for value in (fits, Decimal(10) ** 50)]
    values = decoder.decode(pa.array(payloads))
    found, misfits = table_values(values.values, table_type(values.values.type))
    [misfit] = [*values.misfits, *misfits]
    assert misfit.row == 1
    digits = 20 if name == "decimal" else 38
    assert misfit.reason.startswith(f"value.{name} has more than {digits} digits")
    assert found.to_pylist()[0] == {name: fits}
    assert found.to_pylist()[1] is None


@pytest.mark.parametrize(
    ("schema_of_field", "path"),
    [
        ({"type": "array", "items": AVRO["decimal_of_scale_40"]}, r"value\[\]"),
        ({"type": "map", "values": AVRO["decimal_of_scale_40"]}, r"value\.\*"),
        (schema(["decimal_of_scale_40"]), r"value\.decimal_of_scale_40"),
    ],
)
def test_type_without_a_column_in_tables_is_refused_by_the_name_of_its_field(
    schema_of_field: object, path: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"{path} is a decimal with 40 digits"):
        table_type(column_of(schema_of_field).type)


def test_type_without_a_column_in_files_is_refused_by_the_name_of_its_field() -> None:
    with pytest.raises(ConfigurationError, match=r"value\.decimal_of_scale_80: a decimal of scale"):
        column_of(schema(["decimal_of_scale_80"]))


def test_name_that_avro_files_cannot_have_is_refused_with_its_path() -> None:
    rows = pa.schema([("value", pa.struct([("at", pa.list_(pa.struct([("a b", pa.int32())])))]))])
    with pytest.raises(ConfigurationError, match=r"value\.at\.a b: Avro has no such names"):
        avro_schema(rows, "r")


def test_misfit_names_the_field_at_any_depth() -> None:
    inner = {"type": "record", "name": "R", "fields": [{"name": "d", "type": AVRO["date"]}]}
    outer = {"type": "array", "items": {"type": "map", "values": ["null", "string", inner]}}
    writer = json.dumps({"type": "record", "name": "E", "fields": [{"name": "a", "type": outer}]})
    plain = json.loads(writer.replace(', "logicalType": "date"', ""))
    value = encoded(plain, {"a": [{"k": {"d": 9_999_999}}]})
    found = AvroDecoder(writer, lambda _number: writer).decode(pa.array([value]))
    assert found.misfits[0].reason.startswith("value.a[].*.R.d is 9999999 days since 1970")
