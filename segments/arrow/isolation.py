"""`read_committed` for tables of batch headers: feed a `TransactionTracker`, and decide batches.

`segments.transactions` has the rules.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.arrays import UNNAMED, Buffer, Flags, Longs, Place, Shorts
from sidetier.segments.arrow.decode import decode_batches
from sidetier.segments.arrow.header_table import HeaderTable
from sidetier.segments.errors import BatchTooLargeError, DamagedSegmentError
from sidetier.segments.offsets import MAX_OFFSET, Offset
from sidetier.segments.transactions import Marker, TransactionTracker, marker_of_key


class Fate(IntEnum):
    """How a read-committed consumer treats a batch."""

    COMMITTED = 0
    """Returned: part of no transaction, or of a committed one."""
    ABORTED = 1
    """Not returned."""
    UNDECIDED = 2
    """Held back, with all batches after it."""
    CONTROL = 3
    """Not returned, in either isolation level."""


Fates = npt.NDArray[np.int8]
"""A value of `Fate` per batch."""
Markers = npt.NDArray[np.int8]
"""A value of `Marker` per batch."""

_MAX_MARKER_BYTES: Final = 1 << 20
"""Maximum bytes of a control batch, decompressed. A broker writes one small record,
uncompressed.
"""


def read_markers(
    data: Buffer, headers: HeaderTable, *, name: str = UNNAMED, position: int = 0
) -> Markers:
    """Return the marker of each batch. Only control batches are decoded.

    Raises:
        DamagedSegmentError: A control batch is damaged, its key is too short, or it is larger,
            decompressed, than any that a broker writes.
    """
    markers = np.full(len(headers), Marker.NONE, dtype=np.int8)
    # Compaction can leave an empty control batch: there is no key to read.
    filled = headers.is_control & (headers.column("record_count") > 0)
    rows = np.flatnonzero(filled)
    if not len(rows):
        return markers
    control = headers.where(filled)
    try:
        keys = decode_batches(
            data,
            control,
            columns=["key"],
            keep=filled[rows],
            name=name,
            position=position,
            most_batch_bytes=_MAX_MARKER_BYTES,
        ).column(0)
    except BatchTooLargeError:
        raise DamagedSegmentError(
            f"{name}: a control batch at or after byte {position} is more than "
            f"{_MAX_MARKER_BYTES} bytes, decompressed: no broker writes such a one"
        ) from None
    counts = control.column("record_count").astype(np.int64)
    firsts = (np.cumsum(counts) - counts).tolist()
    # The type is in the key of the marker's first record; a marker has only one.
    for row, first in enumerate(firsts):
        key = keys[first].as_py()
        marker = marker_of_key(key)
        if marker is None:
            raise control.damaged(
                Place(name, position), row, f"{key!r} is not the key of a control record"
            )
        markers[rows[row]] = marker
    return markers


def feed_table(tracker: TransactionTracker, headers: HeaderTable, markers: Markers) -> None:
    """Process the next batches: as `TransactionTracker.feed` for each, in much less time.

    Args:
        tracker: The transactions of the partition. Batches below its end are ignored.
        headers: The batches.
        markers: The result of `read_markers` for them.
    """
    wanted = (headers.column("base_offset") >= tracker.end) & headers.is_transactional
    rows = np.flatnonzero(wanted)
    if len(rows):
        producers, epochs = headers.column("producer_id"), headers.column("producer_epoch")
        offsets, control = headers.column("base_offset"), headers.is_control
        # A loop over the events only keeps a segment with millions of small batches fast.
        for row in rows[_is_event(producers[rows], epochs[rows], control[rows])].tolist():
            producer, offset = int(producers[row]), Offset(int(offsets[row]))
            if control[row]:
                tracker.end_transaction(producer, offset, Marker(int(markers[row])))
            else:
                tracker.add_batch(producer, int(epochs[row]), offset)
    if headers.next_offset is not None:
        tracker.move_end(headers.next_offset)


def fates_of(tracker: TransactionTracker, headers: HeaderTable) -> Fates:
    """Return the fate of each batch, as far as it is known now.

    May be called for any batch that is not forgotten, also again when more is known.
    """
    fates = np.full(len(headers), Fate.COMMITTED, dtype=np.int8)
    fates[headers.is_control] = Fate.CONTROL
    rows = np.flatnonzero(headers.is_transactional & ~headers.is_control)
    if not len(rows):
        return fates
    producers, offsets = headers.column("producer_id")[rows], headers.column("base_offset")[rows]
    lowest, highest = int(offsets[0]), int(offsets[-1])
    # The batches are in order of offsets, so two comparisons exclude most transactions before
    # the sort.
    aborted = [
        (txn.producer_id, txn.first_offset, txn.last_offset)
        for txn in tracker.aborted
        if txn.last_offset >= lowest and txn.first_offset <= highest
    ]
    undecided = [(txn.producer_id, txn.first_offset, MAX_OFFSET) for txn in tracker.open.values()]
    fates[rows[_within(producers, offsets, aborted)]] = Fate.ABORTED
    # A batch at or above the end may belong to a transaction that was not fed yet.
    is_open = _within(producers, offsets, undecided) | (offsets >= tracker.end)
    fates[rows[is_open]] = Fate.UNDECIDED
    return fates


def _is_event(producers: Longs, epochs: Shorts, is_control: Flags) -> Flags:
    """Flag the transactional batches that change the state.

    Between two markers, all batches of a producer after the first are of the same transaction, and
    change nothing unless the epoch changes. The first batch of each producer counts, too: the
    batches before these are not known here.
    """
    # A stable sort keeps the batches of each producer in order of offsets.
    order = np.argsort(producers, kind="stable")
    by_producer, by_epoch, control = producers[order], epochs[order], is_control[order]
    event = np.ones(len(order), dtype=np.bool_)
    event[1:] = (
        control[1:]
        | control[:-1]
        | (by_producer[1:] != by_producer[:-1])
        | (by_epoch[1:] != by_epoch[:-1])
    )
    events = np.empty_like(event)
    events[order] = event
    return events


def _within(producers: Longs, offsets: Longs, spans: Sequence[tuple[int, int, int]]) -> Flags:
    """Flag the batches in a span of their producer, from its first offset up to its end, exclusive.

    The spans of one producer do not overlap, so the last one that begins at or below a batch
    counts.
    """
    if not spans:
        return np.zeros(len(offsets), dtype=np.bool_)
    table = np.array(sorted(spans), dtype=np.int64)
    # Combine the ranks of producer and offset to one number that sorts as the pair does.
    ranks = np.unique(np.concatenate([offsets, table[:, 1]]), return_inverse=True)[1]
    names = np.unique(np.concatenate([producers, table[:, 0]]), return_inverse=True)[1]
    numbers = names.astype(np.int64) * (len(ranks) + 1) + ranks
    count = len(offsets)
    # The last span that begins at or below the batch, in the order of (producer, first offset).
    # It can belong to another producer, which the comparison of producers below excludes.
    nearest = np.searchsorted(numbers[count:], numbers[:count], side="right") - 1
    span = table[np.maximum(nearest, 0)]
    within: Flags = (nearest >= 0) & (span[:, 0] == producers) & (offsets < span[:, 2])
    return within
