"""The page of the documentation that is made from the catalogue of metrics."""

from typing import Final

from sidetier.telemetry.catalogue import METRICS, Metric

_INTRODUCTION: Final = """\
# Metrics

This page is made from `telemetry/catalogue.py` by `make docs`.

`GET /metrics` on `http.port` (9108) answers in the Prometheus text format, or OpenMetrics where it
is asked for. Beside the metrics below there are those of the process, such as
`process_resident_memory_bytes`.

Series with the labels `topic` and `partition` exist for the partitions that this broker leads. With
more of them than `http.max_partition_series` the two labels are dropped, and the last column says
how the values become one.

| metric | type | labels | above the cap | |
|---|---|---|---|---|
"""

_ALARMS: Final = """
## What to alarm on

- `increase(sidetier_gap_records_total[5m]) > 0`: records were gone before they were stored.
- `sidetier_seconds_until_local_deletion < 600`: the broker will soon delete what is not stored.
- `sidetier_oldest_unstored_segment_age_seconds > 900`: something holds the watermark of a
  partition; `/api/partitions` says what it waits for.
- `increase(sidetier_rescued_segments_total[1h]) > 0`: a follower stores what a leader's sidecar
  does not; that one is dead, cut off or far behind.
- `sidetier_partitions{state="halted"} > 0`: a partition waits for an operator.
- `sidetier_ready == 0` for longer than a restart takes.
"""


def metrics_page() -> str:
    """`docs/metrics.md`."""
    return _INTRODUCTION + "".join(_row(metric) for metric in METRICS) + _ALARMS


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    above = metric.above or ""
    return f"| `{metric.name}` | {metric.kind} | {labels} | {above} | {metric.help} |\n"
