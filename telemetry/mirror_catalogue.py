"""All metrics of `sidetier mirror` and `sidetier restore` by name."""

from typing import Final

from sidetier.telemetry.catalogue import PREFIX, Kind, Metric

_PREFIX: Final = PREFIX + "mirror_"
_PARTITION: Final = ("topic", "partition")

RECORDS: Final = Metric(
    _PREFIX + "records_total", Kind.COUNTER, "Records copied and committed on the target."
)
BYTES: Final = Metric(
    _PREFIX + "bytes_total", Kind.COUNTER, "Bytes of the copied batches, compressed."
)
DROPPED_RECORDS: Final = Metric(
    _PREFIX + "dropped_records_total",
    Kind.COUNTER,
    "Records of aborted source transactions, which are not copied.",
)
REENCODED_BATCHES: Final = Metric(
    _PREFIX + "reencoded_batches_total",
    Kind.COUNTER,
    "Batches that could not be copied unchanged: compacted, or with LogAppendTime.",
)
TRANSACTIONS: Final = Metric(
    _PREFIX + "transactions_total", Kind.COUNTER, "Transactions committed on the target."
)
ABORTS: Final = Metric(
    _PREFIX + "aborts_total",
    Kind.COUNTER,
    "Transactions aborted after a failure; their records are read again.",
)
TRANSACTION_SECONDS: Final = Metric(
    _PREFIX + "transaction_seconds_total",
    Kind.COUNTER,
    "Time from the first batch of each transaction to the end of its commit.",
)
COMMIT_SECONDS: Final = Metric(
    _PREFIX + "commit_seconds_total",
    Kind.COUNTER,
    "Part of the transactions' time from the last batch to the end of the commit.",
)
GAP_RECORDS: Final = Metric(
    _PREFIX + "gap_records_total",
    Kind.COUNTER,
    "Source offsets that neither the brokers nor the archive have, and that were skipped: data "
    "loss, alert on any increase.",
)
REFUSED_TOPICS: Final = Metric(
    _PREFIX + "refused_topics",
    Kind.GAUGE,
    "Selected topics that the worker does not copy, because they were created again, have another "
    "number of partitions, or have a setting that the target refuses. The log has the reason; "
    "alert while it is above 0.",
)
LEFT_OUT_PARTITIONS: Final = Metric(
    _PREFIX + "left_out_partitions",
    Kind.GAUGE,
    "Partitions that the worker does not copy further, because a record is too large for the "
    "target or cannot be read, or one of the clusters refuses. The log has the offset and the "
    "reason; alert while it is above 0.",
)
LATENCY: Final = Metric(
    _PREFIX + "newest_record_latency_seconds",
    Kind.GAUGE,
    "Time from the timestamp of the newest copied record to its commit on the target.",
)
LAG_RECORDS: Final = Metric(
    _PREFIX + "lag_records",
    Kind.GAUGE,
    "Source offsets that are committed and not copied yet.",
    _PARTITION,
)
LAG_SECONDS: Final = Metric(
    _PREFIX + "lag_seconds",
    Kind.GAUGE,
    "Age of the newest copied record, 0 while no record waits.",
    _PARTITION,
)
GROUPS_TRANSLATED: Final = Metric(
    _PREFIX + "translated_groups",
    Kind.GAUGE,
    "Consumer groups whose offsets were set on the target in the last pass of --translate-groups.",
)
GROUPS_WITH_MEMBERS: Final = Metric(
    _PREFIX + "translated_groups_with_members",
    Kind.GAUGE,
    "Consumer groups that were skipped in the last pass, because they have members on the target.",
)
GROUP_OFFSETS_SET: Final = Metric(
    _PREFIX + "group_offsets_set_total",
    Kind.COUNTER,
    "Offsets of consumer groups that were set on the target.",
)
MAPS_STORED: Final = Metric(
    _PREFIX + "offset_maps_stored_total",
    Kind.COUNTER,
    "Writes of a partition's offset map to the archive's store.",
)
OFFSET_SYNC_FAILURES: Final = Metric(
    _PREFIX + "offset_sync_failures_total",
    Kind.COUNTER,
    "Passes in which groups could not be set, or the offset map could not be read or stored.",
)
OFFSETS_SYNCED: Final = Metric(
    _PREFIX + "last_offset_sync_timestamp_seconds",
    Kind.GAUGE,
    "End of the last pass that set group offsets and stored the offset map, in seconds since "
    "1970; 0 before the first.",
)

MIRROR_METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All of the above, in order."""
