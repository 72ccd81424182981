"""`read_committed`: find the batches that are part of no transaction, or of a committed one.

Pure functions over header tables. The transactions of a partition are known from three sources: the
markers in the log, the `.txnindex` of a segment (its aborted transactions), and the producer
snapshot of the next segment (the transactions that were open at the segment's end).

The rule is Kafka's: the next marker of a producer after a batch decides the batch, whatever the
epoch (`TransactionIndex`, `CompletedFetch.isBatchAborted`). No record at or above the last stable
offset, the first offset of the oldest open transaction, is returned.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.arrays import UNNAMED, Buffer, Flags, Longs, Place
from sidetier.segments.arrow.decode import decode_batches
from sidetier.segments.arrow.header_table import HeaderTable
from sidetier.segments.errors import BatchTooLargeError, DamagedSegmentError
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.txn_index import AbortedTxn


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


class Marker(IntEnum):
    """The outcome in a control batch; Kafka's `ControlRecordType`."""

    NONE = -1
    """Not a control batch, a control batch of another kind, or one whose marker compaction has
    removed.
    """
    ABORT = 0
    COMMIT = 1


Fates = npt.NDArray[np.int8]
"""A value of `Fate` per batch."""
Markers = npt.NDArray[np.int8]
"""A value of `Marker` per batch."""

_KEY_BYTES: Final = 4  # version i16, type i16
_MOST_MARKER_BYTES: Final = 1 << 20
"""Maximum bytes of a control batch, decompressed. A broker writes one small record,
uncompressed.
"""
_OPEN_END: Final = np.iinfo(np.int64).max


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
            most_batch_bytes=_MOST_MARKER_BYTES,
        ).column(0)
    except BatchTooLargeError:
        raise DamagedSegmentError(
            f"{name}: a control batch at or after byte {position} is more than "
            f"{_MOST_MARKER_BYTES} bytes, decompressed: no broker writes such a one"
        ) from None
    counts = control.column("record_count").astype(np.int64)
    firsts = (np.cumsum(counts) - counts).tolist()
    # The type is in the key of the marker's first record; a marker has only one.
    for row, first in enumerate(firsts):
        key = keys[first].as_py()
        if key is None or len(key) < _KEY_BYTES:
            raise control.damaged(
                Place(name, position), row, f"{key!r} is not the key of a control record"
            )
        kind = int.from_bytes(key[2:_KEY_BYTES], signed=True)
        if kind in {Marker.ABORT, Marker.COMMIT}:
            markers[rows[row]] = kind
    return markers


class TransactionFilter:
    """The known transactions of one partition, from `start` up to `known_below`.

    Call `feed` and `learn` in order of offsets, in any mixture. `fates` may be called at any time
    for any batch from `start` on, also again when more is known. Not thread-safe.

    Args:
        start: First offset that is fed.
        open_transactions: The transactions that were open at `start`, from a producer snapshot.
            Without them, a transaction that began below `start` is seen at its first batch or at
            its marker. The fate of its batches is right, but the last stable offset may be too high
            until then.
    """

    def __init__(self, start: int = 0, open_transactions: Iterable[OpenTransaction] = ()) -> None:
        self._known_below = Offset(start)
        self._open = {txn.producer_id: int(txn.first_offset) for txn in open_transactions}
        self._aborted: list[tuple[int, int, int]] = []
        """Producer id, first offset, offset of the marker."""

    @property
    def known_below(self) -> Offset:
        """The offset up to which transactions are known, exclusive."""
        return self._known_below

    @property
    def last_stable_offset(self) -> Offset:
        """First offset of the oldest open transaction, else `known_below`.

        Every batch below it is committed or aborted.
        """
        return Offset(min(self._open.values(), default=self._known_below))

    @property
    def oldest_open(self) -> OpenTransaction | None:
        """The open transaction with the lowest first offset; None if none is open."""
        if not self._open:
            return None
        producer, first = min(self._open.items(), key=lambda item: item[1])
        return OpenTransaction(producer, Offset(first))

    def feed(self, headers: HeaderTable, markers: Markers) -> None:
        """Process the next batches. `markers` is the result of `read_markers` for them.

        Batches below `known_below` are ignored: they were fed before.
        """
        wanted = (headers.column("base_offset") >= self._known_below) & headers.is_transactional
        rows = np.flatnonzero(wanted)
        producers, offsets = headers.column("producer_id"), headers.column("base_offset")
        control = headers.is_control
        # Between two markers, all batches of a producer after the first
        # are of the same transaction and change nothing. A loop over the
        # events only keeps a segment with millions of small batches fast.
        for row in rows[_is_event(producers[rows], control[rows])].tolist():
            producer, offset = int(producers[row]), int(offsets[row])
            if not control[row]:
                # The first batch counts: a transaction begins at its first offset.
                self._open.setdefault(producer, offset)
            elif markers[row] != Marker.NONE:
                self._decide(producer, offset, Marker(int(markers[row])))
        if headers.next_offset is not None:
            self._known_below = max(self._known_below, headers.next_offset)

    def _decide(self, producer: int, offset: int, marker: Marker) -> None:
        # A marker without an open transaction is normal: its
        # batches are below `start`, or compaction has removed them.
        first = self._open.pop(producer, None)
        if first is not None and marker is Marker.ABORT:
            self._aborted.append((producer, first, offset))

    def learn(
        self,
        below: int,
        aborted: Iterable[AbortedTxn],
        open_transactions: Iterable[OpenTransaction],
    ) -> None:
        """Process the files that describe all offsets from `known_below` up to `below`, instead of
        batches.

        Args:
            below: End of the segment: the base offset of its successor.
            aborted: The entries of the `.txnindex` of every segment in between.
            open_transactions: The open transactions in the producer snapshot at `below`.
        """
        if below <= self._known_below:
            return
        self._aborted += [
            (txn.producer_id, int(txn.first_offset), int(txn.last_offset))
            for txn in aborted
            # Markers below `known_below` were processed before.
            if self._known_below <= txn.last_offset < below
        ]
        # Replaced, not merged: the snapshot has all transactions that
        # are open at its offset, also those that were open before.
        self._open = {txn.producer_id: int(txn.first_offset) for txn in open_transactions}
        self._known_below = Offset(below)

    def fates(self, headers: HeaderTable) -> Fates:
        """Return the fate of each batch, as far as it is known now."""
        fates = np.full(len(headers), Fate.COMMITTED, dtype=np.int8)
        fates[headers.is_control] = Fate.CONTROL
        rows = np.flatnonzero(headers.is_transactional & ~headers.is_control)
        if not len(rows):
            return fates
        producers, offsets = (
            headers.column("producer_id")[rows],
            headers.column("base_offset")[rows],
        )
        lowest, highest = int(offsets[0]), int(offsets[-1])
        # The batches are in order of offsets, so two
        # comparisons exclude most transactions before the sort.
        aborted = [txn for txn in self._aborted if txn[2] >= lowest and txn[1] <= highest]
        undecided = [(producer, first, _OPEN_END) for producer, first in self._open.items()]
        fates[rows[_within(producers, offsets, aborted)]] = Fate.ABORTED
        # A batch at or above `known_below` may belong to a transaction that was not fed yet.
        is_open = _within(producers, offsets, undecided) | (offsets >= self._known_below)
        fates[rows[is_open]] = Fate.UNDECIDED
        return fates

    def forget_below(self, offset: int) -> None:
        """Drop transactions that concern only batches below this offset, which will not be needed
        again.
        """
        self._aborted = [txn for txn in self._aborted if txn[2] >= offset]


def _is_event(producers: Longs, is_control: Flags) -> Flags:
    """Flag the transactional batches that change the state: markers, and the batch after each.

    The first batch of each producer counts, too: the batches before these are not known here.
    """
    # A stable sort keeps the batches of each producer in order of offsets.
    order = np.argsort(producers, kind="stable")
    by_producer, control = producers[order], is_control[order]
    event = np.ones(len(order), dtype=np.bool_)
    event[1:] = control[1:] | control[:-1] | (by_producer[1:] != by_producer[:-1])
    events = np.empty_like(event)
    events[order] = event
    return events


def _within(producers: Longs, offsets: Longs, spans: list[tuple[int, int, int]]) -> Flags:
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
