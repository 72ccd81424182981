import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sidetier.pipeline.export.values.avro_columns import column_of
from sidetier.pipeline.export.values.avro_schema import avro_schema
from sidetier.pipeline.export.values.avro_values import AvroDecoder
from sidetier.pipeline.export.values.decoder import DecodedValues, StringDecoder
from sidetier.pipeline.export.values.decoder_factory import decoder_of
from sidetier.pipeline.export.values.json_values import JsonDecoder
from sidetier.pipeline.export.values.options import ValueFormat, ValueOptions
from sidetier.segments.errors import ConfigurationError

ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "country": {"type": ["string", "null"]},
        "price": {"type": "number"},
        "paid": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
    },
    "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string"}}}},
}


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def as_json(*values: object) -> pa.Array:
    return binary(*(json.dumps(value).encode() for value in values))


def reasons(decoded: DecodedValues) -> dict[int, str]:
    decoded.values.validate(full=True)
    found = {one.row: one.reason for one in decoded.misfits}
    assert all(not decoded.values[row].is_valid for row in found)
    return found


def test_text_must_be_utf_8() -> None:
    decoded = StringDecoder().decode(binary("grüß".encode(), None, b"a\xff", b""))
    assert decoded.values.to_pylist() == ["grüß", None, None, ""]
    assert reasons(decoded) == {2: "value is not UTF-8 text: byte 1 is 0xFF"}


def test_json_values_fit_their_schema() -> None:
    decoded = JsonDecoder(json.dumps(ORDER)).decode(
        as_json(
            {
                "id": 7.0,
                "country": None,
                "price": 3,
                "paid": True,
                "at": "2026-11-21T09:00:00+01:00",
                "day": "2026-11-21",
                "lines": [{"sku": "a", "more": 1}],
                "labels": {"x": "y"},
                "note": "n",
                "unknown": [],
            },
            {"id": 8},
        )
    )
    assert not decoded.misfits
    full, least = decoded.values.to_pylist()
    assert full == {
        "id": 7,
        "country": None,
        "price": 3.0,
        "paid": True,
        "at": datetime(2026, 11, 21, 8, tzinfo=UTC),
        "day": date(2026, 11, 21),
        "lines": [{"sku": "a"}],
        "labels": [("x", "y")],
        "note": "n",
    }
    assert {name: value for name, value in least.items() if value is not None} == {"id": 8}


@pytest.mark.parametrize(
    "kind",
    [{"type": "null"}, {"type": ["null"]}, {"oneOf": [{"type": "null"}]}],
)
def test_json_null_is_a_column_without_values(kind: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"x": kind, "y": {"type": "integer"}}}
    values = binary(b'{"x": null, "y": 1}', b'{"y": 2}', b'{"x": 3}')
    decoded = JsonDecoder(json.dumps(schema)).decode(values)
    assert decoded.values.to_pylist() == [{"x": None, "y": 1}, {"x": None, "y": 2}, None]
    assert decoded.values.type.field("x").type == pa.string()
    assert "x should be null, and is 3" in reasons(decoded)[2]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "value is not JSON"),
        (b"\xff", "value is not JSON"),
        (b'{"id": NaN}', "NaN is not a number"),
        (b"[" * 100_000, "value is not JSON: it is nested more than 500 deep"),
        *(
            (b'{"id": ' + b"[" * n + b"]" * n + b"}", "more than 500 deep")
            for n in range(500, 1000)
        ),
        (b'{"id": ' + b"[" * 499 + b"]" * 499 + b"}", r"value\.id should be an integer"),
        (b'{"id": "' + b"[" * 600 + b'\\\\"}', r"value\.id should be an integer"),
        (b"null", "should be an object, and is null"),
        (b"{}", r"value\.id is missing"),
        (b'{"id": null}', r"value\.id should be an integer, and is null"),
        (b'{"id": 1.5}', r"value\.id should be an integer, and is 1\.5"),
        (b'{"id": true}', r"value\.id should be an integer, and is true"),
        (b'{"id": 1e999}', r"value\.id should be an integer"),
        (b'{"id": 9223372036854775808}', "of 64 bits"),
        (b'{"id": 1, "price": 1e400}', r"value\.price should be a number of 64 bits"),
        (b'{"id": 1, "price": -1e400}', r"value\.price should be a number of 64 bits"),
        (b'{"id": 1, "price": 1' + b"0" * 400 + b"}", "value.price should be a number of 64 bits"),
        (b'{"id": 1, "price": "3"}', r"value\.price should be a number"),
        (b'{"id": 1, "at": "soon"}', r"value\.at should be a time"),
        (b'{"id": 1, "at": 5}', r"value\.at should be a time as .*, and is 5"),
        (b'{"id": 1, "lines": [5]}', r"value\.lines\[\] should be an object, and is 5"),
        (b'{"id": 1, "lines": [{"sku": 5}]}', r"value\.lines\[\]\.sku should be a string"),
        (b'{"id": 1, "labels": {"x": 5}}', r"value\.labels\.x should be a string"),
        (b'{"id": 1, "country": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_invalid_json_does_not_fit(value: bytes, reason: str) -> None:
    decoded = JsonDecoder(json.dumps(ORDER)).decode(binary(b'{"id": 1}', value, None))
    [(row, said)] = reasons(decoded).items()
    assert row == 1
    with pytest.raises(ValueError, match=reason):
        raise ValueError(said)
    assert decoded.values[0].as_py()["id"] == 1


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not JSON"),
        ('{"type": "thing"}', "no type 'thing'"),
        ('{"type": ["string", "integer"]}', "one type, and null"),
        ('{"oneOf": [{"type": "string"}, {"type": "integer"}]}', "alternatives"),
        ('{"type": "object"}', "needs properties"),
        ('{"$ref": "#/$defs/a"}', "is not in this schema"),
        ('{"$ref": "#"}', "circle"),
        ('{"type": "array"}', "has no schema"),
        ('{"properties": {"me": {"$ref": "#"}}}', "without an end"),
    ],
)
def test_json_schemas_without_a_column_type_are_refused(schema: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        JsonDecoder(schema)


USER_1 = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "id", "type": "int"}, {"name": "old", "type": "string"}],
}
USER_2: dict[str, Any] = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "mail", "type": ["null", "string"], "default": None},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}, "default": "-"},
    ],
}


def wire(number: int, schema: dict[str, Any], value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def test_avro_of_several_writers_becomes_one_schema() -> None:
    options = ValueOptions(
        format=ValueFormat.AVRO,
        schema_text=json.dumps(USER_2),
        writers=((1, json.dumps(USER_1)), (2, json.dumps(USER_2))),
    )
    good = wire(1, USER_1, {"id": 5, "old": "x"})
    decoded = decoder_of(options).decode(
        binary(
            good,
            wire(2, USER_2, {"id": 6, "mail": "m", "key": "k"}),
            None,
            wire(9, USER_1, {"id": 5, "old": "x"}),
            b"\1" + good[1:],
            b"\0\0",
            wire(2, USER_2, {"id": 6, "mail": "m", "key": "k"})[:-1],
            good + b"!",
        )
    )
    assert decoded.values.to_pylist()[:3] == [
        {"id": 5, "mail": None, "key": "-"},
        {"id": 6, "mail": "m", "key": "k"},
        None,
    ]
    said = reasons(decoded)
    assert said.keys() == {3, 4, 5, 6, 7}
    assert said[3] == "value has the Avro schema 9: it is not known"
    assert "lacks its header" in said[4]
    assert "lacks its header" in said[5]
    assert "does not fit its Avro schema" in said[6]
    assert "longer" in said[7]


def test_avro_and_arrow_have_the_same_types() -> None:
    columns = pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.timestamp("us", tz="UTC")),
            ("c", pa.decimal128(9, 2)),
            ("j", pa.decimal256(40, 1)),
            ("d", pa.list_(pa.struct([("x", pa.string())]))),
            ("e", pa.map_(pa.string(), pa.float64())),
            ("f", pa.date32()),
            ("g", pa.binary(4)),
            ("h", pa.time64("us")),
            ("i", pa.bool_()),
        ]
    )
    row = {
        "a": 1,
        "b": datetime(2026, 11, 21, tzinfo=UTC),
        "c": Decimal("1.25"),
        "j": Decimal("-7.5"),
        "d": [{"x": "y"}],
        "e": {"k": 0.5},
        "f": date(2026, 1, 2),
        "g": b"abcd",
        "h": time(1, 2, 3),
        "i": True,
    }
    schema = avro_schema(columns, "r")
    assert column_of(schema).type == pa.struct(list(columns))
    decoder = AvroDecoder(json.dumps(schema), lambda _number: json.dumps(schema))
    decoded = decoder.decode(binary(wire(1, schema, row)))
    [found] = decoded.values.to_pylist()
    assert {**found, "e": dict(found["e"])} == row


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not JSON"),
        ('["string", "unheard"]', "unheard|cannot be used"),
        ('"unheard"', "unheard|cannot be used"),
        (
            '{"type": "bytes", "logicalType": "decimal", "precision": 99, "scale": 77}',
            "value: a decimal of scale 77",
        ),
    ],
)
def test_avro_schemas_without_a_column_type_are_refused(schema: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        AvroDecoder(schema, lambda _number: None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"format": ValueFormat.JSON}, "need a schema"),
        ({"format": ValueFormat.STRING, "schema_text": "{}"}, "have no schema"),
        (
            {"format": ValueFormat.PROTOBUF, "schema_text": "x"},
            "need a schema registry",
        ),
        (
            {"format": ValueFormat.JSON, "schema_text": "{}", "message": "shop.Order"},
            "for Protobuf alone",
        ),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ValueOptions(**options)
