"""Upload one segment: verify it, then store its indexes, its optional files, and its `.log`."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidetier.archive.objects.acknowledgements import acknowledged_gaps, covering
from sidetier.leadership.port import LogOffsetSource
from sidetier.segments.errors import SegmentError, UnsupportedFormatError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import OPTIONAL_KINDS, FileKind
from sidetier.segments.notes import (
    BROKER_ID_KEY,
    LEADER_EPOCH_KEY,
    MAX_TIMESTAMP_KEY,
    MISSING,
    NEXT_OFFSET_KEY,
    NONE,
    NOTE_KEYS,
    TOPIC_ID_KEY,
    epochs_note,
    object_note,
    records_note,
)
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.segments.producer_snapshot import check_snapshot
from sidetier.segments.txn_index import (
    ABORTED_TXN_BYTES,
    WHOLE_ABORTED_TXNS_BYTES,
    read_txn_index,
)
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.errors import StoredOtherwiseError, UnarchivableError
from sidetier.uploader.gates.committed_range import (
    CommittedRange,
    NotCommittedError,
    ReadLog,
    confirm,
)
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from sidetier.uploader.pinning.pins import PinnedSegment
from sidetier.uploader.sending.conditional_put import FileToStore, store_file
from sidetier.uploader.sending.reading import CHUNK_BYTES, ColdPages, SendProgress
from sidetier.uploader.sending.verify import (
    Reading,
    SummedPieces,
    VerifiedFile,
    VerifiedSegment,
    end_of_batch,
    verify,
)
from sidetier.uploader.state.plan import Conflict, PlannedSegment
from sidetier.uploader.state.segment import StoredSegment

_PIECE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets to be stored: from `base` to `end`, exclusive."""

    base: BaseOffset
    end: Offset


@dataclass(frozen=True, slots=True)
class OptionalFiles:
    """The optional files of a segment.

    Attributes:
        files: The files to be stored.
        notes: User metadata of the `.log` about each kind.
        left_out: The kinds that could not be read, and why.
    """

    files: Mapping[FileKind, VerifiedFile]
    notes: Mapping[str, str]
    left_out: tuple[tuple[FileKind, str], ...] = ()


def optional_files(
    pinned: PinnedSegment,
    stored: Extent,
    before_read: Callable[[int], None],
    *,
    grows: bool = False,
) -> OptionalFiles:
    """Return the optional files of a segment, or of a slice of a segment.

    `grows` is set for an active segment: its transaction index may have later entries.

    An error is recorded in `left_out`, not raised: the records are worth storing without the file.
    """
    files: dict[FileKind, VerifiedFile] = {}
    notes: dict[str, str] = {}
    left_out = dict(pinned.lacking)
    for kind in OPTIONAL_KINDS:
        try:
            file = _optional_file(kind, pinned, stored, before_read, grows=grows)
        except (SegmentError, OSError) as error:
            left_out[kind], file = str(error), None
        if file is not None:
            files[kind] = file
        notes[NOTE_KEYS[kind]] = (
            f"{file.crc64nvme:016x}"
            if file is not None
            else MISSING
            if kind in left_out or _is_cut_off(kind, pinned, stored)
            else NONE
        )
    return OptionalFiles(files, notes, tuple(left_out.items()))


def _is_cut_off(kind: FileKind, pinned: PinnedSegment, stored: Extent) -> bool:
    """Return whether it is the snapshot of a slice: no file has the producer state at its start."""
    return kind is FileKind.SNAPSHOT and stored.base != pinned.segment.base_offset


def _optional_file(
    kind: FileKind,
    pinned: PinnedSegment,
    stored: Extent,
    before_read: Callable[[int], None],
    *,
    grows: bool,
) -> VerifiedFile | None:
    descriptor = pinned.descriptors.get(kind)
    if descriptor is None or _is_cut_off(kind, pinned, stored):
        return None
    if kind is FileKind.TXNINDEX:
        return _txn_index(descriptor, pinned.segment.base_offset, stored, before_read, grows=grows)
    pieces = SummedPieces(descriptor, _PIECE_BYTES)
    return pieces.file(before_read) if check_snapshot(pieces) else None


def _txn_index(
    descriptor: int,
    segment: BaseOffset,
    stored: Extent,
    before_read: Callable[[int], None],
    *,
    grows: bool,
) -> VerifiedFile | None:
    """Return the transaction index; for a slice, its entries with an abort marker in the slice.

    Transactions that end below the slice have no records in it.
    """
    # The broker may be adding an entry to the index of an active segment: it is cut there.
    size = os.fstat(descriptor).st_size
    whole = size - size % ABORTED_TXN_BYTES if grows else size
    pieces = SummedPieces(descriptor, WHOLE_ABORTED_TXNS_BYTES, end=whole)
    below = inside = above = 0
    # The first pass checks the whole file and counts. Entries ascend by marker, so the
    # slice's entries follow each other, and a second pass sums up these alone.
    for entry in read_txn_index(pieces, segment, None if grows else stored.end):
        if entry.last_offset < stored.base:
            below += 1
        elif entry.last_offset < stored.end:
            inside += 1
        else:
            above += 1
    if not inside:
        return None
    if below or above:
        start, length = below * ABORTED_TXN_BYTES, inside * ABORTED_TXN_BYTES
        pieces = SummedPieces(descriptor, WHOLE_ABORTED_TXNS_BYTES, start, start + length)
        for _ in read_txn_index(pieces, stored.base, stored.end):
            pass
    return pieces.file(before_read)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a partition's segments are stored, and the leader that stores them.

    Attributes:
        store: The store.
        layout: The keys on it.
        topic_partition: The partition.
        writer_epoch: Leader epoch of this broker.
        broker_id: This broker.
        compacted: Whether the log was compacted: records may be missing anywhere, and the pinned
            files may be older than the files that have their names now.
        directory: The partition's directory now; None where it is not known.
        topic_id: Kafka's topic id; None where it is not known.
        begins: Whether the archive begins with this segment. It may then begin within a record
            batch: its start was recorded before the log was truncated there, or by a replica with
            other segments.
        epochs: The leader epochs of the log.
    """

    store: RemoteStorage
    layout: ArchiveLayout
    topic_partition: TopicPartition
    writer_epoch: LeaderEpoch
    broker_id: BrokerId
    compacted: bool = False
    directory: str | None = None
    topic_id: str | None = None
    begins: bool = False
    epochs: RememberedEpochs = field(default_factory=RememberedEpochs)


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """How segments are read.

    Attributes:
        before_read: Bandwidth cap, called with the number of bytes before each read to send.
        give_back_cold: Drop pages from the page cache that were not in it before.
        before_walk: Bandwidth cap, called with the number of bytes before each read to verify.
    """

    before_read: Callable[[int], None]
    give_back_cold: bool
    before_walk: Callable[[int], None] = lambda _: None


@dataclass(slots=True)
class Uploader:
    """Uploads segments. Each thread uses one chunk of memory for segments of any size."""

    rules: ReadingRules
    log_offsets: LogOffsetSource | None = None
    """Asks the own broker; None where nothing is archived early."""
    _local: threading.local = field(default_factory=threading.local)

    def upload(  # noqa: PLR0913 - what differs between two segments
        self,
        to: Destination,
        pinned: PinnedSegment,
        planned: PlannedSegment,
        present: frozenset[str],
        *,
        committed: bool = False,
        progress: SendProgress | None = None,
        early: CommittedRange | None = None,
    ) -> StoredSegment:
        """Store one segment's index, time index, optional files and log, in this order.

        A reader that lists the `.log` finds it complete, with its indexes. A kill in between leaves
        objects above `offset.wm`: the next start compares them, and keeps those with the same
        bytes.

        Args:
            to: Where the segment is stored.
            pinned: The open files of the segment.
            planned: The segment, and the offset from which to store it.
            present: Keys above `offset.wm` that existed when the archive was listed.
            committed: Whether the segment is known to be committed (`TrackedSegment.committed`).
            progress: Counts the bytes of the `.log` while it is sent.
            early: The part of the active segment to store; None for a closed segment.

        Raises:
            NotCommittedError: nothing confirms that the part of the active segment is committed.
            BrokerError: the broker does not answer whether it is.
            UnarchivableError: the segment has message format v0 or v1.
            SegmentError: the local file is damaged, has changed, or must not be stored.
            StoredByAnotherError: another sidecar's segment is stored there: continue behind it.
            StoredOtherwiseError: the segment has left the log, and the archive ends within one of
                its record batches.
            ArchiveConflictError: another process writes the archive.
        """
        pages = ColdPages(pinned.log, watch=self.rules.give_back_cold)
        try:
            reading = Reading(
                pages,
                self._buffer(),
                self.rules.before_read,
                to.compacted,
                to.directory,
                self.rules.before_walk,
                to.epochs.read,
                committed or early is not None,
                progress,
                early,
            )
            verified = _verified(to, pinned, planned, reading)
            stored = Extent(verified.base_offset, verified.next_offset)
            grows = early is not None
            # Before the proof: a broker that restarts empties the `.txnindex` of an active segment.
            optional = optional_files(pinned, stored, self.rules.before_read, grows=grows)
            if early is not None:
                self._confirm(to, early, verified)
            elif not (to.compacted or to.begins):
                _check_follows(pinned, planned, verified)
            sent = sum(
                store_file(to.store, file, may_exist=file.key in present)
                for file in _files(to, verified, optional)
            )
            # The file was read again for the upload. A store without checksums has not noticed a
            # change since the verification.
            if early is not None:
                self._confirm(to, early, verified)
            else:
                pinned.check_unchanged()
        finally:
            # Also after a failure: the pages were loaded for it all the same.
            pages.give_back()
        return StoredSegment(
            verified.base_offset,
            verified.next_offset,
            verified.modified_ms,
            verified.size,
            sent,
            verified.epoch_history,
            to.compacted,
            optional.left_out,
        )

    def _confirm(self, to: Destination, early: CommittedRange, verified: VerifiedSegment) -> None:
        """Ask and look again after a part of the active segment was read.

        Raises:
            NotCommittedError: the bytes must not be stored.
            BrokerError: the broker does not answer.
        """
        tp = to.topic_partition
        if self.log_offsets is None or to.directory is None:
            raise NotCommittedError(f"{tp}: its directory is gone, or no broker can be asked")
        read = early, verified.epochs, verified.read_to
        log = ReadLog(tp, to.directory, early.file.topic_id, early.leader_epoch, *read)
        [reason] = confirm(self.log_offsets, [log])
        if reason is not None:
            raise NotCommittedError(f"{tp}: {reason}")

    def _buffer(self) -> memoryview:
        buffer: memoryview | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = memoryview(bytearray(CHUNK_BYTES))
        return buffer


def _verified(
    to: Destination, pinned: PinnedSegment, planned: PlannedSegment, reading: Reading
) -> VerifiedSegment:
    try:
        return verify(pinned, planned, reading)
    except UnsupportedFormatError as error:
        if planned.segment.next_base is None:
            raise
        lost = OffsetRange(planned.start, Offset(planned.segment.next_base))
        # Asked only here: such segments are rare, and an operator accepts their loss one by one.
        accepted = acknowledged_gaps(to.store, to.layout, to.topic_partition)
        raise UnarchivableError(
            f"{error}: copy the records to a new topic, or accept their loss by `sidetier ack-gap "
            "--unarchivable`",
            accepted=covering(lost, accepted) is not None,
        ) from error


def _check_follows(
    pinned: PinnedSegment, planned: PlannedSegment, verified: VerifiedSegment
) -> None:
    """Check that the archive ends at the end of a record batch.

    Logs of one history have the same record batches. Only a segment that has left the log is
    checked: for the others, the comparison of the epoch histories is enough.
    """
    has_left = planned.segment.marked_for_deletion or pinned.unlinked()
    if has_left and verified.base_offset < planned.start:
        conflict = Conflict(planned.start, end_of_batch(pinned, verified.base_offset))
        raise StoredOtherwiseError(
            f"{pinned.name}: the archive ends at {planned.start}, within the record batch from "
            f"{verified.base_offset} up to {conflict.end}: archive and log have diverged",
            conflict,
        )


def _files(
    to: Destination, verified: VerifiedSegment, optional: OptionalFiles
) -> list[FileToStore]:
    order = [
        (FileKind.INDEX, verified.index),
        (FileKind.TIMEINDEX, verified.timeindex),
        *optional.files.items(),
        (FileKind.LOG, verified.log),
    ]

    def stored(kind: FileKind, file: VerifiedFile) -> FileToStore:
        key = to.layout.object_key(to.topic_partition, verified.base_offset, kind)
        is_log = kind is FileKind.LOG
        notes = _facts(to, key, verified, optional) if is_log else _topic_note(to)
        return FileToStore(key, file.body, file.crc64nvme, notes, to.writer_epoch)

    return [stored(kind, file) for kind, file in order]


def _topic_note(to: Destination) -> dict[str, str]:
    return {} if to.topic_id is None else {TOPIC_ID_KEY: to.topic_id}


def _facts(
    to: Destination, key: str, verified: VerifiedSegment, optional: OptionalFiles
) -> dict[str, str]:
    """Return the user metadata of the `.log`, which spares readers a request for its bytes."""
    return {
        **object_note(key, verified.size),
        NEXT_OFFSET_KEY: str(verified.next_offset),
        MAX_TIMESTAMP_KEY: str(verified.max_timestamp),
        LEADER_EPOCH_KEY: str(verified.leader_epoch),
        BROKER_ID_KEY: str(to.broker_id),
        **_topic_note(to),
        **epochs_note(verified.epochs),
        **records_note(verified.plain_records),
        **optional.notes,
    }
