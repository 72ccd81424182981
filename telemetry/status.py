"""Status of the daemon: one frozen snapshot, the source of gauges and status pages."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)


class PartitionState(StrEnum):
    """What the sidecar does with a partition."""

    STARTING = "starting"
    """The sidecar reads the partition's `offset.wm`."""
    ARCHIVED = "archived"
    """Every closed segment is archived."""
    WAITING = "waiting"
    """Closed segments wait; `waiting_for` says what for."""
    UPLOADING = "uploading"
    QUARANTINING = "quarantining"
    """The sidecar moves a part of the archive into quarantine, or will do so; `waiting_for` says
    what it waits for. It continues by itself.
    """
    HALTED = "halted"
    """Archiving has stopped until an operator acts; `last_error` says why."""


class Role(StrEnum):
    """Role of this broker for a partition."""

    LEADER = "leader"
    FOLLOWER = "follower"
    """Another broker leads it. Listed while this broker is about to delete a part of its copy that
    is not known to be archived.
    """


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """A closed segment that is not archived yet, and its stage."""

    base_offset: BaseOffset
    next_offset: Offset | None
    size_bytes: int
    stage: str
    """`closed` (its next offset is not known to be committed, or its turn has not come), `queued`,
    `uploading`, or `stored` (the segment is in the store, but `offset.wm` does not cover it before
    earlier segments are stored).
    """
    pinned: bool
    marked_for_deletion: bool
    """The broker has renamed its files to `.deleted`."""
    upload_started_ms: int | None = None
    """Start of the upload under way, in milliseconds since 1970."""
    error: str | None = None
    retry_at_ms: int | None = None
    """Time of the next try after the error, in milliseconds since 1970."""
    sent_bytes: int | None = None
    """Bytes of the `.log` that the upload under way has sent. None while it verifies the segment,
    and without an upload.
    """
    send_bytes_per_second: int | None = None
    """Average rate since the upload began to send; None before the first byte."""
    send_seconds_left: float | None = None
    """Time until the `.log` is sent, at this rate; None before the first byte."""


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """Pinned offsets of one partition.

    Attributes:
        start_offset: first pinned offset (inclusive).
        end_offset: end (exclusive); None if unknown without reading the last segment.
        size_bytes: size of the pinned files.
    """

    topic: str
    partition: int
    start_offset: Offset
    end_offset: Offset | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition that this broker leads, or whose copy here is at risk.

    Ages and times are in seconds; None where unknown.
    """

    topic: str
    partition: int
    state: PartitionState
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH
    watermark_base: BaseOffset | None = None
    """Base offset of the last archived segment."""
    archive_start: Offset | None = None
    """The first archived offset as of the last commit: `sidetier gc` may have moved it up since.
    None where it is not known, as in an archive of Pinterest's.
    """
    next_offset: Offset | None = None
    """The archive end offset: the first offset that is not archived (exclusive end)."""
    log_end: Offset | None = None
    """The high watermark (exclusive), at most some seconds old."""
    unarchived_records: int | None = None
    """Offsets from `next_offset` to `log_end`, in closed segments and the active one. Only the
    brokers have them.
    """
    unarchived_bytes: int | None = None
    """Bytes of the segments with these offsets."""
    unarchived_age_seconds: float | None = None
    """Age of the oldest of these offsets; None if there are none."""
    safe_to: Offset | None = None
    """Safe up to (exclusive): the end of the archive, and of the tail that is stored behind it;
    None without tail packs (`uploader.tail`).
    """
    newest_safe_age_seconds: float | None = None
    """Age of the newest record that this process has stored in a tail pack, by its timestamp."""
    unsafe_age_seconds: float | None = None
    """How long committed records have been waiting for a tail pack; 0 if none are."""
    local_start: Offset | None = None
    """Base offset of the oldest segment on the broker's disk."""
    trimmed_to: Offset | None = None
    """Log start offset to which local retention has moved it, if the disk still has segments below
    it. The broker deletes them at its next check (`log.retention.check.interval.ms`).
    """
    local_closed_end: Offset | None = None
    """End (exclusive) of the offsets in closed segments."""
    unstored_segments: int = 0
    unstored_bytes: int = 0
    oldest_unstored_age_seconds: float | None = None
    """Time since the oldest unarchived segment was closed; None if all are archived."""
    seconds_until_local_deletion: float | None = None
    """Time until the broker deletes the oldest unarchived bytes; negative when overdue."""
    waiting_for: str | None = None
    gap_records: int = 0
    """Records below `next_offset` that were deleted before they were archived, since the sidecar's
    start.
    """
    gaps: tuple[tuple[Offset, Offset], ...] = ()
    """Recorded gaps (start inclusive, end exclusive), acknowledged or not: the newest ones, as read
    from the store every 5 minutes.
    """
    unresolved_gap_records: int | None = None
    """Records in all recorded gaps that no operator has acknowledged, and that are above the start
    of the archive; None before the sidecar has read them.
    """
    unresolved_quarantines: int | None = None
    """Quarantines that no operator has acknowledged; None before the sidecar has read them."""
    last_error: str | None = None
    last_upload_ms: int | None = None
    """Time of the last upload, in milliseconds since 1970."""
    last_upload_bytes_per_second: int | None = None
    """Rate of the last upload."""
    retry_at_ms: int | None = None
    """Time of the partition's next try after an error, in milliseconds since 1970."""
    role: Role = Role.LEADER
    segments: tuple[SegmentStatus, ...] = ()
    """The oldest closed segments that are not archived; a few of them at most."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition number as a domain value."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of readiness.

    Attributes:
        reason: why the condition does not hold; empty if it holds.
    """

    name: str
    holds: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HeldError:
    """An unexpected error and the work that it stops: a step of a partition, a file, a request."""

    subject: str
    error: str
    """Type and text of the error; the log has the traceback."""
    failures: int
    """Failures of the subject in a row."""
    retry_at_ms: int | None = None
    """Time of the next try, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshotStatus:
    """The newest snapshot of one kind of cluster state, taken by any sidecar."""

    kind: str
    age_seconds: float
    """Time since the cluster was last found in the stored state. If nothing is stored yet, time
    since the start of this sidecar.
    """
    stored: bool
    problem: str | None = None
    """Why the state was not read, or only in part."""


@dataclass(frozen=True, slots=True)
class LocalRetentionStatus:
    """Bytes of a topic beyond local retention that the last pass has left on the broker."""

    topic: str
    reason: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DrillStatus:
    """The last restore drill (`sidetier drill`), as recorded in the store."""

    finished_ms: int
    """End of the drill, in milliseconds since 1970."""
    succeeded: bool
    last_successful_ms: int | None
    """End of the last successful drill; None if none has succeeded."""
    problem: str | None = None
    """The first difference that the last drill has found."""


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """Status of the daemon at one moment. A number that is None is unknown and is not exported as
    gauge.
    """

    cluster: str
    broker_id: BrokerId | None = None
    started_ms: int = 0
    """Start of the daemon, in milliseconds since 1970."""
    alive: bool = True
    """Whether every thread that should run is running; `death` names the one that is not."""
    death: str | None = None
    conditions: tuple[Condition, ...] = ()
    """Bootstrapped, leadership known, store reachable. The daemon is ready when all hold."""
    partitions: tuple[PartitionStatus, ...] = ()
    queued_segments: int = 0
    queued_bytes: int | None = None
    uploading_segments: int = 0
    uploaded_bytes: int = 0
    """Bytes that were uploaded since the start, in whole segments."""
    sending_bytes: int = 0
    """Bytes that the uploads under way have sent of their segments."""
    hung_requests: int = 0
    """Requests to the store that take longer than `storage.deadline.hung_after`."""
    pinned_files: int = 0
    pinned_bytes: int | None = None
    pinned_deleted_bytes: int = 0
    """Bytes that are on the disk only because their files are pinned."""
    followed_partitions: int = 0
    followed_pinned_segments: int = 0
    """Pinned segments of partitions that other brokers lead."""
    pins: tuple[PinnedRange, ...] = ()
    """All pinned offsets, including those of partitions that this broker no longer leads."""
    held_errors: tuple[HeldError, ...] = ()
    """Work that unexpected errors stop now."""
    log_dir_problems: tuple[str, ...] = ()
    """Log dirs that cannot be read, and symbolic links that are not followed, one line each.
    Nothing in them is archived.
    """
    warnings: tuple[str, ...] = ()
    """What the sidecar found at its start and an operator must decide, such as a second archive of
    this Kafka cluster or a second sidecar of this broker.
    """
    cluster_snapshots: tuple[ClusterSnapshotStatus, ...] = ()
    """One entry for each kind; empty if no snapshots are taken."""
    last_drill: DrillStatus | None = None
    """None if no drill is recorded."""
    local_retention: tuple[LocalRetentionStatus, ...] = ()
    """One entry for each topic and reason; empty if all records beyond local retention are gone."""

    @property
    def ready(self) -> bool:
        """Whether every condition holds. Without any condition yet, not ready."""
        return bool(self.conditions) and all(condition.holds for condition in self.conditions)


class StatusSource(Protocol):
    """Source of snapshots."""

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:
        """Return the present state.

        May be called from any thread. Blocks only while a short lock is held, makes no request, and
        does not raise. Without partitions its cost does not grow with their number: probes come
        every few seconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class FixedStatus:
    """`StatusSource` of a state that does not change."""

    state: StatusSnapshot

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- signature of the port
        """Return the state."""
        return self.state
