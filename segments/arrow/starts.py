"""Where the records begin: the one thing about them that must be followed one by one.

A record says how long it is, so its successor is found only from it. Over many batches that is
done in lock-step, one record of each at a time; within few batches of many records by a plain walk
over their lengths, which reads two bytes of a record and nothing else. What is found is a guess
until `read_fields` has checked it: bytes that are no records lead anywhere.
"""

from typing import Final

import numpy as np

from sidetier.segments.arrow.arrays import Bytes, Longs
from sidetier.segments.arrow.varints import read_varints

_MOST_SHIFT: Final = 63
FEW: Final = 160
"""With fewer batches a step over all of them costs more than walking them one by one."""


def record_starts(
    data: Bytes, begins: Longs, ends: Longs, counts: Longs, *, few: int = FEW
) -> Longs:
    """Where each record begins, those of a batch one after the other.

    Args:
        data: what holds the records.
        begins: where each batch's records begin.
        ends: where they end.
        counts: how many there are, not negative.
        few: up to how many batches are walked one by one.
    """
    starts = np.empty(int(counts.sum()), dtype=np.int64)
    slots = np.cumsum(counts) - counts
    # The longest batches first: those that still go on at any step are the first so many.
    order = np.argsort(-counts, kind="stable")
    at, slot, left = begins[order], slots[order], counts[order]
    done = 0
    if len(counts) > few:
        done = int(left[few])
        _in_lock_step(data, starts, at, slot, left, done)
    for row in np.flatnonzero(left > done).tolist():
        walked = walk_lengths(data, int(at[row]), int(ends[order[row]]), int(left[row]) - done)
        first = int(slot[row])
        starts[first : first + len(walked)] = walked
    return starts


def _in_lock_step(  # noqa: PLR0913  arrays that belong together, one per field
    data: Bytes, starts: Longs, at: Longs, slot: Longs, left: Longs, steps: int
) -> None:
    """One record of each batch at a time.

    `at` and `slot` are moved on to the first record of each batch that is left.
    """
    # How many batches have a record more than k: `left` falls.
    going_on = len(left) - np.searchsorted(left[::-1], np.arange(steps), side="right")
    for count in going_on.tolist():
        now = at[:count]
        starts[slot[:count]] = now
        size, behind = read_varints(data, now)
        np.add(behind, size, out=now)
        slot[:count] += 1


def walk_lengths(data: Bytes, begin: int, end: int, count: int) -> list[int]:
    """Where `count` records that follow each other begin; `end` for those beyond the bytes."""
    payload = data[begin:end].tobytes()
    starts: list[int] = []
    append = starts.append
    at = 0
    try:
        for _ in range(count):
            append(at + begin)
            byte = payload[at]
            if byte < 0x80:  # noqa: PLR2004  the continuation bit
                at += (byte >> 1) + 1
                continue
            second = payload[at + 1]
            if second < 0x80:  # noqa: PLR2004
                at += (((second << 7) | (byte & 0x7F)) >> 1) + 2
                continue
            size, at = _long_length(payload, at)
            at += size
    except IndexError:
        starts += [end] * (count - len(starts))
    return starts


def _long_length(payload: bytes, at: int) -> tuple[int, int]:
    """A length of three bytes and more, and the place behind it; IndexError where it is none."""
    raw, shift = 0, 0
    while (byte := payload[at]) > 0x7F and shift <= _MOST_SHIFT:  # noqa: PLR2004
        raw |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    length = (raw | (byte << shift)) >> 1
    if length > len(payload):
        raise IndexError(length)
    return length, at + 1
