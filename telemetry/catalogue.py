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
    """One metric. `above` is set for metrics with the labels topic and partition."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    above: Above | None = None
    buckets: tuple[float, ...] = ()


class Catalogue:
    """Declares the metrics of one program; `prefix` follows `sidetier_` in their names."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = PREFIX + prefix
        self._declared: list[Metric] = []

    @property
    def declared(self) -> tuple[Metric, ...]:
        """All metrics, in the order of their declaration."""
        return tuple(self._declared)

    def counter(self, name: str, text: str, *labels: str, above: Above | None = None) -> Metric:
        """Declare a counter. `text` is its help."""
        return self._declare(Metric(self._prefix + name, Kind.COUNTER, text, labels, above))

    def gauge(self, name: str, text: str, *labels: str, above: Above | None = None) -> Metric:
        """Declare a gauge."""
        return self._declare(Metric(self._prefix + name, Kind.GAUGE, text, labels, above))

    def histogram(self, name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
        """Declare a histogram. `buckets` are inclusive upper bounds, in seconds."""
        return self._declare(
            Metric(self._prefix + name, Kind.HISTOGRAM, text, labels, buckets=buckets)
        )

    def _declare(self, metric: Metric) -> Metric:
        self._declared.append(metric)
        return metric


PARTITION: Final = ("topic", "partition")
_FAST: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SLOW: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_metrics: Final = Catalogue()

# fmt: off
UPLOADED_BYTES: Final = _metrics.counter("uploaded_bytes_total", "Bytes of segments stored, indexes included.", *PARTITION, above=Above.SUM)
UPLOADED_SEGMENTS: Final = _metrics.counter("uploaded_segments_total", "Segments stored with their indexes.", *PARTITION, above=Above.SUM)
GAP_RECORDS: Final = _metrics.counter("gap_records_total", "Records that were deleted before they could be stored: data loss, alert on any increase.", *PARTITION, above=Above.SUM)
UPLOAD_SECONDS: Final = _metrics.histogram("upload_seconds", "Time from the first byte of a segment's upload to the store's last response.", buckets=_SLOW)
ROLL_TO_STORED: Final = _metrics.histogram("roll_to_stored_seconds", "Time from the roll of a segment to the write of an offset.wm that covers it.", buckets=_SLOW)
STAGE_SECONDS: Final = _metrics.histogram("stage_seconds", "Parts of roll_to_stored_seconds: high_watermark, queueing, uploading, committing.", "stage", buckets=_FAST)
REQUEST_SECONDS: Final = _metrics.histogram("store_request_seconds", "Duration of one attempt of a request to the store.", "operation", "outcome", buckets=_FAST)
HUNG_REQUESTS: Final = _metrics.gauge("hung_store_requests", "Requests to the store that have taken longer than storage.deadline.hung_after. Each keeps a thread, and holds back its partition.")
RETRIES: Final = _metrics.counter("store_retries_total", "Retries of requests, by kind of error.", "operation", "kind")
ERRORS: Final = _metrics.counter("errors_total", "Errors, by name of their class.", "kind")
UNEXPECTED_ERRORS: Final = _metrics.counter("unexpected_errors_total", "Errors that no handler expects, by name of their class. Each holds back only the partition, file or request that it affects; the log has its traceback.", "kind")
LEADERSHIP_CHANGES: Final = _metrics.counter("leadership_changes_total", "Partitions gained, lost, and renewed (same leader, new leader epoch).", "change")
CONFLICTS: Final = _metrics.counter("conflicts_total", "Conditional writes that the store refused because another writer was faster.")
RESCUED: Final = _metrics.counter("rescued_segments_total", "Segments that this broker stored as a follower, because the leader's sidecar did not.")
EARLY_SEGMENTS: Final = _metrics.counter("early_segments_total", "Parts of active segments that were stored (uploader.early).")
TAIL_CYCLE_SECONDS: Final = _metrics.histogram("tail_cycle_seconds", "Duration of a cycle that stores committed records of active segments in tail packs (uploader.tail).", buckets=_FAST)
TAIL_PACKS: Final = _metrics.counter("tail_packs_total", "Tail packs that were stored, without those of cleaning.")
TAIL_BYTES: Final = _metrics.counter("tail_bytes_total", "Bytes of these tail packs.")
TAIL_FAILED_PACKS: Final = _metrics.counter("tail_failed_packs_total", "Tail packs whose request failed. Their records are read and stored again.")
TAIL_REFUSED: Final = _metrics.counter("tail_refused_ranges_total", "Ranges of records that were read for a tail pack, and not confirmed to be committed: the leader or the file has changed, for example. They are read again.")
TAIL_LIVE_PACKS: Final = _metrics.gauge("tail_live_packs", "Tail packs of this broker that are needed, as of the last cleaning.")
TAIL_LIVE_SHARE: Final = _metrics.gauge("tail_live_share", "Share of the bytes in these packs that only they have.")
TAIL_UNREAD_PACKS: Final = _metrics.gauge("tail_unread_packs", "Tail packs of this broker that cannot be read, or of which a range is damaged, as of the last cleaning. They stay. If no row of a pack can be read, partitions whose leader has stored no pack since have no tail for readers.")
TAIL_UNKNOWN_PARTITIONS: Final = _metrics.gauge("tail_unknown_partitions", "Partitions whose archive or settings cleaning cannot read. Their tail packs stay.")
TAIL_STALE_OFFSETS: Final = _metrics.gauge("tail_stale_offsets", "Offsets in tail packs of this broker whose records were committed, and that the cluster has lost in an unclean election or a power failure, or has deleted before they were archived. Only these packs have the records; cleaning moves them to the quarantine.")
TAIL_REWRITTEN_BYTES: Final = _metrics.counter("tail_rewritten_bytes_total", "Bytes that cleaning has copied into new tail packs.")
TAIL_DELETED_PACKS: Final = _metrics.counter("tail_deleted_packs_total", "Tail packs that cleaning has deleted.")
QUARANTINES: Final = _metrics.counter("quarantines_total", "Number of times that stored objects were moved to quarantine.")
TAKEOVERS: Final = _metrics.counter("takeovers_total", "Partitions whose archive was taken over from Pinterest's uploader.")
LEFT_OUT_FILES: Final = _metrics.counter("left_out_files_total", "Transaction indexes and producer snapshots that could not be stored with their segment.", "file")
THROTTLED_SECONDS: Final = _metrics.counter("throttled_seconds_total", "Time that uploads waited for the bandwidth limit, sum of all threads.")
TRIMMED_BYTES: Final = _metrics.counter("local_retention_trimmed_bytes_total", "Bytes of archived segments that local retention has deleted from the broker's log.", "topic")
TRIM_FAILURES: Final = _metrics.counter("local_retention_failures_total", "Partitions that a pass of local retention could not trim, by reason.", "reason")
TRIM_EXCESS: Final = _metrics.gauge("local_retention_excess_bytes", "Bytes beyond local retention that the last pass has left on the broker, by reason.", "topic", "reason")
WATCHER_RESTARTS: Final = _metrics.counter("watcher_restarts_total", "Number of restarts of the log dirs' watcher.")
WATCHER_OVERFLOWS: Final = _metrics.counter("watcher_overflows_total", "Times that the kernel dropped file events, so that the sidecar listed all log dirs.")
LAG_BYTES: Final = _metrics.gauge("remote_copy_lag_bytes", "Bytes in closed segments that are not stored yet.", *PARTITION, above=Above.SUM)
LAG_SEGMENTS: Final = _metrics.gauge("remote_copy_lag_segments", "Closed segments that are not stored yet.", *PARTITION, above=Above.SUM)
OLDEST_AGE: Final = _metrics.gauge("oldest_unstored_segment_age_seconds", "Time since the oldest unstored segment was closed; 0 when all closed segments are archived.", *PARTITION, above=Above.MAX)
LOG_END: Final = _metrics.gauge("log_end_offset", "High watermark, at most some seconds old: the offset after the last committed record.", *PARTITION, above=Above.NONE)
UNARCHIVED_RECORDS: Final = _metrics.gauge("unarchived_records", "Offsets from the archive end offset to the log end, in closed segments and the active one: only the brokers have these records.", *PARTITION, above=Above.SUM)
UNARCHIVED_BYTES: Final = _metrics.gauge("unarchived_bytes", "Bytes of the segments with unarchived records.", *PARTITION, above=Above.SUM)
UNARCHIVED_AGE: Final = _metrics.gauge("oldest_unarchived_record_age_seconds", "Time since the oldest unarchived record was appended; 0 without unarchived records.", *PARTITION, above=Above.MAX)
UNTIL_DELETION: Final = _metrics.gauge("seconds_until_local_deletion", "Time until the broker may delete the oldest unstored segment, by retention.ms from its largest timestamp or by retention.bytes; absent if it is unknown or all closed segments are archived.", *PARTITION, above=Above.MIN)
WATERMARK_BASE: Final = _metrics.gauge("watermark_base_offset", "Base offset of the last segment of the archive.", *PARTITION, above=Above.NONE)
WATERMARK_NEXT: Final = _metrics.gauge("watermark_next_offset", "Archive end offset: the partition is archived up to this offset, exclusive.", *PARTITION, above=Above.NONE)
SAFE_TO: Final = _metrics.gauge("safe_to_offset", "Safe up to: the end of the archive and of the stored tail behind it, exclusive. Only with uploader.tail.", *PARTITION, above=Above.NONE)
NEWEST_SAFE_AGE: Final = _metrics.gauge("newest_safe_record_age_seconds", "Age of the newest record that this process has stored in a tail pack, by its timestamp. It also grows while no record arrives.", *PARTITION, above=Above.MIN)
UNSAFE_SECONDS: Final = _metrics.gauge("unsafe_records_age_seconds", "How long committed records may have had no tail pack, because they wait for one, the broker does not answer or the archive is halted; 0 otherwise. With uploader.tail, alert on it.", *PARTITION, above=Above.MAX)
PARTITIONS: Final = _metrics.gauge("partitions", "Led partitions by state.", "state")
PARTITION_STATE: Final = _metrics.gauge("partition_state", "Always 1; the label has the state of a led partition.", *PARTITION, "state", above=Above.NONE)
UNRESOLVED_GAPS: Final = _metrics.gauge("unresolved_gap_records", "Records in recorded gaps above the archive's start that no operator has acknowledged; read every 5 minutes.", *PARTITION, above=Above.SUM)
UNRESOLVED_QUARANTINES: Final = _metrics.gauge("unresolved_quarantines", "Quarantines that no operator has acknowledged; read every 5 minutes.", *PARTITION, above=Above.SUM)
LEADER_PARTITIONS: Final = _metrics.gauge("leader_partitions", "Partitions that this broker leads and that are archived.")
FOLLOWED_PARTITIONS: Final = _metrics.gauge("followed_partitions", "Partitions that other brokers lead, and whose segments near deletion this sidecar pins.")
FOLLOWED_PINNED: Final = _metrics.gauge("followed_pinned_segments", "Segments held open for partitions that other brokers lead.")
LOG_DIR_PROBLEMS: Final = _metrics.gauge("log_dir_problems", "Log dirs and partition directories that cannot be read, and partition directories that are symbolic links to another file system: nothing in them is archived.")
QUEUE_SEGMENTS: Final = _metrics.gauge("queue_segments", "Segments that wait for an upload thread.")
QUEUE_BYTES: Final = _metrics.gauge("queue_bytes", "Bytes of the segments that wait.")
UPLOADING: Final = _metrics.gauge("uploading_segments", "Segments that are being uploaded.")
PINNED_FILES: Final = _metrics.gauge("pinned_files", "Files held open until they are stored.")
PINNED_BYTES: Final = _metrics.gauge("pinned_bytes", "Bytes of the files held open.")
PINNED_DELETED: Final = _metrics.gauge("pinned_deleted_bytes", "Bytes that stay on the broker's disk only because they are held open.")
CLUSTER_SNAPSHOT_AGE: Final = _metrics.gauge("cluster_snapshot_age_seconds", "Time since a sidecar of the cluster last stored or confirmed a snapshot of this kind; time since the start of this sidecar if no snapshot is stored.", "kind")
CLUSTER_SNAPSHOT_PROBLEM: Final = _metrics.gauge("cluster_snapshot_problem", "1 if the last read of this kind of cluster state failed or was incomplete.", "kind")
LAST_SUCCESSFUL_DRILL: Final = _metrics.gauge("last_successful_drill_timestamp_seconds", "End of the last successful restore drill, in seconds since 1970, as recorded on the store; 0 if drills ran and none succeeded. All sidecars of the cluster export the same value.")
READY: Final = _metrics.gauge("ready", "1 when /readyz answers 200.")
READY_CONDITION: Final = _metrics.gauge("ready_condition", "1 while this condition of /readyz holds: leadership_known, bootstrapped, store_reachable.", "condition")
BUILD_INFO: Final = _metrics.gauge("build_info", "Always 1; the labels have the versions of Sidetier and Python.", "version", "python")
# fmt: on

METRICS: Final = _metrics.declared
"""All of the above, in order."""
