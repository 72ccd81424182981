"""The tail's writer beside the daemon: what it learns from it, and that it holds nothing back."""

import threading

import pytest
import structlog
from prometheus_client import CollectorRegistry

from sidetier.archive.tail.inventory import TailInventory
from sidetier.config.uploader import TailConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import PartitionState, PartitionStatus
from sidetier.uploader.archive import history
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.tail.board import SafePartition, TailBoard
from sidetier.uploader.tail.cycle import TailCycle
from sidetier.uploader.tail.packs import TailPlace, ThreadedSender
from sidetier.uploader.tail.writer import TailWriter
from tests.harness.daemons import LAYOUT, LeadershipByHand, OffsetsByHand, Site, stored_next
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.tail_writing import merged


def tail_writer(site: Site, registry: CollectorRegistry) -> TailWriter:
    """A writer whose cycles follow each other at once."""
    source = OffsetsByHand(site.log_dirs)
    cycle = TailCycle(
        source,
        lambda _: TailPlace(site.store, LAYOUT, encrypts=False),
        lambda place: TailInventory(place.store, place.layout),
        ThreadedSender(SYSTEM_CLOCK.wall),
        BrokerId(1),
        SYSTEM_CLOCK,
        0.05,
    )
    board = TailBoard(TailConfig(interval=1.0, topics=("t",)))
    return TailWriter(cycle, None, board, source, 0.05, 600.0, SYSTEM_CLOCK, Metrics(registry))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def tail(site: Site, registry: CollectorRegistry) -> TailWriter:
    site.settings["rescan_interval"] = 0.1
    site.tail = tail_writer(site, registry)
    return site.tail


def test_the_tail_follows_leaders_archive_and_topics(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, tail: TailWriter
) -> None:
    other = log_dir.create("not-selected")
    other.append(5)
    log.append(10)
    site.leadership = leadership = LeadershipByHand({log.tp: 0, other.tp: 0})
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:

        def safe_to() -> Offset | None:
            status = running.status(log.tp)
            return None if status is None else status.safe_to

        running.wait(lambda: safe_to() == 10, "the tail to be stored")
        status = running.status(log.tp)
        assert status is not None
        assert (status.next_offset, status.unsafe_age_seconds) == (0, 0.0)
        assert status.newest_safe_age_seconds is not None
        assert merged(store, log).end == 10

        log.roll()
        log.append(5)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 10, "the segment to be archived")
        running.wait(lambda: merged(store, log, 10).end == 15, "the tail behind it")

        log.lead(3)
        log.append(5)
        leadership.lead(log.tp, 3)
        running.wait(lambda: merged(store, log, 10).end == 20, "the tail of the new epoch")
        assert merged(store, log, 10).leader_epoch == 3

        leadership.lose(log.tp)
        running.wait(lambda: not tail.board.snapshot(), "the board to forget the partition")
        unselected = running.status(other.tp)
        assert unselected is not None
        assert unselected.safe_to is None
    assert not [thread for thread in threading.enumerate() if thread.name == "tail"]


def test_the_records_of_a_halted_partition_wait_for_a_pack(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    tail: TailWriter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its archive does not move either, so the alert must fire."""
    monkeypatch.setattr(history, "CONFIRM_SECONDS", 0.2)
    site.settings["on_divergence"] = "halt"
    log.closed_segment()
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()
    site.leadership = leadership = LeadershipByHand({log.tp: 0})
    with site.running() as running:

        def status() -> PartitionStatus:
            found = running.status(log.tp)
            assert found is not None
            return found

        running.wait(lambda: stored_next(store, log.tp) == 20, "the segments to be archived")
        running.wait(lambda: status().unsafe_age_seconds == 0, "the tail to begin")
        log.truncate(15)
        log.lead(3)
        log.append(10)
        leadership.lead(log.tp, 3)
        running.wait(lambda: status().state is PartitionState.HALTED, "the halt")
        since = tail.board.halted[log.tp]
        running.wait(lambda: (status().unsafe_age_seconds or 0) > 0.5, "the records to wait")
        known = status()
        assert tail.board.halted[log.tp] == since
        assert known.safe_to is None
        assert "on_divergence is halt" in (known.waiting_for or "")
        leadership.lose(log.tp)
        running.wait(lambda: not tail.safe, "the board to forget the partition")


def test_which_partitions_have_no_tail_by_design(log: PartitionLog) -> None:
    board = TailBoard(TailConfig(interval=1.0))
    partition = Partition(log.tp, LeaderEpoch(0))
    partition.note_tail(stored=True)
    partition.directory = str(log.path)
    board.note(partition)
    assert not board.halted  # the broker has no topic ids
    partition.topic_id = log.topic_id
    board.note(partition)
    assert board.halted
    partition.archive = ArchiveState()  # it begins later
    board.note(partition)
    assert not board.halted
    partition.archive = None
    partition.config = TopicConfig(compacted=True)
    board.note(partition)
    assert not board.halted


def test_records_may_be_waiting_while_a_cycle_takes_long(
    site: Site, log_dir: LogDir, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_dir.create("t", 3)
    writer = tail_writer(site, registry)
    writer._safe = {log.tp: SafePartition(Offset(5), -1, None, None)}
    assert writer.safe[log.tp].waiting_since_ms is None
    ended = writer._ended
    monkeypatch.setattr(writer, "_now", lambda: ended + 60)
    since_ms = writer.safe[log.tp].waiting_since_ms
    assert since_ms is not None
    assert SYSTEM_CLOCK.wall() - since_ms / 1000 == pytest.approx(60, abs=5)


def test_a_broker_without_topic_ids_is_named_once(log: PartitionLog) -> None:
    board = TailBoard(TailConfig(interval=1.0))
    partition = Partition(log.tp, LeaderEpoch(0))
    partition.note_tail(stored=True)
    partition.directory = str(log.path)
    with structlog.testing.capture_logs() as logs:
        board.note(partition)
        assert not logs  # the archive is not known yet
        partition.archive = ArchiveState(next_offset=Offset(0))
        board.note(partition)
        board.note(partition)
    assert [each["event"] for each in logs] == ["tail.no_topic_id"]


@pytest.mark.usefixtures("tail")
def test_a_defect_in_the_tail_holds_back_no_upload(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    registry: CollectorRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(TailCycle, "run", broken)
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()

    def defects() -> float | None:
        return registry.get_sample_value(
            "sidetier_unexpected_errors_total", {"kind": "RuntimeError"}
        )

    with site.running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 10, "the segment to be archived")
        running.wait(defects, "the defect to be counted")
        monkeypatch.undo()
        log.append(5)
        running.wait(lambda: merged(store, log, 10).end == 15, "the tail to go on")
