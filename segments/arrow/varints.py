"""Zigzag varints, many at once.

Source: Kafka's `ByteUtils.readVarlong`: seven bits a byte, lowest first, at most ten bytes; what
exceeds 64 bits in the tenth is dropped.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.arrays import FAR, Bytes, Longs

_MOST_SHIFT: Final = 63
_SPARSE: Final = 4
"""Below one in so many, only those that go on are looked at."""

_Raw = npt.NDArray[np.uint64]


def read_varints(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """The value at each position, and the position behind it.

    Any position may be asked for: outside of `data` the value means nothing, but what lies behind
    it is behind `at` all the same. Behind a varint of more than ten bytes the position is `FAR`.
    """
    byte = data.take(at, mode="clip")
    behind = at + 1
    more = byte >> 7
    raw = (byte & 0x7F).astype(np.uint64)
    shift = 7
    left = int(np.count_nonzero(more))
    while left * _SPARSE > len(at) and shift <= _MOST_SHIFT:
        byte = data.take(behind, mode="clip") * more
        raw |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind += more
        more = byte >> 7
        shift += 7
        left = int(np.count_nonzero(more))
    if left:
        _read_rest(data, raw, behind, np.flatnonzero(more), shift)
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), behind


def _read_rest(data: Bytes, raw: _Raw, behind: Longs, rows: Longs, shift: int) -> None:
    """The further bytes of the few varints that have them."""
    while len(rows):
        if shift > _MOST_SHIFT:
            behind[rows] = FAR
            return
        byte = data.take(behind[rows], mode="clip")
        raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[rows] += 1
        rows = rows[byte > 0x7F]  # noqa: PLR2004  the continuation bit
        shift += 7


def read_lengths(data: Bytes, at: Longs) -> tuple[Longs, Longs, Longs]:
    """Of what stands at each position with its length before it: length, beginning, end.

    A null has the length -1, and ends where it begins. No end lies before its beginning, and none
    so far behind that a few more would overflow.
    """
    length, begin = read_varints(data, at)
    np.clip(length, -1, FAR, out=length)
    return length, begin, begin + np.maximum(length, 0)
