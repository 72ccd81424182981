"""Metrics of one run of `sidetier gc`, for the textfile collector of node exporter."""

from collections import Counter
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from sidetier.cli.gc.results import GcResult
from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry import gc_catalogue
from sidetier.telemetry.catalogue import Metric


def write_metrics(path: Path, result: GcResult) -> None:
    """Replace the file atomically: a collector reads the old or the new one.

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
    for row in result.rows:
        totals[gc_catalogue.DELETED_SEGMENTS][row.topic] += row.segments
        totals[gc_catalogue.DELETED_BYTES][row.topic] += row.size_bytes
        totals[gc_catalogue.BLOCKED_PARTITIONS][row.topic] += row.blocked
        totals[gc_catalogue.FAILED_PARTITIONS][row.topic] += row.problem is not None
    for metric, by_topic in totals.items():
        gauge = _gauge(metric, registry)
        for topic, total in by_topic.items():
            gauge.labels(topic).set(total)
    _gauge(gc_catalogue.LAST_RUN, registry).set_to_current_time()
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics-file {path}: cannot be written: {error}") from None


def _gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)
