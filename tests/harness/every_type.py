"""A record with a field of each type of Avro, and the expected row of each sink, value by value."""

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import fastavro

from devtools.reference.column_types_page import AVRO
from tests.harness.schema_changes import ChangingTopic
from tests.harness.schema_registry import serving
from tests.harness.table_exports import Said

REFUSED: Final = {"decimal_of_scale_80": "files", "decimal_of_scale_40": "tables"}
"""Fields that no column of files, or of tables, can hold."""


class Value(NamedTuple):
    """A value as it is written, as Arrow returns it, and as Spark prints it as JSON."""

    written: Any
    in_file: Any
    in_table: Any


def _same(value: Any) -> Value:  # noqa: ANN401
    return Value(value, value, value)


_LOCAL: Final = datetime(2024, 3, 10, 2, 30, 0, 1000)  # noqa: DTZ001 -- a local time, which New York did not have
_MOMENT: Final = datetime(2024, 3, 10, 6, 30, 0, 1000, tzinfo=UTC)
_MILLIS, _LOCAL_MILLIS = 1_710_052_200_001, 1_710_037_800_001
_LARGE: Final = Decimal("123456789012345678901234567890123456.78")

VALUES: Final[dict[str, Value]] = {
    "null": _same(None),
    "boolean": _same(value=True),
    "int": _same(-(2**31)),
    "long": _same(2**63 - 1),
    "float": Value(1.5, 1.5, "1.5"),
    "double": Value(-2.25, -2.25, "-2.25"),
    "bytes": Value(b"\x00\xff", b"\x00\xff", "AP8="),
    "string": _same("ä\n"),
    "enum": _same("BLUE"),
    "fixed": Value(b"\x00\x01\xff", b"\x00\x01\xff", "AAH/"),
    "array": _same(["a", None]),
    "map": Value({"a": 1}, [("a", 1)], {"a": 1}),
    "record": _same({"x": 1}),
    "record_without_fields": Value({}, "{}", "{}"),
    "recursive_record": Value(
        {"next": {"next": None}}, {"next": '{"next": null}'}, {"next": '{"next": null}'}
    ),
    "union_with_null": _same(7),
    "union_of_several": Value("s", {"int": None, "string": "s"}, {"int": None, "string": "s"}),
    "uuid": _same("6f0e3b1c-8c7e-4f1e-9d3a-0a1b2c3d4e5f"),
    "uuid_fixed": Value(bytes(16), bytes(16), "AAAAAAAAAAAAAAAAAAAAAA=="),
    "decimal": Value(Decimal("-1.2345"), Decimal("-1.2345"), "-1.2345"),
    "decimal_fixed": Value(Decimal("12.34"), Decimal("12.34"), "12.34"),
    "decimal_of_64_digits": Value(_LARGE, _LARGE, str(_LARGE)),
    "decimal_of_scale_40": Value(Decimal(1), Decimal("1." + "0" * 40), None),
    "decimal_of_scale_80": _same(Decimal(1)),
    "date": Value(date(1, 1, 1), date(1, 1, 1), "0001-01-01"),
    "time_millis": Value(time(23, 59, 59, 1000), time(23, 59, 59, 1000), 86_399_001),
    "time_micros": Value(time(0, 0, 1, 1), time(0, 0, 1, 1), 1_000_001),
    "timestamp_millis": Value(_MOMENT, _MOMENT, "2024-03-10T01:30:00.001000-05:00"),
    "timestamp_micros": Value(_MOMENT, _MOMENT, "2024-03-10T01:30:00.001000-05:00"),
    "timestamp_nanos": _same(_MILLIS * 1_000_000 + 1),
    "local_timestamp_millis": Value(_LOCAL, _LOCAL, "2024-03-10T02:30:00.001000"),
    "local_timestamp_micros": Value(_LOCAL, _LOCAL, "2024-03-10T02:30:00.001000"),
    "local_timestamp_nanos": _same(_LOCAL_MILLIS * 1_000_000 + 1),
    "duration": Value(bytes(range(12)), bytes(range(12)), "AAECAwQFBgcICQoL"),
}


def names(sink: str) -> list[str]:
    """Return the fields that a sink has columns for: `files` or `tables`."""
    return [name for name in AVRO if REFUSED.get(name) not in {"files", sink}]


def schema(fields: list[str]) -> dict[str, Any]:
    """Return the schema of a record with these fields. Each may be null."""
    listed = [{"name": name, "type": _nullable(AVRO[name])} for name in fields]
    return {"type": "record", "name": "Every", "fields": listed}


def _nullable(kind: Any) -> Any:  # noqa: ANN401 -- JSON
    return kind if kind == "null" or isinstance(kind, list) else ["null", kind]


def encoded(writer: Any, value: object, number: int = 1) -> bytes:  # noqa: ANN401 -- JSON
    """Return a value in Confluent's wire format."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(writer), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def message(number: int, fields: list[str], **other: object) -> bytes:
    """Return a record with these fields, with other values for some of them."""
    values = {name: VALUES[name].written for name in fields} | other
    return encoded(schema(fields), values, number)


def in_spark(table: str) -> str:
    """Return the query of a table's fields as JSON text, in order of offsets."""
    written = {
        "ignoreNullFields": "false",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
    options = ", ".join(f'"{text}"' for pair in written.items() for text in pair)
    columns = ", ".join(f"`{name}`" for name in names("tables"))
    return (
        f"SELECT to_json(struct({columns}), map({options})) AS row FROM {table} "  # noqa: S608
        "ORDER BY offset"
    )


def in_table(row: str) -> dict[str, Any]:
    """Parse a row of JSON. Decimals and floating-point numbers are text."""
    parsed: dict[str, Any] = json.loads(row, parse_float=str)
    return parsed


def check_every_type(
    root: Path, run: Callable[..., Said], rows: Callable[[], list[dict[str, Any]]]
) -> None:
    """Check the rows of two exports into one table, value by value.

    The session has a time zone in which one of the local times does not exist. `run` exports the
    topic `orders` with the given options; `rows` runs the query of `in_spark`.
    """
    fields, letters = names("tables"), root / "letters"
    with serving() as registry:
        topic = ChangingTopic(root, registry)
        number = topic.register(schema(fields))
        large = message(number, fields, decimal_of_64_digits=Decimal(10) ** 50)
        options = (*topic.options, "--dead-letters", f"file://{letters}")
        nulls = message(number, fields, **dict.fromkeys(fields))
        for offset, value in enumerate((message(number, fields), large, nulls)):
            topic.produce(offset, number, value[5:])
        said = run(*options)
        assert said.code == 3, said.text
        # Hudi reads the rows of the first export again for this one.
        topic.produce(3, number, message(number, fields)[5:])
        said = run(*options)
        assert said.code == 0, said.text
    [letter] = letters.glob("*/*/*.json")
    reason = json.loads(letter.read_text())["reason"]
    assert reason == "value.decimal_of_64_digits has more than 38 digits, the most of a table"
    first, second, third = (in_table(row["row"]) for row in rows())
    expected = {name: VALUES[name].in_table for name in fields}
    assert first == third == expected
    assert second == dict.fromkeys(fields) | {"record_without_fields": None}
