import threading
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.telemetry.catalogue import METRICS, PREFIX, Kind, Metric
from sidetier.telemetry.metrics import Metrics, create_registry
from sidetier.telemetry.status import (
    ClusterSnapshotStatus,
    Condition,
    DrillStatus,
    LocalRetentionStatus,
    PartitionState,
    PartitionStatus,
    StatusSnapshot,
)

ORDERS = TopicPartition("orders", 0)
PAY = TopicPartition("pay", 3)
Labels = dict[str, str]


class FixedStatus:
    def __init__(self, snapshot: StatusSnapshot) -> None:
        self.now = snapshot

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- the port's
        return self.now


def status(tp: TopicPartition, lag: int = 0, age: float | None = None) -> PartitionStatus:
    return PartitionStatus(
        topic=tp.topic,
        partition=tp.partition,
        state=PartitionState.WAITING if lag else PartitionState.ARCHIVED,
        watermark_base=BaseOffset(100),
        next_offset=Offset(200),
        unstored_segments=lag // 1000,
        unstored_bytes=lag,
        oldest_unstored_age_seconds=age,
        seconds_until_local_deletion=None if age is None else 600.0 - age,
        log_end=Offset(200 + lag),
        unarchived_records=lag,
        unresolved_gap_records=lag // 100,
        unresolved_quarantines=1,
        unarchived_bytes=2 * lag,
        unarchived_age_seconds=None if age is None else age + 10,
        safe_to=Offset(200 + lag),
        newest_safe_age_seconds=5.0,
        unsafe_age_seconds=0.0,
    )


SNAPSHOT = StatusSnapshot(
    cluster="prod-a",
    conditions=(Condition("bootstrapped", holds=True),),
    partitions=(status(ORDERS, 5000, 60.0), status(PAY), status(TopicPartition("t", 1), 1000, 5.0)),
    queued_segments=2,
    queued_bytes=2000,
    uploading_segments=1,
    pinned_files=9,
    pinned_bytes=6000,
    pinned_deleted_bytes=1000,
    cluster_snapshots=(ClusterSnapshotStatus("acls", 60.0, stored=True),),
    local_retention=(LocalRetentionStatus("orders", "group_behind", 7),),
    last_drill=DrillStatus(2_000_500, succeeded=False, last_successful_ms=1_000_500),
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return create_registry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry, max_partition_series=3)


def labels(tp: TopicPartition) -> Labels:
    return {"topic": tp.topic, "partition": str(tp.partition)}


@pytest.mark.parametrize(
    ("happen", "name", "with_labels", "value"),
    [
        (lambda m: m.segment_uploaded(PAY, 70, 1.0), "uploaded_bytes_total", labels(PAY), 70),
        (lambda m: m.segment_uploaded(PAY, 70, 1.0), "uploaded_segments_total", labels(PAY), 1),
        (lambda m: m.segment_uploaded(PAY, 70, 1.5), "upload_seconds_sum", {}, 1.5),
        (lambda m: m.rolled_to_stored(0.5), "roll_to_stored_seconds_bucket", {"le": "0.5"}, 1),
        (
            lambda m: m.stage_seconds("committing", 0.25),
            "stage_seconds_sum",
            {"stage": "committing"},
            0.25,
        ),
        (lambda m: m.gap(PAY, 12), "gap_records_total", labels(PAY), 12),
        (lambda m: m.error("StoreFullError"), "errors_total", {"kind": "StoreFullError"}, 1),
        (
            lambda m: m.retry("put", "StoreTimeoutError"),
            "store_retries_total",
            {"operation": "put", "kind": "StoreTimeoutError"},
            1,
        ),
        (
            lambda m: m.request("put", 0.1, "ok"),
            "store_request_seconds_count",
            {"operation": "put", "outcome": "ok"},
            1,
        ),
        (
            lambda m: m.leadership_changed(gained=3, lost=1),
            "leadership_changes_total",
            {"change": "gained"},
            3,
        ),
        (
            lambda m: m.leadership_changed(gained=3),
            "leadership_changes_total",
            {"change": "renewed"},
            0,
        ),
        (lambda m: m.conflict(), "conflicts_total", {}, 1),
        (lambda m: m.quarantine(), "quarantines_total", {}, 1),
        (lambda m: m.throttled(2.5), "throttled_seconds_total", {}, 2.5),
        (lambda m: m.throttled(-1.0), "throttled_seconds_total", {}, 0),
        (lambda m: m.watcher_restarted(), "watcher_restarts_total", {}, 1),
        (lambda m: m.watcher_overflowed(), "watcher_overflows_total", {}, 1),
    ],
)
def test_events_are_counted(
    happen: Callable[[Metrics], None],
    name: str,
    with_labels: Labels,
    value: float,
    registry: CollectorRegistry,
    metrics: Metrics,
) -> None:
    happen(metrics)
    assert registry.get_sample_value(PREFIX + name, with_labels) == value


@pytest.mark.parametrize(
    ("name", "with_labels", "value"),
    [
        ("remote_copy_lag_bytes", labels(ORDERS), 5000),
        ("remote_copy_lag_segments", labels(ORDERS), 5),
        ("remote_copy_lag_bytes", labels(PAY), 0),
        ("oldest_unstored_segment_age_seconds", labels(ORDERS), 60),
        ("oldest_unstored_segment_age_seconds", labels(PAY), 0),
        ("seconds_until_local_deletion", labels(ORDERS), 540),
        ("seconds_until_local_deletion", labels(PAY), None),
        ("log_end_offset", labels(ORDERS), 5200),
        ("unarchived_records", labels(ORDERS), 5000),
        ("unresolved_gap_records", labels(ORDERS), 50),
        ("last_successful_drill_timestamp_seconds", {}, 1000.5),
        ("unresolved_quarantines", labels(ORDERS), 1),
        ("partition_state", {**labels(ORDERS), "state": "waiting"}, 1),
        ("partition_state", {**labels(ORDERS), "state": "archived"}, None),
        ("partition_state", {**labels(PAY), "state": "archived"}, 1),
        ("unarchived_bytes", labels(ORDERS), 10_000),
        ("oldest_unarchived_record_age_seconds", labels(ORDERS), 70),
        ("oldest_unarchived_record_age_seconds", labels(PAY), 0),
        ("watermark_base_offset", labels(PAY), 100),
        ("watermark_next_offset", labels(PAY), 200),
        ("leader_partitions", {}, 3),
        ("partitions", {"state": "waiting"}, 2),
        ("partitions", {"state": "halted"}, 0),
        ("queue_segments", {}, 2),
        ("queue_bytes", {}, 2000),
        ("uploading_segments", {}, 1),
        ("pinned_files", {}, 9),
        ("pinned_bytes", {}, 6000),
        ("pinned_deleted_bytes", {}, 1000),
        ("ready", {}, 1),
        ("ready_condition", {"condition": "bootstrapped"}, 1),
    ],
)
def test_gauges_are_read_from_the_status(
    name: str,
    with_labels: Labels,
    value: float | None,
    registry: CollectorRegistry,
    metrics: Metrics,
) -> None:
    metrics.observe_status(FixedStatus(SNAPSHOT))
    assert registry.get_sample_value(PREFIX + name, with_labels) == value


@pytest.mark.parametrize("name", ["queue_bytes", "pinned_bytes"])
def test_unknown_number_is_not_exported_as_zero(
    name: str, registry: CollectorRegistry, metrics: Metrics
) -> None:
    metrics.observe_status(FixedStatus(StatusSnapshot(cluster="prod-a")))
    assert registry.get_sample_value(PREFIX + name) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote_copy_lag_bytes", 6000),
        ("oldest_unstored_segment_age_seconds", 60),
        ("seconds_until_local_deletion", 540),
        ("unarchived_records", 6000),
        ("unresolved_gap_records", 60),
        ("unresolved_quarantines", 3),
        ("partition_state", None),
        ("unarchived_bytes", 12_000),
        ("oldest_unarchived_record_age_seconds", 70),
        ("log_end_offset", None),
        ("watermark_next_offset", None),
        ("leader_partitions", 3),
    ],
)
def test_labels_are_dropped_above_the_cap(
    name: str, value: float | None, registry: CollectorRegistry
) -> None:
    Metrics(registry, max_partition_series=2).observe_status(FixedStatus(SNAPSHOT))
    assert registry.get_sample_value(PREFIX + name, {}) == value
    assert registry.get_sample_value(PREFIX + name, labels(ORDERS)) is None


def test_counters_above_the_cap_merge_into_one_that_never_decreases(
    registry: CollectorRegistry,
) -> None:
    metrics = Metrics(registry, max_partition_series=1)
    for number in range(3):
        metrics.segment_uploaded(TopicPartition("t", number), 10, 1.0)
    assert registry.get_sample_value("sidetier_uploaded_bytes_total") == 30
    metrics.forget(TopicPartition("t", 0))
    assert registry.get_sample_value("sidetier_uploaded_bytes_total") == 30


def test_series_end_with_the_lead(registry: CollectorRegistry, metrics: Metrics) -> None:
    source = FixedStatus(SNAPSHOT)
    metrics.observe_status(source)
    metrics.segment_uploaded(PAY, 10, 1.0)
    metrics.forget(PAY)
    source.now = StatusSnapshot(cluster="prod-a", partitions=SNAPSHOT.partitions[:1])
    for name in ("uploaded_bytes_total", "remote_copy_lag_bytes", "watermark_next_offset"):
        assert registry.get_sample_value(PREFIX + name, labels(PAY)) is None
    metrics.forget(PAY)


def test_concurrent_updates_are_all_counted(registry: CollectorRegistry, metrics: Metrics) -> None:
    def work() -> None:
        for _ in range(500):
            metrics.segment_uploaded(PAY, 2, 0.1)
            metrics.gap(ORDERS, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.get_sample_value("sidetier_uploaded_bytes_total", labels(PAY)) == 4000
    assert registry.get_sample_value("sidetier_gap_records_total", labels(ORDERS)) == 2000


def test_prometheus_can_parse_the_output(registry: CollectorRegistry, metrics: Metrics) -> None:
    odd = TopicPartition('quote"back\\slash', 0)
    metrics.segment_uploaded(odd, 1, 1.0)
    metrics.observe_status(FixedStatus(SNAPSHOT))
    families = {
        f.name: f for f in text_string_to_metric_families(generate_latest(registry).decode())
    }
    [sample] = families["sidetier_uploaded_bytes"].samples
    assert sample.labels == labels(odd)
    assert sample.value == 1


def test_exported_metrics_equal_the_catalogue_in_types_and_labels(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    metrics.observe_status(FixedStatus(SNAPSHOT))
    metrics.segment_uploaded(PAY, 1, 1.0)
    metrics.trimmed("pay", 1)
    metrics.trim_failed("request_failed")
    metrics.error("x")
    metrics.unexpected_error("KeyError")
    metrics.retry("put", "x")
    metrics.request("put", 1.0, "ok")
    families = {
        family.name: family
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        if family.name.startswith(PREFIX)
    }
    assert families.keys() == {metric.name.removesuffix("_total") for metric in METRICS}
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert family.type == metric.kind.value
        assert family.documentation == metric.help
        names = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert names == set(metric.labels), metric.name


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_prometheus_conventions(metric: Metric) -> None:
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert (metric.above is not None) == (metric.labels[:2] == ("topic", "partition"))
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert metric.help.endswith(".")


def test_every_series_names_the_cluster_and_the_broker() -> None:
    registry = create_registry()
    Metrics(registry, max_partition_series=3).observe_status(FixedStatus(SNAPSHOT))
    registry.labels = {"cluster": "prod-a", "broker": "3"}
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    labels = [sample.labels for family in families for sample in family.samples]
    assert len(labels) > len(METRICS)
    assert all((one["cluster"], one["broker"]) == ("prod-a", "3") for one in labels)
