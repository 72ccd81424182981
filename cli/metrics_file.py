"""Metrics of a command that ends, as a file for the textfile collector of node exporter."""

from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry.catalogue import Metric


def gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    """Return a new gauge with the name, help and labels of the metric."""
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def write_metrics_file(path: Path, registry: CollectorRegistry) -> None:
    """Replace the file of `--metrics-file` atomically: a collector reads the old or the new one.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics-file {path}: cannot be written: {error}") from None
