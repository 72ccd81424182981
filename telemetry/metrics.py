"""What the daemon calls when something happened; gauges come from its status when scraped."""

import platform
import threading
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sidetier import __version__
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry import catalogue
from sidetier.telemetry.catalogue import Metric
from sidetier.telemetry.partition_series import PartitionTotals, status_families, total_families
from sidetier.telemetry.status import StatusSource

Stage = Literal["high_watermark", "queueing", "uploading", "committing"]
STAGES: Final[tuple[Stage, ...]] = ("high_watermark", "queueing", "uploading", "committing")
CHANGES: Final = ("gained", "lost", "renewed")


class Metrics(Collector):
    """Every metric. Methods are cheap, may be called from any thread, and never raise.

    Args:
        registry: Where the metrics are registered; one `Metrics` per registry.
        max_partition_series: With more partitions the labels topic and partition are dropped.
    """

    def __init__(self, registry: CollectorRegistry, max_partition_series: int = 5000) -> None:
        self._max_series = max_partition_series
        self._source: StatusSource | None = None
        self._lock = threading.Lock()
        self._totals: dict[TopicPartition, PartitionTotals] = {}
        self._forgotten = PartitionTotals()
        self._upload_seconds = _histogram(catalogue.UPLOAD_SECONDS, registry)
        self._roll_to_stored = _histogram(catalogue.ROLL_TO_STORED, registry)
        self._stages = _histogram(catalogue.STAGE_SECONDS, registry)
        self._requests = _histogram(catalogue.REQUEST_SECONDS, registry)
        self._retries = _counter(catalogue.RETRIES, registry)
        self._errors = _counter(catalogue.ERRORS, registry)
        self._unexpected = _counter(catalogue.UNEXPECTED_ERRORS, registry)
        self._changes = _counter(catalogue.LEADERSHIP_CHANGES, registry)
        self._conflicts = _counter(catalogue.CONFLICTS, registry)
        self._rescued = _counter(catalogue.RESCUED, registry)
        self._quarantines = _counter(catalogue.QUARANTINES, registry)
        self._takeovers = _counter(catalogue.TAKEOVERS, registry)
        self._left_out = _counter(catalogue.LEFT_OUT_FILES, registry)
        self._throttled = _counter(catalogue.THROTTLED_SECONDS, registry)
        self._watcher_restarts = _counter(catalogue.WATCHER_RESTARTS, registry)
        self._watcher_overflows = _counter(catalogue.WATCHER_OVERFLOWS, registry)
        self._prepare(registry)

    def _prepare(self, registry: CollectorRegistry) -> None:
        """Series whose labels are known stand at zero from the start, so that rates work."""
        for stage in STAGES:
            self._stages.labels(stage)
        for change in CHANGES:
            self._changes.labels(change)
        for kind in (FileKind.TXNINDEX, FileKind.SNAPSHOT):
            self._left_out.labels(kind.value.removeprefix("."))
        build = catalogue.BUILD_INFO
        info = Gauge(build.name, build.help, build.labels, registry=registry)
        info.labels(__version__, platform.python_version()).set(1)
        registry.register(self)

    def observe_status(self, source: StatusSource) -> None:
        """Read the gauges from this source at each scrape."""
        self._source = source

    def segment_uploaded(self, tp: TopicPartition, size: int, seconds: float) -> None:
        """A segment with its indexes, `size` bytes in all, is on the store."""
        self._upload_seconds.observe(seconds)
        self._add(tp, PartitionTotals(segments=1, size=size))

    def rolled_to_stored(self, seconds: float) -> None:
        """A watermark that covers a segment was written this long after the roll."""
        self._roll_to_stored.observe(seconds)

    def stage_seconds(self, stage: Stage, seconds: float) -> None:
        """A segment spent this long at one stage of its way."""
        self._stages.labels(stage).observe(seconds)

    def gap(self, tp: TopicPartition, records: int) -> None:
        """Offsets were gone before they were stored."""
        self._add(tp, PartitionTotals(gap_records=records))

    def error(self, kind: str) -> None:
        """An error; `kind` is the name of its class."""
        self._errors.labels(kind).inc()

    def unexpected_error(self, kind: str) -> None:
        """An error that no handler expects; `kind` is the name of its class."""
        self._unexpected.labels(kind).inc()

    def retry(self, operation: str, kind: str) -> None:
        """A request to the store is tried again after an error of this kind."""
        self._retries.labels(operation, kind).inc()

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """One attempt of one request to the store: `ok`, or the kind of its error."""
        self._requests.labels(operation, outcome).observe(seconds)

    def leadership_changed(self, gained: int = 0, lost: int = 0, renewed: int = 0) -> None:
        """This many partitions changed hands."""
        for change, number in zip(CHANGES, (gained, lost, renewed), strict=True):
            if number:
                self._changes.labels(change).inc(number)

    def conflict(self) -> None:
        """A conditional write was refused because another writer had been there."""
        self._conflicts.inc()

    def rescued(self, segments: int) -> None:
        """A follower has stored this many segments in the leader's place."""
        self._rescued.inc(segments)

    def quarantine(self) -> None:
        """Stored objects were set aside."""
        self._quarantines.inc()

    def taken_over(self) -> None:
        """An archive of Pinterest's uploader is ours from now on."""
        self._takeovers.inc()

    def left_out(self, kind: FileKind) -> None:
        """A file of a segment could not be stored with it."""
        self._left_out.labels(kind.value.removeprefix(".")).inc()

    def throttled(self, seconds: float) -> None:
        """An upload waited for the bandwidth cap."""
        self._throttled.inc(max(seconds, 0.0))

    def watcher_restarted(self) -> None:
        """The watcher of the log dirs had died, and was started again."""
        self._watcher_restarts.inc()

    def watcher_overflowed(self) -> None:
        """The kernel dropped file events, since they were not read in time."""
        self._watcher_overflows.inc()

    def forget(self, tp: TopicPartition) -> None:
        """The lead is lost: the partition's own series end."""
        with self._lock:
            totals = self._totals.pop(tp, None)
            if totals is not None:
                self._forgotten.add(totals)

    def _add(self, tp: TopicPartition, more: PartitionTotals) -> None:
        with self._lock:
            self._totals.setdefault(tp, PartitionTotals()).add(more)

    def collect(self) -> Iterator[Family]:
        """Called by the registry at each scrape."""
        with self._lock:
            yield from list(total_families(self._totals, self._forgotten, self._max_series))
        if self._source is not None:
            yield from status_families(self._source.snapshot(), self._max_series)

    def describe(self) -> Iterable[Family]:
        """Nothing: the registry need not call `collect` to learn the names."""
        return []


class LabelledRegistry(CollectorRegistry):
    """Adds `labels` to every series: an alert must say of which cluster and broker it is."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: dict[str, str] = {}

    def collect(self) -> Iterable[Family]:
        """Every family of every collector, made anew at each call."""
        for family in super().collect():
            family.samples = [
                sample._replace(labels={**self.labels, **sample.labels})
                for sample in family.samples
            ]
            yield family

    def restricted_registry(self, names: Iterable[str]) -> "LabelledRegistry":  # type: ignore[override]
        """All of it: `?name[]=` of prometheus_client's application knows no other labels."""
        del names
        return self


def create_registry() -> LabelledRegistry:
    """A registry with the process's own memory, CPU time and open files."""
    # Creation times would be a second series beside each counter and histogram, of no use to us.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = LabelledRegistry()
    ProcessCollector(registry=registry)
    return registry


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets
    )
