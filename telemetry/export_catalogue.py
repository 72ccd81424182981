"""All metrics of an export by name. `--metrics-file` writes them after each round."""

from typing import Final

from sidetier.telemetry.catalogue import PREFIX, Kind, Metric

_PREFIX: Final = PREFIX + "export_"

HELD_BACK: Final = Metric(
    _PREFIX + "held_back_partitions",
    Kind.GAUGE,
    "Partitions that the export cannot take farther now: archive_behind (the archive ends below "
    "what was exported) or open_transaction.",
    ("topic", "cause"),
)
OPEN_TRANSACTION: Final = Metric(
    _PREFIX + "open_transaction_seconds",
    Kind.GAUGE,
    "Age of the open transaction at the last stable offset, at which the export of a partition "
    "waits; above transaction.max.timeout.ms (900 s by default) it may hang.",
    ("topic", "partition"),
)
FAILED_TOPICS: Final = Metric(
    _PREFIX + "failed_topics",
    Kind.GAUGE,
    "Topics of the export that have failed and are left out; more than 0 needs an operator.",
)
LAST_ROUND: Final = Metric(
    _PREFIX + "last_round_timestamp_seconds",
    Kind.GAUGE,
    "When the last round of the export ended, in seconds since 1970.",
)

EXPORT_METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All of the above, in order."""
