"""Build Arrow columns from positions in a buffer. One `take` collects the byte strings of a
column.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sidetier.segments.arrow.arrays import Bytes, Longs
from sidetier.segments.arrow.fields import Spans
from sidetier.segments.arrow.schema import HEADERS_TYPE

MAX_COLUMN_BYTES: Final = (1 << 31) - 1
"""Arrow's offsets into a column of type binary have 32 bits."""

_NO_HEADERS: Final = pa.array([], HEADERS_TYPE.value_type)


def fixed_column(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of numbers without nulls. `values` must have the column's width, and are not
    copied.
    """
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def binary_column(data: Bytes, spans: Spans) -> pa.Array:
    """Return a column of byte strings. The spans must be in order and must not overlap.

    Raises:
        ValueError: The byte strings have two GiB or more.
    """
    lengths = spans.lengths
    count = len(lengths)
    null = lengths < 0
    nulls = int(np.count_nonzero(null))
    # Also the case of no rows, in which `begins[0]` below does not exist.
    if nulls == count:
        return pa.nulls(count, pa.binary())
    sizes = np.maximum(lengths, 0) if nulls else lengths
    if int(sizes.sum()) > MAX_COLUMN_BYTES:
        raise ValueError("two GiB and more in one column: decode in pieces")
    # The bytes between two strings count as strings, too. Then every second string is taken.
    first, last = int(spans.begins[0]), int(spans.begins[-1] + sizes[-1])
    # The strings themselves fit, but the keys between two values count, too.
    wide = last - first > MAX_COLUMN_BYTES
    cuts = np.empty(2 * count, dtype=np.int64 if wide else np.int32)
    np.subtract(spans.begins, first, out=cuts[0::2], casting="unsafe")
    np.add(cuts[0::2], sizes, out=cuts[1::2], casting="unsafe")
    strings = pa.Array.from_buffers(
        pa.large_binary() if wide else pa.binary(),
        2 * count - 1,
        [None, pa.py_buffer(cuts), pa.py_buffer(data[first:last])],
    )
    # A masked index becomes a null in the result, whatever the string at that position is.
    every_second = pa.array(np.arange(0, 2 * count, 2), mask=null if nulls else None)
    taken = strings.take(every_second)
    return taken.cast(pa.binary()) if wide else taken


def headers_column(data: Bytes, counts: Longs, keys: Spans, values: Spans) -> pa.Array:
    """Return a column of `HEADERS_TYPE` for records that have `counts` headers each.

    Bytes of keys that are not UTF-8 become replacement characters, as in Kafka's client.

    Raises:
        ValueError: There are more than 2^31 - 1 headers, or two GiB or more of keys or of values.
    """
    ends = np.cumsum(counts)
    if len(ends) and int(ends[-1]) > MAX_COLUMN_BYTES:
        raise ValueError(f"{int(ends[-1])} headers in one column: decode in pieces")
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    offsets[1:] = ends
    struct = HEADERS_TYPE.value_type
    pairs = pa.StructArray.from_arrays(
        [_texts(binary_column(data, keys)), binary_column(data, values)],
        fields=[struct.field(0), struct.field(1)],
    )
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS_TYPE)


def no_headers(count: int) -> pa.Array:
    """Return a column of `HEADERS_TYPE` for `count` records without headers."""
    offsets = pa.array(np.zeros(count + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, _NO_HEADERS, type=HEADERS_TYPE)


def _texts(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    # Rare: the bytes of a key are not UTF-8. The cast of the
    # whole column fails then, so it is repeated key by key.
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
