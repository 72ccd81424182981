"""Segments that are stored above the watermark already: an earlier life's, or another leader's.

A kill between the `.log` and the watermark leaves them. They were verified before they were sent,
as every object here, and a `.log` is never replaced: the archive goes on over them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sidetier.archive.objects.segment import (
    derive_next_offset,
    files_by_base,
    noted_epoch,
    noted_next_offset,
)
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory, parse_runs
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.names import FileKind
from sidetier.segments.notes import EPOCHS_KEY, LEADER_EPOCH_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BaseOffset,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.port import ObjectHead, ObjectSummary, RemoteStorage
from sidetier.uploader.errors import AnotherTopicError, DivergedError
from sidetier.uploader.gates.divergence import check_stored_segment
from sidetier.uploader.pinning.pins import PINNED_KINDS
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY
from sidetier.uploader.state.segment import StoredSegment

ReadEpochHistory = Callable[[], EpochHistory]
"""The epoch history of this broker's log, read when it is needed."""


@dataclass(frozen=True, slots=True)
class OurLog:
    """What a stored segment must fit: the leader's log by its epoch history (None: not looked at),
    and its topic id (None: not known).
    """

    epoch_history: ReadEpochHistory | None = None
    topic_id: str | None = None

    def check(self, head: ObjectHead, end: Offset) -> None:
        """Look at the head of a stored `.log` of ours that ends there.

        Raises:
            AnotherTopicError: it belongs to another topic of this name.
            DivergedError: the leader's log does not hold it.
        """
        self.check_topic(head)
        check_epoch_history(head, end, self.epoch_history)

    def check_topic(self, head: ObjectHead) -> None:
        """Raises AnotherTopicError, whatever the epochs say: each topic has its own."""
        theirs = head.metadata.get(TOPIC_ID_KEY)
        if theirs is not None and self.topic_id is not None and theirs != self.topic_id:
            raise AnotherTopicError(
                f"{head.key} is of topic id {theirs}, the topic of this name has id "
                f"{self.topic_id} now; nothing is written until it has been set aside"
            )


@dataclass(frozen=True, slots=True)
class WholeSegment:
    """A base offset whose three files are stored, with their rows."""

    base_offset: BaseOffset
    files: dict[FileKind, ObjectSummary]

    @property
    def log(self) -> ObjectSummary:
        """The row of the `.log`."""
        return self.files[FileKind.LOG]

    def ending_at(self, next_offset: Offset, epoch_history: EpochHistory) -> StoredSegment:
        """As a segment that may be committed; nothing was sent for it."""
        return StoredSegment(
            self.base_offset, next_offset, self.log.modified_ms, self.log.size, 0, epoch_history
        )


def whole_segments(rows: Iterable[ObjectSummary], prefix: str) -> list[WholeSegment]:
    """What is whole in a listing, by rising base offset."""
    return [
        WholeSegment(base, files)
        for base, files in files_by_base(rows, prefix)
        if all(kind in files for kind in PINNED_KINDS)
    ]


def follow_on(
    store: RemoteStorage,
    whole: Sequence[WholeSegment],
    start: Offset,
    leader_epoch: LeaderEpoch,
    ours: OurLog,
) -> list[StoredSegment]:
    """The segments of ours that continue an archive from `start` on without a gap.

    A request for each that may; what a later leader wrote is left to him.

    Raises:
        DivergedError: the leader's log does not hold one of them.
    """
    chosen: list[StoredSegment] = []
    for segment in whole:
        if segment.base_offset > start:
            break
        head = store.head_object(segment.log.key)
        end = noted_next_offset(head)
        if end is None or end <= start:
            continue
        if not chosen:
            ours.check_topic(head)
        if noted_epoch(head, WRITER_EPOCH_KEY) > leader_epoch:
            break
        try:
            ours.check(head, end)
        except DivergedError:
            if chosen:
                break  # those before it are committed first
            raise
        chosen.append(
            segment.ending_at(end, _epoch_history_of(head, segment.base_offset, ours.epoch_history))
        )
        start = end
    return chosen


def check_epoch_history(
    head: ObjectHead, end: Offset, epoch_history: ReadEpochHistory | None
) -> None:
    """Raise DivergedError where the leader's log does not hold a stored `.log` of ours."""
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
    """The segments above the watermark that hold offsets of the gap, by rising base, whose three
    objects are there and belong together.

    Raises:
        DivergedError: the leader's log tells another history there.
    """
    prefix = layout.partition_prefix(tp)
    start = layout.object_key(tp, watermark.base_offset, FileKind.TXNINDEX) if watermark else ""
    rows = store.list_objects(prefix, start_after=start)
    for segment in whole_segments(_up_to(rows, prefix, gap.end), prefix):
        head = store.head_object(segment.log.key)
        if _belongs_together(store, segment, head):
            following = noted_next_offset(head) or derive_next_offset(
                store, layout, tp, segment.base_offset
            )
            if following > gap.start:
                ours.check(head, following)
                yield segment.ending_at(
                    following, _epoch_history_of(head, segment.base_offset, None)
                )


def _up_to(rows: Iterable[ObjectSummary], prefix: str, end: Offset) -> Iterator[ObjectSummary]:
    for row in rows:
        parsed = parse_object_key(row.key, prefix)
        if parsed is None or parsed[0] >= end:
            return
        yield row


def contiguous(stored: Sequence[StoredSegment], start: Offset) -> list[StoredSegment]:
    """Those that follow on `start` without a gap; none when the first begins above it."""
    chosen: list[StoredSegment] = []
    for segment in stored:
        if segment.base_offset > start:
            break
        if segment.next_offset <= start:
            continue  # an overlap that adds nothing
        chosen.append(segment)
        start = segment.next_offset
    return chosen


def _epoch_history_of(
    head: ObjectHead, base: BaseOffset, epoch_history: ReadEpochHistory | None
) -> EpochHistory:
    """What the log knows where it reaches so far back, or else what is noted with the segment."""
    local = epoch_history() if epoch_history is not None else NO_EPOCHS
    if local.epoch_at(base) is not None:
        return local
    return parse_runs(head.metadata.get(EPOCHS_KEY, ""))


def _belongs_together(store: RemoteStorage, segment: WholeSegment, log: ObjectHead) -> bool:
    """A sidecar's `.log` has indexes that belong to it; Pinterest's, if all three are
    Pinterest's.
    """
    if noted_next_offset(log) is not None:
        return True
    indexes = (segment.files[kind] for kind in PINNED_KINDS if kind is not FileKind.LOG)
    return not any(WRITER_EPOCH_KEY in store.head_object(row.key).metadata for row in indexes)
