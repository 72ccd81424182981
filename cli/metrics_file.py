"""Metrics of a command that ends, as a file for the textfile collector of node exporter."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry.catalogue import Metric
from sidetier.telemetry.instruments import gauge


def previous_value(path: Path, metric: Metric, labels: Mapping[str, str]) -> float | None:
    """Return a sample of the file that an earlier run has written; None if it has none.

    A file that cannot be read, or that is not in Prometheus' text format, has none.
    """
    try:
        families = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, IndexError):  # the parser has no error of its own
        return None
    return next(
        (
            sample.value
            for family in families
            for sample in family.samples
            if (sample.name, sample.labels) == (metric.name, labels)
        ),
        None,
    )


def write_metrics_file(
    path: Path, series: Mapping[Metric, Iterable[tuple[tuple[object, ...], float]]]
) -> None:
    """Replace the file of `--metrics-file` atomically; raises ConfigurationError if it cannot.

    `series` has the values of the labels and the value of each sample.
    """
    registry = CollectorRegistry()
    for metric, samples in series.items():
        made = gauge(metric, registry)
        for labels, value in samples:
            (made.labels(*labels) if labels else made).set(value)
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics-file {path}: cannot be written: {error}") from None
