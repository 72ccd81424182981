"""Metrics of an export in a file, for the textfile collector of Prometheus' node exporter."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from sidetier.pipeline.export.held_back import HeldBack
from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry import export_catalogue
from sidetier.telemetry.catalogue import Metric


def write_metrics(path: Path, held_back: Iterable[HeldBack], failed_topics: int) -> None:
    """Replace the file, whole: a collector reads the old or the new one.

    Raises:
        ConfigurationError: it cannot be written.
    """
    registry = CollectorRegistry()
    found = list(held_back)
    partitions = _gauge(export_catalogue.HELD_BACK, registry)
    for (topic, cause), count in Counter((one.tp.topic, one.cause) for one in found).items():
        partitions.labels(topic, cause.value).set(count)
    ages = _gauge(export_catalogue.OPEN_TRANSACTION, registry)
    for one in found:
        if one.age_s is not None:
            ages.labels(one.tp.topic, one.tp.partition).set(one.age_s)
    _gauge(export_catalogue.FAILED_TOPICS, registry).set(failed_topics)
    _gauge(export_catalogue.LAST_ROUND, registry).set_to_current_time()
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics-file {path}: cannot be written: {error}") from None


def _gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)
