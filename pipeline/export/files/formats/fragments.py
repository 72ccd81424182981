"""Assembly of byte strings for all rows of a column at once."""

from collections.abc import Iterator, Sequence
from typing import Final

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


def _together(some: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(some) <= 1:
        return some
    merged: list[pa.RecordBatch] = pa.Table.from_batches(some).combine_chunks().to_batches()
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
