"""All metrics of an export by name. `--metrics-file` writes them after each run."""

from typing import Final

from sidetier.telemetry.catalogue import PREFIX, Kind, Metric

_PREFIX: Final = PREFIX + "export_"

HELD_BACK: Final = Metric(
    _PREFIX + "held_back_partitions",
    Kind.GAUGE,
    "Partitions that the export cannot continue now: archive_behind (the archive end offset is "
    "below the exported offset) or open_transaction.",
    ("topic", "cause"),
)
OPEN_TRANSACTION: Final = Metric(
    _PREFIX + "open_transaction_seconds",
    Kind.GAUGE,
    "Age of the open transaction at the last stable offset, where the export of the partition "
    "waits. Above transaction.max.timeout.ms (default 900 s), the transaction may hang.",
    ("topic", "partition"),
)
FAILED_TOPICS: Final = Metric(
    _PREFIX + "failed_topics",
    Kind.GAUGE,
    "Topics of the export that failed and are skipped; alert while it is above 0.",
)
LAST_ROUND: Final = Metric(
    _PREFIX + "last_round_timestamp_seconds",
    Kind.GAUGE,
    "End of the last run of the export, in seconds since 1970.",
)

EXPORT_METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All of the above, in order."""
