import pyarrow as pa
import pytest

from sidetier.pipeline.export.errors import MisfitError
from sidetier.pipeline.export.files.options import ValueFormat, ValueOptions
from sidetier.pipeline.export.tables.frames import COLUMNS
from sidetier.pipeline.export.tables.values import ValueColumns
from sidetier.pipeline.spark.columns import TYPES
from sidetier.segments.errors import ConfigurationError

SCHEMA = pa.schema([(name, TYPES[name]) for name in COLUMNS])
ORDER = '{"type": "object", "properties": {"id": {"type": "integer"}, "to": {"type": "string"}}}'


def batch(*values: bytes | None) -> pa.RecordBatch:
    """Records of orders-3 from offset 7 on."""
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


def test_bytes_are_left_as_they_are() -> None:
    given = batch(b"a", None)
    assert list(columns(ValueFormat.BYTES)(iter([given]))) == [given]


def test_a_value_is_one_column() -> None:
    found = decoded(columns(ValueFormat.JSON, ORDER), b'{"id": 1, "to": "x"}', None)
    assert found.column("value").to_pylist() == [{"id": 1, "to": "x"}, None]
    assert found.schema.names == list(COLUMNS)
    assert decoded(columns(ValueFormat.STRING), b"a").column("value").to_pylist() == ["a"]


def test_its_fields_are_columns() -> None:
    found = decoded(columns(ValueFormat.JSON, ORDER, flat=True), b'{"id": 1, "to": "x"}', None)
    assert found.schema.names == [*(name for name in COLUMNS if name != "value"), "id", "to"]
    assert found.column("id").to_pylist() == [1, None]
    assert found.column("to").to_pylist() == ["x", None]
    assert found.column("offset").to_pylist() == [7, 8]


def test_a_value_that_does_not_fit_is_named() -> None:
    with pytest.raises(MisfitError, match=r"orders-3 offset 8"):
        decoded(columns(ValueFormat.JSON, ORDER), b'{"id": 1}', b'{"id": "one"}')


def test_a_field_with_the_name_of_a_column_is_refused() -> None:
    schema = '{"type": "object", "properties": {"Offset": {"type": "integer"}}}'
    how = columns(ValueFormat.JSON, schema, flat=True)
    with pytest.raises(ConfigurationError, match="field Offset has the name of a column"):
        how.decoded_schema()


def test_a_value_without_fields_is_no_columns() -> None:
    with pytest.raises(ConfigurationError, match="have no fields to be columns"):
        columns(ValueFormat.STRING, flat=True).decoded_schema()
