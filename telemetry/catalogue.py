"""All metrics of the sidecar: the only place for their names, units, labels and help."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "sidetier_"


class Kind(StrEnum):
    """Types of the Prometheus exposition format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Above(StrEnum):
    """Aggregation of a metric when there are more partitions than `http.max_partition_series`."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    NONE = "left out"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        above: aggregation, for metrics with the labels topic and partition.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    above: Above | None = None
    buckets: tuple[float, ...] = ()


_PARTITION: Final = ("topic", "partition")
_FAST: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SLOW: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)


def _name(rest: str) -> str:
    return PREFIX + rest


UPLOADED_BYTES: Final = Metric(
    _name("uploaded_bytes_total"),
    Kind.COUNTER,
    "Bytes of segments stored, indexes included.",
    _PARTITION,
    Above.SUM,
)
UPLOADED_SEGMENTS: Final = Metric(
    _name("uploaded_segments_total"),
    Kind.COUNTER,
    "Segments stored with their indexes.",
    _PARTITION,
    Above.SUM,
)
GAP_RECORDS: Final = Metric(
    _name("gap_records_total"),
    Kind.COUNTER,
    "Records that were deleted before they could be stored: data loss, alert on any increase.",
    _PARTITION,
    Above.SUM,
)
UPLOAD_SECONDS: Final = Metric(
    _name("upload_seconds"),
    Kind.HISTOGRAM,
    "Time from the first byte of a segment's upload to the store's last response.",
    buckets=_SLOW,
)
ROLL_TO_STORED: Final = Metric(
    _name("roll_to_stored_seconds"),
    Kind.HISTOGRAM,
    "Time from the roll of a segment to the write of an offset.wm that covers it.",
    buckets=_SLOW,
)
STAGE_SECONDS: Final = Metric(
    _name("stage_seconds"),
    Kind.HISTOGRAM,
    "Parts of roll_to_stored_seconds: high_watermark, queueing, uploading, committing.",
    ("stage",),
    buckets=_FAST,
)
REQUEST_SECONDS: Final = Metric(
    _name("store_request_seconds"),
    Kind.HISTOGRAM,
    "Duration of one attempt of a request to the store.",
    ("operation", "outcome"),
    buckets=_FAST,
)
HUNG_REQUESTS: Final = Metric(
    _name("hung_store_requests"),
    Kind.GAUGE,
    "Requests to the store that have taken longer than storage.deadline.hung_after. Each keeps a "
    "thread, and holds back its partition.",
)
RETRIES: Final = Metric(
    _name("store_retries_total"),
    Kind.COUNTER,
    "Retries of requests, by kind of error.",
    ("operation", "kind"),
)
ERRORS: Final = Metric(
    _name("errors_total"), Kind.COUNTER, "Errors, by name of their class.", ("kind",)
)
UNEXPECTED_ERRORS: Final = Metric(
    _name("unexpected_errors_total"),
    Kind.COUNTER,
    "Errors that no handler expects, by name of their class. Each holds back only the partition, "
    "file or request that it affects; the log has its traceback.",
    ("kind",),
)
LEADERSHIP_CHANGES: Final = Metric(
    _name("leadership_changes_total"),
    Kind.COUNTER,
    "Partitions gained, lost, and renewed (same leader, new leader epoch).",
    ("change",),
)
CONFLICTS: Final = Metric(
    _name("conflicts_total"),
    Kind.COUNTER,
    "Conditional writes that the store refused because another writer was faster.",
)
RESCUED: Final = Metric(
    _name("rescued_segments_total"),
    Kind.COUNTER,
    "Segments that this broker stored as a follower, because the leader's sidecar did not.",
)
QUARANTINES: Final = Metric(
    _name("quarantines_total"),
    Kind.COUNTER,
    "Number of times that stored objects were moved to quarantine.",
)
TAKEOVERS: Final = Metric(
    _name("takeovers_total"),
    Kind.COUNTER,
    "Partitions whose archive was taken over from Pinterest's uploader.",
)
LEFT_OUT_FILES: Final = Metric(
    _name("left_out_files_total"),
    Kind.COUNTER,
    "Transaction indexes and producer snapshots that could not be stored with their segment.",
    ("file",),
)
THROTTLED_SECONDS: Final = Metric(
    _name("throttled_seconds_total"),
    Kind.COUNTER,
    "Time that uploads waited for the bandwidth limit, sum of all threads.",
)
TRIMMED_BYTES: Final = Metric(
    _name("local_retention_trimmed_bytes_total"),
    Kind.COUNTER,
    "Bytes of archived segments that local retention has deleted from the broker's log.",
    ("topic",),
)
TRIM_FAILURES: Final = Metric(
    _name("local_retention_failures_total"),
    Kind.COUNTER,
    "Partitions that a pass of local retention could not trim, by reason.",
    ("reason",),
)
TRIM_EXCESS: Final = Metric(
    _name("local_retention_excess_bytes"),
    Kind.GAUGE,
    "Bytes beyond local retention that the last pass has left on the broker, by reason.",
    ("topic", "reason"),
)
WATCHER_RESTARTS: Final = Metric(
    _name("watcher_restarts_total"),
    Kind.COUNTER,
    "Number of restarts of the log dirs' watcher.",
)
WATCHER_OVERFLOWS: Final = Metric(
    _name("watcher_overflows_total"),
    Kind.COUNTER,
    "Times that the kernel dropped file events, so that the sidecar listed all log dirs.",
)
LAG_BYTES: Final = Metric(
    _name("remote_copy_lag_bytes"),
    Kind.GAUGE,
    "Bytes in closed segments that are not stored yet.",
    _PARTITION,
    Above.SUM,
)
LAG_SEGMENTS: Final = Metric(
    _name("remote_copy_lag_segments"),
    Kind.GAUGE,
    "Closed segments that are not stored yet.",
    _PARTITION,
    Above.SUM,
)
OLDEST_AGE: Final = Metric(
    _name("oldest_unstored_segment_age_seconds"),
    Kind.GAUGE,
    "Time since the oldest unstored segment was closed; 0 when all closed segments are archived.",
    _PARTITION,
    Above.MAX,
)
LOG_END: Final = Metric(
    _name("log_end_offset"),
    Kind.GAUGE,
    "High watermark, at most some seconds old: the offset after the last committed record.",
    _PARTITION,
    Above.NONE,
)
UNARCHIVED_RECORDS: Final = Metric(
    _name("unarchived_records"),
    Kind.GAUGE,
    "Offsets from the archive end offset to the log end, in closed segments and the active one: "
    "only the brokers have these records.",
    _PARTITION,
    Above.SUM,
)
UNARCHIVED_BYTES: Final = Metric(
    _name("unarchived_bytes"),
    Kind.GAUGE,
    "Bytes of the segments with unarchived records.",
    _PARTITION,
    Above.SUM,
)
UNARCHIVED_AGE: Final = Metric(
    _name("oldest_unarchived_record_age_seconds"),
    Kind.GAUGE,
    "Time since the oldest unarchived record was appended; 0 without unarchived records.",
    _PARTITION,
    Above.MAX,
)
UNTIL_DELETION: Final = Metric(
    _name("seconds_until_local_deletion"),
    Kind.GAUGE,
    "Time until the broker may delete the oldest unstored segment, by retention.ms from its "
    "largest timestamp or by retention.bytes; absent if it is unknown or all closed segments are "
    "archived.",
    _PARTITION,
    Above.MIN,
)
WATERMARK_BASE: Final = Metric(
    _name("watermark_base_offset"),
    Kind.GAUGE,
    "Base offset of the last segment of the archive.",
    _PARTITION,
    Above.NONE,
)
WATERMARK_NEXT: Final = Metric(
    _name("watermark_next_offset"),
    Kind.GAUGE,
    "Archive end offset: the partition is archived up to this offset, exclusive.",
    _PARTITION,
    Above.NONE,
)
PARTITIONS: Final = Metric(_name("partitions"), Kind.GAUGE, "Led partitions by state.", ("state",))
PARTITION_STATE: Final = Metric(
    _name("partition_state"),
    Kind.GAUGE,
    "Always 1; the label has the state of a led partition.",
    (*_PARTITION, "state"),
    Above.NONE,
)
UNRESOLVED_GAPS: Final = Metric(
    _name("unresolved_gap_records"),
    Kind.GAUGE,
    "Records in recorded gaps above the archive's start that no operator has acknowledged; read "
    "every 5 minutes.",
    _PARTITION,
    Above.SUM,
)
UNRESOLVED_QUARANTINES: Final = Metric(
    _name("unresolved_quarantines"),
    Kind.GAUGE,
    "Quarantines that no operator has acknowledged; read every 5 minutes.",
    _PARTITION,
    Above.SUM,
)
LEADER_PARTITIONS: Final = Metric(
    _name("leader_partitions"),
    Kind.GAUGE,
    "Partitions that this broker leads and that are archived.",
)
FOLLOWED_PARTITIONS: Final = Metric(
    _name("followed_partitions"),
    Kind.GAUGE,
    "Partitions that other brokers lead, and whose segments near deletion this sidecar pins.",
)
FOLLOWED_PINNED: Final = Metric(
    _name("followed_pinned_segments"),
    Kind.GAUGE,
    "Segments held open for partitions that other brokers lead.",
)
LOG_DIR_PROBLEMS: Final = Metric(
    _name("log_dir_problems"),
    Kind.GAUGE,
    "Log dirs and partition directories that cannot be read, and partition directories that are "
    "symbolic links to another file system: nothing in them is archived.",
)
QUEUE_SEGMENTS: Final = Metric(
    _name("queue_segments"), Kind.GAUGE, "Segments that wait for an upload thread."
)
QUEUE_BYTES: Final = Metric(_name("queue_bytes"), Kind.GAUGE, "Bytes of the segments that wait.")
UPLOADING: Final = Metric(
    _name("uploading_segments"), Kind.GAUGE, "Segments that are being uploaded."
)
PINNED_FILES: Final = Metric(
    _name("pinned_files"), Kind.GAUGE, "Files held open until they are stored."
)
PINNED_BYTES: Final = Metric(_name("pinned_bytes"), Kind.GAUGE, "Bytes of the files held open.")
PINNED_DELETED: Final = Metric(
    _name("pinned_deleted_bytes"),
    Kind.GAUGE,
    "Bytes that stay on the broker's disk only because they are held open.",
)
CLUSTER_SNAPSHOT_AGE: Final = Metric(
    _name("cluster_snapshot_age_seconds"),
    Kind.GAUGE,
    "Time since a sidecar of the cluster last stored or confirmed a snapshot of this kind; time "
    "since the start of this sidecar if no snapshot is stored.",
    ("kind",),
)
CLUSTER_SNAPSHOT_PROBLEM: Final = Metric(
    _name("cluster_snapshot_problem"),
    Kind.GAUGE,
    "1 if the last read of this kind of cluster state failed or was incomplete.",
    ("kind",),
)
LAST_SUCCESSFUL_DRILL: Final = Metric(
    _name("last_successful_drill_timestamp_seconds"),
    Kind.GAUGE,
    "End of the last successful restore drill, in seconds since 1970, as recorded on the store; 0 "
    "if drills ran and none succeeded. All sidecars of the cluster export the same value.",
)
READY: Final = Metric(_name("ready"), Kind.GAUGE, "1 when /readyz answers 200.")
READY_CONDITION: Final = Metric(
    _name("ready_condition"),
    Kind.GAUGE,
    "1 while this condition of /readyz holds: leadership_known, bootstrapped, store_reachable.",
    ("condition",),
)
BUILD_INFO: Final = Metric(
    _name("build_info"),
    Kind.GAUGE,
    "Always 1; the labels have the versions of Sidetier and Python.",
    ("version", "python"),
)

METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All of the above, in order."""
