"""All metrics of `sidetier gc` by name. `--metrics-file` writes them at the end of a run."""

from typing import Final

from sidetier.telemetry.catalogue import PREFIX, Kind, Metric

_PREFIX: Final = PREFIX + "gc_"

DELETED_SEGMENTS: Final = Metric(
    _PREFIX + "deleted_segments",
    Kind.GAUGE,
    "Segments past their retention that the last run deleted from the store.",
    ("topic",),
)
DELETED_BYTES: Final = Metric(
    _PREFIX + "deleted_bytes",
    Kind.GAUGE,
    "Bytes of all objects that the last run deleted from the store.",
    ("topic",),
)
BLOCKED_PARTITIONS: Final = Metric(
    _PREFIX + "blocked_partitions",
    Kind.GAUGE,
    "Partitions from which the last run deleted nothing, because the progress of a consumer is "
    "unknown, or because of the state of the archive.",
    ("topic",),
)
FAILED_PARTITIONS: Final = Metric(
    _PREFIX + "failed_partitions",
    Kind.GAUGE,
    "Partitions in which the last run failed; the next run continues there.",
    ("topic",),
)
LAST_RUN: Final = Metric(
    _PREFIX + "last_run_timestamp_seconds",
    Kind.GAUGE,
    "End of the last run, in seconds since 1970.",
)

GC_METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All of the above, in order."""
