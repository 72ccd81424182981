"""Byte strings put together for all rows of a column at once."""

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
    """The rows in order; small batches together, so that a step over columns is worth its while."""
    some: list[pa.RecordBatch] = []
    count = 0
    for batch in rows.to_batches():
        some.append(batch)
        count += batch.num_rows
        if count >= _MANY_ROWS:
            yield from _together(some)
            some, count = [], 0
    yield from _together(some)


def _together(some: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(some) <= 1:
        return some
    found: list[pa.RecordBatch] = pa.Table.from_batches(some).combine_chunks().to_batches()
    return found


def constant(data: bytes) -> pa.Scalar:
    """The same bytes in every row."""
    return pa.scalar(data, BYTES)


def joined(parts: Sequence[pa.Array | pa.Scalar], count: int) -> pa.Array:
    """Of `count` rows the parts one behind the other; no part has a null."""
    if not any(isinstance(part, pa.Array) for part in parts):
        parts = [*parts, pa.repeat(constant(b""), count)]
    return pc.binary_join_element_wise(*parts, constant(b""))


def filled(parts: pa.Array, whole: pa.Array, nothing: bytes) -> pa.Array:
    """The parts, but `nothing` where `whole` is null."""
    if whole.null_count == 0:
        return parts
    return pc.if_else(whole.is_valid(), parts, constant(nothing))


def as_list(maps: pa.Array) -> pa.Array:
    """Maps as lists of their pairs."""
    pair = [pa.field("key", maps.type.key_type), pa.field("value", maps.type.item_type)]
    return maps.cast(pa.list_(pa.struct(pair)))


def lengths_of(lists: pa.Array) -> Longs:
    """How many items each list has; none where it is null."""
    found: Longs = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return found


def of_lists(lists: pa.Array, items: pa.Array, between: bytes) -> pa.Array:
    """Of each list its items one behind the other; `items` are those of all lists that are no
    null.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths_of(lists))])
    return pc.binary_join(
        pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items), constant(between)
    )


def content(parts: pa.Array) -> memoryview:
    """The bytes of all rows, as they lie in memory one behind the other; no part is null."""
    offsets = ends(parts)
    data = parts.buffers()[2]
    return memoryview(data or b"")[int(offsets[0]) : int(offsets[-1])]


def ends(parts: pa.Array) -> Longs:
    """Where the first row begins in `content`'s buffer, and where each row ends."""
    buffer = parts.buffers()[1]
    if len(parts) == 0 or buffer is None:
        return np.zeros(1, dtype=np.int64)
    found = np.frombuffer(buffer, dtype=np.int64)
    return found[parts.offset : parts.offset + len(parts) + 1]
