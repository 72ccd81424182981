"""Columns written at once give the same bytes as values written one by one."""

import io
import tempfile
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.pipeline.export.sinks.files.formats.avro import AvroForm, records
from sidetier.pipeline.export.sinks.files.formats.forms import json_lines, json_values
from sidetier.pipeline.export.values.avro_schema import avro_schema
from sidetier.pipeline.export.values.json_texts import (
    content,
    joined,
    stretches,
    text_of,
    texts,
)

PLAIN: Final = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n\t\x1f')),
    pa.binary(): st.binary(),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.decimal128(9, 2): st.decimals(-9999, 9999, places=2),
    pa.timestamp("us", tz="UTC"): st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
    pa.timestamp("ms", tz="UTC"): st.integers(-62_135_596_800_000, 253_402_300_799_999),
    pa.timestamp("us"): st.integers(0, 10**9).map(lambda seconds: seconds * 10**6),
}


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested types with a strategy for their values."""
    lists = inner.map(lambda one: (pa.list_(one[0]), st.lists(optional(one[1]), max_size=4)))
    maps = inner.map(
        lambda one: (
            pa.map_(pa.string(), one[0]),
            st.dictionaries(st.text("ab\x01"), optional(one[1]), max_size=3).map(
                lambda found: list(found.items())
            ),
        )
    )
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda some: (
            pa.struct([(f"f{at}", kind) for at, (kind, _) in enumerate(some)]),
            st.fixed_dictionaries(
                {f"f{at}": optional(values) for at, (_, values) in enumerate(some)}
            ),
        )
    )
    return lists | maps | structs


TYPES: Final = st.recursive(st.sampled_from(list(PLAIN.items())), nested, max_leaves=5)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """A column, optionally sliced from a longer one."""
    kind, values = draw(TYPES)
    rows = draw(st.lists(optional(values), max_size=8))
    start = draw(st.integers(0, len(rows)))
    return pa.array(rows, kind).slice(start, draw(st.integers(0, len(rows) - start)))


@settings(deadline=None)
@given(column=columns())
def test_json_of_a_column_equals_the_json_of_its_values(column: pa.Array) -> None:
    wanted = [text_of(one).encode() for one in column.to_pylist(maps_as_pydicts="strict")]
    found = texts(column)
    found.validate(full=True)
    assert found.to_pylist() == wanted
    table = pa.table({"value": column})
    assert json_values(table)[0] == b"".join(one + b"\n" for one in wanted)
    assert json_lines(table)[0] == b"".join(b'{"value": %s}\n' % one for one in wanted)


@settings(deadline=None)
@given(column=columns())
def test_avro_of_columns_equals_the_avro_of_their_rows(column: pa.Array) -> None:
    table = pa.table({"value": column, "again": column})
    schema = fastavro.parse_schema(avro_schema(table.schema, "r"))
    wanted = []
    for row in table.to_pylist(maps_as_pydicts="strict"):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, row)
        wanted.append(stream.getvalue())
    [rows] = [batch.to_struct_array() for batch in table.to_batches()] or [None]
    assert ([] if rows is None else records(rows).to_pylist()) == wanted


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize("length", [10, 15_990, 40_000])
def test_avro_containers_have_the_same_blocks_as_fastavros(codec: str, length: int) -> None:
    """A block can span several writes."""
    texts_of = [str(at) * (length // 3) for at in range(40)]
    parts = [pa.table({"x": some}) for some in (texts_of[:1], [], texts_of[1:30], texts_of[30:])]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "found.avro"
        writer = AvroForm(codec, "r").open(path, parts[0].schema)
        for part in parts:
            writer.write(part.cast(parts[0].schema))
        writer.close()
        found = path.read_bytes()
    wanted = io.BytesIO()
    rows = [{"x": one} for one in texts_of]
    schema = avro_schema(parts[0].schema, "r")
    fastavro.writer(wanted, schema, rows, codec=codec, sync_marker=bytes(16))
    assert found == wanted.getvalue()


@pytest.mark.parametrize("sizes", [[], [0], [1] * 5000, [5000, 1, 3000, 1, 1]])
def test_small_batches_are_written_together(sizes: list[int]) -> None:
    schema = pa.schema([("x", pa.int64())])
    parts = [pa.table({"x": [at] * size}, schema) for at, size in enumerate(sizes)]
    table = pa.concat_tables([schema.empty_table(), *parts])
    assert json_lines(table)[0] == b"".join(
        b'{"x": %d}\n' % at for at, size in enumerate(sizes) for _ in range(size)
    )
    assert len(list(stretches(table))) <= max(sum(sizes) // 2048 + 1, 1)


def test_time_beyond_pythons_dates_is_refused() -> None:
    """Such values do not reach this function, because they do not fit."""
    with pytest.raises((ValueError, OverflowError)):
        texts(pa.array([0, 2**62], pa.timestamp("us", tz="UTC")))


def test_empty_types_and_tables_are_written() -> None:
    nothing = pa.struct([])
    assert records(pa.array([{}, {}], nothing)).to_pylist() == [b"", b""]
    assert texts(pa.array([{}, None], nothing)).to_pylist() == [b"{}", b"null"]
    odd = pa.table({'a "b"': [1]})
    assert json_lines(odd)[0] == b'{"a \\"b\\"": 1}\n'
    assert texts(pa.nulls(2)).to_pylist() == [b"null"] * 2
    assert bytes(content(joined([], 0))) == json_lines(pa.table({"x": []}))[0] == b""
