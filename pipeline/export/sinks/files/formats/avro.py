"""Avro container files. fastavro writes the container; rows are encoded column by column."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidetier.pipeline.export.sinks.files.formats.forms import FileWriter
from sidetier.pipeline.export.values.avro_schema import avro_schema
from sidetier.pipeline.export.values.json_texts import (
    BYTES,
    Longs,
    as_list,
    constant,
    content,
    ends,
    filled,
    joined,
    lengths_of,
    of_lists,
    stretches,
)
from sidetier.segments.errors import ConfigurationError

# Rows in Avro's binary encoding, column by column, for the schema that `avro_schema` returns.
#
# Source: "Binary encoding" in Avro's specification.

_NULL, _OTHER = b"\x00", b"\x02"
"""Branches of a union of null and one type: null, and the other type."""
_END: Final = constant(b"\x00")
_MAX_BYTES: Final = 10
_PAYLOAD_BITS: Final = 7


def records(rows: pa.StructArray) -> pa.Array:
    """Return each row as an encoded record. Every field may be null."""
    return joined([_optional(field) for field in rows.flatten()], len(rows))


def _optional(values: pa.Array) -> pa.Array:
    present = joined([constant(_OTHER), _encoded(values)], len(values))
    return filled(present, values, _NULL)


def _encoded(values: pa.Array) -> pa.Array:
    """Encode values; the bytes of null values are undefined."""
    kind = values.type
    for is_kind, encode in _ENCODERS:
        if is_kind(kind):
            return encode(values)
    return _longs(_numbers(values))


def _numbers(values: pa.Array) -> Longs:
    """Return integers, dates and times as 64-bit integers."""
    plain = pa.int32() if values.type.bit_width == pa.int32().bit_width else pa.int64()
    whole = values if pa.types.is_integer(values.type) else values.cast(plain)
    numbers: Longs = pc.fill_null(whole, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _longs(numbers: Longs) -> pa.Array:
    """Encode numbers as zigzag varints: seven bits per byte, the lowest first."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    sizes = np.ones(len(zigzag), dtype=np.int64)
    for more in range(1, _MAX_BYTES):
        sizes += zigzag >= np.uint64(1 << _PAYLOAD_BITS * more)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    data = np.empty(ends[-1], dtype=np.uint8)
    for at in range(int(sizes.max(initial=0))):
        rows = np.flatnonzero(sizes > at)
        byte = (zigzag[rows] >> np.uint64(_PAYLOAD_BITS * at)) & np.uint64(0x7F)
        data[ends[rows] + at] = byte | np.where(sizes[rows] > at + 1, 0x80, 0).astype(np.uint64)
    return _from_bytes(ends, data)


def _from_bytes(ends: Longs, data: Any) -> pa.Array:  # noqa: ANN401 -- a buffer
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(BYTES, len(ends) - 1, buffers)


def _strings(values: pa.Array) -> pa.Array:
    data = pc.fill_null(values.cast(BYTES), b"")
    sizes = pc.binary_length(data).to_numpy(zero_copy_only=False).astype(np.int64)
    return joined([_longs(sizes), data], len(data))


def _floats(values: pa.Array) -> pa.Array:
    numbers = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
    ends = np.arange(len(numbers) + 1, dtype=np.int64) * numbers.itemsize
    return _from_bytes(ends, np.ascontiguousarray(numbers))


def _decimals(values: pa.Array) -> pa.Array:
    """Encode unscaled numbers as big-endian two's complement with as few bytes as possible."""
    width = values.type.byte_width
    raw = bytes(values.buffers()[1] or b"")
    numbers = [
        int.from_bytes(raw[row * width : (row + 1) * width], "little", signed=True)
        for row in range(values.offset, values.offset + len(values))
    ]
    encoded = [
        number.to_bytes(number.bit_length() + 8 >> 3, "big", signed=True) for number in numbers
    ]
    return _strings(pa.array(encoded, BYTES))


def _lists(values: pa.Array) -> pa.Array:
    return _blocks(values, _optional(values.flatten()))


def _maps(values: pa.Array) -> pa.Array:
    pairs = as_list(values)
    keys, items = pairs.flatten().flatten()
    return _blocks(pairs, joined([_strings(keys), _optional(items)], len(keys)))


def _blocks(lists: pa.Array, items: pa.Array) -> pa.Array:
    """Encode each list as one block with all its items, if there are any, and the end marker."""
    counts = lengths_of(lists)
    counted = pc.if_else(pa.array(counts > 0), _longs(counts), constant(b""))
    return joined([counted, of_lists(lists, items, b""), _END], len(lists))


_Encode = Callable[[pa.Array], pa.Array]
_ENCODERS: Final[tuple[tuple[Callable[[pa.DataType], bool], _Encode], ...]] = (
    (pa.types.is_boolean, lambda values: pc.if_else(values, constant(b"\x01"), constant(b"\x00"))),
    (pa.types.is_string, _strings),
    (pa.types.is_large_string, _strings),
    (pa.types.is_binary, _strings),
    (pa.types.is_fixed_size_binary, lambda values: values.cast(pa.binary()).cast(BYTES)),
    (pa.types.is_floating, _floats),
    (pa.types.is_struct, records),
    (pa.types.is_map, _maps),
    (pa.types.is_list, _lists),
    (pa.types.is_decimal, _decimals),
)


_MARKER_BYTES: Final = 16
_BLOCK_BYTES: Final = 16_000
"""A block ends with the record that reaches this size. It is fastavro's default."""


class AvroForm:
    """Avro container files. The schema is derived from the columns of the rows."""

    extension = "avro"

    def __init__(self, codec: str, name: str) -> None:
        """Create the format; `name` is the record's name in the schema.

        Raises:
            ConfigurationError: fastavro is not installed.
        """
        try:
            import fastavro  # noqa: F401, PLC0415 -- an extra; fail before anything is written
        except ModuleNotFoundError:
            raise ConfigurationError(
                "Avro files need fastavro, which is not installed: pip install 'sidetier[export]'"
            ) from None
        self._codec = codec
        self._name = name

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """Raises ConfigurationError if Avro does not allow a column's name."""
        from fastavro.write import Writer  # noqa: PLC0415

        avro = avro_schema(schema, self._name)
        file = path.open("wb")
        # fastavro's default sync marker is random. A fixed one makes equal rows give equal files.
        marker = bytes(_MARKER_BYTES)
        return _Writer(path, file, Writer(file, avro, codec=self._codec, sync_marker=marker))


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of encoded records, with the attributes that fastavro's `write_block` reads."""

    num_records: int
    bytes_: io.BytesIO


class _Writer:
    def __init__(self, path: Path, file: BinaryIO, writer: Any) -> None:  # noqa: ANN401 -- a class in C
        self._path = path
        self._file = file
        self._writer = writer
        self._records = 0
        self._waiting = bytearray()

    def write(self, rows: pa.Table) -> None:
        for batch in stretches(rows):
            self._add(records(batch.to_struct_array()))

    def _add(self, encoded: pa.Array) -> None:
        bounds = ends(encoded)
        data, before = content(encoded), int(bounds[0])
        first, count = 0, len(encoded)
        while first < count:
            wanted = int(bounds[first]) + _BLOCK_BYTES - len(self._waiting)
            until = min(int(np.searchsorted(bounds[first + 1 :], wanted)) + first + 1, count)
            self._waiting += data[int(bounds[first]) - before : int(bounds[until]) - before]
            self._records += until - first
            first = until
            if len(self._waiting) >= _BLOCK_BYTES:
                self._put()

    def _put(self) -> None:
        self._writer.write_block(_Block(self._records, io.BytesIO(self._waiting)))
        self._records, self._waiting = 0, bytearray()

    def close(self) -> None:
        if self._records:
            self._put()
        self._writer.flush()
        self._file.close()

    def count(self) -> int:
        from fastavro import block_reader  # noqa: PLC0415 -- an extra

        with self._path.open("rb") as written:
            return sum(block.num_records for block in block_reader(written))
