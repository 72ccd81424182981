"""The daemon's status, which other threads can read at any time."""

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sidetier.leadership.port import TopicConfig
from sidetier.segments.cluster_state import SnapshotKind
from sidetier.segments.offsets import BaseOffset, BrokerId, Offset, TopicPartition
from sidetier.telemetry.partition_page import (
    SHOWN_STATES,
    PartitionKeys,
    PartitionQuery,
    StatusPage,
    select,
    shown_state,
    totals_of_keys,
)
from sidetier.telemetry.status import (
    ClusterSnapshotStatus,
    Condition,
    DrillStatus,
    HeldError,
    LocalRetentionStatus,
    PartitionState,
    PartitionStatus,
    PinnedRange,
    Role,
    SegmentStatus,
    StatusSnapshot,
)
from sidetier.uploader.archive.unresolved import StoreRecords, Unresolved
from sidetier.uploader.clock import Clock
from sidetier.uploader.hung_requests import HungRequests
from sidetier.uploader.led_partitions import LedPartitions
from sidetier.uploader.log_tail import LogTail
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.sending.queue import UploadQueue
from sidetier.uploader.sending.reading import SendProgress
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import Backoff, SegmentState, TrackedSegment
from sidetier.uploader.stores import StoresHealth
from sidetier.uploader.tail.board import SafePartition
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.log_dirs import LogDirs

_MAX_SEGMENTS: Final = 16
"""Number of a partition's unstored segments that the status lists: those that may be under way, and
a few behind them.
"""
_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals over all partitions, and the problems that concern the whole daemon."""

    queued: int = 0
    queued_bytes: int = 0
    uploading: int = 0
    pinned_files: int = 0
    pinned_bytes: int = 0
    followed: int = 0
    followed_pinned: int = 0
    deleted_bytes: int = 0
    hung_requests: int = 0
    pins: tuple[PinnedRange, ...] = ()
    held_errors: tuple[HeldError, ...] = ()
    log_dir_problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _Known:
    """A partition's status, and the times from which its ages are computed when it is read.

    It is not changed any more once it is on the board.
    """

    status: PartitionStatus
    closed_at: float | None
    deleted_at: float | None
    uploaded_bytes: int = 0
    uploads: Mapping[BaseOffset, SendProgress] | None = None
    """The uploads under way, if any; their progress is measured when the status is read."""
    archived_to: Offset | None = field(init=False)
    """The first offset that is not archived; None while it is not known, and for a follower."""
    follows: bool = field(init=False)

    def __post_init__(self) -> None:
        status = self.status
        start, self.follows = status.next_offset, status.role is Role.FOLLOWER
        if start is None and not status.unstored_segments:
            start = status.local_closed_end  # no closed segment, so nothing to archive yet
        self.archived_to = None if self.follows else start


class StatusBoard:
    """A StatusSource. The daemon's thread writes it, any thread reads it."""

    def __init__(
        self, cluster: str, broker_id: BrokerId, clock: Clock, warnings: tuple[str, ...] = ()
    ) -> None:
        started_ms = int(clock.wall() * 1000)
        self._base = StatusSnapshot(cluster, broker_id, started_ms=started_ms, warnings=warnings)
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, _Known] = {}
        self._memberships = 0
        """Rises when a partition is added or removed."""
        self._by_name: tuple[int, Sequence[TopicPartition]] = (-1, ())
        """The partitions in order of their names, as of this number of `_memberships`. Any thread
        replaces the pair as a whole, without the lock.
        """
        self._tails: Mapping[TopicPartition, LogTail] = {}
        self._safe: Callable[[], Mapping[TopicPartition, SafePartition]] = dict
        self._unresolved: Unresolved | None = None
        self._last_drill: DrillStatus | None = None
        self._snapshot_kinds: tuple[SnapshotKind, ...] = ()
        self._confirmed_ms: Mapping[SnapshotKind, int] = {}
        self._snapshot_problems: Mapping[SnapshotKind, str] = {}
        self._local_retention: tuple[LocalRetentionStatus, ...] = ()
        self._totals = Totals()
        self._uploaded_bytes = 0
        self._uploading: dict[TopicPartition, Collection[SendProgress]] = {}
        self._conditions: tuple[Condition, ...] = ()
        self._death: str | None = None

    def update(self, partition: Partition, deletion: "DeletionEstimate") -> None:
        """Set a partition's status; of a followed partition only while segments are at risk."""
        if partition.follows_safely:
            self.forget(partition.topic_partition)
            return
        # Computed each time, because the wall clock can be set while the daemon runs.
        since_1970 = self._clock.wall() - self._clock.monotonic()
        known = _describe(partition, deletion, since_1970)
        with self._lock:
            before = self._known.get(partition.topic_partition)
            self._known[partition.topic_partition] = known
            self._uploading.pop(partition.topic_partition, None)
            if known.uploads is not None:
                self._uploading[partition.topic_partition] = known.uploads.values()
            if before is None:
                self._memberships += 1
            counted = 0 if before is None else before.uploaded_bytes
            # Less than before if the broker has stopped and begun again to lead the partition.
            self._uploaded_bytes += max(0, known.uploaded_bytes - counted)

    def forget(self, tp: TopicPartition) -> None:
        """Remove a partition that is no longer led, or followed without a segment at risk."""
        with self._lock:
            self._uploading.pop(tp, None)
            if self._known.pop(tp, None) is not None:
                self._memberships += 1

    def set_totals(self, totals: Totals, conditions: Iterable[Condition]) -> None:
        """Set the totals, and the conditions of readiness."""
        with self._lock:
            self._totals = totals
            self._conditions = tuple(conditions)

    def set_tails(self, tails: Mapping[TopicPartition, LogTail]) -> None:
        """Set the ends of the led partitions' logs."""
        with self._lock:
            self._tails = tails

    def observe_safe(self, safe: Callable[[], Mapping[TopicPartition, SafePartition]]) -> None:
        """Set the source of what is safe in tail packs. Any thread may call it."""
        self._safe = safe

    def set_store_records(self, records: StoreRecords) -> None:
        """Set the unacknowledged gaps and quarantines, and the last restore drill."""
        drill = records.drill
        with self._lock:
            self._unresolved = records.unresolved
            self._last_drill = None
            if drill is not None:
                self._last_drill = DrillStatus(
                    drill.finished_ms,
                    drill.succeeded,
                    drill.last_successful_ms,
                    next(iter(drill.problems), None),
                )

    def set_local_retention(self, excess: tuple[LocalRetentionStatus, ...]) -> None:
        """Set the bytes beyond local retention that the last pass has left on the broker."""
        with self._lock:
            self._local_retention = excess

    def expect_cluster_snapshots(self, kinds: Iterable[SnapshotKind]) -> None:
        """Set the kinds of cluster snapshots that are taken."""
        with self._lock:
            self._snapshot_kinds = tuple(kinds)

    def set_cluster_snapshots(
        self, confirmed_ms: Mapping[SnapshotKind, int], problems: Mapping[SnapshotKind, str]
    ) -> None:
        """Set when each kind of snapshot was last confirmed, in ms since 1970, and its problem."""
        with self._lock:
            self._confirmed_ms, self._snapshot_problems = confirmed_ms, problems

    def _cluster_snapshots(self) -> tuple[ClusterSnapshotStatus, ...]:
        now_ms = self._clock.wall() * 1000
        return tuple(
            ClusterSnapshotStatus(
                kind.value,
                max(0.0, now_ms - self._confirmed_ms.get(kind, self._base.started_ms)) / 1000,
                kind in self._confirmed_ms,
                self._snapshot_problems.get(kind),
            )
            for kind in self._snapshot_kinds
        )

    def died(self, reason: str) -> None:
        """Note that a thread has died, so that the daemon counts as not alive."""
        with self._lock:
            self._death = reason

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:
        """Return the status now, with the partitions sorted."""
        with self._lock:
            known = list(self._known.items()) if with_partitions else []
            tails, unresolved, snapshot = self._tails, self._unresolved, self._without_partitions()
        # Computed outside of the lock, so that a
        # slow reader does not hold up the daemon's thread.
        known.sort(key=lambda item: item[0])
        now = self._clock.wall()
        safe = self._safe()
        partitions = (
            _current(entry, tails.get(tp), unresolved, now, safe.get(tp)) for tp, entry in known
        )
        return replace(snapshot, partitions=tuple(partitions))

    def page(self, query: PartitionQuery) -> StatusPage:
        """Return the status now, with one page of the partitions.

        Takes a fraction of the time of `snapshot`: only the partitions on the page are described in
        full.
        """
        with self._lock:
            known, memberships = self._known.copy(), self._memberships
            tails, unresolved, snapshot = self._tails, self._unresolved, self._without_partitions()
        now = self._clock.wall()
        names = query.of_topic(self._names(known, memberships))
        keys = _keys(names, known, tails, unresolved, now)
        rows, matching = select(keys, query)
        on_page = [names[i] for i in rows]
        safe = self._safe()
        partitions = (
            _current(known[tp], tails.get(tp), unresolved, now, safe.get(tp)) for tp in on_page
        )
        return StatusPage(
            query,
            replace(snapshot, partitions=tuple(partitions)),
            tuple(keys.state[i] for i in rows),
            matching,
            totals_of_keys(keys),
        )

    def _names(
        self, known: Mapping[TopicPartition, _Known], memberships: int
    ) -> Sequence[TopicPartition]:
        """Return the partitions in order of their names. Sorts them only after a change."""
        sorted_at, names = self._by_name
        if sorted_at != memberships:
            names = sorted(known)
            self._by_name = memberships, names
        return names

    def _without_partitions(self) -> StatusSnapshot:
        """Return the status now without the partitions. The caller holds the lock."""
        totals = self._totals
        sending = sum(upload.sent for uploads in self._uploading.values() for upload in uploads)
        return replace(
            self._base,
            alive=self._death is None,
            death=self._death,
            conditions=self._conditions,
            queued_segments=totals.queued,
            queued_bytes=totals.queued_bytes,
            uploading_segments=totals.uploading,
            uploaded_bytes=self._uploaded_bytes,
            sending_bytes=sending,
            pinned_files=totals.pinned_files,
            pinned_bytes=totals.pinned_bytes,
            followed_partitions=totals.followed,
            followed_pinned_segments=totals.followed_pinned,
            pinned_deleted_bytes=totals.deleted_bytes,
            hung_requests=totals.hung_requests,
            pins=totals.pins,
            held_errors=totals.held_errors,
            log_dir_problems=totals.log_dir_problems,
            cluster_snapshots=self._cluster_snapshots(),
            last_drill=self._last_drill,
            local_retention=self._local_retention,
        )


@dataclass(frozen=True, slots=True)
class DeletionEstimate:
    """Estimates from the configuration when the broker removes a segment's bytes.

    Attributes:
        delete_delay: The broker's `file.delete.delay.ms`, in seconds, for topics without their own.
        retention: Local retention in seconds for topics whose configuration is not known; None if
            it is unlimited.
    """

    delete_delay: float
    retention: float | None

    def of(self, tracked: TrackedSegment, topic: TopicConfig | None) -> float | None:
        """Return the time in seconds since 1970; None for never or for an unknown retention."""
        known = topic or TopicConfig()
        delay = self.delete_delay if known.delete_delay is None else known.delete_delay
        if tracked.marked_for_deletion_at is not None:
            return tracked.marked_for_deletion_at + delay
        retention = self.retention if known.retention is None else known.retention
        by_time = _NEVER if retention is None else tracked.largest_timestamp + retention
        due = by_time if tracked.due_since is None else min(by_time, tracked.due_since)
        return None if due == _NEVER else due + delay


def _current(
    known: _Known,
    tail: LogTail | None,
    unresolved: Unresolved | None,
    now: float,
    safe: SafePartition | None = None,
) -> PartitionStatus:
    """Return a partition's status with its ages, its log end and what the store records."""
    changes: dict[str, Any] = {}
    if known.closed_at is not None:
        changes["oldest_unstored_age_seconds"] = max(0.0, now - known.closed_at)
        if known.deleted_at is not None:
            changes["seconds_until_local_deletion"] = known.deleted_at - now
    unarchived = _unarchived(known, tail, now)
    if unarchived is not None:
        (
            changes["log_end"],
            changes["unarchived_records"],
            changes["unarchived_bytes"],
            changes["unarchived_age_seconds"],
        ) = unarchived
    if safe is not None:
        changes |= _safe_of(safe, known.status.next_offset or Offset(0), now)
    if unresolved is not None and not known.follows:
        tp = known.status.topic_partition
        changes["gaps"] = unresolved.gaps.get(tp, ())
        changes["unresolved_gap_records"] = unresolved.gap_records.get(tp, 0)
        changes["unresolved_quarantines"] = unresolved.quarantines.get(tp, 0)
    if known.uploads is not None:
        changes["segments"] = tuple(
            _with_progress(segment, known.uploads.get(segment.base_offset))
            for segment in known.status.segments
        )
    return replace(known.status, **changes)


def _safe_of(safe: SafePartition, archive_end: Offset, now: float) -> dict[str, Any]:
    """Return the fields about the tail."""
    since_ms, end = safe.waiting_since_ms, safe.high_watermark
    if end is not None and end <= archive_end:
        since_ms = None
    fields: dict[str, Any] = {
        "unsafe_age_seconds": 0.0 if since_ms is None else max(0.0, now - since_ms / 1000)
    }
    if safe.safe_up_to is not None:
        fields["safe_to"] = max(safe.safe_up_to, archive_end)
    if safe.newest_ms >= 0:
        fields["newest_safe_age_seconds"] = max(0.0, now - safe.newest_ms / 1000)
    return fields


def _with_progress(segment: SegmentStatus, upload: SendProgress | None) -> SegmentStatus:
    sent = None if upload is None else upload.measure()
    if sent is None:
        return segment
    return replace(
        segment,
        sent_bytes=sent.size,
        send_bytes_per_second=sent.bytes_per_second,
        send_seconds_left=sent.seconds_left,
    )


def _keys(
    names: Sequence[TopicPartition],
    known: Mapping[TopicPartition, _Known],
    tails: Mapping[TopicPartition, LogTail],
    unresolved: Unresolved | None,
    now: float,
) -> PartitionKeys:
    """Return the keys that `_current` gives these partitions, for a fraction of its cost.

    It runs for each partition on each request, so `shown_state` is called only where the state may
    differ from the status's.
    """
    gap_records = quarantines = None
    if unresolved is not None:
        gap_records, quarantines = unresolved.gap_records, unresolved.quarantines
    states, ages, until_deletion = [], [], []
    all_records, all_bytes, unstored_segments, unstored_bytes = [], [], [], []
    for tp in names:
        entry = known[tp]
        status = entry.status
        age = left = None
        if entry.closed_at is not None:
            age = max(0.0, now - entry.closed_at)
            left = None if entry.deleted_at is None else entry.deleted_at - now
        gaps, moved = status.gap_records, 0
        if gap_records is not None and quarantines is not None and not entry.follows:
            gaps = gap_records.get(tp, 0) if gap_records else 0
            moved = quarantines.get(tp, 0) if quarantines else 0
        error, state = status.last_error, SHOWN_STATES[status.state]
        if error is not None or gaps or moved or left is not None:
            state = shown_state(status.state, error, gaps, moved, left)
        records = size = 0
        unarchived = _unarchived(entry, tails.get(tp), now)
        if unarchived is not None:
            _, records, size, since_append = unarchived
            if since_append is not None:
                age = since_append
        states.append(state)
        ages.append(age)
        until_deletion.append(left)
        all_records.append(records)
        all_bytes.append(size)
        unstored_segments.append(status.unstored_segments)
        unstored_bytes.append(status.unstored_bytes)
    return PartitionKeys(
        names,
        states,
        ages,
        until_deletion,
        all_records,
        all_bytes,
        unstored_segments,
        unstored_bytes,
    )


_UnarchivedEnd = tuple[Offset, int, int, float | None]
"""The end of a log that is not archived: log end, records, bytes, age in seconds. A plain tuple,
because one is made for each partition and page.
"""


def _unarchived(known: _Known, tail: LogTail | None, now: float) -> _UnarchivedEnd | None:
    """Return the end that is not archived; None while the archive end offset is not known."""
    start = known.archived_to
    if start is None or tail is None:
        return None
    log_end, size = tail.log_end, known.status.unstored_bytes
    if log_end is None:
        return None
    if log_end <= start:
        # Measured at another time than the archive's end, so it can be lower.
        return start, 0, size, None
    closed_end = known.status.local_closed_end
    if closed_end is None or log_end > closed_end:
        size += tail.active_bytes
    since = tail.unarchived_since
    return log_end, log_end - start, size, None if since is None else max(0.0, now - since)


def pinned_ranges(partitions: Iterable[Partition]) -> Iterator[PinnedRange]:
    """Yield the pinned offsets of each partition. Adjacent segments are one range."""
    for partition in partitions:
        pinned = [t for t in partition.log.tracked.values() if t.pinned is not None]
        current: PinnedRange | None = None
        for tracked in sorted(pinned, key=_base_of):
            start, end = Offset(_base_of(tracked)), tracked.segment.next_base
            if current is not None and current.end_offset == start:
                start, size = current.start_offset, current.size_bytes + tracked.size
            else:
                if current is not None:
                    yield current
                size = tracked.size
            until = None if end is None else Offset(end)
            current = PinnedRange(*partition.topic_partition, start, until, size)
        if current is not None:
            yield current


def _base_of(tracked: TrackedSegment) -> BaseOffset:
    return tracked.segment.base_offset


def _describe(partition: Partition, deletion: DeletionEstimate, since_1970: float) -> _Known:
    """Return a partition's status. `since_1970` is added to monotonic seconds for wall time."""
    unstored = [
        tracked
        for tracked in partition.log.tracked.values()
        if not (_is_committed(partition, tracked) or partition.is_empty(tracked))
    ]
    first = heapq.nsmallest(_MAX_SEGMENTS, unstored, key=_base_of)
    oldest = first[0] if first else None
    watermark = partition.archive.watermark if partition.archive else None
    status = PartitionStatus(
        topic=partition.topic_partition.topic,
        partition=partition.topic_partition.partition,
        state=_state(partition, unstored),
        leader_epoch=partition.leader_epoch,
        watermark_base=watermark.base_offset if watermark else None,
        archive_start=_archive_start(partition),
        next_offset=partition.stored_below(),
        local_start=partition.log.start,
        trimmed_to=_trimmed_to(partition),
        local_closed_end=None if partition.log.active is None else Offset(partition.log.active),
        unstored_segments=len(unstored),
        unstored_bytes=sum(tracked.size for tracked in unstored),
        waiting_for=_waiting_for(partition, oldest),
        gap_records=partition.gap_records,
        last_error=_last_error(partition, unstored),
        last_upload_ms=partition.uploads.last_ms,
        last_upload_bytes_per_second=partition.uploads.last_bytes_per_second,
        retry_at_ms=_retry_at(partition.hold, since_1970),
        role=Role.FOLLOWER if partition.follows else Role.LEADER,
        segments=tuple(_segment(tracked, since_1970) for tracked in first),
    )
    if oldest is None:
        return _Known(status, None, None, partition.uploads.sent_bytes)
    uploads = {
        _base_of(tracked): tracked.progress
        for tracked in unstored
        if tracked.stage is SegmentState.UPLOADING and tracked.progress is not None
    }
    deleted_at = deletion.of(oldest, partition.config)
    sent_bytes = partition.uploads.sent_bytes
    return _Known(status, oldest.rolled_at, deleted_at, sent_bytes, uploads or None)


def _trimmed_to(partition: Partition) -> Offset | None:
    """Return the log start offset of a trim whose segments are still on the disk; else None."""
    start, trimmed = partition.log.start, partition.log.trimmed_to
    return None if start is None or trimmed is None or start >= trimmed else trimmed


def _archive_start(partition: Partition) -> Offset | None:
    """Return the first archived offset; None where it is not known."""
    archive = partition.archive
    if archive is None or archive.watermark is None:
        return None
    return archive.watermark.start_offset


def _segment(tracked: TrackedSegment, since_1970: float) -> SegmentStatus:
    segment, started = tracked.segment, tracked.timeline.started
    is_uploading = tracked.stage is SegmentState.UPLOADING
    return SegmentStatus(
        base_offset=segment.base_offset,
        next_offset=None if segment.next_base is None else Offset(segment.next_base),
        size_bytes=tracked.size,
        stage=tracked.stage.name.lower(),
        pinned=tracked.pinned is not None,
        marked_for_deletion=segment.marked_for_deletion,
        upload_started_ms=(
            int((started + since_1970) * 1000) if is_uploading and started is not None else None
        ),
        error=tracked.hold.error,
        retry_at_ms=_retry_at(tracked.hold, since_1970),
    )


def _retry_at(hold: Backoff, since_1970: float) -> int | None:
    return None if hold.error is None else int((hold.until + since_1970) * 1000)


def _is_committed(partition: Partition, tracked: TrackedSegment) -> bool:
    done = partition.archive.next_offset if partition.archive else None
    end = tracked.segment.next_base
    return done is not None and end is not None and end <= done


def _state(partition: Partition, unstored: list[TrackedSegment]) -> PartitionState:
    if _stopped(partition) is not None or partition.diverged:
        return PartitionState.HALTED
    if partition.unanswered is not None:
        return PartitionState.WAITING
    if partition.moving is not None:
        return PartitionState.QUARANTINING
    if partition.log.is_uploading:
        return PartitionState.UPLOADING
    if unstored and partition.archive is None:
        return PartitionState.STARTING
    return PartitionState.WAITING if unstored or partition.gap.gap else PartitionState.ARCHIVED


def _stopped(partition: Partition) -> str | None:
    """Return why the partition waits for an operator; None where it does not."""
    return partition.unread or partition.halted or partition.refused


def _waiting_for(partition: Partition, oldest: TrackedSegment | None) -> str | None:
    stopped = _stopped(partition)
    if stopped is not None:
        return stopped
    waiting = partition.unanswered or partition.moving or _old_format(partition)
    if waiting is not None:
        return waiting
    held = (
        partition.held_error
        or partition.hold.error
        or (partition.early_hold if oldest is None else oldest.hold).error
    )
    if held is not None:
        return f"another try after: {held}"
    if partition.gap.gap is not None:
        return f"a second check of the gap {partition.gap.gap}"
    return None if oldest is None else _gate_of(partition, oldest)


def _old_format(partition: Partition) -> str | None:
    archive = partition.archive
    lost = partition.log.unarchivable(
        None if archive is None else archive.next_offset, sparse=partition.is_sparse
    )
    if lost is None:
        return None
    tp = partition.topic_partition
    return (
        f"an operator: offsets {lost} have message format v0 or v1, which cannot be archived. Copy "
        "the records to a new topic, or accept their loss by `sidetier ack-gap "
        f"{tp.topic} {tp.partition} {lost.start} {lost.end} --unarchivable`"
    )


def _gate_of(partition: Partition, oldest: TrackedSegment) -> str:
    if partition.unsure:
        return "a source of leadership that answers"
    if partition.config is None:
        return "an answer about the topic's configuration"
    if partition.following is not None and not partition.following.rescuing:
        return f"the leader's sidecar to store segment {oldest.segment.base_offset}"
    return f"segment {oldest.segment.base_offset} {oldest.stage.value}"


def _last_error(partition: Partition, unstored: list[TrackedSegment]) -> str | None:
    errors = [
        partition.unread,
        partition.refused,
        partition.halted,
        partition.held_error,
        partition.hold.error,
        *(t.hold.error for t in unstored),
        partition.early_hold.error,
    ]
    return next((error for error in errors if error is not None), None)


def totals_of(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
    uploads: UploadQueue,
    pins: PinTable,
    leads: LedPartitions,
    errors: UnexpectedErrors,
    followed_pinned: int,
    log_dirs: LogDirs,
    hung: HungRequests,
) -> Totals:
    """Return the totals over all partitions.

    It reads every partition, so the daemon calls it at intervals and not in each step.

    Args:
        uploads: The upload queue.
        pins: The pins.
        leads: The partitions that this broker leads or follows.
        errors: The unexpected errors that hold back work.
        followed_pinned: Number of pinned segments of followed partitions.
        log_dirs: The log dirs.
        hung: The hung requests.
    """
    pinned = pins.totals
    return Totals(
        queued=uploads.length,
        queued_bytes=uploads.bytes,
        uploading=uploads.busy,
        pinned_files=pinned.files,
        pinned_bytes=pinned.bytes,
        deleted_bytes=pinned.deleted_bytes,
        followed=leads.followed_count,
        followed_pinned=followed_pinned,
        pins=tuple(pinned_ranges(filter(_lists_pins, leads.with_parked()))),
        held_errors=errors.held(),
        log_dir_problems=log_dirs.problems,
        hung_requests=hung.count,
    )


def _lists_pins(partition: Partition) -> bool:
    """Return whether the status lists the partition's pins: not of a follower without risk."""
    return not partition.follows_safely


def readiness(
    leads: LedPartitions, health: StoresHealth, hung_request: str | None = None
) -> tuple[Condition, ...]:
    """Return the conditions of readiness. A condition that is not met has a reason.

    A halted partition, or one that is held back by an error, does not make the sidecar unready: its
    own status shows the reason.

    Args:
        leads: The partitions that this broker leads or follows.
        health: Whether the stores have answered.
        hung_request: Describes a request that hangs. It counts even if other requests succeed.
    """
    unread = sum(1 for partition in leads if partition.is_unread())
    return (
        _condition("leadership known", None if leads.known else "no source of leadership answers"),
        _condition("bootstrapped", f"{unread} watermarks are still to be read" if unread else None),
        _condition("store reachable", hung_request or health.reason),
    )


def _condition(name: str, problem: str | None) -> Condition:
    return Condition(name, problem is None, problem or "")
