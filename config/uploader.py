"""Settings of the daemon: threads, limits, gates."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from sidetier.config.types import AbsolutePath, NamePattern, NamePatterns, Part, matches_any
from sidetier.config.units import DiskFloor, Duration, FreeDisk, Size


class PinsConfig(Part):
    """Limits on pins, which keep closed segments readable until they are stored."""

    max_files: int = Field(
        default=20_000, ge=3, description="Maximum number of open files; keep it below the ulimit."
    )
    max_deleted_bytes: Size = Field(
        default=10 * 1024**3,
        description="Maximum number of bytes, over all log dirs, that pins and the spool keep on "
        "the disks after the broker has deleted the files.",
    )
    min_free_disk: FreeDisk = Field(
        default=DiskFloor(share=0.05),
        description="Free space of each file system with log dirs, as a size or a percentage. "
        "Below it, the sidecar releases deleted segments. It overrides all other bounds, so that "
        "the sidecar never fills the broker's disk.",
    )
    spool: Annotated[tuple[AbsolutePath, ...], Field(strict=False)] = Field(
        default=(),
        description="Directories for hard links to the files of unstored segments, so that "
        "segments that the broker deletes during a restart of the sidecar are not lost: one "
        "directory per file system with log dirs, outside all log dirs. The sidecar must own the "
        "broker's files, or have read and write permission for them.",
    )


class RescueConfig(Part):
    """Rescue by a follower's sidecar when the leader's makes no progress. The follower's copy is
    pinned as a leader's is, and uploaded when `offset.wm` has not advanced and the copy nears its
    deletion.
    """

    enabled: bool = Field(
        default=True,
        description="Pin closed segments of partitions that this broker follows, and upload them "
        "if the leader's sidecar makes no progress. If false, segments that the broker deletes "
        "while one sidecar is down can be lost.",
    )
    before_deletion: Duration = Field(
        default=900.0,
        gt=0,
        description="Time before the deletion by retention.ms at which a follower's segment "
        "counts as at risk; at most a quarter of the topic's retention.",
    )
    patience: Duration = Field(
        default=60.0,
        gt=0,
        description="Time without progress of offset.wm after which a follower's sidecar uploads, "
        "and minimum interval at which it reads offset.wm while a segment is at risk. The "
        "leader's sidecar waits four times as long before it records a gap.",
    )


REQUESTS_PER_SEGMENT: Final = 6
"""`.index`, `.timeindex`, `.log`, `_metadata`, `offset.wm`, and one for what changes now and then.
"""
_SECONDS_OF_DAY: Final = 86400


@dataclass(frozen=True, slots=True)
class EarlyLimits:
    """The limits of early archiving of one topic; the age is in seconds."""

    bytes: int
    age: float


def daily_requests(age: float) -> int:
    """Return the requests a day for a partition that has new records all the time, by its age in
    seconds alone.
    """
    return round(_SECONDS_OF_DAY / age * REQUESTS_PER_SEGMENT)


class EarlyOverride(Part):
    """Other limits of early archiving for some of the selected topics."""

    topics: NamePattern = Field(
        description="Regular expression that matches whole topic names; the first override that "
        "matches applies. It selects no further topics for early archiving."
    )
    bytes: Size | None = Field(
        default=None, gt=0, description="As uploader.early.bytes, which is the default."
    )
    age: Duration | None = Field(
        default=None, ge=1.0, description="As uploader.early.age, which is the default."
    )

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.age is None and self.bytes is None:
            raise ValueError("must have age, bytes or both")
        return self


class EarlyConfig(Part):
    """Early archiving: committed records of the active segment are stored as a segment before the
    broker closes it. Off unless `topics` is set. It needs broker.bootstrap_servers.
    """

    topics: NamePatterns = Field(
        default=(),
        description="Regular expressions of topics that are archived early. They match the whole "
        "name. Compacted topics are never archived early.",
    )
    bytes: Size = Field(
        default=64 * 1024**2,
        gt=0,
        description="Size of the unarchived part of an active segment at which it is stored, and "
        "the largest size of such a segment, plus at most one record batch.",
    )
    age: Duration = Field(
        default=86400.0,
        ge=1.0,
        description="Age of the oldest unarchived record at which the committed records of an "
        "active segment are stored, however few they are. The sidecar looks every 5 s, or more "
        "often if this is shorter. Each stored segment costs about six requests.",
    )
    overrides: Annotated[tuple[EarlyOverride, ...], Field(strict=False)] = Field(
        default=(), description="Other limits for some topics; the first match applies."
    )

    @property
    def enabled(self) -> bool:
        """Whether any topic is archived early."""
        return bool(self.topics)

    def selects(self, topic: str) -> bool:
        """Whether a topic is archived early, by its name alone."""
        return matches_any(self.topics, topic)

    def limits(self, topic: str) -> EarlyLimits | None:
        """Return the limits of a topic; None if it is not archived early."""
        if not self.selects(topic):
            return None
        for override in self.overrides:
            if matches_any([override.topics], topic):
                return EarlyLimits(
                    self.bytes if override.bytes is None else override.bytes,
                    self.age if override.age is None else override.age,
                )
        return EarlyLimits(self.bytes, self.age)

    @property
    def shortest_age(self) -> float:
        """The shortest age of any topic, in seconds."""
        return min([self.age, *(one.age for one in self.overrides if one.age is not None)])


class TailConfig(Part):
    """Tail packs: committed records of active segments are stored every few seconds, in one object
    for many partitions. Off unless `interval` is set. They need broker.bootstrap_servers.
    """

    interval: Duration | None = Field(
        default=None,
        ge=1.0,
        description="Interval at which committed records that are not archived yet are stored in "
        "tail packs; 5s is recommended. Default: they are not stored. Each pack costs one request, "
        "and nothing is stored while no record arrives.",
    )
    topics: NamePatterns = Field(
        default=(".*",),
        description="Regular expressions of topics whose tail is stored. They match the whole "
        "name. Compacted topics have no tail.",
    )

    @property
    def enabled(self) -> bool:
        """Whether the tail of any topic is stored."""
        return self.interval is not None and bool(self.topics)

    def selects(self, topic: str) -> bool:
        """Whether the tail of a topic is stored, by its name alone."""
        return matches_any(self.topics, topic)


class HighWatermarkConfig(Part):
    """How the sidecar learns that records are committed. At least one source is needed."""

    checkpoint: bool = Field(
        default=True, description="Read replication-offset-checkpoint in each log dir."
    )
    list_offsets: bool = Field(
        default=True,
        description="Send ListOffsets to broker.bootstrap_servers for partitions with waiting "
        "segments. This is faster than the checkpoint, which the broker writes every 5 s.",
    )
    poll_interval: Duration = Field(
        default=0.1, gt=0, description="Interval of high-watermark checks while a segment waits."
    )


SnapshotKind = Literal["topics", "broker-configs", "acls", "quotas", "scram-users", "group-offsets"]
"""Kinds of cluster state, as in `segments.cluster_state`."""


class ClusterSnapshotsConfig(Part):
    """Snapshots of the cluster's state, which a restore of a whole cluster needs besides the
    records. One sidecar of the cluster takes them. They need broker.bootstrap_servers.
    """

    enabled: bool = Field(
        default=True,
        description="Store snapshots of topics, configurations, ACLs, client quotas, names of "
        "SCRAM users (never their passwords) and committed offsets of consumer groups.",
    )
    interval: Duration = Field(
        default=60.0,
        ge=1.0,
        description="Interval at which the committed offsets of consumer groups are stored.",
    )
    definitions_interval: Duration = Field(
        default=600.0, ge=1.0, description="Interval at which all other kinds are read and stored."
    )
    history: int = Field(
        default=1440,
        ge=1,
        description="Maximum number of stored snapshots of each kind. A snapshot is stored only "
        "if it differs from the previous one. Removing older snapshots needs permission to delete "
        "objects.",
    )
    exclude: Annotated[tuple[SnapshotKind, ...], Field(strict=False)] = Field(
        default=(),
        description="Kinds that are not stored, for example because the sidecar's principal has "
        "no permission to read them.",
    )


OnDivergence = Literal["quarantine", "halt"]
"""Reaction to a divergence of the archive's history from the log's."""
OnGap = Literal["step_over", "halt"]
"""Reaction to a gap: records that were deleted before they were archived."""
OnRecreated = Literal["halt", "retire"]
"""Reaction to an archive that belongs to a deleted topic of the same name."""


class UploaderConfig(Part):
    """Settings of the daemon."""

    threads: int = Field(default=8, ge=1, le=256, description="Concurrent segment uploads.")
    request_threads: int = Field(
        default=32, ge=1, le=256, description="Concurrent small requests to the store."
    )
    offset_reset: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="First segment of a partition that has no archive yet: earliest for the "
        "oldest segment on the disk, latest for the next segment that the broker closes.",
    )
    on_gap: OnGap = Field(
        default="step_over",
        description="Reaction to records that were deleted before they were archived: record the "
        "gap and continue, or halt the partition.",
    )
    on_divergence: OnDivergence = Field(
        default="quarantine",
        description="Reaction to archived records that the cluster has discarded (an unclean "
        "election): copy them to _sidetier/<cluster>/quarantine and continue with the new "
        "history, or halt the partition. Quarantine needs permission to delete objects.",
    )
    on_recreated: OnRecreated = Field(
        default="halt",
        description="Reaction to a topic that was deleted and created again: halt the partition "
        "until `sidetier retire` has moved the old archive, or move it to "
        "_sidetier/<cluster>/retired at once.",
    )
    rescan_interval: Duration = Field(
        default=30.0,
        gt=0,
        description="Interval at which the log dirs are listed, independent of file events.",
    )
    watch: Literal["auto", "inotify", "polling"] = Field(
        default="auto",
        description="How the sidecar notices new files; auto falls back to polling, with a log "
        "event, if inotify is not available or its limits are too low.",
    )
    poll_interval: Duration = Field(
        default=1.0, gt=0, description="Interval at which the log dirs are listed when polling."
    )
    max_queued_segments_per_partition: int = Field(
        default=8, ge=1, description="Maximum number of queued segments of one partition."
    )
    max_bytes_per_second: Size | None = Field(
        default=None,
        gt=0,
        description="Bandwidth limit of all uploads together, once more of all tail packs, and "
        "once more of the copies of their cleaning; default: no limit.",
    )
    pins: PinsConfig = Field(default=PinsConfig(), description="Bounds of pins.")
    rescue: RescueConfig = Field(
        default=RescueConfig(), description="Rescue of partitions that other brokers lead."
    )
    high_watermark: HighWatermarkConfig = Field(
        default=HighWatermarkConfig(), description="Sources of the high watermark."
    )
    early: EarlyConfig = Field(
        default=EarlyConfig(), description="Archiving of active segments before they are closed."
    )
    tail: TailConfig = Field(
        default=TailConfig(),
        description="Storing the committed records of active segments within seconds.",
    )
    cluster_snapshots: ClusterSnapshotsConfig = Field(
        default=ClusterSnapshotsConfig(),
        description="Snapshots of topics, configurations, ACLs, quotas and group offsets.",
    )
    local_delete_delay: Duration = Field(
        default=60.0,
        description="The broker's file.delete.delay.ms, for the urgency of uploads without "
        "broker.bootstrap_servers.",
    )
    local_retention: Duration | None = Field(
        default=None,
        gt=0,
        description="Shortest retention.ms of the topics, as a hint for the urgency of uploads "
        "without broker.bootstrap_servers.",
    )
    shutdown_grace: Duration = Field(
        default=25.0, description="Time after SIGTERM in which running uploads can finish."
    )
    niceness: int = Field(
        default=10,
        ge=0,
        le=19,
        description="CPU niceness of the sidecar, as of nice(1); 0 for the priority of the broker.",
    )
    page_cache: Literal["give_back_cold", "leave"] = Field(
        default="give_back_cold",
        description="Whether the sidecar drops the pages that an upload has read into the page "
        "cache.",
    )

    def led_only(self) -> "UploaderConfig":
        """Return the settings without rescue, early archiving and tail packs, for a fixed list of
        partitions.

        Partitions outside the list have no leader then, so there is nothing to rescue. The list has
        no leader epochs, without which no record of an active segment is known to be committed.
        """
        rescue = self.rescue.model_copy(update={"enabled": False})
        return self.model_copy(
            update={"rescue": rescue, "early": EarlyConfig(), "tail": TailConfig()}
        )
