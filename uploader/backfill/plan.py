"""Plan a backfill from the log dirs and the store, without writing anything."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Final

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.acknowledgements import acknowledged_gaps, covering
from sidetier.config.model import Config
from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import ArchiveError, LeadershipError, SegmentError, SegmentGoneError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.listing import ClosedSegment, PartitionListing, read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.gates.high_watermark import CommittedGate, HighWatermarkSource
from sidetier.uploader.gates.remembered_epochs import read_local_epochs
from sidetier.uploader.gates.topic_rules import CleanerCheckpoints, refusal_of
from sidetier.uploader.led_partitions import latest_epoch
from sidetier.uploader.state.plan import PlannedSegment, available, plan
from sidetier.uploader.watching.disk import (
    EPOCH_CHECKPOINT_NAME,
    LogDirPartitions,
    list_names,
    old_format_of,
    topic_id_in,
)


@dataclass(frozen=True, slots=True)
class DueSegment:
    """A closed segment that is not archived.

    Attributes:
        next_offset: End offset, exclusive.
        size: Bytes of its `.log`.
        committed: Whether its records are known to be committed.
    """

    base_offset: BaseOffset
    next_offset: Offset
    size: int
    committed: bool


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Plan of one partition of the log dirs.

    Attributes:
        log_start: Base offset of the first closed segment on disk; None without one.
        closed_end: End of the closed segments on disk, exclusive.
        next_offset: Archive end offset; None if there is no archive yet.
        due: Segments to store, in rising order.
        gaps: Offsets whose records were deleted before they were archived.
        stored_segments: Closed segments on disk that are archived already.
        present: Due segments whose `.log` is on the store already, above the archive end. The
            upload compares them and does not send them again.
        refused: Why the topic must not be archived.
        problem: Why the partition's directory or archive cannot be read, or why the segments
            behind `due` cannot be archived.
    """

    topic_partition: TopicPartition
    log_start: Offset | None = None
    closed_end: Offset | None = None
    next_offset: Offset | None = None
    due: tuple[DueSegment, ...] = ()
    gaps: tuple[OffsetRange, ...] = ()
    stored_segments: int = 0
    present: int = 0
    refused: str | None = None
    problem: str | None = None

    @property
    def size(self) -> int:
        """Size of the due `.log` files, in bytes."""
        return sum(due.size for due in self.due)

    @property
    def uncommitted(self) -> int:
        """Number of due segments that are not known to be committed."""
        return sum(not due.committed for due in self.due)

    @property
    def has_work(self) -> bool:
        """Whether there are segments to store or gaps to record, and the topic allows it."""
        return bool(self.due or self.gaps) and self.refused is None

    @property
    def target(self) -> Offset:
        """Archive end offset once everything is done."""
        ends = [due.next_offset for due in self.due[-1:]] + [gap.end for gap in self.gaps[-1:]]
        return max(ends, default=self.next_offset or Offset(0))

    @property
    def findings(self) -> bool:
        """Whether records that are or were on the disk will not be stored."""
        blocked = self.refused is not None and bool(self.due)
        return blocked or self.problem is not None or bool(self.gaps) or self.uncommitted > 0

    def done(self, next_offset: Offset | None) -> tuple[int, int]:
        """Return the number of due segments, and of their bytes, below an archive end offset."""
        ends = [due.next_offset for due in self.due]
        count = 0 if next_offset is None else bisect_right(ends, next_offset)
        return count, sum(due.size for due in self.due[:count])


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """Plan of all selected partitions.

    Attributes:
        partitions: Sorted by topic and partition.
        unreadable: One line for each log dir that cannot be read; its partitions are not known.
    """

    partitions: tuple[PartitionPlan, ...]
    unreadable: tuple[str, ...] = ()

    @property
    def work(self) -> tuple[PartitionPlan, ...]:
        """Partitions with something to do."""
        return tuple(partition for partition in self.partitions if partition.has_work)

    @property
    def segments(self) -> int:
        """Number of segments to store."""
        return sum(len(partition.due) for partition in self.work)

    @property
    def size(self) -> int:
        """Bytes to store, without indexes."""
        return sum(partition.size for partition in self.work)

    @property
    def findings(self) -> bool:
        """Whether something will not be stored."""
        return bool(self.unreadable) or any(partition.findings for partition in self.partitions)


def plan_all(
    next_offset: Offset, segments: Sequence[ClosedSegment], active: BaseOffset | None
) -> tuple[list[PlannedSegment], list[OffsetRange]]:
    """Return the segments to store from `next_offset` on, across all gaps, and these gaps."""
    planned: list[PlannedSegment] = []
    gaps: list[OffsetRange] = []
    while True:
        step = plan(next_offset, segments, active)
        planned += step.segments
        if step.gap is None:
            return planned, gaps
        gaps.append(step.gap)
        next_offset = step.gap.end


_AT_ONCE: Final = 16
"""Number of archives that are read in parallel."""

StoreOf = Callable[[str], RemoteStorage | None]
"""Returns the store of a topic; None if it does not exist yet, so nothing is stored in it."""


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """Listing of one partition's directory."""

    tp: TopicPartition
    directory: str
    epoch: LeaderEpoch
    listing: PartitionListing
    segments: tuple[ClosedSegment, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """Plans a backfill from the partitions of the log dirs, and asks the other sources about them.

    Attributes:
        on_disk: The selected partitions of the log dirs.
        topic_configs: The brokers' configurations of the topics; empty without a broker.
        high_watermarks: Source of high watermarks; None to use the broker's checkpoint only.
    """

    config: Config
    layout: ArchiveLayout
    broker_id: BrokerId
    on_disk: LogDirPartitions
    store_of: StoreOf
    topic_configs: Mapping[str, TopicConfig | None] = field(default_factory=dict)
    high_watermarks: HighWatermarkSource | None = None

    def plan(self) -> BackfillPlan:
        """Plan each partition.

        The store gets one request for each partition with a closed segment, and a listing above the
        archive end for each partition with due segments.

        Raises:
            StorageError: The store refuses, or does not answer.
        """
        listed = [_list(tp, directory) for tp, directory in self.on_disk.directories.items()]
        readable = [entry for entry in listed if isinstance(entry, _OnDisk)]
        unread = [entry for entry in listed if isinstance(entry, PartitionPlan)]
        unread += [PartitionPlan(tp, problem=why) for tp, why in self.on_disk.refused.items()]
        gate = self._gate(readable)
        with ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="survey") as pool:
            archives = list(pool.map(self._read_archive, readable))
            cleaner = CleanerCheckpoints(monotonic)
            planned = [
                self._plan(partition, archive, gate, cleaner)
                if isinstance(archive, ArchiveState)
                else archive
                for partition, archive in zip(readable, archives, strict=True)
            ]
            plans = [*pool.map(self._with_present, planned), *unread]
        plans.sort(key=lambda plan: plan.topic_partition)
        return BackfillPlan(tuple(plans), tuple(self.on_disk.unreadable.values()))

    def _gate(self, partitions: Sequence[_OnDisk]) -> CommittedGate:
        config = self.config.uploader.high_watermark
        gate = CommittedGate(monotonic, use_checkpoint=config.checkpoint)
        tps = [partition.tp for partition in partitions if partition.segments]
        if self.high_watermarks is not None and tps:
            # The broker's checkpoint may suffice; segments above it show as not committed.
            with suppress(LeadershipError):
                asked_at = monotonic()
                gate.learn(self.high_watermarks.high_watermarks(tps), asked_at)
        return gate

    def _read_archive(self, partition: _OnDisk) -> ArchiveState | PartitionPlan:
        """Return the state of the archive; a finished plan if it cannot be read.

        The state is empty if there is no store yet, or no closed segment to compare with.
        """
        store = self.store_of(partition.tp.topic)
        if store is None or not partition.segments:
            return ArchiveState()
        archive_writer = ArchiveWriter(store, self.layout, MetadataCache(0))
        leader = Leader(self.broker_id, partition.epoch, topic_id_in(partition.directory))
        try:
            return archive_writer.load(partition.tp, leader)
        except (ArchiveError, SegmentError) as error:
            start = Offset(partition.segments[0].base_offset)
            return PartitionPlan(partition.tp, start, _closed_end(partition), problem=str(error))

    def _plan(
        self,
        partition: _OnDisk,
        archive: ArchiveState,
        gate: CommittedGate,
        cleaner: CleanerCheckpoints,
    ) -> PartitionPlan:
        tp, segments = partition.tp, partition.segments
        if not segments:
            return PartitionPlan(tp, closed_end=_closed_end(partition))
        start = Offset(segments[0].base_offset)
        after = start if archive.next_offset is None else archive.next_offset
        planned, gaps = plan_all(after, segments, partition.listing.active)
        unarchivable = self._unarchivable(partition, planned)
        given_up = {segment.segment.base_offset for segment in unarchivable.accepted}
        if given_up:
            kept = [segment for segment in segments if segment.base_offset not in given_up]
            planned, gaps = plan_all(after, kept, partition.listing.active)
        waiting = len(planned)
        blocked = unarchivable.refused
        if blocked:
            # Nothing behind such a segment is committed before an operator has decided about it.
            planned = [segment for segment in planned if segment.start < blocked[0].start]
            gaps = [gap for gap in gaps if gap.start < blocked[0].start]
        if gaps and self.config.uploader.on_gap == "halt":
            planned = [segment for segment in planned if segment.start < gaps[0].start]
        due = [_due(partition, segment, gate) for segment in planned]
        # If no broker answers, the checkpoint of the log cleaner shows a compacted topic.
        config = self.topic_configs.get(tp.topic) or TopicConfig(
            compacted=cleaner.has_cleaned(str(Path(partition.directory).parent), tp, start)
        )
        refuse_compacted = self.config.topics.compacted == "refuse"
        return PartitionPlan(
            topic_partition=tp,
            log_start=start,
            closed_end=_closed_end(partition),
            next_offset=archive.next_offset,
            due=tuple(segment for segment in due if segment is not None),
            gaps=tuple(gaps),
            stored_segments=len(segments) - waiting - len(given_up),
            refused=refusal_of(tp.topic, config, refuse_compacted=refuse_compacted),
            problem=_unarchivable_text(tp, blocked) if blocked else None,
        )

    def _unarchivable(
        self, partition: _OnDisk, planned: Sequence[PlannedSegment]
    ) -> "_Unarchivable":
        """Find planned segments of message format v0 or v1. A store is asked only if there are."""
        old = [segment for segment in planned if _is_old(partition.directory, segment.segment)]
        store = self.store_of(partition.tp.topic) if old else None
        if store is None:
            return _Unarchivable((), tuple(old))
        acknowledged = acknowledged_gaps(store, self.layout, partition.tp)
        accepted = [segment for segment in old if covering(_range_of(segment), acknowledged)]
        return _Unarchivable(
            tuple(accepted), tuple(segment for segment in old if segment not in accepted)
        )

    def _with_present(self, plan: PartitionPlan) -> PartitionPlan:
        store = self.store_of(plan.topic_partition.topic)
        if store is None or not plan.has_work:
            return plan
        first = plan.due[0].base_offset if plan.due else BaseOffset(0)
        logs = StoredPartition(store, self.layout, plan.topic_partition).logs(first)
        stored = {log.base_offset for log in logs}
        return replace(plan, present=sum(due.base_offset in stored for due in plan.due))


@dataclass(frozen=True, slots=True)
class _Unarchivable:
    """Segments of message format v0 or v1, in rising order.

    Attributes:
        accepted: An operator has accepted the loss of their records.
        refused: The others.
    """

    accepted: tuple[PlannedSegment, ...]
    refused: tuple[PlannedSegment, ...]


def _is_old(directory: str, segment: ClosedSegment) -> bool:
    name = segment_file_name(segment.base_offset, FileKind.LOG, deleted=segment.marked_for_deletion)
    return old_format_of(str(Path(directory, name))) is not None


def _range_of(planned: PlannedSegment) -> OffsetRange:
    return OffsetRange(planned.start, Offset(planned.segment.next_base or planned.start))


def _unarchivable_text(tp: TopicPartition, blocked: Sequence[PlannedSegment]) -> str:
    lost = _range_of(blocked[0])
    for segment in blocked[1:]:
        following = _range_of(segment)
        if following.start != lost.end:
            break
        lost = OffsetRange(lost.start, following.end)
    return (
        f"offsets {lost} have message format v0 or v1, which cannot be archived, and hold what "
        "follows them: copy the records to a new topic, or accept their loss by `sidetier ack-gap "
        f"{tp.topic} {tp.partition} {lost.start} {lost.end} --unarchivable`"
    )


def _list(tp: TopicPartition, directory: str) -> _OnDisk | PartitionPlan:
    """List the directory; return a finished plan if it cannot be read."""
    try:
        listing = read_listing(list_names(directory))
    except OSError as error:
        return PartitionPlan(tp, problem=f"{directory} cannot be read: {error.strerror}")
    on_disk = _OnDisk(tp, directory, latest_epoch(directory), listing, available(listing, ()))
    problem = _epochs_problem(directory) if on_disk.segments else None
    if problem is None:
        return on_disk
    start = Offset(on_disk.segments[0].base_offset)
    return PartitionPlan(tp, start, _closed_end(on_disk), problem=problem)


def _epochs_problem(directory: str) -> str | None:
    """Return why the leader epochs of a directory are unknown: then nothing shows which of its
    bytes the cluster has kept, and no segment can be archived.
    """
    path = Path(directory, EPOCH_CHECKPOINT_NAME)
    try:
        if read_local_epochs(directory).entries:
            return None
        reason = f"{path} has no leader epoch"
    except SegmentGoneError:
        reason = f"{path} is missing"
    except (OSError, SegmentError) as error:
        reason = str(error)
    return (
        f"{reason}: without it, no segment can be archived. Copy this file from the original log "
        "dir, or from another replica of the partition"
    )


def _closed_end(partition: _OnDisk) -> Offset | None:
    active = partition.listing.active
    return None if active is None else Offset(active)


def _due(partition: _OnDisk, planned: PlannedSegment, gate: CommittedGate) -> DueSegment | None:
    segment = planned.segment
    name = segment_file_name(segment.base_offset, FileKind.LOG, deleted=segment.marked_for_deletion)
    try:
        status = Path(partition.directory, name).stat()
    except OSError:
        return None  # the broker has deleted it since the listing
    end = Offset(segment.next_base or planned.start)
    log_dir = str(Path(partition.directory).parent)
    high_watermarks = gate.known(partition.tp, log_dir, partition.epoch)
    is_committed = high_watermarks.cover(end, status.st_mtime_ns)
    return DueSegment(segment.base_offset, end, status.st_size, is_committed)
