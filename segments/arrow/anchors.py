"""Guess where records begin within large batches.

At regular distances, the code searches for a position that could be the beginning of a record: a
length, attributes of 0, and two successors that look the same, each with a slightly higher offset.
A guess may be wrong (a value may contain a whole batch, for example). So the caller must check that
the records before a guess lead to it.
"""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.arrays import FAR, Bytes, Flags, Longs
from sidetier.segments.arrow.varints import read_varints

_RECORDS: Final = 128
"""Approximate number of records between two guesses."""
_MOST_BYTES: Final = 512
"""Average bytes per record above which guessing costs more than walking over the records."""
_WINDOW: Final = 2
"""Size of the range that is searched for a beginning, in average records."""
_PREFIX: Final = 4
_CHAIN: Final = 3
_MOST_APART: Final = 64
"""Largest distance between the offsets of two neighbours. Nothing is guessed if compaction has left
larger gaps.
"""
_LEAST_LENGTH: Final = 12
"""The zigzag varint of 6, the length of the shortest record."""


def guess_anchors(data: Bytes, begins: Longs, ends: Longs, counts: Longs) -> Longs:
    """Return positions within batches of many small records, in order, without the batches'
    beginnings.
    """
    large = (counts > 2 * _RECORDS) & (ends - begins < _MOST_BYTES * counts)
    if not large.any():
        return np.empty(0, dtype=np.int64)
    average = int((ends - begins)[large].sum() // counts[large].sum()) + 1
    span, window = _RECORDS * average, _WINDOW * average
    borders = zip(begins[large].tolist(), ends[large].tolist(), strict=True)
    by_batch = [np.arange(begin + span, end - window - _PREFIX, span) for begin, end in borders]
    places = np.concatenate(by_batch)
    if not len(places):
        return places
    ends_of_batches = np.repeat(ends[large], [len(batch_places) for batch_places in by_batch])
    windows = np.lib.stride_tricks.sliding_window_view(data, window + _PREFIX)[places]
    rows, columns = np.nonzero(_could_begin(windows, window))
    candidates = places[rows] + columns
    good = _has_successors(data, candidates, ends_of_batches[rows])
    return candidates[good][np.unique(rows[good], return_index=True)[1]]


def _could_begin(windows: npt.NDArray[np.uint8], window: int) -> Flags:
    """Flag where a length of one to three bytes is followed by attributes of 0."""
    first, second, third, fourth = (windows[:, at : at + window] for at in range(_PREFIX))
    long_, longer = first > 0x7F, second > 0x7F  # noqa: PLR2004 - the continuation bit
    one_byte = ~long_ & (first >= _LEAST_LENGTH) & (second == 0)
    two_bytes = long_ & ~longer & (third == 0)
    three_bytes = long_ & longer & (third < 0x80) & (fourth == 0)  # noqa: PLR2004
    candidates: Flags = (one_byte | two_bytes | three_bytes) & ((first & 1) == 0)
    return candidates


def _has_successors(data: Bytes, at: Longs, ends: Longs) -> Flags:
    """Flag the positions that other records could follow, with slightly ascending offsets."""
    good = np.ones(len(at), dtype=np.bool_)
    offsets = []
    for _ in range(_CHAIN):
        size, attributes = read_varints(data, at)
        good &= (size > 0) & (attributes < ends) & (data.take(attributes, mode="clip") == 0)
        offsets.append(_offset_delta(data, attributes))
        at = attributes + np.minimum(size, FAR)
    for before, following in pairwise(offsets):
        good &= (following > before) & (following <= before + _MOST_APART)
    return good


def _offset_delta(data: Bytes, attributes_at: Longs) -> Longs:
    _, at = read_varints(data, attributes_at + 1)
    return read_varints(data, at)[0]
