"""Metrics of one run of `sidetier gc`, for the textfile collector of node exporter."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from sidetier.archive.gc.run import RetentionReport
from sidetier.cli.metrics_file import write_metrics_file
from sidetier.telemetry import gc_catalogue
from sidetier.telemetry.instruments import gauge

if TYPE_CHECKING:
    from sidetier.telemetry.catalogue import Metric


def write_metrics(path: Path, report: RetentionReport) -> None:
    """Write the metrics of the run.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    registry = CollectorRegistry()
    totals: dict[Metric, Counter[str]] = {
        gc_catalogue.DELETED_SEGMENTS: Counter(),
        gc_catalogue.DELETED_BYTES: Counter(),
        gc_catalogue.BLOCKED_PARTITIONS: Counter(),
        gc_catalogue.FAILED_PARTITIONS: Counter(),
    }
    for row in report.rows:
        totals[gc_catalogue.DELETED_SEGMENTS][row.topic] += row.segments
        totals[gc_catalogue.DELETED_BYTES][row.topic] += row.size_bytes
        totals[gc_catalogue.BLOCKED_PARTITIONS][row.topic] += row.blocked
        totals[gc_catalogue.FAILED_PARTITIONS][row.topic] += row.problem is not None
    for metric, by_topic in totals.items():
        series = gauge(metric, registry)
        for topic, total in by_topic.items():
            series.labels(topic).set(total)
    gauge(gc_catalogue.LAST_RUN, registry).set_to_current_time()
    write_metrics_file(path, registry)
