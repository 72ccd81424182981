"""Zigzag varints, many at once.

Source: Kafka's `ByteUtils.readVarlong`: seven bits a byte, lowest first, at most ten bytes; what
exceeds 64 bits in the tenth is dropped. Most are of one or two bytes, and worked on as such.
"""

from typing import Any, Final

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
    first = data.take(at, mode="clip")
    behind = at + 1
    more = first >> np.uint8(7)
    if not np.count_nonzero(more):
        return _signed(first), behind
    second = data.take(behind, mode="clip") * more
    behind += more
    raw = (first & 0x7F) | (second & 0x7F).astype(np.uint16) << np.uint16(7)
    more = second >> np.uint8(7)
    if not np.count_nonzero(more):
        return _signed(raw), behind
    return _signed(_read_on(data, raw.astype(np.uint64), behind, more)), behind


def _signed(raw: npt.NDArray[Any]) -> Longs:
    """What zigzag stands for, of raw values of any width."""
    values = (raw >> 1) ^ -(raw & 1)
    return values.view(f"i{raw.itemsize}").astype(np.int64, copy=False)


def _read_on(data: Bytes, raw: _Raw, behind: Longs, more: Bytes) -> _Raw:
    """From the third byte on; `behind` is moved on, `raw` completed."""
    shift, left = 14, int(np.count_nonzero(more))
    while left * _SPARSE > len(raw) and shift <= _MOST_SHIFT:
        byte = data.take(behind, mode="clip") * more
        raw |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind += more
        more = byte >> np.uint8(7)
        shift += 7
        left = int(np.count_nonzero(more))
    rows = np.flatnonzero(more)
    while len(rows):
        if shift > _MOST_SHIFT:
            behind[rows] = FAR
            break
        byte = data.take(behind[rows], mode="clip")
        raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[rows] += 1
        rows = rows[byte > 0x7F]  # noqa: PLR2004  the continuation bit
        shift += 7
    return raw


def read_lengths(data: Bytes, at: Longs) -> tuple[Longs, Longs, Longs]:
    """Of what stands at each position with its length before it: length, beginning, end.

    A null has the length -1, and ends where it begins. No end lies before its beginning, and none
    so far behind that a few more would overflow.
    """
    length, begin = read_varints(data, at)
    if len(length) and (length.min() < 0 or length.max() > FAR):
        np.clip(length, -1, FAR, out=length)
        return length, begin, begin + np.maximum(length, 0)
    return length, begin, begin + length
