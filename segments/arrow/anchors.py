"""Guesses where, within large batches, some record begins.

Every so many bytes a position is looked for that could be a record's: a length, attributes of 0,
and two successors of which the same is true, each with an offset a little higher. A guess may be
wrong (a value may hold a whole batch, say): whoever uses it must see that the records before it
lead there.
"""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.arrays import FAR, Bytes, Flags, Longs
from sidetier.segments.arrow.varints import read_varints

_RECORDS: Final = 128
"""About so many records lie between two guesses."""
_MOST_BYTES: Final = 512
"""Where records are longer on the average, looking for them costs more than walking."""
_WINDOW: Final = 2
"""One is looked for among so many average records."""
_PREFIX: Final = 4
_CHAIN: Final = 3
_MOST_APART: Final = 64
"""Where compaction has left wider gaps between records, nothing is guessed."""
_LEAST_LENGTH: Final = 12
"""The zigzag varint of 6, the length of the shortest record."""


def guess_anchors(data: Bytes, begins: Longs, ends: Longs, counts: Longs) -> Longs:
    """Positions within batches of many small records, in order; their beginnings are none."""
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
    ends_of_batches = np.repeat(ends[large], [len(some) for some in by_batch])
    windows = np.lib.stride_tricks.sliding_window_view(data, window + _PREFIX)[places]
    rows, columns = np.nonzero(_could_begin(windows, window))
    found = places[rows] + columns
    good = _has_successors(data, found, ends_of_batches[rows])
    return found[good][np.unique(rows[good], return_index=True)[1]]


def _could_begin(windows: npt.NDArray[np.uint8], window: int) -> Flags:
    """Where a length of one to three bytes stands, with attributes of 0 behind it."""
    first, second, third, fourth = (windows[:, at : at + window] for at in range(_PREFIX))
    long_, longer = first > 0x7F, second > 0x7F  # noqa: PLR2004  the continuation bit
    one = ~long_ & (first >= _LEAST_LENGTH) & (second == 0)
    two = long_ & ~longer & (third == 0)
    three = long_ & longer & (third < 0x80) & (fourth == 0)  # noqa: PLR2004
    found: Flags = (one | two | three) & ((first & 1) == 0)
    return found


def _has_successors(data: Bytes, at: Longs, ends: Longs) -> Flags:
    """Whether other records could follow, with offsets that rise a little."""
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
