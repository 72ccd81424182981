"""Metrics of the daemon: counters that it increments, and series that each scrape creates.

Nothing is kept for an idle partition. 10,000 labelled children of prometheus-client would take tens
of megabytes; the status snapshot exists anyway, so only the scrape takes time.
"""

import collections
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sidetier import __version__
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry import catalogue
from sidetier.telemetry.catalogue import Above, Metric
from sidetier.telemetry.instruments import counter, family, gauge, histogram
from sidetier.telemetry.status import (
    PartitionState,
    PartitionStatus,
    Role,
    StatusSnapshot,
    StatusSource,
)


@dataclass(slots=True)
class PartitionTotals:
    """Counters of one partition since the start of the sidecar."""

    segments: int = 0
    size: int = 0
    gap_records: int = 0

    def add(self, other: "PartitionTotals") -> None:
        """Add the other object's counts."""
        self.segments += other.segments
        self.size += other.size
        self.gap_records += other.gap_records


_TOTALS: Final[tuple[tuple[Metric, Callable[[PartitionTotals], float]], ...]] = (
    (catalogue.UPLOADED_BYTES, lambda totals: totals.size),
    (catalogue.UPLOADED_SEGMENTS, lambda totals: totals.segments),
    (catalogue.GAP_RECORDS, lambda totals: totals.gap_records),
)
_STATES: Final[tuple[tuple[Metric, Callable[[PartitionStatus], float | None]], ...]] = (
    (catalogue.LAG_BYTES, lambda status: status.unstored_bytes),
    (catalogue.LAG_SEGMENTS, lambda status: status.unstored_segments),
    (catalogue.OLDEST_AGE, lambda status: status.oldest_unstored_age_seconds or 0.0),
    (catalogue.LOG_END, lambda status: status.log_end),
    (catalogue.UNARCHIVED_RECORDS, lambda status: status.unarchived_records),
    (catalogue.UNARCHIVED_BYTES, lambda status: status.unarchived_bytes),
    (
        catalogue.UNARCHIVED_AGE,
        lambda status: (
            None if status.unarchived_records is None else status.unarchived_age_seconds or 0.0
        ),
    ),
    (catalogue.UNRESOLVED_GAPS, lambda status: status.unresolved_gap_records),
    (catalogue.UNRESOLVED_QUARANTINES, lambda status: status.unresolved_quarantines),
    (catalogue.UNTIL_DELETION, lambda status: status.seconds_until_local_deletion),
    (catalogue.WATERMARK_BASE, lambda status: status.watermark_base),
    (catalogue.WATERMARK_NEXT, lambda status: status.next_offset),
    (catalogue.SAFE_TO, lambda status: status.safe_to),
    (catalogue.NEWEST_SAFE_AGE, lambda status: status.newest_safe_age_seconds),
    (catalogue.UNSAFE_SECONDS, lambda status: status.unsafe_age_seconds),
)
_REDUCERS: Final[Mapping[Above, Callable[[Iterable[float]], float]]] = {
    Above.SUM: sum,
    Above.MAX: max,
    Above.MIN: min,
}


def _is_led(status: PartitionStatus) -> bool:
    return status.role is Role.LEADER


def _last_successful_drill(snapshot: StatusSnapshot) -> float | None:
    """Return None if no drill is recorded, so that clusters without drills get no alert."""
    drill = snapshot.last_drill
    return None if drill is None else (drill.last_successful_ms or 0) / 1000


_TOTAL_GAUGES: Final[tuple[tuple[Metric, Callable[[StatusSnapshot], float | None]], ...]] = (
    (catalogue.LEADER_PARTITIONS, lambda snapshot: sum(map(_is_led, snapshot.partitions))),
    (catalogue.FOLLOWED_PARTITIONS, lambda snapshot: snapshot.followed_partitions),
    (catalogue.FOLLOWED_PINNED, lambda snapshot: snapshot.followed_pinned_segments),
    (catalogue.LOG_DIR_PROBLEMS, lambda snapshot: len(snapshot.log_dir_problems)),
    (catalogue.QUEUE_SEGMENTS, lambda snapshot: snapshot.queued_segments),
    (catalogue.QUEUE_BYTES, lambda snapshot: snapshot.queued_bytes),
    (catalogue.UPLOADING, lambda snapshot: snapshot.uploading_segments),
    (catalogue.HUNG_REQUESTS, lambda snapshot: snapshot.hung_requests),
    (catalogue.PINNED_FILES, lambda snapshot: snapshot.pinned_files),
    (catalogue.PINNED_BYTES, lambda snapshot: snapshot.pinned_bytes),
    (catalogue.PINNED_DELETED, lambda snapshot: snapshot.pinned_deleted_bytes),
    (catalogue.LAST_SUCCESSFUL_DRILL, _last_successful_drill),
    (catalogue.READY, lambda snapshot: snapshot.ready),
)


def status_families(snapshot: StatusSnapshot, max_series: int) -> Iterator[Family]:
    """Yield the gauges of a snapshot."""
    for metric, total in _TOTAL_GAUGES:
        value = total(snapshot)
        yield family(metric, [] if value is None else [((), float(value))])
    yield family(catalogue.READY_CONDITION, list(_conditions(snapshot)))
    taken = snapshot.cluster_snapshots
    ages = [((item.kind,), item.age_seconds) for item in taken]
    yield family(catalogue.CLUSTER_SNAPSHOT_AGE, ages)
    problems = [((item.kind,), float(item.problem is not None)) for item in taken]
    yield family(catalogue.CLUSTER_SNAPSHOT_PROBLEM, problems)
    excess = [
        ((item.topic, item.reason), float(item.size_bytes)) for item in snapshot.local_retention
    ]
    yield family(catalogue.TRIM_EXCESS, excess)
    counts = collections.Counter(status.state for status in snapshot.partitions if _is_led(status))
    yield family(
        catalogue.PARTITIONS, [((state.value,), float(counts[state])) for state in PartitionState]
    )
    labelled = len(snapshot.partitions) <= max_series
    led = filter(_is_led, snapshot.partitions)
    states = [((item.topic, str(item.partition), item.state.value), 1.0) for item in led]
    yield _partition_family(catalogue.PARTITION_STATE, states, labelled=labelled)
    for metric, of in _STATES:
        rows = [
            ((status.topic, str(status.partition)), float(number))
            for status in snapshot.partitions
            if (number := of(status)) is not None
        ]
        yield _partition_family(metric, rows, labelled=labelled)


def _conditions(snapshot: StatusSnapshot) -> Iterator[tuple[tuple[str], float]]:
    for condition in snapshot.conditions:
        yield (condition.name.replace(" ", "_"),), float(condition.holds)


def total_families(
    totals: Mapping[TopicPartition, PartitionTotals], forgotten: PartitionTotals, max_series: int
) -> Iterator[Family]:
    """Yield the counters per partition.

    Without labels, partitions that this broker no longer leads are still counted.
    """
    labelled = len(totals) <= max_series
    for metric, value in _TOTALS:
        rows = [((tp.topic, str(tp.partition)), float(value(kept))) for tp, kept in totals.items()]
        if not labelled:
            rows.append((("", ""), float(value(forgotten))))
        yield _partition_family(metric, rows, labelled=labelled)


def _partition_family(
    metric: Metric, rows: Sequence[tuple[tuple[str, ...], float]], *, labelled: bool
) -> Family:
    if labelled:
        return family(metric, rows)
    reduce = _REDUCERS.get(metric.above or Above.NONE)
    if reduce is None or not rows:
        return family(metric, [], labelled=False)
    return family(metric, [((), reduce(value for _, value in rows))], labelled=False)


Stage = Literal["high_watermark", "queueing", "uploading", "committing"]
STAGES: Final[tuple[Stage, ...]] = ("high_watermark", "queueing", "uploading", "committing")
CHANGES: Final = ("gained", "lost", "renewed")


class Metrics(Collector):
    """All metrics. Methods are cheap, thread-safe, and never raise.

    Args:
        registry: registry for the metrics; at most one `Metrics` per registry.
        max_partition_series: with more partitions than this, series have no labels topic and
            partition.
    """

    def __init__(self, registry: CollectorRegistry, max_partition_series: int = 5000) -> None:
        self._max_series = max_partition_series
        self._source: StatusSource | None = None
        self._lock = threading.Lock()
        self._totals: dict[TopicPartition, PartitionTotals] = {}
        self._forgotten = PartitionTotals()
        self._upload_seconds = histogram(catalogue.UPLOAD_SECONDS, registry)
        self._roll_to_stored = histogram(catalogue.ROLL_TO_STORED, registry)
        self._stages = histogram(catalogue.STAGE_SECONDS, registry)
        self._requests = histogram(catalogue.REQUEST_SECONDS, registry)
        self._retries = counter(catalogue.RETRIES, registry)
        self._errors = counter(catalogue.ERRORS, registry)
        self._unexpected = counter(catalogue.UNEXPECTED_ERRORS, registry)
        self._changes = counter(catalogue.LEADERSHIP_CHANGES, registry)
        self._conflicts = counter(catalogue.CONFLICTS, registry)
        self._rescued = counter(catalogue.RESCUED, registry)
        self._early = counter(catalogue.EARLY_SEGMENTS, registry)
        self._tail_cycles = histogram(catalogue.TAIL_CYCLE_SECONDS, registry)
        self._tail_packs = counter(catalogue.TAIL_PACKS, registry)
        self._tail_bytes = counter(catalogue.TAIL_BYTES, registry)
        self._tail_failed = counter(catalogue.TAIL_FAILED_PACKS, registry)
        self._tail_refused = counter(catalogue.TAIL_REFUSED, registry)
        self._tail_live_packs = gauge(catalogue.TAIL_LIVE_PACKS, registry)
        self._tail_live_share = gauge(catalogue.TAIL_LIVE_SHARE, registry)
        self._tail_unread = gauge(catalogue.TAIL_UNREAD_PACKS, registry)
        self._tail_unknown = gauge(catalogue.TAIL_UNKNOWN_PARTITIONS, registry)
        self._tail_stale = gauge(catalogue.TAIL_STALE_OFFSETS, registry)
        self._tail_rewritten = counter(catalogue.TAIL_REWRITTEN_BYTES, registry)
        self._tail_deleted = counter(catalogue.TAIL_DELETED_PACKS, registry)
        self._quarantines = counter(catalogue.QUARANTINES, registry)
        self._takeovers = counter(catalogue.TAKEOVERS, registry)
        self._left_out = counter(catalogue.LEFT_OUT_FILES, registry)
        self._throttled = counter(catalogue.THROTTLED_SECONDS, registry)
        self._trimmed = counter(catalogue.TRIMMED_BYTES, registry)
        self._trim_failures = counter(catalogue.TRIM_FAILURES, registry)
        self._watcher_restarts = counter(catalogue.WATCHER_RESTARTS, registry)
        self._watcher_overflows = counter(catalogue.WATCHER_OVERFLOWS, registry)
        self._prepare(registry)

    def _prepare(self, registry: CollectorRegistry) -> None:
        """Create series with known labels at 0, so that `rate` sees their first increase."""
        for stage in STAGES:
            self._stages.labels(stage)
        for change in CHANGES:
            self._changes.labels(change)
        for kind in (FileKind.TXNINDEX, FileKind.SNAPSHOT):
            self._left_out.labels(kind.value.removeprefix("."))
        info = gauge(catalogue.BUILD_INFO, registry)
        info.labels(__version__, platform.python_version()).set(1)
        registry.register(self)

    def observe_status(self, source: StatusSource) -> None:
        """Set the source of the gauges, which each scrape reads."""
        self._source = source

    def segment_uploaded(self, tp: TopicPartition, size: int, seconds: float) -> None:
        """Count a stored segment; `size` is the total of its files, in bytes."""
        self._upload_seconds.observe(seconds)
        self._add(tp, PartitionTotals(segments=1, size=size))

    def rolled_to_stored(self, seconds: float) -> None:
        """Observe the time from the roll of a segment to the write of an `offset.wm` that covers
        it.
        """
        self._roll_to_stored.observe(seconds)

    def stage_seconds(self, stage: Stage, seconds: float) -> None:
        """Observe the time that a segment has spent in one stage."""
        self._stages.labels(stage).observe(seconds)

    def gap(self, tp: TopicPartition, records: int) -> None:
        """Count records that were deleted before they were stored."""
        self._add(tp, PartitionTotals(gap_records=records))

    def error(self, kind: str) -> None:
        """Count an error by the name of its class."""
        self._errors.labels(kind).inc()

    def unexpected_error(self, kind: str) -> None:
        """Count an error that no handler expects, by the name of its class."""
        self._unexpected.labels(kind).inc()

    def retry(self, operation: str, kind: str) -> None:
        """Count a retry of a request to the store, by operation and kind of error."""
        self._retries.labels(operation, kind).inc()

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """Observe one attempt of a request to the store; `outcome` is `ok` or the kind of error."""
        self._requests.labels(operation, outcome).observe(seconds)

    def leadership_changed(self, gained: int = 0, lost: int = 0, renewed: int = 0) -> None:
        """Count partitions whose leadership has changed."""
        for change, number in zip(CHANGES, (gained, lost, renewed), strict=True):
            if number:
                self._changes.labels(change).inc(number)

    def conflict(self) -> None:
        """Count a conditional put that the store refused because of another writer."""
        self._conflicts.inc()

    def rescued(self, segments: int) -> None:
        """Count segments that a follower's sidecar has stored in place of the leader's."""
        self._rescued.inc(segments)

    def stored_early(self) -> None:
        """Count a part of an active segment that was stored before the broker closed it."""
        self._early.inc()

    def tail_cycle(
        self, seconds: float, *, packs: int, size: int, failed: int, refused: int
    ) -> None:
        """Observe a cycle of the tail's writer, and count what it has stored; `size` in bytes."""
        self._tail_cycles.observe(seconds)
        self._tail_packs.inc(packs)
        self._tail_bytes.inc(size)
        self._tail_failed.inc(failed)
        self._tail_refused.inc(refused)

    def tail_cleaned(  # noqa: PLR0913 - one for each metric
        self,
        *,
        live_packs: int,
        live_bytes: int,
        stored_bytes: int,
        rewritten: int,
        deleted: int,
        unread: int,
        unknown: int,
        stale: int,
    ) -> None:
        """Set what a cleaning of tail packs has found, and count what it has done."""
        self._tail_live_packs.set(live_packs)
        self._tail_live_share.set(live_bytes / stored_bytes if stored_bytes else 1.0)
        self._tail_unread.set(unread)
        self._tail_unknown.set(unknown)
        self._tail_stale.set(stale)
        self._tail_rewritten.inc(rewritten)
        self._tail_deleted.inc(deleted)

    def quarantine(self) -> None:
        """Count a move of stored objects into quarantine."""
        self._quarantines.inc()

    def taken_over(self) -> None:
        """Count a takeover of an archive from Pinterest's uploader."""
        self._takeovers.inc()

    def left_out(self, kind: FileKind) -> None:
        """Count a file of a segment that could not be stored with the segment."""
        self._left_out.labels(kind.value.removeprefix(".")).inc()

    def throttled(self, seconds: float) -> None:
        """Count the seconds that an upload has waited for the bandwidth limit."""
        self._throttled.inc(max(seconds, 0.0))

    def trimmed(self, topic: str, size: int) -> None:
        """Count the bytes that local retention has deleted from the broker's log of a topic."""
        self._trimmed.labels(topic).inc(size)

    def trim_failed(self, reason: str) -> None:
        """Count a partition that a pass of local retention could not trim."""
        self._trim_failures.labels(reason).inc()

    def watcher_restarted(self) -> None:
        """Count a restart of the log dirs' watcher after its thread has died."""
        self._watcher_restarts.inc()

    def watcher_overflowed(self) -> None:
        """Count an overflow of the kernel's queue of file events (inotify)."""
        self._watcher_overflows.inc()

    def forget(self, tp: TopicPartition) -> None:
        """Remove the partition's series after this broker has lost its leadership."""
        with self._lock:
            totals = self._totals.pop(tp, None)
            if totals is not None:
                self._forgotten.add(totals)

    def _add(self, tp: TopicPartition, more: PartitionTotals) -> None:
        with self._lock:
            self._totals.setdefault(tp, PartitionTotals()).add(more)

    def collect(self) -> Iterator[Family]:
        """Yield the metrics of partitions and of the status; called at each scrape."""
        with self._lock:
            # Not yielded under the lock: uploads would wait for it while the scrape is written.
            totals = list(total_families(self._totals, self._forgotten, self._max_series))
        yield from totals
        if self._source is not None:
            yield from status_families(self._source.snapshot(), self._max_series)

    def describe(self) -> Iterable[Family]:
        """Return no names, so that the registry does not call `collect` to find them."""
        return []


class LabelledRegistry(CollectorRegistry):
    """Adds `labels` to every series, so that an alert can name the cluster and the broker."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: dict[str, str] = {}

    def collect(self) -> Iterable[Family]:
        """Yield every metric family with the labels, created anew at each call."""
        for collected in super().collect():
            collected.samples = [
                sample._replace(labels={**self.labels, **sample.labels})
                for sample in collected.samples
            ]
            yield collected

    def restricted_registry(self, names: Iterable[str]) -> "LabelledRegistry":  # type: ignore[override]
        """Return the whole registry: the restricted one of prometheus_client would lack the labels.

        Called for `?name[]=` in a scrape's URL.
        """
        del names
        return self


def create_registry() -> LabelledRegistry:
    """Return a registry with memory, CPU time and open files of the process."""
    # Creation times would add an unused series for each counter and histogram.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = LabelledRegistry()
    ProcessCollector(registry=registry)
    return registry
