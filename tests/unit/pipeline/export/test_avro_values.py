"""Avro values as columns: types without a Parquet equivalent, and schema changes."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.pipeline.export.sinks.files.formats.avro import records
from sidetier.pipeline.export.values.avro_schema import avro_schema
from sidetier.pipeline.export.values.avro_values import DEEPEST, AvroDecoder
from sidetier.pipeline.export.values.decoder import DecodedValues

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "name", "type": "string"}, {"name": "next", "type": ["null", "Node"]}],
}


def record(*fields: tuple[Any, ...], name: str = "R") -> dict[str, Any]:
    """A record schema from (name, type) or (name, type, default)."""
    made = [dict(zip(("name", "type", "default"), one, strict=False)) for one in fields]
    return {"type": "record", "name": name, "fields": made}


def logical(plain: str, name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 -- attributes
    return {"type": plain, "logicalType": name, **more}


def encoded(schema: Any, value: object) -> bytes:  # noqa: ANN401 -- JSON
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0\0\0\0\1" + stream.getvalue()


def read(writer: object, values: list[bytes], reader: object = None) -> DecodedValues:
    decoder = AvroDecoder(json.dumps(reader or writer), lambda _number: json.dumps(writer))
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.values.validate(full=True)
    assert decoded.values.type == decoder.type
    return decoded


def value_of(decoded: DecodedValues) -> Any:  # noqa: ANN401 -- of any type
    assert not decoded.misfits, decoded.misfits
    [found] = decoded.values.to_pylist()
    return found


DECIMAL = logical("bytes", "decimal", precision=4, scale=2)
CENTS = record(("c", "int", 7), ("d", DECIMAL, "\u0001"), name="Cents")


@pytest.mark.parametrize(
    ("kind", "default", "found"),
    [
        ("bytes", "\u00ff\u0000", b"\xff\x00"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0001\u00fe", b"\x01\xfe"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (DECIMAL, "\u0001\u0002", Decimal("2.58")),
        (logical("long", "timestamp-millis"), 1_795_262_400_000, NOON),
        (logical("int", "date"), 20_778, date(2026, 11, 21)),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": DECIMAL}, {"x": "\u0001"}, [("x", Decimal("0.01"))]),
        (CENTS, {}, {"c": 7, "d": Decimal("0.01")}),
        (CENTS, {"c": 8}, {"c": 8, "d": Decimal("0.01")}),
    ],
)
def test_defaults_follow_the_avro_specification(
    kind: object, default: object, found: object
) -> None:
    """In each of two records: no two records share a default object."""
    old = record(("a", "int"))
    decoded = read(old, [encoded(old, {"a": 1})] * 2, record(("a", "int"), ("b", kind, default)))
    assert not decoded.misfits
    assert decoded.values.to_pylist() == [{"a": 1, "b": found}] * 2


@pytest.mark.parametrize(
    ("writer", "value", "reader", "found"),
    [
        (logical("long", "timestamp-millis"), NOON, "long", 1_795_262_400_000),
        (logical("int", "date"), date(2026, 11, 21), "int", 20_778),
        (logical("int", "date"), date(2026, 11, 21), "double", 20_778.0),
        (DECIMAL, Decimal("2.58"), "bytes", b"\x01\x02"),
        (
            logical("long", "timestamp-millis"),
            NOON,
            logical("long", "timestamp-micros"),
            NOON,
        ),
        (
            logical("long", "timestamp-micros"),
            NOON.replace(microsecond=1999),
            logical("long", "timestamp-millis"),
            NOON.replace(microsecond=1000),
        ),
        ("long", 1_795_262_400_000, logical("long", "timestamp-millis"), NOON),
        (DECIMAL, Decimal("2.5"), {**DECIMAL, "precision": 9, "scale": 4}, Decimal("2.5000")),
    ],
)
def test_logical_types_can_be_added_changed_and_removed(
    writer: object, value: object, reader: object, found: object
) -> None:
    old, new = record(("v", writer)), record(("v", reader))
    assert value_of(read(old, [encoded(old, {"v": value})], new)) == {"v": found}


A = record(("x", "int"), name="shop.A")
B = record(("x", "int"), ("y", logical("int", "date")), name="shop.B")
SWITCH = {"type": "enum", "name": "E", "symbols": ["ON"]}
INTS = {"type": "array", "items": "int"}
SEVERAL = ["null", "string", "int", logical("long", "timestamp-millis"), A, B, SWITCH, INTS]


@pytest.mark.parametrize(
    ("value", "member", "found"),
    [
        ("x", "string", "x"),
        (5, "int", 5),
        (NOON, "long", NOON),
        (("shop.A", {"x": 1}), "A", {"x": 1}),
        (("shop.B", {"x": 1, "y": date(2026, 1, 2)}), "B", {"x": 1, "y": date(2026, 1, 2)}),
        (("E", "ON"), "E", "ON"),
        ([1, 2], "array", [1, 2]),
    ],
)
def test_union_of_several_types_is_a_struct(value: object, member: str, found: object) -> None:
    """Only the member of the written branch is set."""
    schema = record(("v", SEVERAL))
    empty = dict.fromkeys(("string", "int", "long", "A", "B", "E", "array"))
    decoded = read(schema, [encoded(schema, {"v": value})])
    assert value_of(decoded) == {"v": {**empty, member: found}}
    rows = pa.RecordBatch.from_struct_array(decoded.values)
    again = avro_schema(rows.schema, "r")
    [line] = records(rows.to_struct_array()).to_pylist()
    read_back = fastavro.schemaless_reader(io.BytesIO(line), fastavro.parse_schema(again), None)
    assert read_back == {"v": {**empty, member: found}}


def test_null_in_a_union_of_several_types_is_null() -> None:
    schema = record(("v", SEVERAL))
    assert value_of(read(schema, [encoded(schema, {"v": None})])) == {"v": None}


@pytest.mark.parametrize(
    ("writer", "value", "reader", "found"),
    [
        (["int", "string"], 5, ["string", "long"], {"string": None, "long": 5}),
        ("int", 5, ["string", "double"], {"string": None, "double": 5.0}),
        (["int", "string"], "x", ["null", "string"], "x"),
        (["null", "string"], "x", ["string", "long"], {"string": "x", "long": None}),
        (
            ["null", {**A, "name": "a.N"}, {**A, "name": "b.N"}],
            ("b.N", {"x": 3}),
            None,
            {"a_N": None, "b_N": {"x": 3}},
        ),
    ],
)
def test_unions_can_change(writer: object, value: object, reader: object, found: object) -> None:
    old, new = record(("v", writer)), record(("v", reader or writer))
    assert value_of(read(old, [encoded(old, {"v": value})], new)) == {"v": found}


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("null", None, None),
        ({"type": "null"}, None, None),
        (["null"], None, None),
        ({"type": "array", "items": "null"}, [None, None], [None, None]),
        ({"type": "map", "values": "null"}, {"x": None}, [("x", None)]),
        ([{"type": "null"}, "int"], None, None),
        ([{"type": "null"}, "int"], 7, 7),
        ([{"type": "null"}, "int", "string"], 7, {"int": 7, "string": None}),
        (record(("nothing", "null"), name="N"), {"nothing": None}, {"nothing": None}),
    ],
)
def test_null_is_a_column_without_values(kind: object, value: object, found: object) -> None:
    schema = record(("x", kind), ("y", "int"))
    decoded = read(schema, [encoded(schema, {"x": value, "y": 1})])
    assert value_of(decoded) == {"x": found, "y": 1}
    files = avro_schema(pa.schema(list(decoded.values.type)), "rows")
    stored = records(decoded.values).to_pylist()[0]
    reread: Any = fastavro.schemaless_reader(io.BytesIO(stored), fastavro.parse_schema(files))
    assert reread["y"] == 1


def test_null_that_gets_a_type_later_is_read() -> None:
    later = record(("x", ["null", "int"], None))
    assert value_of(read(record(("x", "null")), [b"\0\0\0\0\1"], later)) == {"x": None}


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (record(name="Empty"), {}, "{}"),
        (["null", record(name="Empty")], {}, "{}"),
        (["null", record(name="Empty")], None, None),
        (["int", record(name="Empty")], {}, {"int": None, "Empty": "{}"}),
        ({"type": "array", "items": record(name="Empty")}, [{}, {}], ["{}", "{}"]),
    ],
)
def test_record_without_fields_is_json_text(kind: object, value: object, found: object) -> None:
    """A struct without members has no column that a file or table could hold."""
    schema = record(("x", kind))
    assert value_of(read(schema, [encoded(schema, {"x": value})])) == {"x": found}
    assert value_of(read(kind, [encoded(kind, value)])) == found


def test_recursive_reference_is_a_json_column() -> None:
    value = {"name": "a", "next": {"name": "b", "next": {"name": "c", "next": None}}}
    found = value_of(read(NODE, [encoded(NODE, value)]))
    assert found["name"] == "a"
    assert json.loads(found["next"]) == value["next"]
    dated = record(
        ("at", logical("long", "timestamp-micros")),
        ("paid", DECIMAL),
        ("of", {"type": "array", "items": "R"}),
    )
    inner = {"at": NOON, "paid": Decimal("1.25"), "of": []}
    found = value_of(read(dated, [encoded(dated, {**inner, "of": [inner]})]))
    assert [json.loads(one) for one in found["of"]] == [
        {"at": "2026-11-21T12:00:00+00:00", "paid": "1.25", "of": []}
    ]


@pytest.mark.parametrize("reader", [NODE, record(("name", "string"), name="Node")])
def test_endlessly_nested_value_does_not_fit(reader: dict[str, Any]) -> None:
    """Fastavro's compiled reader crashes on it, even if the reader's schema leaves the field
    out.
    """
    deep = b"\0\0\0\0\1" + b"\2a\2" * 1_000_000 + b"\2a\0"
    good = encoded(NODE, {"name": "a", "next": None})
    decoded = read(NODE, [good, deep], reader)
    assert decoded.values[0].as_py()["name"] == "a"
    assert [one.row for one in decoded.misfits] == [1]


def test_recursive_value_is_limited_in_depth() -> None:
    values = [b"\0\0\0\0\1" + b"\2a\2" * more + b"\2a\0" for more in (DEEPEST - 2, DEEPEST + 1)]
    [misfit] = read(NODE, values).misfits
    assert (misfit.row, misfit.reason.rpartition(": ")[2]) == (
        1,
        f"value is nested more than {DEEPEST} deep",
    )


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        (logical("long", "timestamp-millis"), 253_402_300_800_000),
        (logical("long", "timestamp-micros"), -(2**62)),
        (logical("int", "date"), 2_932_897),
        (logical("int", "time-millis"), 86_400_000),
        (logical("long", "time-micros"), -1),
    ],
)
def test_time_that_no_column_can_hold_does_not_fit(schema: dict[str, Any], raw: int) -> None:
    data = encoded(record(("t", schema["type"])), {"t": raw})
    [misfit] = read(record(("t", schema)), [data]).misfits
    assert f"{raw} " in misfit.reason


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_do_not_end_a_run(data: bytes) -> None:
    schema = record(
        ("v", SEVERAL), ("d", DECIMAL), ("t", logical("long", "time-micros")), ("n", NODE)
    )
    decoded = read(schema, [b"\0\0\0\0\1" + data])
    assert len(decoded.values) == 1
