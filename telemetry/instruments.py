"""The objects of prometheus-client for the metrics of a catalogue."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from sidetier.telemetry.catalogue import Kind, Metric


def counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    """Return a new counter in the registry."""
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def total_of(counted: Counter) -> int:
    """Return the value of a counter of whole things, summed over its labels."""
    samples = (sample for family in counted.collect() for sample in family.samples)
    return round(sum(sample.value for sample in samples if sample.name.endswith("_total")))


def gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    """Return a new gauge in the registry."""
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    """Return a new histogram in the registry."""
    return Histogram(
        metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets
    )


def family(
    metric: Metric, rows: Iterable[tuple[tuple[str, ...], float]], *, labelled: bool = True
) -> CounterMetricFamily | GaugeMetricFamily:
    """Return the series of one scrape.

    Args:
        metric: A counter or a gauge.
        rows: The labels and the value of each series.
        labelled: False to leave the names of the labels out; then `rows` have none.
    """
    create = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    result = create(metric.name, metric.help, labels=metric.labels if labelled else ())
    for labels, value in rows:
        result.add_metric(labels, value)
    return result
