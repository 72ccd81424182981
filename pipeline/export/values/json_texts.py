"""JSON texts of values, column by column. The text equals the output of Python's `json` module.

The byte strings of all rows of a column are assembled at once (`joined`).
"""

import base64
import json
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Longs = npt.NDArray[np.int64]

BYTES: Final = pa.large_binary()
_MANY_ROWS: Final = 2048


def stretches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows in order, with small batches merged: a column step has a fixed cost
    per batch.
    """
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in rows.to_batches():
        pending.append(batch)
        count += batch.num_rows
        if count >= _MANY_ROWS:
            yield from _together(pending)
            pending, count = [], 0
    yield from _together(pending)


def _together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) <= 1:
        return batches
    merged: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return merged


def constant(data: bytes) -> pa.Scalar:
    """Return the same bytes for every row."""
    return pa.scalar(data, BYTES)


def joined(parts: Sequence[pa.Array | pa.Scalar], count: int) -> pa.Array:
    """Concatenate the parts of each of `count` rows. No part may contain a null."""
    if not any(isinstance(part, pa.Array) for part in parts):
        parts = [*parts, pa.repeat(constant(b""), count)]
    return pc.binary_join_element_wise(*parts, constant(b""))


def filled(parts: pa.Array, whole: pa.Array, nothing: bytes) -> pa.Array:
    """Replace parts by `nothing` where `whole` is null."""
    if whole.null_count == 0:
        return parts
    return pc.if_else(whole.is_valid(), parts, constant(nothing))


def as_list(maps: pa.Array) -> pa.Array:
    """Convert maps to lists of key-value structs."""
    pair = [pa.field("key", maps.type.key_type), pa.field("value", maps.type.item_type)]
    return maps.cast(pa.list_(pa.struct(pair)))


def lengths_of(lists: pa.Array) -> Longs:
    """Return the number of items of each list; 0 for null."""
    lengths: Longs = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return lengths


def of_lists(lists: pa.Array, items: pa.Array, between: bytes) -> pa.Array:
    """Concatenate the items of each list, with `between` as separator.

    `items` has the items of all lists that are not null.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths_of(lists))])
    return pc.binary_join(
        pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items), constant(between)
    )


def content(parts: pa.Array) -> memoryview:
    """Return the bytes of all rows, concatenated, without a copy. No row may be null."""
    offsets = ends(parts)
    data = parts.buffers()[2]
    return memoryview(data or b"")[int(offsets[0]) : int(offsets[-1])]


def ends(parts: pa.Array) -> Longs:
    """Return the buffer positions of `content`: the start of the first row, then each row's end."""
    buffer = parts.buffers()[1]
    if len(parts) == 0 or buffer is None:
        return np.zeros(1, dtype=np.int64)
    positions = np.frombuffer(buffer, dtype=np.int64)
    return positions[parts.offset : parts.offset + len(parts) + 1]


_NULL: Final = b"null"
_FIRST_YEAR, _LAST_YEAR = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Range of Python's dates, in µs since 1970."""
_SPACE: Final = 0x20
_ESCAPES: Final = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}


def texts(values: pa.Array) -> pa.Array:
    """Return the JSON text of each value, as bytes.

    Bytes become base64, times ISO 8601, and decimals text.
    """
    kind = values.type
    for is_kind, write in _WRITERS:
        if is_kind(kind):
            return filled(write(values), values, _NULL)
    return _one_by_one(values)


def text_of(value: object) -> str:
    """Return the JSON text of one value."""
    try:
        return _ENCODER.encode(value)
    except ValueError:  # JSON has no NaN
        return _ENCODER.encode(_spelt(value))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


def _spelt(value: Any) -> Any:  # noqa: ANN401 -- any value of a row
    """Replace NaN and infinities by text, as in the JSON form of Protocol Buffers."""
    if isinstance(value, dict):
        return {name: _spelt(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_spelt(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)


def _one_by_one(values: pa.Array) -> pa.Array:
    rows = values.to_pylist(maps_as_pydicts="strict")
    return pa.array([text_of(row).encode() for row in rows], BYTES)


def _strings(values: pa.Array) -> pa.Array:
    return _quoted(_escaped(values.cast(BYTES)))


def _quoted(parts: pa.Array) -> pa.Array:
    return joined([constant(b'"'), pc.fill_null(parts, b""), constant(b'"')], len(parts))


def _escaped(values: pa.Array) -> pa.Array:
    """Escape special characters. Only those that occur in the column are searched in each value."""
    data = np.frombuffer(content(values), dtype=np.uint8)
    # Backslashes first: the other escapes begin with one.
    for byte, escape in ((0x5C, b"\\\\"), (0x22, b'\\"')):
        if (data == byte).any():
            values = pc.replace_substring(values, bytes([byte]), escape)
    for byte in np.unique(data[data < _SPACE]):
        escape = _ESCAPES.get(int(byte), b"\\u%04x" % byte)
        values = pc.replace_substring(values, bytes([byte]), escape)
    return values


def _binaries(values: pa.Array) -> pa.Array:
    encoded = [base64.b64encode(value or b"") for value in values.to_pylist()]
    return _quoted(pa.array(encoded, BYTES))


def _floats(values: pa.Array) -> pa.Array:
    rendered = [
        repr(value).encode() if value is None or math.isfinite(value) else text_of(value).encode()
        for value in values.to_pylist()
    ]
    return pa.array(rendered, BYTES)


def _timestamps(values: pa.Array) -> pa.Array:
    moments = values.cast(pa.timestamp("us", values.type.tz))
    span = pc.min_max(moments.cast(pa.int64())).as_py()
    if span["min"] is None:
        return pa.repeat(constant(_NULL), len(values))
    if span["min"] < _FIRST_YEAR or span["max"] > _LAST_YEAR:
        return _one_by_one(values)
    text = moments.cast(pa.string())
    for before, after in ((" ", "T"), (".000000", ""), ("Z", "+00:00")):
        text = pc.replace_substring(text, before, after)
    return _quoted(text.cast(BYTES))


def _structs(values: pa.Array) -> pa.Array:
    parts: list[pa.Array | pa.Scalar] = [constant(b"{")]
    for at, field in enumerate(values.flatten()):
        name = json.dumps(values.type.field(at).name, ensure_ascii=False)
        parts += [constant(f"{', ' if at else ''}{name}: ".encode()), texts(field)]
    return joined([*parts, constant(b"}")], len(values))


def _lists(values: pa.Array) -> pa.Array:
    items = of_lists(values, texts(values.flatten()), b", ")
    return joined([constant(b"["), items, constant(b"]")], len(values))


def _is_plain_timestamp(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.unit != "ns" and kind.tz in {None, "UTC"}


_Write = Callable[[pa.Array], pa.Array]
_WRITERS: Final[tuple[tuple[Callable[[pa.DataType], bool], _Write], ...]] = (
    (pa.types.is_integer, lambda values: values.cast(pa.large_string()).cast(BYTES)),
    (pa.types.is_boolean, lambda values: pc.if_else(values, constant(b"true"), constant(b"false"))),
    (pa.types.is_string, _strings),
    (pa.types.is_binary, _binaries),
    (pa.types.is_floating, _floats),
    (_is_plain_timestamp, _timestamps),
    (pa.types.is_struct, _structs),
    (pa.types.is_list, _lists),
)
