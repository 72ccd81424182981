"""All metrics of `sidetier mirror` and `sidetier restore` by name."""

from typing import Final

from sidetier.telemetry.catalogue import PARTITION, Catalogue

_metrics: Final = Catalogue("mirror_")

# fmt: off
RECORDS: Final = _metrics.counter("records_total", "Records copied and committed on the target.")
BYTES: Final = _metrics.counter("bytes_total", "Bytes of the copied batches, compressed.")
DROPPED_RECORDS: Final = _metrics.counter("dropped_records_total", "Records of aborted source transactions, which are not copied.")
REENCODED_BATCHES: Final = _metrics.counter("reencoded_batches_total", "Batches that could not be copied unchanged: compacted, or with LogAppendTime.")
TRANSACTIONS: Final = _metrics.counter("transactions_total", "Transactions committed on the target.")
ABORTS: Final = _metrics.counter("aborts_total", "Transactions aborted after a failure; their records are read again.")
TRANSACTION_SECONDS: Final = _metrics.counter("transaction_seconds_total", "Time from the first batch of each transaction to the end of its commit.")
COMMIT_SECONDS: Final = _metrics.counter("commit_seconds_total", "Part of the transactions' time from the last batch to the end of the commit.")
GAP_RECORDS: Final = _metrics.counter("gap_records_total", "Source offsets that neither the brokers nor the archive have, and that were skipped: data loss, alert on any increase.")
REFUSED_TOPICS: Final = _metrics.gauge("refused_topics", "Selected topics that the worker does not copy, because they were created again, have another number of partitions, or have a setting that the target refuses. The log has the reason; alert while it is above 0.")
LEFT_OUT_PARTITIONS: Final = _metrics.gauge("left_out_partitions", "Partitions that the worker does not copy further, because a record is too large for the target or cannot be read, or one of the clusters refuses. The log has the offset and the reason; alert while it is above 0.")
LATENCY: Final = _metrics.gauge("newest_record_latency_seconds", "Time from the timestamp of the newest copied record to its commit on the target.")
LAG_RECORDS: Final = _metrics.gauge("lag_records", "Source offsets that are committed and not copied yet.", *PARTITION)
LAG_SECONDS: Final = _metrics.gauge("lag_seconds", "Age of the newest copied record, 0 while no record waits.", *PARTITION)
GROUPS_TRANSLATED: Final = _metrics.gauge("translated_groups", "Consumer groups whose offsets were set on the target in the last pass of --translate-groups.")
GROUPS_WITH_MEMBERS: Final = _metrics.gauge("translated_groups_with_members", "Consumer groups that were skipped in the last pass, because they have members on the target.")
GROUP_OFFSETS_SET: Final = _metrics.counter("group_offsets_set_total", "Offsets of consumer groups that were set on the target.")
MAPS_STORED: Final = _metrics.counter("offset_maps_stored_total", "Writes of a partition's offset map to the archive's store.")
OFFSET_SYNC_FAILURES: Final = _metrics.counter("offset_sync_failures_total", "Passes in which groups could not be set, or the offset map could not be read or stored.")
OFFSETS_SYNCED: Final = _metrics.gauge("last_offset_sync_timestamp_seconds", "End of the last pass that set group offsets and stored the offset map, in seconds since 1970; 0 before the first.")
# fmt: on

MIRROR_METRICS: Final = _metrics.declared
"""All of the above, in order."""
