"""What the daemon tells of itself: one frozen snapshot, from which gauges and pages are made."""

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
    """What a partition is at."""

    STARTING = "starting"
    """Its watermark is being read."""
    IDLE = "idle"
    """Every closed segment is archived."""
    WAITING = "waiting"
    """Closed segments wait; `waiting_for` says for what."""
    UPLOADING = "uploading"
    QUARANTINING = "quarantining"
    """A part of its archive is being set aside, or is about to be: `waiting_for` says what. It goes
    on by itself.
    """
    HALTED = "halted"
    """Nothing goes on until an operator acts; `last_error` says why."""


class Role(StrEnum):
    """What this broker is to a partition."""

    LEADER = "leader"
    FOLLOWER = "follower"
    """Another broker leads it; shown while a part of this broker's copy is about to be deleted and
    is not known to be stored."""


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """A closed segment that is not stored yet, and where it stands on its way."""

    base_offset: BaseOffset
    next_offset: Offset | None
    size_bytes: int
    stage: str
    """`closed` (its next offset is not known to be committed, or its turn has not come), `queued`,
    `uploading`, `stored` (and the watermark waits for what comes before it)."""
    pinned: bool
    marked_for_deletion: bool
    """The broker has renamed its files to `.deleted`."""
    error: str | None = None
    retry_at_ms: int | None = None
    """When it is tried again after the error, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """Offsets of one partition that are held open, from `start_offset` up to, not including,
    `end_offset` (None where only reading the last segment could tell).
    """

    topic: str
    partition: int
    start_offset: Offset
    end_offset: Offset | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition that this broker leads, or whose copy here is at risk.

    Ages and times in seconds; None where unknown.
    """

    topic: str
    partition: int
    state: PartitionState
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH
    watermark_base: BaseOffset | None = None
    """Base offset of the last segment of what is stored without a gap."""
    next_offset: Offset | None = None
    """The first offset that is not archived: the archive's end, exclusive."""
    log_end: Offset | None = None
    """The high watermark, some seconds old at most: one past the last committed record."""
    unarchived_records: int | None = None
    """Offsets from `next_offset` to `log_end`, in closed segments and in the active one: what only
    the brokers have."""
    unarchived_bytes: int | None = None
    """Bytes of the segments that hold them."""
    unarchived_age_seconds: float | None = None
    """Since the oldest of them was appended; None where there is none."""
    local_start: Offset | None = None
    """Base offset of the oldest segment on the broker's disk."""
    local_closed_end: Offset | None = None
    """One past the last offset in a closed segment."""
    unstored_segments: int = 0
    unstored_bytes: int = 0
    oldest_unstored_age_seconds: float | None = None
    """Since the oldest segment that is not stored was closed; None where all are stored."""
    seconds_until_local_deletion: float | None = None
    """Until the broker removes the oldest unstored bytes; negative when overdue."""
    waiting_for: str | None = None
    gap_records: int = 0
    """Records below the next offset that were gone before they were stored, since the start."""
    unresolved_gap_records: int | None = None
    """Records in all recorded gaps that no operator has acknowledged; None before they are read."""
    unresolved_quarantines: int | None = None
    """Quarantines that no operator has acknowledged; None before they are read."""
    last_error: str | None = None
    last_upload_ms: int | None = None
    """Milliseconds since 1970."""
    retry_at_ms: int | None = None
    """When the partition itself is tried again after an error, in milliseconds since 1970."""
    role: Role = Role.LEADER
    segments: tuple[SegmentStatus, ...] = ()
    """The oldest closed segments that are not stored, a few of them at most."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and number as the domain's own value."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of readiness, and why it does not hold."""

    name: str
    holds: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HeldError:
    """An unexpected error, and what it holds back: a step of one partition, a file, a request."""

    subject: str
    error: str
    """Its type and text; the log has the traceback."""
    failures: int
    """How often the subject has failed in a row."""
    retry_at_ms: int | None = None
    """When it is tried again, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshotStatus:
    """The newest snapshot of one kind of the cluster's state, whichever sidecar has taken it."""

    kind: str
    age_seconds: float
    """Since the cluster was last found in the stored state; since the start of this sidecar where
    nothing is stored yet."""
    stored: bool
    problem: str | None = None
    """Why it was not read, or only in part."""


@dataclass(frozen=True, slots=True)
class DrillStatus:
    """The last restore drill (`sidetier drill`), as the store records it."""

    finished_ms: int
    """Milliseconds since 1970."""
    succeeded: bool
    last_successful_ms: int | None
    """When the last successful one ended; None where none has succeeded yet."""
    problem: str | None = None
    """The first difference that the last one found."""


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """The daemon at one moment. A number that is None is not known, and no gauge is exported."""

    cluster: str
    broker_id: BrokerId | None = None
    started_ms: int = 0
    """Milliseconds since 1970."""
    alive: bool = True
    """Every thread that should run does; `death` says which does not."""
    death: str | None = None
    conditions: tuple[Condition, ...] = ()
    """Bootstrapped, leadership known, store reachable; ready when all of them hold."""
    partitions: tuple[PartitionStatus, ...] = ()
    queued_segments: int = 0
    queued_bytes: int | None = None
    uploading_segments: int = 0
    hung_requests: int = 0
    """Requests to the store that have taken longer than `storage.deadline.hung_after`."""
    pinned_files: int = 0
    pinned_bytes: int | None = None
    pinned_deleted_bytes: int = 0
    """Bytes that stay on the disk only because they are held open."""
    followed_partitions: int = 0
    followed_pinned_segments: int = 0
    """Held open for partitions that other brokers lead."""
    pins: tuple[PinnedRange, ...] = ()
    """What is held open, also of partitions whose lead was lost a while ago."""
    held_errors: tuple[HeldError, ...] = ()
    """What unexpected errors hold back now."""
    log_dir_problems: tuple[str, ...] = ()
    """Log dirs that cannot be read, and symbolic links that are not followed: nothing in them is
    archived. A line each."""
    cluster_snapshots: tuple[ClusterSnapshotStatus, ...] = ()
    """One for each kind; empty where no snapshots are taken."""
    last_drill: DrillStatus | None = None
    """None where no drill is recorded."""

    @property
    def ready(self) -> bool:
        """Whether every condition holds; none known yet means not ready."""
        return bool(self.conditions) and all(condition.holds for condition in self.conditions)


class StatusSource(Protocol):
    """Where snapshots come from."""

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:
        """The state now. May be called from any thread; blocks no longer than a short lock is held,
        makes no request and does not raise. Without partitions its cost does not grow with their
        number: probes come every few seconds.
        """
        ...
