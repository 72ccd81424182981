"""All metrics of an export by name. `--metrics-file` writes them after each run."""

from typing import Final

from sidetier.telemetry.catalogue import PARTITION, Catalogue

_metrics: Final = Catalogue("export_")

# fmt: off
HELD_BACK: Final = _metrics.gauge("held_back_partitions", "Partitions that the export cannot continue now: archive_behind (the archive end offset is below the exported offset) or open_transaction.", "topic", "cause")
OPEN_TRANSACTION: Final = _metrics.gauge("open_transaction_seconds", "Age of the open transaction at the last stable offset, where the export of the partition waits. Above transaction.max.timeout.ms (default 900 s), the transaction may hang.", *PARTITION)
FAILED_TOPICS: Final = _metrics.gauge("failed_topics", "Topics of the export that failed and are skipped; alert while it is above 0.")
LAST_ROUND: Final = _metrics.gauge("last_round_timestamp_seconds", "End of the last run of the export, in seconds since 1970.")
# fmt: on

EXPORT_METRICS: Final = _metrics.declared
"""All of the above, in order."""
