"""Adopt segments above `offset.wm` that an earlier process or another leader has stored.

They are left when a sidecar is killed after it has stored the `.log`, and before it has written
`offset.wm`. Every segment is verified before its upload, and no upload replaces a sidecar's `.log`.
So the archive continues with them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.log_check import mismatch
from sidetier.archive.objects.notes import noted_epoch, noted_next_offset
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory, parse_runs
from sidetier.segments.errors import ArchiveError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import REQUIRED_KINDS, FileKind
from sidetier.segments.notes import EPOCHS_KEY, LEADER_EPOCH_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BaseOffset,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.encrypted_format import missing_marker
from sidetier.storage.port import ObjectHead, RemoteStorage
from sidetier.uploader.errors import AnotherTopicError, DivergedError
from sidetier.uploader.gates.divergence import check_stored_segment
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY, store_empty_index
from sidetier.uploader.state.segment import StoredSegment

ReadEpochHistory = Callable[[], EpochHistory]
"""Reads the epoch history of this broker's log when it is needed."""


@dataclass(frozen=True, slots=True)
class OurLog:
    """The leader's log, for the comparison with stored segments.

    Attributes:
        epoch_history: Reads the leader epochs of the log; None skips their comparison.
        topic_id: Kafka's topic id; None where it is not known, and is not compared.
    """

    epoch_history: ReadEpochHistory | None = None
    topic_id: str | None = None

    def check(self, head: ObjectHead, end: Offset) -> None:
        """Check the metadata of a `.log` that a sidecar stored and that ends at `end`, exclusive.

        Raises:
            AnotherTopicError: the segment belongs to another topic of this name.
            DivergedError: the leader's log does not hold the segment.
        """
        self.check_topic(head)
        check_epoch_history(head, end, self.epoch_history)

    def check_topic(self, head: ObjectHead) -> None:
        """Raise AnotherTopicError if the topic id differs. Each topic has its own leader epochs."""
        stored_id = head.metadata.get(TOPIC_ID_KEY)
        if stored_id is not None and self.topic_id is not None and stored_id != self.topic_id:
            raise AnotherTopicError(
                f"{head.key} belongs to topic id {stored_id}, but the topic of this name has id "
                f"{self.topic_id} now; nothing is written until it has been moved away"
            )


def _store_missing_indexes(store: RemoteStorage, segment: SegmentFiles, log: ObjectHead) -> None:
    """Store empty indexes for a sidecar's `.log` that has lost its own.

    A sidecar stores the indexes first, but a late delete of `sidetier gc` can remove them (see
    `archive/gc/collector.py`). Without indexes, the `.log` would block all uploads: no sidecar
    replaces it, and each expects the others to continue after it. A kill in between leaves a
    `.log` that the next call completes.
    """
    for kind in segment.missing:
        store_empty_index(store, log, kind)


def _check_whole(head: ObjectHead) -> None:
    """Raise ArchiveError if the `.log` is not the one that was archived: nothing is committed."""
    problem = mismatch(head)
    if problem is not None:
        raise ArchiveError(
            f"{problem}. It is above the archive end offset and not committed: restore the object, "
            "or delete it, and the sidecar uploads the segment again from the broker's files"
        )


def _adopted(
    store: RemoteStorage,
    segment: SegmentFiles,
    head: ObjectHead,
    end: Offset,
    epoch_history: EpochHistory,
) -> StoredSegment:
    """Return a segment as it is committed, with 0 bytes sent.

    A marker of an encrypted `.log` that a kill has lost is stored again: listings would show
    readers another size.
    """
    log = segment.log
    marker = missing_marker(log.key, log.size, head.size)
    if marker is not None and head.etag == log.etag:
        store.put_object(marker, BytesBody(b""))
    return StoredSegment(segment.base_offset, end, log.modified_ms, head.size, 0, epoch_history)


def follow_on(
    store: RemoteStorage,
    segments: Sequence[SegmentFiles],
    start: Offset,
    leader_epoch: LeaderEpoch,
    ours: OurLog,
) -> list[StoredSegment]:
    """Return the segments that continue an archive from `start` without a gap.

    Segments of Pinterest's uploader are skipped. The search ends at a segment that a later leader
    wrote: that leader commits it. Makes one request for each segment that may be adopted. Missing
    indexes of the returned segments are stored as empty ones.

    Args:
        store: The store.
        segments: The segments above `offset.wm` whose `.log` is stored, by rising base offset.
        start: The archive end offset.
        leader_epoch: Leader epoch of this broker.
        ours: The leader's log.

    Raises:
        DivergedError: the leader's log does not hold the first of them.
        ArchiveError: the first of them is not the object that was archived.
    """
    chosen: list[StoredSegment] = []
    for segment in segments:
        # A gap: what lies behind it is uploaded, or adopted once the gap is closed.
        if segment.base_offset > start:
            break
        head = store.head_object(segment.log.key)
        end = noted_next_offset(head)
        if end is None or end <= start:
            continue  # of Pinterest's uploader, or archived already
        # Before the comparison of leader epochs: another topic's may be higher, and would end
        # the search without an error.
        if not chosen:
            ours.check_topic(head)
        if noted_epoch(head, WRITER_EPOCH_KEY) > leader_epoch:
            break
        try:
            ours.check(head, end)
            _check_whole(head)
        except (ArchiveError, DivergedError):
            if chosen:
                break  # commit the segments before it first; the next check raises
            raise
        _store_missing_indexes(store, segment, head)
        epoch_history = _epoch_history_of(head, segment.base_offset, ours.epoch_history)
        chosen.append(_adopted(store, segment, head, end, epoch_history))
        start = end
    return chosen


def check_epoch_history(
    head: ObjectHead, end: Offset, epoch_history: ReadEpochHistory | None
) -> None:
    """Raise DivergedError where the leader's log does not hold a `.log` that a sidecar stored."""
    epoch = noted_epoch(head, LEADER_EPOCH_KEY)
    if epoch_history is not None and epoch != UNKNOWN_EPOCH:
        check_stored_segment(head.key, epoch, end, epoch_history())


def stored_within(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    gap: OffsetRange,
    watermark: Watermark | None,
    ours: OurLog,
) -> Iterator[StoredSegment]:
    """Yield the segments above `offset.wm` that hold offsets of the gap, by rising base offset.

    Of the segments of Pinterest's uploader, only those are returned whose three objects are stored
    and belong together. Missing indexes of the others are stored as empty ones.

    Raises:
        DivergedError: the leader's log has another history there.
        ArchiveError: one of them is not the object that was archived.
    """
    stored = StoredPartition(store, layout, tp)
    for segment in stored.logs(watermark.base_offset + 1 if watermark else 0, gap.end):
        head = store.head_object(segment.log.key)
        if _belongs_together(store, segment, head):
            following = noted_next_offset(head) or stored.next_offset_of(segment.base_offset)
            if following > gap.start:
                ours.check(head, following)
                _check_whole(head)
                _store_missing_indexes(store, segment, head)
                epoch_history = _epoch_history_of(head, segment.base_offset, None)
                yield _adopted(store, segment, head, following, epoch_history)


def contiguous(stored: Sequence[StoredSegment], start: Offset) -> list[StoredSegment]:
    """Return the segments that follow `start` without a gap; none if the first begins above it."""
    chosen: list[StoredSegment] = []
    for segment in stored:
        if segment.base_offset > start:
            break
        if segment.next_offset <= start:
            continue  # every offset of it is archived
        chosen.append(segment)
        start = segment.next_offset
    return chosen


def _epoch_history_of(
    head: ObjectHead, base: BaseOffset, epoch_history: ReadEpochHistory | None
) -> EpochHistory:
    """Return the log's epoch history if it covers the segment, else the one in its metadata."""
    local = epoch_history() if epoch_history is not None else NO_EPOCHS
    # Retention may have dropped the epochs of an old segment from the broker's checkpoint.
    if local.epoch_at(base) is not None:
        return local
    return parse_runs(head.metadata.get(EPOCHS_KEY, ""))


def _belongs_together(store: RemoteStorage, segment: SegmentFiles, log: ObjectHead) -> bool:
    """Return whether the indexes belong to the `.log`.

    A sidecar's `.log` always has its own indexes (see `conditional_put`). For a `.log` of
    Pinterest's uploader, both must be stored, and no index may be a sidecar's.
    """
    if noted_next_offset(log) is not None:
        return True
    if segment.missing:
        return False
    indexes = (segment.files[kind] for kind in REQUIRED_KINDS if kind is not FileKind.LOG)
    return not any(WRITER_EPOCH_KEY in store.head_object(row.key).metadata for row in indexes)
