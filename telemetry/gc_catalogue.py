"""All metrics of `sidetier gc` by name. `--metrics-file` writes them at the end of a run."""

from typing import Final

from sidetier.telemetry.catalogue import Catalogue

_metrics: Final = Catalogue("gc_")

# fmt: off
DELETED_SEGMENTS: Final = _metrics.gauge("deleted_segments", "Segments past their retention that the last run deleted from the store.", "topic")
DELETED_BYTES: Final = _metrics.gauge("deleted_bytes", "Bytes of all objects that the last run deleted from the store.", "topic")
BLOCKED_PARTITIONS: Final = _metrics.gauge("blocked_partitions", "Partitions from which the last run deleted nothing, because the progress of a consumer is unknown, or because of the state of the archive.", "topic")
FAILED_PARTITIONS: Final = _metrics.gauge("failed_partitions", "Partitions in which the last run failed; the next run continues there.", "topic")
LAST_RUN: Final = _metrics.gauge("last_run_timestamp_seconds", "End of the last run, in seconds since 1970.")
# fmt: on

GC_METRICS: Final = _metrics.declared
"""All of the above, in order."""
