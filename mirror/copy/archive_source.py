"""Read raw batches of an archive, with its gaps and transactions.

Reading works as with read_committed: it ends below the first record of a transaction that is still
open at the archive's end, unless open transactions count as aborted. Whether a transaction was
aborted is read from the files beside the segments (`.txnindex`, `.snapshot`), or else from the
markers in the segments themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sidetier.archive.access import ArchiveAccess, range_reader
from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.locate import Locator
from sidetier.archive.missing_offsets import first_missing
from sidetier.archive.objects.layout import other_cluster, read_note
from sidetier.archive.objects.log_check import cut_at
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.partition_archive import ArchiveSnapshot, PartitionArchive
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.tailed_archive import SharedTails, open_partition
from sidetier.archive.transactions import PartitionTransactions
from sidetier.archive.view import ArchiveView
from sidetier.leadership.kraft.image import print_uuid
from sidetier.segments.batches import split_batches
from sidetier.segments.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.headers import batch_bytes
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.attempt import monotonic
from sidetier.storage.port import RemoteStorage
from sidetier.wire.record_requests import AbortedTransaction

CHUNK_BYTES: Final = 8 << 20
_INDEX_CACHE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class ArchivedBatches:
    """Bytes that begin with a batch.

    Attributes:
        data: The bytes; the last batch may be incomplete. The memory is writable.
        aborted: The aborted transactions in these bytes.
        end: The offset up to which these bytes count, exclusive; another segment has the records
            from there on.
    """

    data: memoryview
    aborted: tuple[AbortedTransaction, ...]
    end: Offset


@dataclass(frozen=True, slots=True)
class ArchiveGap:
    """The archive does not have the offsets [`start`, `end`); `detail` is the reason."""

    start: Offset
    end: Offset
    detail: str


@dataclass(frozen=True, slots=True)
class ArchiveEnd:
    """Nothing can be read at the requested offset now; `offset` is the end, exclusive."""

    offset: Offset


ArchiveRead = ArchivedBatches | ArchiveGap | ArchiveEnd


class ArchiveSource:
    """Reads the archives of many partitions, each sequentially. Not thread-safe.

    Args:
        archive: The cluster's archive.
        abort_open: Whether transactions that are open at an archive's end count as aborted. If not,
            reading ends at the first record of such a transaction.
        cluster_id: Kafka's id of the cluster whose brokers are read, too; None if only the archive
            is read, or if they report no id.
        tails: The tail packs that follow the archives; None to read the archives alone. With them,
            an archive ends where its tail ends.
    """

    def __init__(
        self,
        archive: ArchiveAccess,
        *,
        abort_open: bool = False,
        cluster_id: str | None = None,
        clock: Callable[[], float] = monotonic,
        chunk_bytes: int = CHUNK_BYTES,
        tails: SharedTails | None = None,
    ) -> None:
        self._archive = archive
        self._abort_open = abort_open
        self._cluster_id = cluster_id
        self._clock = clock
        self._chunk_bytes = chunk_bytes
        self._tails = tails
        self._settings_check = SettingsCheck(archive)
        self._locator = Locator(_INDEX_CACHE_BYTES, lambda _key, _reason: None)
        self._partitions: dict[TopicPartition, PartitionArchive] = {}
        self._transactions: dict[TopicPartition, PartitionTransactions] = {}
        self._cursors: dict[TopicPartition, tuple[Version, Offset, int]] = {}
        self._topic_ids: Mapping[str, UUID] = {}

    def require_same_cluster(self) -> None:
        """Check the default store. `view` checks the other ones.

        Raises:
            ConfigurationError: The archive belongs to another Kafka cluster than the brokers.
            StorageError: As `RemoteStorage` documents.
        """
        self._require_same_cluster(self._archive.default_store)

    def expect(self, topic_ids: Mapping[str, UUID]) -> None:
        """Ignore the archives of former topics from now on.

        If a topic was deleted and created again, its archive holds the records of the former topic
        until `sidetier retire` or a sidecar has moved it.

        Args:
            topic_ids: Kafka's ids of the topics; a topic without an id may have any archive.
        """
        self._topic_ids = topic_ids

    def view(
        self, tp: TopicPartition, max_age: float = 0.0, topic_id: UUID | None = None
    ) -> ArchiveView | None:
        """Return the readable part of a partition's archive; None if nothing is stored.

        Args:
            tp: The partition.
            max_age: Maximum age of the result, in seconds.
            topic_id: The topic's id; by default the id given to `expect`.

        Raises:
            ConfigurationError: The archive belongs to another Kafka cluster than the brokers.
            ArchiveError: The stored objects are not valid.
            ArchiveReplacedError: Only with tails: records that were read before are no longer this
                partition's history.
            UnreadTailError: It is not known which records the tail has.
            StorageError: As `RemoteStorage` documents.
        """
        if tp not in self._partitions:
            self._require_same_cluster(self._archive.store(tp.topic))
            self._partitions[tp] = open_partition(
                tp, self._archive, self._settings_check, self._clock, self._tails
            )
        archive = self._partitions[tp]
        snapshot = archive.snapshot(max_age)
        if self._tails is not None:
            _require_same_history(archive, snapshot)
        view = snapshot.view
        wanted = topic_id or self._topic_ids.get(tp.topic)
        stored = None if view is None else view.watermark.topic_id
        # `offset.wm` has the id in Kafka's text form.
        if wanted is not None and stored is not None and stored != print_uuid(wanted.bytes):
            return None
        return view

    def _require_same_cluster(self, store: RemoteStorage) -> None:
        """Check a store's `layout.json`. An archive of Pinterest's uploader has none."""
        layout = self._archive.layout
        note = None if self._cluster_id is None else read_note(store, layout)
        if note is None or note.kafka_cluster_id is None:
            return
        problem = other_cluster(note, layout, self._cluster_id)
        if problem is not None:
            raise ConfigurationError(f"{problem}; or copy without the archive (--no-archive)")

    def above_end(self, tp: TopicPartition) -> tuple[BaseOffset, ...]:
        """Return the base offsets of stored segments above the archive end offset, as of `view`."""
        known = self._partitions.get(tp)
        return () if known is None else tuple(log.base_offset for log in known.above_end())

    def last_stable_offset(self, tp: TopicPartition, max_age: float = 0.0) -> Offset | None:
        """Return the end of the readable offsets, exclusive: no open transaction begins below it.

        Returns None if nothing is stored. Raises the errors of `view`.
        """
        view = self.view(tp, max_age)
        return None if view is None else self._last_stable_offset(tp, view)

    def read(self, tp: TopicPartition, offset: Offset, max_age: float = 0.0) -> ArchiveRead:
        """Return the batches from the batch that has `offset` on, or why there are none.

        Raises:
            DamagedSegmentError: A stored segment has no batch where one should begin, or has lost
                its last batches.
            ConfigurationError: The archive has transactions but does not show which were aborted.
            ArchiveError, StorageError: As `view`.
        """
        view = self.view(tp, max_age)
        if view is None:
            return ArchiveEnd(Offset(0))
        end = self._last_stable_offset(tp, view)
        if offset >= end:
            return ArchiveEnd(end)
        log = view.holder(offset)
        if offset < view.start or log is None:
            return self._gap(tp, view, offset, end)
        try:
            return self._read(tp, view, log, offset, end)
        except (ObjectNotFoundError, PreconditionFailedError):
            # Lifecycle rules of the store or a quarantine have changed the listed objects since.
            # The cursor is a position in a version that is gone.
            self._cursors.pop(tp, None)
            # The snapshot was new already: the caller has to try again later.
            if max_age == 0.0:
                raise
            return self.read(tp, offset)

    def _read(
        self, tp: TopicPartition, view: ArchiveView, log: StoredLog, offset: Offset, end: Offset
    ) -> ArchiveRead:
        until = min(view.until(offset), end)
        while True:
            position = self._position(tp, log, offset)
            data = self._batches(tp, log, position)
            reached, length, is_transactional, has_offset = offset, 0, False, False
            for batch, header in split_batches(data):
                if header.base_offset >= until:
                    break  # another segment has the records from here on
                length += len(batch)
                is_transactional |= header.is_transactional
                has_offset |= header.next_offset > offset
                reached = max(reached, header.next_offset)
            # Reading is sequential: the next call continues at this byte without an index.
            self._cursors[tp] = (log.version, reached, position + length)
            # An index entry is at or before the offset, so the first chunk can end below it.
            if has_offset:
                break
            if not length or position + length >= log.size:
                return self._past_last_batch(tp, view, log, offset, end)
        aborted: tuple[AbortedTransaction, ...] = ()
        if is_transactional:
            if view.is_pinterest:
                raise ConfigurationError(
                    f"{log.key}: has transactions, and an archive of Pinterest's uploader does not "
                    "show which were aborted; mirror this topic from its brokers"
                )
            aborted = self._transactions_of(tp).aborted(view, log, offset, reached)
        return ArchivedBatches(data[:length], aborted, until)

    def _past_last_batch(
        self, tp: TopicPartition, view: ArchiveView, log: StoredLog, offset: Offset, end: Offset
    ) -> ArchiveRead:
        """Handle a segment without a batch at or above the offset: a compacted one, or a gap."""
        proven = self._partitions[tp].proven_end(log, offset)
        until = min(view.until(offset), end)
        if proven is not None:
            # Compaction has removed the segment's last records, so none is missing below `proven`.
            return ArchivedBatches(memoryview(b""), (), min(proven, until))
        return self._gap(tp, view, offset, until)

    def _position(self, tp: TopicPartition, log: StoredLog, offset: Offset) -> int:
        cursor = self._cursors.get(tp)
        if cursor is not None and cursor[0] == log.version and cursor[1] <= offset:
            return cursor[2]
        return self._locator.segment_position(
            range_reader(self._archive, tp.topic), log, offset
        ).position

    def _batches(self, tp: TopicPartition, log: StoredLog, position: int) -> memoryview:
        """Return the bytes from a batch on; at least that batch, if the segment has all of it."""
        data = self._fetch(tp, log, position, self._chunk_bytes)
        size = batch_bytes(data)
        return data if size <= len(data) else self._fetch(tp, log, position, size)

    def _fetch(self, tp: TopicPartition, log: StoredLog, position: int, size: int) -> memoryview:
        end = min(position + size, log.size)
        read = range_reader(self._archive, tp.topic)
        data = read(log.row, position, end)
        # Else the end of a shorter object would count as the end of the segment.
        if len(data) < end - position:
            raise cut_at(log.key, position + len(data), log.size)
        return memoryview(bytearray(data))

    def _gap(
        self, tp: TopicPartition, view: ArchiveView, offset: Offset, until: Offset
    ) -> ArchiveGap:
        if offset < view.start:
            until = min(until, view.start)
        following = view.after(offset)
        if following is not None:
            until = min(until, Offset(following.base_offset))
        gaps = self._partitions[tp].gaps() if offset >= view.start else []
        missing = first_missing(OffsetRange(offset, until), gaps, view.start)
        return ArchiveGap(*missing.offsets, missing.detail(view.where))

    def _last_stable_offset(self, tp: TopicPartition, view: ArchiveView) -> Offset:
        if view.is_pinterest or self._abort_open:
            return view.end
        return self._transactions_of(tp).last_stable_offset(view)

    def _transactions_of(self, tp: TopicPartition) -> PartitionTransactions:
        if tp not in self._transactions:
            store = self._archive.store(tp.topic)
            self._transactions[tp] = PartitionTransactions(
                store, lambda log, at: self._batches(tp, log, at)
            )
        return self._transactions[tp]


def _require_same_history(archive: PartitionArchive, snapshot: ArchiveSnapshot) -> None:
    """Raise the error of a tail that is not known, or that a later leader has discarded.

    Of an archive alone, a copy of a running cluster continues with what the brokers have.
    """
    for change in snapshot.changes:
        if change.message is not None:
            raise ArchiveReplacedError(change.message, change.first)
    if archive.problem is not None:
        raise archive.problem
