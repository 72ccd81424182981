"""The aborted and open transactions of each segment of a partition.

The `.txnindex` of a segment has its aborted transactions. The producer snapshot of the next segment
has the transactions that are open at its end. Together they have the same information as the
markers in the segment. A file is used only if its checksum equals the one in the metadata of its
`.log`; otherwise the segment's batches are read. Segments of Pinterest's uploader and slices of
segments have no such checksum.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sidetier.archive.objects.log_check import proven_end
from sidetier.archive.objects.notes import noted_next_offset, noted_records
from sidetier.archive.objects.segment import PackedLog, StoredLog, Version, is_settled
from sidetier.archive.view import ArchiveView
from sidetier.segments.batches import split_batches
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    DamagedSegmentError,
    ObjectNotFoundError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import HEADER_BYTES
from sidetier.segments.lru import Lru
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NONE, NOTE_KEYS
from sidetier.segments.offsets import MAX_OFFSET, Offset
from sidetier.segments.producer_snapshot import OpenTransaction, open_transactions
from sidetier.segments.transactions import Marker, TransactionTracker, read_marker
from sidetier.segments.txn_index import AbortedTxn, parse_txn_index
from sidetier.storage.port import ObjectHead, RemoteStorage
from sidetier.wire.record_requests import AbortedTransaction

OpenTransactions = tuple[OpenTransaction, ...]
_MAX_PACKED: Final = 4096


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """The transactions of one segment.

    Attributes:
        end: End of the segment, exclusive.
        aborted: The transactions that it aborts.
        still_open: The transactions that are open at `end`.
    """

    end: Offset
    aborted: tuple[AbortedTxn, ...]
    still_open: OpenTransactions


def transactions_of(
    store: RemoteStorage, log: StoredLog, following: StoredLog
) -> SegmentTransactions | None:
    """Read a segment's transactions from the files beside it and beside its successor.

    Needs two requests, and one for each file.

    Returns:
        None if the files are not usable. Then the segment's markers must be read.
    """
    if isinstance(log, PackedLog) or isinstance(following, PackedLog):
        return None
    try:
        head, successor = store.head_object(log.key), store.head_object(following.key)
        end = noted_next_offset(head)
        # With a gap or an overlap behind the segment, the successor's
        # snapshot describes another offset than the segment's end.
        if end is None or int(end) != int(following.base_offset):
            return None
        if _lacks_state(log, head):  # the broker may have rebuilt the index without it
            return None
        aborted = _noted(store, head, FileKind.TXNINDEX)
        still_open = _noted_open(store, following, successor)
        if aborted is None or still_open is None:
            return None
        return SegmentTransactions(end, parse_txn_index(aborted), still_open)
    except (ObjectNotFoundError, DamagedSegmentError, UnsupportedFormatError):
        return None


def open_at_base(store: RemoteStorage, log: StoredLog) -> OpenTransactions | None:
    """Read the transactions that were open at a segment's base offset. At most two requests.

    Returns:
        None if no usable producer snapshot is stored.
    """
    if isinstance(log, PackedLog):
        return None
    try:
        return _noted_open(store, log, store.head_object(log.key))
    except (ObjectNotFoundError, DamagedSegmentError, UnsupportedFormatError):
        return None


def _noted_open(store: RemoteStorage, log: StoredLog, head: ObjectHead) -> OpenTransactions | None:
    if _lacks_state(log, head):
        return None
    producers = _noted(store, head, FileKind.SNAPSHOT)
    if not producers:
        return None if producers is None else ()
    return open_transactions(producers)


def _lacks_state(log: StoredLog, head: ObjectHead) -> bool:
    """Whether a segment other than the first one of all has no producer snapshot.

    A broker that loads its log after a crash deletes the snapshot at its log start. Transactions
    that began below it may be open.
    """
    return log.base_offset != 0 and head.metadata.get(NOTE_KEYS[FileKind.SNAPSHOT]) == NONE


def _noted(store: RemoteStorage, head: ObjectHead, kind: FileKind) -> bytes | None:
    """Read an optional file of a segment; empty if the broker had none, None if not usable."""
    noted = head.metadata.get(NOTE_KEYS[kind])
    if noted == NONE:
        return b""
    if noted is None:
        return None
    data = store.get_object(head.key.removesuffix(FileKind.LOG.value) + kind.value).data
    # Another attempt may have stored another version of the file, for example before compaction.
    return data if f"{crc64nvme(data):016x}" == noted else None


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
        self._archived: dict[Version, SegmentTransactions] = {}
        # Ranges of packs come every few seconds, and go.
        self._packed = Lru[Version, SegmentTransactions](_MAX_PACKED)
        self._guard = threading.Lock()

    def last_stable_offset(self, view: ArchiveView) -> Offset:
        """Return the first offset of the oldest open transaction; the archive end if none is open.

        Raises:
            DamagedSegmentError: The last segment cannot be read.
        """
        if not view.logs:
            return view.end
        still_open = self._transactions_of(view, view.logs[-1]).still_open
        return min((view.end, *(transaction.first_offset for transaction in still_open)))

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
            segment = self._transactions_of(view, following)
            transactions.extend(
                AbortedTransaction(entry.producer_id, entry.first_offset)
                for entry in segment.aborted
                if entry.last_offset >= start and entry.first_offset < end
            )
            undecided = [entry for entry in segment.still_open if entry.first_offset < end]
            if not undecided:
                break
            following = view.after(following.base_offset)
            if following is None:
                transactions.extend(
                    AbortedTransaction(entry.producer_id, entry.first_offset) for entry in undecided
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
        first = end
        while following is not None:
            still_open = self._transactions_of(view, following).still_open
            first = min((entry.first_offset for entry in still_open), default=end)
            if first >= end:
                return None
            following = view.after(following.base_offset)
        return first

    def _transactions_of(self, view: ArchiveView, log: StoredLog) -> SegmentTransactions:
        known = self._known(log)
        if known is None:
            with self._guard:  # other threads would read the same segments: they wait
                # Again under the lock: the thread that held it may have read this segment.
                known = self._known(log)
                if known is None:
                    known = self._keep(log, self._read(view, log))
        return known

    def _known(self, log: StoredLog) -> SegmentTransactions | None:
        known = self._packed if isinstance(log, PackedLog) else self._archived
        return known.get(log.version)

    def _keep(self, log: StoredLog, transactions: SegmentTransactions) -> SegmentTransactions:
        if isinstance(log, PackedLog):
            self._packed.put(log.version, transactions)
        else:
            self._archived[log.version] = transactions
        return transactions

    def _read(self, view: ArchiveView, log: StoredLog) -> SegmentTransactions:
        following = view.after(log.base_offset)
        if following is not None:
            stored = transactions_of(self._store, log, following)
            if stored is not None:
                return stored
        before = self._open_at_base(view, log)
        return _of_row(log, before) or self._from_markers(view, log, before)

    def _open_at_base(self, view: ArchiveView, log: StoredLog) -> OpenTransactions:
        """Read from the producer snapshot, or from the nearest lower segment that has one."""
        noted = open_at_base(self._store, log)
        if noted is not None:
            return noted
        to_walk: list[StoredLog] = []
        still_open: OpenTransactions = ()
        for lower in view.below(log.base_offset):
            known = self._known(lower)
            if known is not None:
                still_open = known.still_open
                break
            if is_settled(lower):
                break
            to_walk.append(lower)
            noted = open_at_base(self._store, lower)
            if noted is not None:
                still_open = noted
                break
        # In ascending order from the segment whose state is known: each walk needs the state at its
        # start.
        for lower in reversed(to_walk):
            found = _of_row(lower, still_open) or self._from_markers(view, lower, still_open)
            still_open = self._keep(lower, found).still_open
        return still_open

    def _from_markers(
        self, view: ArchiveView, log: StoredLog, before: OpenTransactions
    ) -> SegmentTransactions:
        """Read the transactions from the markers in the segment itself, if it has any."""
        is_packed = isinstance(log, PackedLog)
        if not is_packed and noted_records(self._store.head_object(log.key)) is not None:
            # A sidecar notes the number of records only if the segment has no transactional batch.
            return SegmentTransactions(view.until(log.base_offset), (), before)
        tracker = TransactionTracker(log.base_offset, before)
        # Of a range in a pack, the rest may be stale: another one is read from there on.
        end = view.until(log.base_offset) if is_packed else MAX_OFFSET
        position = 0
        while position < log.size and tracker.end < end:
            data = self._batches(log, position)
            start = position
            for batch, header in split_batches(data):
                position += len(batch)
                if header.base_offset >= end:
                    continue
                marker = Marker.NONE
                if header.is_control:
                    marker = read_marker(header, bytes(batch[HEADER_BYTES:]))
                tracker.feed(header, marker)
            if position == start:
                raise DamagedSegmentError(f"{log.key}: no whole batch at byte {position}")
        if tracker.end < view.until(log.base_offset) and not is_packed:
            # The last batches may have been compacted away. If they were lost, their markers and
            # transactions are unknown, as the error states.
            proven_end(self._store, log.key, log.row.etag, tracker.end)
        return SegmentTransactions(
            tracker.end, tuple(tracker.aborted), tuple(tracker.open.values())
        )


def _of_row(log: StoredLog, before: OpenTransactions) -> SegmentTransactions | None:
    """Return the transactions of a range in a tail pack from its row; None if its batches must be
    read.

    A sidecar that begins within a transaction may not know of it. If none is open where the range
    begins, its row has them all.
    """
    if before or not isinstance(log, PackedLog) or log.transactions is None:
        return None
    row = log.transactions
    return SegmentTransactions(log.end, row.aborted, row.still_open)
