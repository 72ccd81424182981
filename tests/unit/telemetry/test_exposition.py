"""The text of `/metrics` is stored for each program: names, labels, help, types and order.

`UPDATE_GOLDEN=1` rewrites the stored texts.
"""

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, generate_latest

from sidetier import __version__
from sidetier.consumer.metrics import ConsumerMetrics
from sidetier.consumer.partition import Source
from sidetier.endpoint.metrics import EndpointMetrics, GroupMetrics
from sidetier.mirror.copy.engine import Counts, PartitionLag
from sidetier.mirror.metrics import MirrorCollector
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.telemetry.catalogue import Kind, Metric
from sidetier.telemetry.export_catalogue import EXPORT_METRICS
from sidetier.telemetry.gc_catalogue import GC_METRICS
from sidetier.telemetry.instruments import gauge
from sidetier.telemetry.metrics import LabelledRegistry, Metrics, create_registry
from sidetier.telemetry.status import (
    ClusterSnapshotStatus,
    Condition,
    DrillStatus,
    LocalRetentionStatus,
    PartitionState,
    PartitionStatus,
    StatusSnapshot,
)
from sidetier.telemetry.verify_catalogue import VERIFY_METRICS
from sidetier.wire.protocol import ApiKey

ORDERS = TopicPartition("orders", 0)
STORED = Path(__file__).parent / "expositions"

STATUS = StatusSnapshot(
    cluster="prod-a",
    conditions=(Condition("bootstrapped", holds=True),),
    partitions=(
        PartitionStatus(
            topic="orders",
            partition=0,
            state=PartitionState.WAITING,
            watermark_base=BaseOffset(100),
            next_offset=Offset(200),
            unstored_segments=5,
            unstored_bytes=5000,
            oldest_unstored_age_seconds=60.0,
            seconds_until_local_deletion=540.0,
            log_end=Offset(5200),
            unarchived_records=5000,
            unresolved_gap_records=50,
            unresolved_quarantines=1,
            unarchived_bytes=10_000,
            unarchived_age_seconds=70.0,
            safe_to=Offset(5100),
            newest_safe_age_seconds=3.0,
            unsafe_age_seconds=1.5,
        ),
    ),
    cluster_snapshots=(ClusterSnapshotStatus("acls", 60.0, stored=True),),
    local_retention=(LocalRetentionStatus("orders", "group_behind", 7),),
    last_drill=DrillStatus(2_000_500, succeeded=False, last_successful_ms=1_000_500),
)


class FixedStatus:
    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- the port's
        return STATUS


def sidecar(registry: CollectorRegistry, max_partition_series: int = 5000) -> None:
    metrics = Metrics(registry, max_partition_series)
    metrics.observe_status(FixedStatus())
    metrics.segment_uploaded(ORDERS, 2000, 0.2)
    metrics.rolled_to_stored(1.5)
    metrics.stage_seconds("queueing", 0.1)
    metrics.gap(ORDERS, 10)
    metrics.error("AccessDeniedError")
    metrics.unexpected_error("KeyError")
    metrics.retry("put", "TransientStorageError")
    metrics.request("put", 0.01, "ok")
    metrics.leadership_changed(gained=3)
    metrics.left_out(FileKind.SNAPSHOT)
    metrics.trimmed("orders", 10)
    metrics.trim_failed("group_behind")


def sidecar_above_the_cap(registry: CollectorRegistry) -> None:
    sidecar(registry, 0)


def consumer(registry: CollectorRegistry) -> None:
    metrics = ConsumerMetrics(registry)
    metrics.handed_out(Source.STORE, 3, 300)
    metrics.request("get", 0.01, "ok")
    metrics.retry("get", "TransientStorageError")


def endpoint(registry: CollectorRegistry) -> None:
    EndpointMetrics(registry, lambda: 7).answered(ApiKey.FETCH, ErrorCode.none, 0.01, 100, 90)
    GroupMetrics(registry).watch(lambda: 1, lambda: 2, lambda: 3)


def mirror(registry: CollectorRegistry) -> None:
    counts = Counts()
    counts.records = 3
    counts.lags[ORDERS] = PartitionLag(Offset(3), end=5, newest_timestamp=1000)
    registry.register(MirrorCollector(counts, now_ms=lambda: 3500))


def commands(registry: CollectorRegistry) -> None:
    """What `--metrics-file` writes: all are gauges."""
    metric: Metric
    for metric in (*GC_METRICS, *VERIFY_METRICS, *EXPORT_METRICS):
        assert metric.kind is Kind.GAUGE
        made = gauge(metric, registry)
        (made.labels(*metric.labels) if metric.labels else made).set(1)


@pytest.mark.parametrize(
    "program", [sidecar, sidecar_above_the_cap, consumer, endpoint, mirror, commands]
)
def test_metrics_are_exported_as_stored(program: Callable[[CollectorRegistry], None]) -> None:
    create_registry()  # switches the series with creation times off
    registry = LabelledRegistry()
    program(registry)
    text = generate_latest(registry).decode()
    text = text.replace(f'"{__version__}"', '"VERSION"')
    text = text.replace(f'"{platform.python_version()}"', '"PYTHON"')
    path = STORED / f"{program.__name__}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
