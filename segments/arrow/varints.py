"""Decode many zigzag varints at once.

Source: Kafka's `ByteUtils.readVarlong`: seven bits per byte, lowest first, at most ten bytes. Bits
of the tenth byte beyond 64 bits are dropped. Most varints have one or two bytes, so these lengths
have a fast path.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.arrays import FAR, Bytes, Longs

# The shift of the tenth byte, the last of a 64-bit varint.
_MAX_SHIFT: Final = 63
_SPARSE: Final = 4
"""If less than 1/4 of the varints continue, only these are read on."""

_Raw = npt.NDArray[np.uint64]


def read_varints(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """Return the value at each position, and the position after it.

    Any position is allowed. Outside of `data` the value is meaningless, but the position after it
    is still above `at`. After a varint of more than ten bytes the position is `FAR`.
    """
    first = data.take(at, mode="clip")
    behind = at + 1
    more = first >> np.uint8(7)
    # All varints have one byte: deltas and lengths of small records.
    if not np.count_nonzero(more):
        return _signed(first), behind
    # The multiplication clears the second byte of
    # varints that have ended, so that no mask is needed.
    second = data.take(behind, mode="clip") * more
    behind += more
    raw = (first & 0x7F) | (second & 0x7F).astype(np.uint16) << np.uint16(7)
    more = second >> np.uint8(7)
    if not np.count_nonzero(more):
        return _signed(raw), behind
    return _signed(_read_on(data, raw.astype(np.uint64), behind, more)), behind


def _signed(raw: npt.NDArray[Any]) -> Longs:
    """Decode the zigzag encoding of raw values of any width."""
    # Unsigned arithmetic wraps around. The view as
    # signed below gives the right number in every width.
    values = (raw >> 1) ^ -(raw & 1)
    return values.view(f"i{raw.itemsize}").astype(np.int64, copy=False)


def _read_on(data: Bytes, raw: _Raw, behind: Longs, more: Bytes) -> _Raw:
    """Read from the third byte on. Advances `behind`, and completes `raw`."""
    shift, left = 14, int(np.count_nonzero(more))
    # While many varints continue, whole arrays are cheaper than indexing by rows.
    while left * _SPARSE > len(raw) and shift <= _MAX_SHIFT:
        byte = data.take(behind, mode="clip") * more
        raw |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind += more
        more = byte >> np.uint8(7)
        shift += 7
        left = int(np.count_nonzero(more))
    rows = np.flatnonzero(more)
    while len(rows):
        # More than ten bytes. `FAR` cannot be within a record, so the record is refused.
        if shift > _MAX_SHIFT:
            behind[rows] = FAR
            break
        byte = data.take(behind[rows], mode="clip")
        raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[rows] += 1
        rows = rows[byte > 0x7F]  # noqa: PLR2004 - the continuation bit
        shift += 7
    return raw


def read_lengths(data: Bytes, at: Longs) -> tuple[Longs, Longs, Longs]:
    """Return length, beginning and end of the byte string that follows its length at each position.

    A null has the length -1, and ends where it begins. No end is below its beginning, and none is
    so high that the sum with a few more would overflow.
    """
    length, begin = read_varints(data, at)
    if len(length) and (length.min() < 0 or length.max() > FAR):
        np.clip(length, -1, FAR, out=length)
        return length, begin, begin + np.maximum(length, 0)
    return length, begin, begin + length
