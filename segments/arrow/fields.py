"""The fields of many records at once, and whether they are records at all.

Source: Kafka's `DefaultRecord` (KIP-82, KIP-98)::

    length varint | attributes i8 | timestamp delta varlong | offset delta varint
    | key length varint, key | value length varint, value | count varint, headers
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sidetier.segments.arrow.arrays import Bytes, Flags, Longs
from sidetier.segments.arrow.varints import read_lengths, read_varints

LEAST_RECORD_BYTES: Final = 7
"""A record with neither key, value nor headers: one byte a field."""
LEAST_HEADER_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Spans:
    """Where byte strings lie, in order of position; a null has the length -1."""

    begins: Longs
    lengths: Longs

    def where(self, chosen: slice) -> "Spans":
        """Some of them."""
        return Spans(self.begins[chosen], self.lengths[chosen])


@dataclass(frozen=True, slots=True)
class Contents:
    """Where the contents of records lie; the headers of each from `headers_at` up to its end."""

    keys: Spans
    values: Spans
    header_counts: Longs
    headers_at: Longs


@dataclass(frozen=True, slots=True)
class Fields:
    """The records' own fields. Only where `sound` is true do they mean anything.

    The deltas are those to the batch's base timestamp and base offset.
    """

    timestamp_deltas: Longs
    offset_deltas: Longs
    contents: Contents | None
    sound: Flags


def read_fields(data: Bytes, starts: Longs, ends: Longs, *, contents: bool) -> Fields:
    """The fields of the records that begin and end at the given places, in order.

    A record is sound when its length says what `ends` says, and its fields fill it; where
    `contents` are not wanted, when they begin within it.
    """
    size, at = read_varints(data, starts)
    sound = (ends > starts) & (size > 0) & (at + size == ends)
    timestamps, at = read_varints(data, at + 1)
    offsets, at = read_varints(data, at)
    if not contents:
        return Fields(timestamps, offsets, None, sound & (at < ends))
    key_lengths, keys_at, at = read_lengths(data, at)
    value_lengths, values_at, at = read_lengths(data, at)
    header_counts, at = read_varints(data, at)
    # Without headers the record ends here; each of them takes two bytes at least.
    sound &= np.where(
        header_counts == 0,
        at == ends,
        (header_counts > 0) & (at <= ends) & (header_counts <= (ends - at) // LEAST_HEADER_BYTES),
    )
    found = Contents(
        Spans(keys_at, key_lengths), Spans(values_at, value_lengths), header_counts, at
    )
    return Fields(timestamps, offsets, found, sound)
