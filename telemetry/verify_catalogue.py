"""All metrics of `sidetier verify` by name. `--metrics-file` writes them at the end of a run."""

from typing import Final

from sidetier.telemetry.catalogue import PREFIX, Kind, Metric

_PREFIX: Final = PREFIX + "verify_"
_CLUSTER: Final = ("cluster",)

FINDINGS: Final = Metric(
    _PREFIX + "findings",
    Kind.GAUGE,
    "Findings of the last run, by severity and kind.",
    ("cluster", "severity", "kind"),
)
UNREAD: Final = Metric(
    _PREFIX + "unread",
    Kind.GAUGE,
    "Partitions and objects that the last run could not read.",
    _CLUSTER,
)
PARTITIONS: Final = Metric(
    _PREFIX + "partitions", Kind.GAUGE, "Partitions that the last run has checked.", _CLUSTER
)
SEGMENTS: Final = Metric(
    _PREFIX + "segments",
    Kind.GAUGE,
    "Segments that the last run has read; 0 without --deep and --local.",
    _CLUSTER,
)
READ_BYTES: Final = Metric(
    _PREFIX + "read_bytes", Kind.GAUGE, "Bytes of the `.log` objects of these segments.", _CLUSTER
)
DURATION: Final = Metric(
    _PREFIX + "duration_seconds", Kind.GAUGE, "Duration of the last run, in seconds.", _CLUSTER
)
COMPLETED: Final = Metric(
    _PREFIX + "last_completed_timestamp_seconds",
    Kind.GAUGE,
    "End of the last run that was not interrupted, in seconds since 1970; 0 if there was none.",
    _CLUSTER,
)

VERIFY_METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All of the above, in order."""
