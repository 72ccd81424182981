"""Prometheus metrics of a `TieredConsumer`, for applications that export them."""

import threading
import weakref
from typing import Final

from prometheus_client import CollectorRegistry

from sidetier.consumer.partition import Source
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry import catalogue, consumer_catalogue
from sidetier.telemetry.instruments import counter, histogram

_shared: Final[weakref.WeakKeyDictionary[CollectorRegistry, "ConsumerMetrics"]] = (
    weakref.WeakKeyDictionary()
)
_guard: Final = threading.Lock()


class ConsumerMetrics:
    """All metrics of one registry. Methods are cheap, thread-safe, and never raise.

    Also implements `RequestObserver` of the storage layer and `ReadingObserver` of the archive
    reader.

    Args:
        registry: registry that the metrics are registered in. A registry accepts each metric name
            once, so consumers that share a registry share this object; see `metrics_of`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._records = counter(consumer_catalogue.RECORDS, registry)
        self._bytes = counter(consumer_catalogue.BYTES, registry)
        self._switches = counter(consumer_catalogue.SWITCHES, registry)
        self._misses = counter(consumer_catalogue.MISSES, registry)
        self._resets = counter(consumer_catalogue.RESETS, registry)
        self._clients_replaced = counter(consumer_catalogue.CLIENTS_REPLACED, registry)
        self._gaps = counter(consumer_catalogue.SKIPPED_OFFSETS, registry)
        self._prefetch = counter(consumer_catalogue.PREFETCH, registry)
        self._fetched = counter(consumer_catalogue.FETCHED_BYTES, registry)
        self._fallbacks = counter(consumer_catalogue.FALLBACKS, registry)
        self._retries = counter(catalogue.RETRIES, registry)
        self._requests = histogram(catalogue.REQUEST_SECONDS, registry)
        # Create each labelled series now: they are exported as 0 before the first event.
        for source in (Source.KAFKA, Source.STORE):
            for by_source in (self._records, self._bytes, self._switches, self._misses):
                by_source.labels(source.value)
        for outcome in ("hit", "miss"):
            self._prefetch.labels(outcome)

    def handed_out(self, source: Source, records: int, size: int) -> None:
        """Count records returned to the application, and the bytes of their values."""
        self._records.labels(source.value).inc(records)
        self._bytes.labels(source.value).inc(size)

    def switched(self, to: Source) -> None:
        """Count a partition whose reading continues at the other source."""
        self._switches.labels(to.value).inc()

    def missed(self, source: Source) -> None:
        """Count a source that does not have the next offset of a partition."""
        self._misses.labels(source.value).inc()

    def reset(self) -> None:
        """Count an offset that was replaced according to `auto.offset.reset`."""
        self._resets.inc()

    def client_replaced(self) -> None:
        """Count a Kafka client that was silent after a topic was created again."""
        self._clients_replaced.inc()

    def gap(self, offsets: int) -> None:
        """Count skipped offsets that neither Kafka nor the store has."""
        self._gaps.inc(offsets)

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """Observe the duration by operation and outcome."""
        self._requests.labels(operation, outcome).observe(seconds)

    def retry(self, operation: str, kind: str) -> None:
        """Count by operation and kind."""
        self._retries.labels(operation, kind).inc()

    def fetched(self, tp: TopicPartition, size: int) -> None:
        """Count the bytes of all partitions together."""
        del tp
        self._fetched.inc(size)

    def decoded(self, tp: TopicPartition, records: int) -> None:
        """Ignored: `handed_out` counts records when they are returned."""

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:
        """Count hits and misses of all partitions together."""
        del tp
        self._prefetch.labels("hit" if hit else "miss").inc()

    def fell_back(self, key: str, reason: str) -> None:
        """Count without key and reason, which would need a label each."""
        del key, reason
        self._fallbacks.inc()


def metrics_of(registry: CollectorRegistry | None) -> ConsumerMetrics:
    """Return the metrics of a registry, shared by all consumers that use this registry.

    Without a registry, return new metrics in a private registry.
    """
    if registry is None:
        return ConsumerMetrics(CollectorRegistry())
    with _guard:
        metrics = _shared.get(registry)
        if metrics is None:
            metrics = _shared[registry] = ConsumerMetrics(registry)
        return metrics
