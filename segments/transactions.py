"""The transactions of a partition: what is open, what was aborted, and the last stable offset.

One tracker for all readers of batches. It needs no numpy: single headers go to `feed`, and
`segments.arrow.isolation` feeds it with tables of headers.

Kafka's rules (KIP-98; `ProducerStateManager`, `ProducerAppendInfo`, `TransactionIndex`,
`CompletedFetch`):

- A transaction begins with the first transactional batch of a producer id, and ends with the next
  *marker* of this producer id: a control batch whose one record has the key version i16, type i16.
  Type 0 aborts, 1 commits. Other types, for example a leader change, and control batches that
  compaction has emptied decide nothing.
- The marker decides all batches of the producer id since its last marker, whatever their epoch. The
  broker refuses batches and markers of a fenced producer, an older epoch, so none of them is in a
  log. A transaction coordinator that fences a producer writes the marker with a higher epoch than
  that of the batches. With transactions v2 (KIP-890) it raises the epoch with each transaction.
- A marker without a batch before it has no effect: the coordinator also writes one to a partition
  that was added to the transaction and got no batch. So does a marker whose batches compaction has
  removed.
- The last stable offset is the first offset of the oldest open transaction, or the end of the log.
  Every transactional batch below it is decided. A `read_committed` consumer gets no record at or
  above it, and none of an aborted transaction. No consumer gets a control batch.

Without the state at the first batch that is read:

- A transaction that began before this batch is seen at its next batch, or not until its marker. The
  outcome of every batch is right, but the last stable offset can be too high until then. The
  producer snapshot of the segment (`segments.producer_snapshot`) has the state at its base offset.
- The `.txnindex` of a segment (`segments.txn_index`) and the producer snapshot of the next segment
  replace the batches of this segment: `TransactionTracker.skip_to`.
- If a gap hides a marker, the producer's next marker decides the batches on both sides of the gap.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import BatchHeader
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.records import decode_records
from sidetier.segments.txn_index import AbortedTxn

_MARKER_KEY: Final = struct.Struct(">2xh")


class Marker(IntEnum):
    """The outcome in a control batch; Kafka's `ControlRecordType`."""

    NONE = -1
    """A batch that decides nothing."""
    ABORT = 0
    COMMIT = 1


def marker_of_key(key: bytes | None) -> Marker | None:
    """Return the marker from the key of a control record; None if it cannot be such a key."""
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    (kind,) = _MARKER_KEY.unpack_from(key)
    return Marker(kind) if kind in {Marker.ABORT, Marker.COMMIT} else Marker.NONE


def read_marker(header: BatchHeader, payload: bytes) -> Marker:
    """Return the marker of a control batch.

    Args:
        header: The header of the control batch.
        payload: The bytes that follow the header. The CRC is not checked.

    Raises:
        DamagedSegmentError: The batch has a record without the key of a control record.
        UnsupportedFormatError: It is compressed by another codec than gzip. No broker does that.
    """
    if header.record_count == 0:  # emptied by compaction
        return Marker.NONE
    records = decode_records(header, payload)
    marker = marker_of_key(records[0].key)
    if marker is None:
        raise DamagedSegmentError(
            f"the control batch at offset {header.base_offset} is not a transaction marker"
        )
    return marker


@dataclass(frozen=True, slots=True)
class StableEnd:
    """The end of the part of a log in which every transaction is known to be committed or aborted.

    Attributes:
        offset: The last stable offset, exclusive; the end of what was read if no transaction is
            open.
        producer_id: Producer of the transaction that is open at `offset`; None if none is open.
        newest_ms: Largest timestamp of the segments that were read, in ms; None if it is not known.
    """

    offset: Offset
    producer_id: int | None = None
    newest_ms: int | None = None


class TransactionTracker:
    """The transactions of one partition, as far as its batches were fed. Not thread-safe.

    Batches are fed in order of offsets.

    Args:
        start: First offset that is fed.
        open_transactions: The transactions that are open at `start`.
    """

    __slots__ = ("_aborted", "_end", "_open")

    def __init__(self, start: int = 0, open_transactions: Iterable[OpenTransaction] = ()) -> None:
        self._end = Offset(start)
        self._aborted: list[AbortedTxn] = []
        # By ascending first offset: batches come in order, so a new transaction goes to the end.
        self._open = _by_producer(open_transactions)

    @property
    def end(self) -> Offset:
        """End of the offsets that were fed, exclusive."""
        return self._end

    @property
    def open(self) -> Mapping[int, OpenTransaction]:
        """The open transactions by producer id, by ascending first offset."""
        return MappingProxyType(self._open)

    @property
    def aborted(self) -> Sequence[AbortedTxn]:
        """The aborted transactions by ascending marker, since `forget_below`."""
        return self._aborted

    @property
    def oldest_open(self) -> OpenTransaction | None:
        """The open transaction with the lowest first offset; None if none is open."""
        return next(iter(self._open.values()), None)

    @property
    def stable_end(self) -> StableEnd:
        """The last stable offset, with the producer of the transaction that is open there."""
        oldest = self.oldest_open
        producer_id = None if oldest is None else oldest.producer_id
        return StableEnd(self.last_stable_offset, producer_id)

    @property
    def last_stable_offset(self) -> Offset:
        """First offset of the oldest open transaction, else `end`."""
        oldest = self.oldest_open
        return self._end if oldest is None else oldest.first_offset

    def feed(self, header: BatchHeader, marker: Marker = Marker.NONE) -> OpenTransaction | None:
        """Process the next batch. A batch below `end` is ignored: it was fed before.

        Args:
            header: Its header.
            marker: Its marker, if it is a control batch.

        Returns:
            The transaction that the marker ends.
        """
        if header.base_offset < self._end:
            return None
        self._end = header.next_offset
        if not header.is_transactional:
            return None
        if header.is_control:
            return self.end_transaction(header.producer_id, header.base_offset, marker)
        self.add_batch(header.producer_id, header.producer_epoch, header.base_offset)
        return None

    def add_batch(self, producer_id: int, producer_epoch: int, offset: Offset) -> None:
        """Process a transactional batch that is not a control batch."""
        known = self._open.get(producer_id)
        if known is None:
            self._open[producer_id] = OpenTransaction(producer_id, offset, producer_epoch)
        elif known.producer_epoch != producer_epoch:
            self._open[producer_id] = replace(known, producer_epoch=producer_epoch)

    def end_transaction(
        self, producer_id: int, offset: Offset, marker: Marker
    ) -> OpenTransaction | None:
        """Process the marker at an offset. Return the transaction that it ends."""
        if marker is Marker.NONE:
            return None
        ended = self._open.pop(producer_id, None)
        if ended is not None and marker is Marker.ABORT:
            oldest = self.oldest_open
            stable = Offset(offset + 1) if oldest is None else oldest.first_offset
            self._aborted.append(AbortedTxn(producer_id, ended.first_offset, offset, stable))
        return ended

    def move_end(self, end: Offset) -> None:
        """Set the end of the offsets that were fed, unless it is higher already."""
        self._end = max(self._end, end)

    def skip_to(
        self,
        end: int,
        aborted: Iterable[AbortedTxn],
        open_transactions: Iterable[OpenTransaction],
    ) -> None:
        """Process the files that describe the offsets up to `end`, in place of the batches.

        Does nothing if these offsets were fed.

        Args:
            end: End of a segment, exclusive: the base offset of the next one.
            aborted: The `.txnindex` entries of every segment since the last batch that was fed.
            open_transactions: The transactions that are open at `end`, also those from before.
        """
        if end <= self._end:
            return
        # The markers below the former end were fed.
        self._aborted += [txn for txn in aborted if self._end <= txn.last_offset < end]
        self._open = _by_producer(open_transactions)
        self._end = Offset(end)

    def forget_below(self, offset: int) -> None:
        """Drop aborted transactions that have no batch and no marker at or above an offset."""
        self._aborted = [txn for txn in self._aborted if txn.last_offset >= offset]


def _by_producer(transactions: Iterable[OpenTransaction]) -> dict[int, OpenTransaction]:
    ordered = sorted(transactions, key=lambda transaction: transaction.first_offset)
    return {transaction.producer_id: transaction for transaction in ordered}
