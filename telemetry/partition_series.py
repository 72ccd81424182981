"""Series per partition, created at each scrape.

Nothing is kept for an idle partition. 10,000 labelled children of prometheus-client would take tens
of megabytes; the status snapshot exists anyway, so only the scrape takes time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry import catalogue
from sidetier.telemetry.catalogue import Above, Kind, Metric
from sidetier.telemetry.status import PartitionState, PartitionStatus, Role, StatusSnapshot


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
        yield _family(metric, [] if value is None else [((), float(value))])
    yield _family(catalogue.READY_CONDITION, list(_conditions(snapshot)))
    taken = snapshot.cluster_snapshots
    ages = [((item.kind,), item.age_seconds) for item in taken]
    yield _family(catalogue.CLUSTER_SNAPSHOT_AGE, ages)
    problems = [((item.kind,), float(item.problem is not None)) for item in taken]
    yield _family(catalogue.CLUSTER_SNAPSHOT_PROBLEM, problems)
    counts = Counter(status.state for status in snapshot.partitions if _is_led(status))
    yield _family(
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

    Without labels, partitions that this broker does not lead any more are still counted.
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
        return _family(metric, rows)
    reduce = _REDUCERS.get(metric.above or Above.NONE)
    if reduce is None or not rows:
        return _family(metric, [], labelled=False)
    return _family(metric, [((), reduce(value for _, value in rows))], labelled=False)


def _family(
    metric: Metric, rows: Iterable[tuple[tuple[str, ...], float]], *, labelled: bool = True
) -> Family:
    create = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = create(metric.name, metric.help, labels=metric.labels if labelled else ())
    for labels, value in rows:
        family.add_metric(labels, value)
    return family
