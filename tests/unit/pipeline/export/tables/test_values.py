import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.errors import MisfitError, NewerSchemaError
from sidetier.pipeline.export.sinks.tables.columns import ValueColumns
from sidetier.pipeline.export.sinks.tables.dead_letters import DeadLetters
from sidetier.pipeline.export.sinks.tables.frames import COLUMNS
from sidetier.pipeline.export.sinks.tables.row_checks import PartitionPaths, RecordKey
from sidetier.pipeline.export.values.options import ValueFormat, ValueOptions
from sidetier.pipeline.reading import timestamps
from sidetier.pipeline.spark.columns import TYPES
from sidetier.segments.errors import ConfigurationError
from tests.harness.schema_registry import serving

if TYPE_CHECKING:
    from pyspark import Accumulator

SCHEMA = pa.schema([(name, TYPES[name]) for name in COLUMNS])
ORDER = '{"type": "object", "properties": {"id": {"type": "integer"}, "to": {"type": "string"}}}'


def batch(*values: bytes | None) -> pa.RecordBatch:
    """A batch of records of orders-3 from offset 7 on."""
    count = len(values)
    columns = {
        "key": [b"k"] * count,
        "value": list(values),
        "topic": ["orders"] * count,
        "partition": [3] * count,
        "offset": list(range(7, 7 + count)),
        "timestamp": [0] * count,
        "timestampType": [0] * count,
        "headers": [None] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def columns(kind: ValueFormat, text: str | None = None, *, flat: bool = False) -> ValueColumns:
    return ValueColumns(ValueOptions(format=kind, schema_text=text), flat, SCHEMA)


def decoded(how: ValueColumns, *values: bytes | None) -> pa.RecordBatch:
    [found] = how(iter([batch(*values)]))
    assert found.schema.equals(how.decoded_schema()), "Spark was told of other columns"
    return found


def test_bytes_stay_unchanged() -> None:
    given = batch(b"a", None)
    assert list(columns(ValueFormat.BYTES)(iter([given]))) == [given]


def test_value_is_one_column() -> None:
    found = decoded(columns(ValueFormat.JSON, ORDER), b'{"id": 1, "to": "x"}', None)
    assert found.column("value").to_pylist() == [{"id": 1, "to": "x"}, None]
    assert found.schema.names == list(COLUMNS)
    assert decoded(columns(ValueFormat.STRING), b"a").column("value").to_pylist() == ["a"]


def test_fields_of_a_value_are_columns() -> None:
    found = decoded(columns(ValueFormat.JSON, ORDER, flat=True), b'{"id": 1, "to": "x"}', None)
    assert found.schema.names == [*(name for name in COLUMNS if name != "value"), "id", "to"]
    assert found.column("id").to_pylist() == [1, None]
    assert found.column("to").to_pylist() == ["x", None]
    assert found.column("offset").to_pylist() == [7, 8]


NEEDS_ID = ORDER.replace("{", '{"required": ["id"], ', 1)
AVRO = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.parametrize(
    "how",
    [
        columns(ValueFormat.JSON, NEEDS_ID, flat=True),
        columns(ValueFormat.AVRO, json.dumps(AVRO), flat=True),
    ],
)
def test_record_without_a_value_lacks_a_required_field(how: ValueColumns) -> None:
    """The column would be null, which the schema excludes."""
    with pytest.raises(MisfitError, match=r"offset 7: record has no value.*field id is required"):
        decoded(how, None)
    assert list(replace(how, null_values="skip")(iter([batch(None)]))) == []
    within = decoded(replace(how, flat=False), None)
    assert within.column("value").to_pylist() == [None]


def test_records_without_a_value_can_be_left_out() -> None:
    found = decoded(replace(columns(ValueFormat.BYTES), null_values="skip"), None, b"a", None)
    assert found.column("offset").to_pylist() == [8]


def test_error_names_the_offset_of_a_value_that_does_not_fit() -> None:
    with pytest.raises(MisfitError, match=r"orders-3 offset 8"):
        decoded(columns(ValueFormat.JSON, ORDER), b'{"id": 1}', b'{"id": "one"}')


class Told:
    """Stand in for Spark's accumulator."""

    def __init__(self) -> None:
        self.value: dict[str, None] = {}

    def add(self, names: dict[str, None]) -> None:
        self.value |= names


def test_dead_letter_is_stored_once_under_its_offset(tmp_path: Path) -> None:
    letters = DeadLetters(
        StorageConfig(url=f"file://{tmp_path}/letters"),
        cast("Accumulator[dict[str, None]]", Told()),
    )
    how = replace(columns(ValueFormat.JSON, ORDER), letters=letters)
    for _ in range(2):
        found = decoded(how, b"[", b'{"id": 1}', b"\xff")
        assert found.column("offset").to_pylist() == [8]
    assert letters.count == 2
    names = sorted(one.name for one in (tmp_path / "letters/orders/3").glob("*.json"))
    assert names == [f"{offset:020}.json" for offset in (7, 9)]
    letter = json.loads((tmp_path / "letters/orders/3" / names[1]).read_text())
    assert letter["reason"]
    assert (letter["offset"], letter["timestamp"], letter["value"]) == (9, 0, "/w==")


@pytest.mark.parametrize(("flat", "field"), [(True, "to"), (False, "value.to")])
def test_value_that_can_be_no_directory_of_the_table_does_not_fit(flat: bool, field: str) -> None:  # noqa: FBT001
    check = PartitionPaths((field,), named=False, form="plain")
    how = replace(columns(ValueFormat.JSON, ORDER, flat=flat), checks=(check,))
    with pytest.raises(MisfitError, match=rf"orders-3 offset 8: field {field} is '\.\.'"):
        decoded(how, b'{"to": "de"}', b'{"to": ".."}')
    decoded(how, b'{"to": "de"}', None)


def test_tombstone_without_the_fields_of_its_key_does_not_fit() -> None:
    """Hudi refuses each commit with such a record."""
    how = replace(columns(ValueFormat.JSON, ORDER, flat=True), checks=(RecordKey(("id",)),))
    with pytest.raises(MisfitError, match="orders-3 offset 8: the record key has no value in id"):
        decoded(how, b'{"id": 1}', None)
    assert decoded(replace(how, null_values="skip"), b'{"id": 1}', None).num_rows == 1


def test_batch_of_only_dead_letters_is_dropped(tmp_path: Path) -> None:
    letters = DeadLetters(
        StorageConfig(url=f"file://{tmp_path}/letters"),
        cast("Accumulator[dict[str, None]]", Told()),
    )
    how = replace(columns(ValueFormat.JSON, ORDER), letters=letters)
    assert list(how(iter([batch(b"[")]))) == []


def test_field_with_the_name_of_a_column_is_refused() -> None:
    schema = '{"type": "object", "properties": {"Offset": {"type": "integer"}}}'
    how = columns(ValueFormat.JSON, schema, flat=True)
    with pytest.raises(ConfigurationError, match="field Offset has the name of a column"):
        how.decoded_schema()


def test_value_without_fields_cannot_be_columns() -> None:
    with pytest.raises(ConfigurationError, match="have no fields to be columns"):
        columns(ValueFormat.STRING, flat=True).decoded_schema()


def timed(*milliseconds: int) -> pa.RecordBatch:
    """A batch of records from the archive, with raw timestamps."""
    given = batch(*[b"a"] * len(milliseconds))
    at = given.schema.get_field_index("timestamp")
    return given.set_column(at, "timestamp", pa.array(milliseconds, pa.int64()))


def test_timestamps_are_exact_at_both_limits() -> None:
    ends = (timestamps.EARLIEST_MS, -1, timestamps.LATEST_MS)
    how = columns(ValueFormat.BYTES)
    [found] = how(iter([timed(*ends)]))
    assert found.schema.equals(how.decoded_schema())
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [end * 1000 for end in ends]


@pytest.mark.parametrize("beyond", [-(2**63), timestamps.LATEST_MS + 1, 2**63 - 1])
def test_timestamp_beyond_the_limits_does_not_fit(tmp_path: Path, beyond: int) -> None:
    how = columns(ValueFormat.BYTES)
    with pytest.raises(MisfitError, match=f"offset 8: timestamp {beyond} ms is out of the range"):
        list(how(iter([timed(5, beyond)])))
    place = StorageConfig(url=f"file://{tmp_path}/letters")
    aside = replace(how, letters=DeadLetters(place, cast("Accumulator[dict[str, None]]", Told())))
    [found] = aside(iter([timed(5, beyond)]))
    assert found.column("offset").to_pylist() == [7]
    [letter] = (tmp_path / "letters").rglob("*8.json")
    assert json.loads(letter.read_text())["timestamp"] == beyond


V1 = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "to", "type": ["null", "string"], "default": None}]}


def framed(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


@pytest.mark.parametrize("compatibility", ["none", "backward", "full", "forward"])
def test_schema_newer_than_that_of_the_rows_is_an_error(compatibility: str) -> None:
    """A table has one schema at a time: the new fields would be left out."""
    with serving() as registry:
        first = registry.register("orders-value", {"schema": json.dumps(V1)})
        options = ValueOptions.model_validate(
            {
                "format": "avro",
                "schema_text": json.dumps(V1),
                "registry": registry.url,
                "subject": "orders-value",
                "schema_id": first,
                "compatibility": compatibility,
            },
            strict=False,
        )
        how = ValueColumns(options, flat=True, schema=SCHEMA)
        newer = registry.register("orders-value", {"schema": json.dumps(V2)})
        old, new = framed(first, b"\x02"), framed(newer, b"\x04\x02\x02x")
        assert decoded(how, old).column("id").to_pylist() == [1]
        if compatibility == "forward":
            assert decoded(how, old, new).column("id").to_pylist() == [1, 2]
            return
        with pytest.raises(NewerSchemaError, match=r"have version 2 .*, and rows have version 1"):
            decoded(how, old, new)
        other = registry.register("others", {"schema": json.dumps({**V2, "name": "Other"})})
        with pytest.raises(MisfitError, match="does not fit its Avro schema"):
            decoded(how, framed(other, b"\x04\x02\x02x"))


def test_keys_become_a_column() -> None:
    text = '{"type": "string"}'
    keys = ValueOptions(format=ValueFormat.JSON, schema_text=text)
    given = batch(b"a").set_column(0, "key", pa.array([b'"k"']))
    how = ValueColumns(ValueOptions(), flat=False, schema=SCHEMA, keys=keys)
    [found] = how(iter([given]))
    assert found.schema.equals(how.decoded_schema())
    assert found.column("key").to_pylist() == ["k"]
    with pytest.raises(MisfitError, match="orders-3 offset 7: key: value is not JSON"):
        list(how(iter([batch(b"a")])))
