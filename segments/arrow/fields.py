"""Read the fields of many records at once, and check whether the bytes are records.

Source: Kafka's `DefaultRecord` (KIP-82, KIP-98)::

    length varint | attributes i8 | timestamp delta varlong | offset delta varint
    | key length varint, key | value length varint, value | count varint, headers
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.arrays import Bytes, Flags, Longs
from sidetier.segments.arrow.varints import read_lengths, read_varints

MIN_RECORD_BYTES: Final = 7
"""Size of a record with neither key, value nor headers: one byte per field."""
MIN_HEADER_BYTES: Final = 2

_BLOCK: Final = 8192
"""Records that are read at once. Their arrays fit into the processor's cache, which is twice as
fast as all records at once.
"""


@dataclass(frozen=True, slots=True)
class Spans:
    """Positions of byte strings, in ascending order. A null has the length -1."""

    begins: Longs
    lengths: Longs

    def where(self, chosen: slice) -> "Spans":
        """Return the chosen spans."""
        return Spans(self.begins[chosen], self.lengths[chosen])


@dataclass(frozen=True, slots=True)
class Contents:
    """Positions of the contents of records. The headers of each begin at `headers_at`, and end with
    it.
    """

    keys: Spans
    values: Spans
    header_counts: Longs
    headers_at: Longs


@dataclass(frozen=True, slots=True)
class Fields:
    """The records' own fields. They are valid only where `sound` is true.

    The deltas are relative to the batch's base timestamp and base offset.
    """

    sound: Flags
    timestamp_deltas: Longs
    offset_deltas: Longs
    contents: Contents | None


def read_fields(data: Bytes, starts: Longs, ends: Longs, *, contents: bool) -> Fields:
    """Read the fields of the records that begin and end at the given positions, in order.

    A record is sound if its length agrees with `ends`, and its fields fill it. Without `contents`,
    it is enough that the contents begin within it.
    """
    read = _read_whole if contents else _read_beginning
    blocks = [
        read(data, starts[row : row + _BLOCK], ends[row : row + _BLOCK])
        # At least one block, also without records: `concatenate` refuses an empty list.
        for row in range(0, max(1, len(starts)), _BLOCK)
    ]
    sound, timestamps, offsets, *rest = (
        np.concatenate(parts) for parts in zip(*blocks, strict=True)
    )
    if not contents:
        return Fields(sound, timestamps, offsets, None)
    keys_at, key_lengths, values_at, value_lengths, counts, headers_at = rest
    positions = Contents(
        Spans(keys_at, key_lengths), Spans(values_at, value_lengths), counts, headers_at
    )
    return Fields(sound, timestamps, offsets, positions)


def _read_beginning(data: Bytes, starts: Longs, ends: Longs) -> tuple[npt.NDArray[Any], ...]:
    """Return whether records are sound, their timestamps and their offsets."""
    sound, timestamps, offsets, at = _read_front(data, starts, ends)
    # At least one byte of the key's length must be left within the record.
    return sound & (at < ends), timestamps, offsets


def _read_whole(data: Bytes, starts: Longs, ends: Longs) -> tuple[npt.NDArray[Any], ...]:
    """As `_read_beginning`, with the positions of the contents."""
    sound, timestamps, offsets, at = _read_front(data, starts, ends)
    key_lengths, keys_at, at = read_lengths(data, at)
    value_lengths, values_at, at = read_lengths(data, at)
    counts, at = read_varints(data, at)
    # Without headers the record ends here; each header has at least two bytes.
    if counts.any():
        room = ends - at
        sound &= (counts >= 0) & (counts <= room // MIN_HEADER_BYTES)
        sound &= (counts > 0) | (room == 0)
    else:
        sound &= at == ends
    return sound, timestamps, offsets, keys_at, key_lengths, values_at, value_lengths, counts, at


def _read_front(data: Bytes, starts: Longs, ends: Longs) -> tuple[Flags, Longs, Longs, Longs]:
    """Return whether the length is right, timestamp and offset, and the position after them."""
    size, at = read_varints(data, starts)
    sound: Flags = (ends > starts) & (at + size == ends)
    # Plus one skips the attributes byte, which Kafka does not use.
    timestamps, at = read_varints(data, at + 1)
    offsets, at = read_varints(data, at)
    return sound, timestamps, offsets, at
