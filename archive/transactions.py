"""The aborted and open transactions of each segment of a partition.

They are read from the files beside the segments (`.txnindex`, `.snapshot`: see
`transaction_indexes`), or else from the markers in the segments themselves.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sidetier.archive.objects.log_check import proven_end
from sidetier.archive.objects.notes import noted_records
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.transaction_indexes import open_at_base, transactions_of
from sidetier.archive.view import ArchiveView
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import HEADER_BYTES
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.records import ABORT_MARKER, marker_type
from sidetier.segments.txn_index import AbortedTxn
from sidetier.storage.port import RemoteStorage
from sidetier.wire.batches import split_batches
from sidetier.wire.record_requests import AbortedTransaction

OpenTransactions = Mapping[int, int]
"""First offset of the open transaction of each producer id."""


class _SegmentTransactions(NamedTuple):
    """The transactions that a segment aborts, and those that are open at its end."""

    aborted: tuple[AbortedTxn, ...]
    still_open: OpenTransactions


class PartitionTransactions:
    """The transactions in the segments of one partition; each segment is read once. Thread-safe.

    Args:
        store: The partition's store.
        batches: Returns the bytes of a `.log` from a byte position on, at which a batch begins;
            at least that batch, if the segment has all of it.
    """

    def __init__(
        self, store: RemoteStorage, batches: Callable[[StoredLog, int], memoryview]
    ) -> None:
        self._store = store
        self._batches = batches
        self._known: dict[Version, _SegmentTransactions] = {}
        self._guard = threading.Lock()

    def aborted(
        self, view: ArchiveView, log: StoredLog, start: Offset, end: Offset
    ) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions with records or markers in [`start`, `end`).

        A transaction that ended below `start` is left out, because its producer may have committed
        since. A transaction that is open at the archive's end counts as aborted.
        """
        transactions: list[AbortedTransaction] = []
        following: StoredLog | None = log
        # A transaction can be aborted by a marker in a later segment. It has to be
        # found there as long as a transaction with records in the range is open.
        while following is not None:
            aborted, still_open = self._read_transactions(view, following)
            transactions.extend(
                AbortedTransaction(entry.producer_id, entry.first_offset)
                for entry in aborted
                if entry.last_offset >= start and entry.first_offset < end
            )
            undecided = {entry: first for entry, first in still_open.items() if first < end}
            if not undecided:
                break
            following = view.after(following.base_offset)
            if following is None:
                transactions.extend(
                    AbortedTransaction(producer_id, Offset(first))
                    for producer_id, first in undecided.items()
                )
        return tuple(transactions)

    def undecided_from(self, view: ArchiveView, log: StoredLog, end: Offset) -> Offset | None:
        """Return the last stable offset, if a transaction that began below `end` is open at it.

        Reads segments from `log` on, as long as such a transaction is open: as `aborted` does.

        Returns:
            The first offset of the oldest transaction that is open at the archive's end. None if
            the transactions with records in `log` or a lower segment, below `end`, have ended.
        """
        following: StoredLog | None = log
        still_open: OpenTransactions = {}
        while following is not None:
            still_open = self._read_transactions(view, following).still_open
            if not any(first < end for first in still_open.values()):
                return None
            following = view.after(following.base_offset)
        return Offset(min(still_open.values()))

    def open_behind(self, view: ArchiveView, log: StoredLog) -> OpenTransactions:
        """Return the transactions that are open at a segment's end."""
        return self._read_transactions(view, log).still_open

    def _read_transactions(self, view: ArchiveView, log: StoredLog) -> _SegmentTransactions:
        known = self._known.get(log.version)
        if known is None:
            with self._guard:  # other threads would read the same segments: they wait
                # Again under the lock: the thread that held it may have read this segment.
                known = self._known.get(log.version)
                if known is None:
                    known = self._known[log.version] = self._read(view, log)
        return known

    def _read(self, view: ArchiveView, log: StoredLog) -> _SegmentTransactions:
        following = view.after(log.base_offset)
        if following is not None:
            stored = transactions_of(self._store, log, following)
            if stored is not None:
                return _SegmentTransactions(stored.aborted, _by_producer(stored.still_open))
        before = self._open_at_base(view, log)
        if noted_records(self._store.head_object(log.key)) is not None:
            # A sidecar notes the number of records only if the segment has no transactional batch.
            return _SegmentTransactions((), before)
        return self._walk(view, log, before)

    def _open_at_base(self, view: ArchiveView, log: StoredLog) -> OpenTransactions:
        """Read from the producer snapshot, or from the nearest lower segment that has one."""
        noted = open_at_base(self._store, log)
        if noted is not None:
            return _by_producer(noted)
        to_walk: list[StoredLog] = []
        state: OpenTransactions = {}
        for lower in view.below(log.base_offset):
            if lower.version in self._known:
                state = self._known[lower.version].still_open
                break
            to_walk.append(lower)
            noted = open_at_base(self._store, lower)
            if noted is not None:
                state = _by_producer(noted)
                break
        # In ascending order from the segment whose state is known: each walk needs the state at its
        # start.
        for lower in reversed(to_walk):
            self._known[lower.version] = self._walk(view, lower, state)
            state = self._known[lower.version].still_open
        return state

    def _walk(
        self, view: ArchiveView, log: StoredLog, before: OpenTransactions
    ) -> _SegmentTransactions:
        """Read the transactions from the markers in the segment itself."""
        still_open = dict(before)
        aborted: list[AbortedTxn] = []
        position, reached = 0, Offset(log.base_offset)
        while position < log.size:
            data = self._batches(log, position)
            start = position
            for batch, header in split_batches(data):
                position += len(batch)
                reached = header.next_offset
                if header.is_control:
                    first = still_open.pop(header.producer_id, None)
                    payload = bytes(batch[HEADER_BYTES:])
                    if first is not None and marker_type(header, payload) == ABORT_MARKER:
                        marker = header.last_offset
                        aborted.append(
                            AbortedTxn(
                                header.producer_id, Offset(first), marker, header.next_offset
                            )
                        )
                elif header.is_transactional:
                    still_open.setdefault(header.producer_id, int(header.base_offset))
            if position == start:
                raise DamagedSegmentError(f"{log.key}: no whole batch at byte {position}")
        if reached < view.until(log.base_offset):
            # The last batches may have been compacted away. If they were lost, their markers and
            # transactions are unknown, and the error says so.
            proven_end(self._store, log.key, log.row.etag, reached)
        return _SegmentTransactions(tuple(aborted), still_open)


def _by_producer(transactions: Iterable[OpenTransaction]) -> OpenTransactions:
    return {transaction.producer_id: transaction.first_offset for transaction in transactions}
