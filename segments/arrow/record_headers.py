"""Read the headers of many records at once.

Source: KIP-82. A header is `key length varint, key | value length varint, value`; a key is never
null. Most records have few headers or none. So the first header of each record is read together,
then the second, and so on. If only few records have more headers, these are read one by one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sidetier.segments.arrow.arrays import Bytes, Flags, Longs
from sidetier.segments.arrow.fields import Spans
from sidetier.segments.arrow.varints import read_lengths

FEW: Final = 24
_MAX_SHIFT: Final = 63


@dataclass(frozen=True, slots=True)
class HeaderSpans:
    """The positions of keys and values, the headers of a record one after the other.

    `sound` has one flag per record.
    """

    keys: Spans
    values: Spans
    sound: Flags


def read_record_headers(
    data: Bytes, counts: Longs, at: Longs, ends: Longs, *, few: int = FEW
) -> HeaderSpans:
    """Find the headers of records that have `counts` of them, from `at` up to the record's end.

    Records must be sound by the checks of `read_fields`: no count is negative, nor higher than what
    fits between `at` and `ends`. If at most `few` records have headers left, they are read one by
    one.
    """
    rows = np.flatnonzero(counts)
    # Records with the most headers first: those that still have a header
    # left are then always a prefix, and each step works on a slice.
    rows = rows[np.argsort(-counts[rows], kind="stable")]
    reader = _Reader(data, int(counts.sum()))
    left, place = counts[rows], at[rows]
    # Slots stay in the order of the records, whatever the order in which they are read.
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
    # The headers must end exactly where the record ends.
    sound[rows] = place == ends[rows]
    owners = np.repeat(np.arange(len(counts)), counts)
    values_end = reader.value_begins + np.maximum(reader.value_lengths, 0)
    inside = (reader.key_lengths >= 0) & (values_end <= ends[owners])
    # The first key begins behind the length at `at`. A slot that a failed walk left at 0 does not.
    inside &= reader.key_begins > at[owners]
    inside &= reader.key_begins + reader.key_lengths < reader.value_begins
    sound[owners[~inside]] = False
    return HeaderSpans(
        Spans(reader.key_begins, reader.key_lengths),
        Spans(reader.value_begins, reader.value_lengths),
        sound,
    )


class _Reader:
    """Collects headers, each in its slot."""

    def __init__(self, data: Bytes, count: int) -> None:
        self._data = data
        self.key_begins, self.key_lengths = np.zeros((2, count), dtype=np.int64)
        self.value_begins, self.value_lengths = np.zeros((2, count), dtype=np.int64)

    def read(self, at: Longs, slots: Longs) -> Longs:
        """Read one header at each position. Return where each ends."""
        self.key_lengths[slots], self.key_begins[slots], at = read_lengths(self._data, at)
        self.value_lengths[slots], self.value_begins[slots], at = read_lengths(self._data, at)
        return at

    def walk(self, begin: int, end: int, slots: range) -> int:
        """Read consecutive headers from `begin`. Return where they end, or -1 if they are
        invalid.
        """
        # Bytes are several times faster to index than a numpy array.
        bytes_ = self._data[begin:end].tobytes()
        spans: list[tuple[int, int, int, int]] = []
        at = 0
        try:
            for _ in slots:
                key_length, key = _length(bytes_, at)
                at = key + max(key_length, 0)
                value_length, value = _length(bytes_, at)
                at = value + max(value_length, 0)
                spans.append((key + begin, key_length, value + begin, value_length))
        except IndexError:
            return -1
        table = np.array(spans, dtype=np.int64).reshape(-1, 4)
        target = slice(slots.start, slots.stop)
        self.key_begins[target], self.key_lengths[target] = table[:, 0], table[:, 1]
        self.value_begins[target], self.value_lengths[target] = table[:, 2], table[:, 3]
        return at + begin


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Read a length, -1 for any negative one, and return it with the position after it.

    Raises:
        IndexError: There is no valid length.
    """
    raw, shift = 0, 0
    while (byte := data[at]) > 0x7F and shift <= _MAX_SHIFT:  # noqa: PLR2004
        raw |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    raw |= byte << shift
    length = -1 if raw & 1 else raw >> 1
    if length > len(data):
        raise IndexError(length)
    return length, at + 1
