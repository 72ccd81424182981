"""Settings of the daemon: threads, limits, gates."""

from typing import Annotated, Literal

from pydantic import Field

from sidetier.config.types import AbsolutePath, Part
from sidetier.config.units import DiskFloor, Duration, FreeDisk, Size


class PinsConfig(Part):
    """Limits on pins, which keep closed segments readable until they are stored."""

    max_files: int = Field(
        default=20_000, ge=3, description="Maximum number of open files; keep it below the ulimit."
    )
    max_deleted_bytes: Size = Field(
        default=10 * 1024**3,
        description="Most bytes that pins and the spool keep on the disks after the broker has "
        "deleted them, over all log dirs.",
    )
    min_free_disk: FreeDisk = Field(
        default=DiskFloor(share=0.05),
        description="Free disk, of each file system that holds log dirs, below which deleted "
        "segments are released: a size or a percentage. It overrides every other bound, so that "
        "the sidecar never fills the broker's disk.",
    )
    spool: Annotated[tuple[AbsolutePath, ...], Field(strict=False)] = Field(
        default=(),
        description="Directories in which the files of unstored segments get second names (hard "
        "links), so that a restart of the sidecar loses nothing that the broker deletes meanwhile: "
        "one for each mount of log dirs, outside every log dir. The sidecar must own the broker's "
        "files, or be allowed to read and write them.",
    )


class RescueConfig(Part):
    """Rescue by a follower's sidecar when the leader's makes no progress. The follower's copy is
    pinned as a leader's is, and uploaded when `offset.wm` has not advanced and the copy nears its
    deletion.
    """

    enabled: bool = Field(
        default=True,
        description="Hold and, where nobody else does, upload closed segments of partitions that "
        "this broker follows; off, one dead sidecar can lose what only its pins would have kept.",
    )
    before_deletion: Duration = Field(
        default=900.0,
        gt=0,
        description="How long before its deletion by time a follower's segment counts as at risk; "
        "a quarter of the topic's retention where that is less.",
    )
    patience: Duration = Field(
        default=60.0,
        gt=0,
        description="How long the watermark must stand still before a follower uploads, and how "
        "often it is read at most while a segment is at risk. A leader waits four times as long "
        "before it records a gap.",
    )


class HighWatermarkConfig(Part):
    """How the sidecar learns that records are committed. At least one source is needed."""

    checkpoint: bool = Field(
        default=True, description="Read replication-offset-checkpoint in each log dir."
    )
    list_offsets: bool = Field(
        default=True,
        description="Ask broker.bootstrap_servers for those that wait: prompt, while the "
        "checkpoint is written every 5 s only.",
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
        "SCRAM users (never their passwords) and the committed offsets of consumer groups.",
    )
    interval: Duration = Field(
        default=60.0,
        ge=1.0,
        description="How often the committed offsets of consumer groups are stored.",
    )
    definitions_interval: Duration = Field(
        default=600.0, ge=1.0, description="How often every other kind is read, and stored anew."
    )
    history: int = Field(
        default=1440,
        ge=1,
        description="Stored snapshots of each kind at most. A snapshot is stored only when it "
        "differs from the one before it. Removing older ones needs the right to delete objects.",
    )
    exclude: Annotated[tuple[SnapshotKind, ...], Field(strict=False)] = Field(
        default=(),
        description="Kinds that are not stored, such as those that the sidecar's principal may "
        "not read.",
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
        default=32, ge=1, le=256, description="Concurrent small requests: watermarks and metadata."
    )
    offset_reset: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Where a partition without a watermark begins: with the oldest segment on the "
        "disk, or with what closes from now on.",
    )
    on_gap: OnGap = Field(
        default="step_over",
        description="When records are gone before they were stored: record the gap and go on, or "
        "halt the partition.",
    )
    on_divergence: OnDivergence = Field(
        default="quarantine",
        description="When the cluster has thrown away records that are stored (an unclean "
        "election): copy them to _sidetier/<cluster>/quarantine and go on with the new history, or "
        "halt the partition. Quarantine needs the right to delete objects.",
    )
    on_recreated: OnRecreated = Field(
        default="halt",
        description="When the topic was deleted and created again under its name: halt the "
        "partition until `sidetier retire` has moved the old archive, or move it to "
        "_sidetier/<cluster>/retired at once.",
    )
    rescan_interval: Duration = Field(
        default=30.0,
        gt=0,
        description="Interval at which the log dirs are listed, independent of file events.",
    )
    watch: Literal["auto", "inotify", "polling"] = Field(
        default="auto",
        description="How new files are noticed; auto falls back to polling, and says so, where "
        "inotify is not enough.",
    )
    poll_interval: Duration = Field(
        default=1.0, gt=0, description="How often the log dirs are listed when polling."
    )
    max_queued_segments_per_partition: int = Field(
        default=8, ge=1, description="Maximum number of queued segments of one partition."
    )
    max_bytes_per_second: Size | None = Field(
        default=None,
        gt=0,
        description="Bandwidth limit of all uploads together; default: no limit.",
    )
    pins: PinsConfig = Field(default=PinsConfig(), description="Bounds of the files held open.")
    rescue: RescueConfig = Field(
        default=RescueConfig(), description="What is done for partitions that others lead."
    )
    high_watermark: HighWatermarkConfig = Field(
        default=HighWatermarkConfig(), description="How committed records are known."
    )
    cluster_snapshots: ClusterSnapshotsConfig = Field(
        default=ClusterSnapshotsConfig(),
        description="Snapshots of topics, configurations, ACLs, quotas and group offsets.",
    )
    local_delete_delay: Duration = Field(
        default=60.0, description="The broker's file.delete.delay.ms, for the urgency of an upload."
    )
    local_retention: Duration | None = Field(
        default=None,
        gt=0,
        description="The shortest local retention of the topics, as a hint for urgency.",
    )
    shutdown_grace: Duration = Field(
        default=25.0, description="Time that running uploads get to finish after SIGTERM."
    )
    niceness: int = Field(
        default=10,
        ge=0,
        le=19,
        description="How far the sidecar stands back for the CPU where the broker wants it too "
        "(nice); 0: not at all.",
    )
    page_cache: Literal["give_back_cold", "leave"] = Field(
        default="give_back_cold",
        description="Whether the sidecar drops the page-cache pages that an upload has read in.",
    )

    def led_only(self) -> "UploaderConfig":
        """Return the settings without rescue, for a fixed list of led partitions.

        Partitions outside the list have no leader then, so there is nothing to rescue.
        """
        rescue = self.rescue.model_copy(update={"enabled": False})
        return self.model_copy(update={"rescue": rescue})
