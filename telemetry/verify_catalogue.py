"""All metrics of `sidetier verify` by name. `--metrics-file` writes them at the end of a run."""

from typing import Final

from sidetier.telemetry.catalogue import Catalogue

_metrics: Final = Catalogue("verify_")

# fmt: off
FINDINGS: Final = _metrics.gauge("findings", "Findings of the last run, by severity and kind.", "cluster", "severity", "kind")
UNREAD: Final = _metrics.gauge("unread", "Partitions and objects that the last run could not read.", "cluster")
PARTITIONS: Final = _metrics.gauge("partitions", "Partitions that the last run has checked.", "cluster")
SEGMENTS: Final = _metrics.gauge("segments", "Segments that the last run has read; 0 without --deep and --local.", "cluster")
READ_BYTES: Final = _metrics.gauge("read_bytes", "Bytes of the `.log` objects of these segments.", "cluster")
DURATION: Final = _metrics.gauge("duration_seconds", "Duration of the last run, in seconds.", "cluster")
COMPLETED: Final = _metrics.gauge("last_completed_timestamp_seconds", "End of the last run that was not interrupted, in seconds since 1970; 0 if there was none.", "cluster")
# fmt: on

VERIFY_METRICS: Final = _metrics.declared
"""All of the above, in order."""
