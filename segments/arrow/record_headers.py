"""The headers of many records at once.

Source: KIP-82. A header is `key length varint, key | value length varint, value`; a key is never
null. Most records have none or few, so the first of each are read together, then the second; where
few records are left that have so many, one by one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sidetier.segments.arrow.arrays import Bytes, Flags, Longs
from sidetier.segments.arrow.fields import Spans
from sidetier.segments.arrow.varints import read_lengths

FEW: Final = 24
_MOST_SHIFT: Final = 63


@dataclass(frozen=True, slots=True)
class HeaderSpans:
    """Where the headers lie, those of a record one after the other; `sound` is by record."""

    keys: Spans
    values: Spans
    sound: Flags


def read_record_headers(
    data: Bytes, counts: Longs, at: Longs, ends: Longs, *, few: int = FEW
) -> HeaderSpans:
    """The headers of records that have `counts` of them, from `at` up to the record's end.

    Records must be sound as far as `read_fields` sees: no count is negative, nor higher than what
    fits between `at` and `ends`. Up to `few` of them are read one by one.
    """
    rows = np.flatnonzero(counts)
    rows = rows[np.argsort(-counts[rows], kind="stable")]
    reader = _Reader(data, int(counts.sum()))
    left, place = counts[rows], at[rows]
    slot = (np.cumsum(counts) - counts)[rows]
    done = 0
    while len(rows) and (going_on := int(np.count_nonzero(left > done))) > few:
        place[:going_on] = reader.read(place[:going_on], slot[:going_on] + done)
        done += 1
    for row in np.flatnonzero(left > done).tolist():
        first = int(slot[row])
        slots = range(first + done, first + int(left[row]))
        place[row] = reader.walk(int(place[row]), int(ends[rows[row]]), slots)
    sound = np.ones(len(counts), dtype=np.bool_)
    sound[rows] = place == ends[rows]
    owners = np.repeat(np.arange(len(counts)), counts)
    values_end = reader.value_begins + np.maximum(reader.value_lengths, 0)
    inside = (reader.key_lengths >= 0) & (values_end <= ends[owners])
    inside &= reader.key_begins > at[owners]
    inside &= reader.key_begins + reader.key_lengths < reader.value_begins
    sound[owners[~inside]] = False
    return HeaderSpans(
        Spans(reader.key_begins, reader.key_lengths),
        Spans(reader.value_begins, reader.value_lengths),
        sound,
    )


class _Reader:
    """Gathers headers, each in the slot that it belongs to."""

    def __init__(self, data: Bytes, count: int) -> None:
        self._data = data
        self.key_begins, self.key_lengths = np.zeros((2, count), dtype=np.int64)
        self.value_begins, self.value_lengths = np.zeros((2, count), dtype=np.int64)

    def read(self, at: Longs, slots: Longs) -> Longs:
        """One header at each position; returns where each ends."""
        self.key_lengths[slots], self.key_begins[slots], at = read_lengths(self._data, at)
        self.value_lengths[slots], self.value_begins[slots], at = read_lengths(self._data, at)
        return at

    def walk(self, begin: int, end: int, slots: range) -> int:
        """The headers that follow each other from `begin`; where they end, -1 if nowhere."""
        bytes_ = self._data[begin:end].tobytes()
        found: list[tuple[int, int, int, int]] = []
        at = 0
        try:
            for _ in slots:
                key_length, key = _length(bytes_, at)
                at = key + max(key_length, 0)
                value_length, value = _length(bytes_, at)
                at = value + max(value_length, 0)
                found.append((key + begin, key_length, value + begin, value_length))
        except IndexError:
            return -1
        table = np.array(found, dtype=np.int64).reshape(-1, 4)
        where = slice(slots.start, slots.stop)
        self.key_begins[where], self.key_lengths[where] = table[:, 0], table[:, 1]
        self.value_begins[where], self.value_lengths[where] = table[:, 2], table[:, 3]
        return at + begin


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A length, -1 for any that is negative, and the place behind it; IndexError where none is."""
    raw, shift = 0, 0
    while (byte := data[at]) > 0x7F and shift <= _MOST_SHIFT:  # noqa: PLR2004
        raw |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    raw |= byte << shift
    length = -1 if raw & 1 else raw >> 1
    if length > len(data):
        raise IndexError(length)
    return length, at + 1
