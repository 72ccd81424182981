"""Conditions that make the sidecar unready, and failures that do not."""

import re
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from devtools.chart.alerts import ALERTS
from sidetier.leadership.port import LeadershipView
from sidetier.segments.errors import (
    AccessDeniedError,
    ArchiveConflictError,
    DamagedSegmentError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.led_partitions import LedPartitions
from sidetier.uploader.state import segment as segment_state
from sidetier.uploader.state.gap import Halt
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import Timeline, TrackedSegment
from sidetier.uploader.status_board import readiness
from sidetier.uploader.stores import Place, StoresHealth
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.log_dirs import LogDirs
from tests.harness.daemons import Site, place_of, stored_next
from tests.harness.log_dir import LogDir, PartitionLog

TP = TopicPartition("t", 0)
PLACES: dict[str, Place] = {topic: place_of(FakeStorage()) for topic in ("t", "elsewhere")}


@pytest.fixture
def leads() -> LedPartitions:
    metrics = Metrics(CollectorRegistry())
    errors = UnexpectedErrors(metrics, SYSTEM_CLOCK)
    made = LedPartitions(LogDirs([], lambda _: True), metrics, errors, lambda _: None, lambda: 0.0)
    (partition,) = made.follow(LeadershipView({TP: LeaderEpoch(0)}, known=True))
    segment = ClosedSegment(BaseOffset(0), BaseOffset(10), marked_for_deletion=False)
    partition.log.tracked[segment.base_offset] = TrackedSegment(segment, 100, 0, Timeline(0.0))
    return made


def problems(leads: LedPartitions, health: StoresHealth | None = None) -> dict[str, str]:
    """Reasons of the conditions that do not hold."""
    found = readiness(leads, health or StoresHealth(PLACES.__getitem__))
    assert [c.name for c in found] == ["leadership known", "bootstrapped", "store reachable"]
    assert all((c.reason == "") == c.holds for c in found)
    return {c.name: c.reason for c in found if not c.holds}


def test_watermark_not_read_yet_makes_the_sidecar_unready(leads: LedPartitions) -> None:
    assert problems(leads) == {"bootstrapped": "1 watermarks are still to be read"}
    (partition,) = leads
    partition.archive = ArchiveState()
    assert problems(leads) == {}


def refuse(partition: Partition) -> None:
    partition.refused = "it is compacted"


def halt(partition: Partition) -> None:
    partition.halt = Halt("a gap")


def hold(partition: Partition) -> None:
    partition.hold.fail("another leader", 0.0)


@pytest.mark.parametrize("stop", [refuse, halt, hold])
def test_halted_partition_does_not_make_the_sidecar_unready(
    leads: LedPartitions, stop: Callable[[Partition], None]
) -> None:
    for partition in leads:
        stop(partition)
    assert problems(leads) == {}


def test_unknown_leads_make_the_sidecar_unready(leads: LedPartitions) -> None:
    for partition in leads:
        partition.archive = ArchiveState()
    leads.follow(LeadershipView())
    assert problems(leads) == {"leadership known": "no source of leadership answers"}


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), AccessDeniedError("away")])
def test_failing_store_makes_the_sidecar_unready_until_it_answers(
    leads: LedPartitions, error: Exception
) -> None:
    for partition in leads:
        partition.archive = ArchiveState()
    stores = StoresHealth(PLACES.__getitem__)
    health = stores.of(TP)
    health.failed(error)
    assert problems(leads, stores) == {"store reachable": "away"}
    health.failed(DamagedSegmentError("says nothing of the store"))
    assert problems(leads, stores) == {"store reachable": "away"}
    health.failed(PreconditionFailedError("an answer"))
    assert problems(leads, stores) == {}
    health.failed(error)
    health.succeeded()
    assert problems(leads, stores) == {}


def test_answering_store_does_not_hide_an_unavailable_one(leads: LedPartitions) -> None:
    for partition in leads:
        partition.archive = ArchiveState()
    stores = StoresHealth(PLACES.__getitem__)
    stores.of(TP).failed(StoreUnavailableError("away"))
    stores.of(TopicPartition("elsewhere", 0)).succeeded()
    assert problems(leads, stores) == {"store reachable": "away"}
    stores.of(TopicPartition("t", 1)).succeeded()
    assert problems(leads, stores) == {}, "it is the store's, not the partition's"


def test_conflict_does_not_make_a_store_unavailable(leads: LedPartitions) -> None:
    for partition in leads:
        partition.archive = ArchiveState()
    stores = StoresHealth(PLACES.__getitem__)
    stores.of(TP).failed(ArchiveConflictError("another leader"))
    assert problems(leads, stores) == {}


def test_store_failure_after_the_bootstrap_makes_the_sidecar_unready_until_it_answers(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_state, "_FIRST_HOLD", 0.02)
    monkeypatch.setattr(segment_state, "_LONGEST_HOLD", 0.1)
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        seen = running.daemon.status.snapshot
        running.wait(lambda: stored_next(store, log.tp) == 10 and seen().ready, "a good start")
        with store.away():
            log.closed_segments(1)
            log_dir.checkpoint_high_watermarks()
            running.wait(lambda: not seen().ready, "the store to be missed")
            reasons = {c.name: c.reason for c in seen().conditions if not c.holds}
            assert reasons == {"store reachable": "connection refused"}
        running.wait(lambda: stored_next(store, log.tp) == 20 and seen().ready, "the store")


def test_alerts_refer_to_existing_conditions(leads: LedPartitions) -> None:
    told = {c.name.replace(" ", "_") for c in readiness(leads, StoresHealth(PLACES.__getitem__))}
    asked = {name for alert in ALERTS for name in re.findall(r'condition="(\w+)"', alert.expr)}
    assert asked
    assert asked <= told


def test_outage_ends_with_the_first_answer_after_several_failures() -> None:
    health = StoresHealth(PLACES.__getitem__).of(TopicPartition("t", 0))
    for _ in range(2):
        health.failed(StoreUnavailableError("away"))
    health.succeeded()
    assert health.outages == 0, "a busy moment"
    for _ in range(3):
        health.failed(StoreUnavailableError("away"))
    assert health.outages == 0, "it lasts"
    health.succeeded()
    health.succeeded()
    assert health.outages == 1
