"""Metrics file of an export, for the textfile collector of Prometheus' node exporter."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from sidetier.pipeline.export.held_back import HeldBack
from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry import export_catalogue
from sidetier.telemetry.catalogue import Metric


def write_metrics(path: Path, held_back: Iterable[HeldBack], failed_topics: int) -> None:
    """Replace the file atomically: a collector reads the old or the new one.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    registry = CollectorRegistry()
    entries = list(held_back)
    partitions = _gauge(export_catalogue.HELD_BACK, registry)
    for (topic, cause), count in Counter(
        (entry.tp.topic, entry.cause) for entry in entries
    ).items():
        partitions.labels(topic, cause.value).set(count)
    ages = _gauge(export_catalogue.OPEN_TRANSACTION, registry)
    for entry in entries:
        if entry.age_s is not None:
            ages.labels(entry.tp.topic, entry.tp.partition).set(entry.age_s)
    _gauge(export_catalogue.FAILED_TOPICS, registry).set(failed_topics)
    _gauge(export_catalogue.LAST_ROUND, registry).set_to_current_time()
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics-file {path}: cannot be written: {error}") from None


def _gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)
