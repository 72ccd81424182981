"""What `read_committed` clients need to know of a partition: its last stable offset, and the
aborted transactions in the bytes that they get.

Source: Kafka's `UnifiedLog.collectAbortedTransactions`, KIP-98.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from sidetier.archive.objects.notes import noted_next_offset, noted_records
from sidetier.archive.objects.segment import PackedLog, StoredLog, Version
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.transactions import PartitionTransactions
from sidetier.archive.view import ArchiveView
from sidetier.segments.lru import Lru
from sidetier.segments.offsets import Offset
from sidetier.wire.record_requests import AbortedTransaction

_MAX_SEGMENTS: Final = 4096


class SegmentNotes(NamedTuple):
    """What the metadata of a `.log` tells.

    Attributes:
        end: The offset after the segment's last one, also if compaction has removed that record;
            for a segment of Pinterest's uploader, the offset after its last batch.
        is_plain: Whether the segment is known to have no batch of a transaction.
        is_whole: Whether the segment is known to have lost no batch (`end_after`).
    """

    end: Offset
    is_plain: bool
    is_whole: bool = False


class OpenTransactionError(Exception):
    """The batches reach beyond the last stable offset.

    Attributes:
        last_stable: The last stable offset.
    """

    def __init__(self, last_stable: Offset) -> None:
        super().__init__(last_stable)
        self.last_stable = last_stable


class ServedTransactions:
    """The transactions of one partition. Thread-safe.

    Args:
        archive: The partition's archive.
        batches: See `PartitionTransactions`.
    """

    def __init__(
        self, archive: PartitionArchive, batches: Callable[[StoredLog, int], memoryview]
    ) -> None:
        self._archive = archive
        self._transactions = PartitionTransactions(archive.store, batches)
        self._notes = Lru[Version, SegmentNotes](_MAX_SEGMENTS)
        self._last_stable: tuple[str, Offset, Offset] | None = None

    def notes(self, log: StoredLog) -> SegmentNotes:
        """Return the notes of a segment. At most one request, for each version of it.

        Raises:
            ObjectNotFoundError: It is no longer stored.
        """
        known = self._notes.get(log.version)
        if known is not None:
            return known
        if isinstance(log, PackedLog):
            return self._keep(log, SegmentNotes(log.reaches, is_plain=False, is_whole=True))
        head = self._archive.store.head_object(log.key)
        noted = noted_next_offset(head)
        end = self._archive.end_of(log) if noted is None else noted
        return self._keep(log, SegmentNotes(end, noted_records(head) is not None))

    def end_after(self, log: StoredLog, offset: Offset) -> Offset:
        """Return the noted end of a segment without a batch at or above `offset`.

        Compaction may have removed the segment's last records: none of them is missing.

        Raises:
            DamagedArchiveError: The segment has lost its last batches.
            StorageError: As `notes`.
        """
        notes = self.notes(log)
        if notes.end > offset and not notes.is_whole:
            self._archive.proven_end(log, offset)
            self._keep(log, notes._replace(is_whole=True))
        return notes.end

    def _keep(self, log: StoredLog, notes: SegmentNotes) -> SegmentNotes:
        self._notes.put(log.version, notes)
        return notes

    def last_stable_offset(self, view: ArchiveView) -> Offset:
        """Return the first offset of the oldest open transaction; the archive end if none is open.

        In an archive of Pinterest's uploader nothing shows which transactions are open, without
        reading it from the beginning. There it is the archive end until `aborted` finds an open
        transaction.

        Raises:
            DamagedSegmentError: The last segment cannot be read.
        """
        known = self._last_stable
        if known is not None and known[:2] == (view.etag, view.end):
            return known[2]
        if not view.logs or view.is_pinterest:
            return view.end
        offset = self._transactions.last_stable_offset(view)
        self._last_stable = view.etag, view.end, offset
        return offset

    def aborted(
        self, view: ArchiveView, log: StoredLog, start: Offset, end: Offset
    ) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that a client needs for batches of one segment.

        A transaction whose marker is below `start` is left out: Java's client would drop records
        that the same producer has committed since. A transaction that ends in a later segment is
        found there: its entry is beside the segment that has the marker.

        Args:
            view: The archive.
            log: The segment that the batches are in.
            start: The offset that the client asked for.
            end: An offset above all of these batches; at most the last stable offset.

        Raises:
            OpenTransactionError: A transaction in these batches is open at the archive end. Only in
                archives of Pinterest's uploader.
            DamagedSegmentError, StorageError: As `last_stable_offset`.
        """
        if view.is_pinterest:
            undecided = self._transactions.undecided_from(view, log, end)
            if undecided is not None:
                self._last_stable = view.etag, view.end, undecided
                raise OpenTransactionError(undecided)
        return self._transactions.aborted(view, log, start, end)
