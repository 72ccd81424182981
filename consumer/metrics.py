"""What a `TieredConsumer` counts, for applications that want it."""

import threading
import weakref
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from sidetier.consumer.client.partition import Source
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry import catalogue, consumer_catalogue
from sidetier.telemetry.catalogue import Metric

_shared: Final[weakref.WeakKeyDictionary[CollectorRegistry, "ConsumerMetrics"]] = (
    weakref.WeakKeyDictionary()
)
_guard: Final = threading.Lock()


class ConsumerMetrics:
    """Every metric. Methods are cheap, may be called from any thread, and never raise.

    Also a `RequestObserver` of the storage layer, and a `ReadingObserver` of the archive reader.

    Args:
        registry: one `ConsumerMetrics` per registry; see `metrics_of`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._records = _counter(consumer_catalogue.RECORDS, registry)
        self._bytes = _counter(consumer_catalogue.BYTES, registry)
        self._switches = _counter(consumer_catalogue.SWITCHES, registry)
        self._misses = _counter(consumer_catalogue.MISSES, registry)
        self._resets = _counter(consumer_catalogue.RESETS, registry)
        self._gaps = _counter(consumer_catalogue.SKIPPED_OFFSETS, registry)
        self._prefetch = _counter(consumer_catalogue.PREFETCH, registry)
        self._fetched = _counter(consumer_catalogue.FETCHED_BYTES, registry)
        self._fallbacks = _counter(consumer_catalogue.FALLBACKS, registry)
        self._retries = _counter(catalogue.RETRIES, registry)
        seconds = catalogue.REQUEST_SECONDS
        self._requests = Histogram(
            seconds.name, seconds.help, seconds.labels, registry=registry, buckets=seconds.buckets
        )
        for source in (Source.KAFKA, Source.STORE):
            for counter in (self._records, self._bytes, self._switches, self._misses):
                counter.labels(source.value)
        for outcome in ("hit", "miss"):
            self._prefetch.labels(outcome)

    def handed_out(self, source: Source, records: int, size: int) -> None:
        """So many records with so many bytes of values were handed out."""
        self._records.labels(source.value).inc(records)
        self._bytes.labels(source.value).inc(size)

    def switched(self, to: Source) -> None:
        """A partition goes on at the other source."""
        self._switches.labels(to.value).inc()

    def missed(self, source: Source) -> None:
        """A source does not have the next offset."""
        self._misses.labels(source.value).inc()

    def reset(self) -> None:
        """An offset was given up by auto.offset.reset."""
        self._resets.inc()

    def gap(self, offsets: int) -> None:
        """So many offsets are nowhere, and were stepped over."""
        self._gaps.inc(offsets)

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """See `RequestObserver`."""
        self._requests.labels(operation, outcome).observe(seconds)

    def retry(self, operation: str, kind: str) -> None:
        """See `RequestObserver`."""
        self._retries.labels(operation, kind).inc()

    def fetched(self, tp: TopicPartition, size: int) -> None:
        """See `ReadingObserver`."""
        del tp
        self._fetched.inc(size)

    def decoded(self, tp: TopicPartition, records: int) -> None:
        """See `ReadingObserver`; what is handed out is counted where it is."""

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:
        """See `ReadingObserver`."""
        del tp
        self._prefetch.labels("hit" if hit else "miss").inc()

    def fell_back(self, key: str, reason: str) -> None:
        """See `ReadingObserver`."""
        del key, reason
        self._fallbacks.inc()


def metrics_of(registry: CollectorRegistry | None) -> ConsumerMetrics:
    """The metrics in a registry, one for all consumers that share it; a private one without."""
    if registry is None:
        return ConsumerMetrics(CollectorRegistry())
    with _guard:
        found = _shared.get(registry)
        if found is None:
            found = _shared[registry] = ConsumerMetrics(registry)
        return found


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)
