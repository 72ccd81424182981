"""Find the beginnings of records. This is the only step that must follow records one by one.

A record begins with its length, so its successor is found only through it. Many stretches of
records are followed in lock-step, one record of each at a time. A stretch is a batch, or a part of
a large batch from a guessed beginning of a record (`guess_anchors`). If few stretches have records
left, each is walked in Python, which reads only the records' lengths.

The result counts only if each stretch ends exactly where the next one begins: that also proves the
guesses. If a guess was wrong, the piece is followed again without guesses.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.arrays import FAR, Bytes, Flags, Longs
from sidetier.segments.arrow.varints import read_varints

FEW: Final = 128
"""With fewer stretches, a step over all of them costs more than walking them one by one."""

_MANY: Final = 4
"""With this many times more batches than `few`, cutting them up gains nothing."""
_MAX_SHIFT: Final = 63
_BLOCK: Final = 1 << 16
_LARGE: Final = 400

_ANCHOR_RECORDS: Final = 128
"""Approximate number of records between two guesses."""
_MAX_AVERAGE: Final = 512
"""Average bytes per record above which guessing costs more than walking over the records."""
_WINDOW_RECORDS: Final = 2
"""Size of the range that is searched for a beginning, in average records."""
_PREFIX: Final = 4
_CHAIN: Final = 3
_MAX_DISTANCE: Final = 64
"""Largest distance between the offsets of two neighbours. Nothing is guessed if compaction has left
larger gaps.
"""
_MIN_LENGTH: Final = 12
"""The zigzag varint of 6, the length of the shortest record."""


class NoRecordsError(Exception):
    """The bytes of a batch, the `row`th, are not the records that its header states."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


@dataclass(frozen=True, slots=True)
class _Followed:
    """The records of all stretches.

    Attributes:
        starts: Where each record begins.
        lengths: Number of records in each stretch.
        reached: Where each stretch ends.
    """

    starts: Longs
    lengths: Longs
    reached: Longs


def record_starts(
    data: Bytes, begins: Longs, ends: Longs, counts: Longs, *, few: int = FEW, guess: bool = True
) -> Longs:
    """Return where each record begins, the records of a batch one after the other.

    If the bytes are records, the result is right. Other bytes may lead to the end, too, so the
    caller must read the fields (`read_fields`) to verify it.

    Args:
        data: The bytes that hold the records.
        begins: Where each batch's records begin.
        ends: Where they end; for an empty batch, where it begins.
        counts: Number of records in each batch, not negative. A record has at least one byte.
        few: Up to this many stretches are walked one by one.
        guess: Whether large batches may be cut up.

    Raises:
        NoRecordsError: The lengths do not lead from a batch's beginning to its end.
    """
    filled = np.flatnonzero(counts)
    at, limits, most = begins[filled], ends[filled], counts[filled]
    owners = np.arange(len(filled))
    # With many batches, there are enough stretches for lock-step without guesses.
    guessed = guess and len(filled) <= _MANY * few
    if guessed:
        anchors = guess_anchors(data, at, limits, most)
        guessed = len(anchors) > 0
        at = np.sort(np.concatenate([at, anchors]))
        owners = np.searchsorted(begins[filled], at, side="right") - 1
        limits, most = limits[owners], most[owners]
        within = owners[1:] == owners[:-1]
        # Within a batch, a stretch ends at the next guess.
        # The last stretch of a batch keeps the batch's end.
        limits[:-1][within] = at[1:][within]
    followed = _follow(data, at, limits, most, few)
    # A batch is right if the stretches together have its number
    # of records, and each one has reached its limit exactly.
    totals = np.bincount(owners, followed.lengths, len(filled)).astype(np.int64)
    wrong = totals != counts[filled]
    wrong[owners[followed.reached != limits]] = True
    if not wrong.any():
        return followed.starts
    # Not an error yet: the wrong guess may be the decoder's own, in a value that contains batches.
    if guessed:
        return record_starts(data, begins, ends, counts, few=few, guess=False)
    row = int(np.argmax(wrong))
    batch = int(filled[row])
    size = int(ends[batch] - begins[batch])
    # A length that leads nowhere gives `FAR`, which would not help the reader of the error.
    reached = min(int(followed.reached[row] - begins[batch]), size)
    raise NoRecordsError(
        batch,
        f"{totals[row]} records are found in {reached} of its {size} bytes of records, "
        f"and should be {counts[batch]}",
    )


def _follow(data: Bytes, at: Longs, limits: Longs, most: Longs, few: int) -> _Followed:
    """Follow the records of each stretch up to its limit, or beyond."""
    lengths, reached = np.zeros((2, len(at)), dtype=np.int64)
    steps: list[tuple[Longs, Longs]] = []
    rows, until = np.arange(len(at)), limits
    while len(rows) > few:
        steps.append((rows, at))
        at = _behind(data, at)
        # A stretch that has passed its limit is out, too.
        # `record_starts` then sees that `reached` is not the limit.
        going_on = at < until
        if np.count_nonzero(going_on) < len(going_on):
            over = rows[~going_on]
            reached[over], lengths[over] = at[~going_on], len(steps)
            rows, at, until = rows[going_on], at[going_on], until[going_on]
    lengths[rows] = len(steps)
    walked = []
    # Few stretches are left. A numpy call costs about the same
    # for one as for a hundred, so each is walked in Python.
    for row, begin in zip(rows.tolist(), at.tolist(), strict=True):
        starts, reached[row] = walk(data, begin, int(limits[row]), int(most[row]))
        lengths[row] += len(starts)
        walked.append(starts)
    return _Followed(_in_order(lengths, steps, rows, walked), lengths, reached)


def _in_order(
    lengths: Longs, steps: list[tuple[Longs, Longs]], rows: Longs, walked: list[Longs]
) -> Longs:
    """Sort the record starts of all steps, and after them of the walked rows, by row."""
    starts = np.empty(int(lengths.sum()), dtype=np.int64)
    firsts = np.cumsum(lengths) - lengths
    if steps:
        numbers = np.repeat(np.arange(len(steps)), [len(row) for row, _ in steps])
        slots = firsts[np.concatenate([row for row, _ in steps])] + numbers
        starts[slots] = np.concatenate([at for _, at in steps])
    for row, row_starts in zip(rows.tolist(), walked, strict=True):
        end = int(firsts[row] + lengths[row])
        starts[end - len(row_starts) : end] = row_starts
    return starts


def _behind(data: Bytes, at: Longs) -> Longs:
    """Return where the records at these positions end; always above `at`."""
    # Clipping keeps positions beyond the buffer harmless: they read
    # the last byte, and the checks of the caller refuse the result.
    first = data.take(at, mode="clip")
    longer = np.count_nonzero(first > 0x7F)  # noqa: PLR2004 - the continuation bit
    if not longer:
        # Zigzag of a length that is not negative: half of the raw value. A negative
        # length has bit 0 set, and the shift still moves forwards, so the loop ends.
        return at + (first >> 1) + 1
    second = data.take(at + 1, mode="clip")
    if longer == len(at) and not np.count_nonzero(second > 0x7F):  # noqa: PLR2004
        # A fast path for most records: (first & 0x7F | second << 7) >> 1, plus two bytes.
        behind = second.astype(np.int64)
        behind <<= 6
        behind += first >> 1
        behind += at
        # The continuation bit of the first byte adds 64 after the shift
        # (128 >> 1), and the varint itself has two bytes: 64 - 2.
        behind -= 62
        return behind
    size, behind = read_varints(data, at)
    # A negative length would move backwards, and the loop might not end.
    return behind + np.clip(size, 0, FAR)


def walk(data: Bytes, begin: int, end: int, most: int) -> tuple[Longs, int]:
    """Follow up to `most` records from `begin` up to `end`.

    Returns:
        Where the records begin, and where the last of them ends. The end is beyond `end` if no
        length leads to it.
    """
    # Reading from bytes is faster than from a memoryview. For large records, the copy costs more
    # than it saves; a copy of small ones stays in the processor's cache.
    large = end - begin > _LARGE * most
    payload = data[begin:end].data if large else data[begin:end].tobytes()
    at, left, blocks = 0, most, [np.empty(0, dtype=np.int64)]
    while at < len(payload) and left > 0:
        starts, at = _walk_some(payload, at, min(left, _BLOCK))
        blocks.append(np.fromiter(starts, dtype=np.int64, count=len(starts)))
        left -= len(starts)
    return np.concatenate(blocks) + begin, at + begin


def _walk_some(payload: bytes | memoryview, at: int, most: int) -> tuple[list[int], int]:
    starts: list[int] = []
    end = len(payload)
    try:
        for _ in range(most):
            if at >= end:
                break
            starts.append(at)
            byte = payload[at]
            if byte < 0x80:  # noqa: PLR2004 - the continuation bit
                at += (byte >> 1) + 1
                continue
            second = payload[at + 1]
            if second < 0x80:  # noqa: PLR2004
                at += (second << 6) + (byte >> 1) - 62
            else:
                at = _behind_long(payload, at)
    except IndexError:
        # A length that is cut off by the end of the
        # batch, or reaches beyond it, leads to no record.
        at = FAR
    return starts, at


def _behind_long(payload: bytes | memoryview, at: int) -> int:
    """Return where a record of 8 KiB or more ends. Raises IndexError for other bytes."""
    raw, shift = 0, 0
    while (byte := payload[at]) > 0x7F and shift <= _MAX_SHIFT:  # noqa: PLR2004
        raw |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    size = (raw | (byte << shift)) >> 1
    if size > len(payload):
        raise IndexError(size)
    return at + 1 + size


def guess_anchors(data: Bytes, begins: Longs, ends: Longs, counts: Longs) -> Longs:
    """Guess where records begin within batches of many small records.

    At regular distances, the code searches for a position that could be the beginning of a record:
    a length, attributes of 0, and two successors that look the same, each with a slightly higher
    offset. A guess may be wrong (a value may contain a whole batch, for example). So the caller
    must check that the records before a guess lead to it.

    Returns:
        The positions, in order, without the batches' beginnings.
    """
    large = (counts > 2 * _ANCHOR_RECORDS) & (ends - begins < _MAX_AVERAGE * counts)
    if not large.any():
        return np.empty(0, dtype=np.int64)
    average = int((ends - begins)[large].sum() // counts[large].sum()) + 1
    span, window = _ANCHOR_RECORDS * average, _WINDOW_RECORDS * average
    borders = zip(begins[large].tolist(), ends[large].tolist(), strict=True)
    # The last window must not read beyond the batch, which can end where the data ends.
    by_batch = [np.arange(begin + span, end - window - _PREFIX, span) for begin, end in borders]
    places = np.concatenate(by_batch)
    if not len(places):
        return places
    ends_of_batches = np.repeat(ends[large], [len(batch_places) for batch_places in by_batch])
    windows = np.lib.stride_tricks.sliding_window_view(data, window + _PREFIX)[places]
    rows, columns = np.nonzero(_could_begin(windows, window))
    candidates = places[rows] + columns
    good = _has_successors(data, candidates, ends_of_batches[rows])
    # One guess per window, the first good one.
    return candidates[good][np.unique(rows[good], return_index=True)[1]]


def _could_begin(windows: npt.NDArray[np.uint8], window: int) -> Flags:
    """Flag where a length of one to three bytes is followed by attributes of 0."""
    first, second, third, fourth = (windows[:, at : at + window] for at in range(_PREFIX))
    long_, longer = first > 0x7F, second > 0x7F  # noqa: PLR2004 - the continuation bit
    one_byte = ~long_ & (first >= _MIN_LENGTH) & (second == 0)
    two_bytes = long_ & ~longer & (third == 0)
    three_bytes = long_ & longer & (third < 0x80) & (fourth == 0)  # noqa: PLR2004
    # Zigzag numbers that are not negative are even.
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
        good &= (following > before) & (following <= before + _MAX_DISTANCE)
    return good


def _offset_delta(data: Bytes, attributes_at: Longs) -> Longs:
    _, at = read_varints(data, attributes_at + 1)
    return read_varints(data, at)[0]
