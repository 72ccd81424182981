"""Work the daemon had begun when the leader, the topic or the log dir changed."""

import shutil
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.clock import SYSTEM_CLOCK, Clock
from sidetier.uploader.errors import OperatorNeededError
from sidetier.uploader.state import segment as segment_state
from sidetier.uploader.state.decisions import PARK_SECONDS
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import (
    LAYOUT,
    LeadershipByHand,
    RunningDaemon,
    Site,
    key_of,
    stored_logs,
    stored_next,
    watermark_of,
)
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.waiting import holds_for

ANOTHER_TOPIC_ID = "BBBBBBBBBBBBBBBBBBBBBQ"


@pytest.fixture(autouse=True)
def _short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after 20 ms instead of one second."""
    monkeypatch.setattr(segment_state, "_FIRST_HOLD", 0.02)
    monkeypatch.setattr(segment_state, "_LONGEST_HOLD", 0.1)


@pytest.fixture
def leadership(site: Site, log: PartitionLog) -> LeadershipByHand:
    """Lead t-0 in epoch 0."""
    site.leadership = LeadershipByHand({log.tp: 0})
    return site.leadership


def lose(running: RunningDaemon, leadership: LeadershipByHand, log: PartitionLog) -> None:
    """Lose the lead and wait until the daemon knows."""
    leadership.lose(log.tp)
    running.wait(lambda: running.status(log.tp) is None, "the loss")


def test_operator_error_of_an_earlier_lead_does_not_halt_a_new_lead(
    site: Site, leadership: LeadershipByHand, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The error refers to the archive as it was read then; the new epoch reads it again."""
    key = LAYOUT.watermark_key(log.tp)
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    running = site.running()
    with store.hold("get", key):
        store.fail("get", OperatorNeededError("for the test"), key=key)
        running.start()
        running.wait(lambda: store.count("get", key), "the first reading")
        leadership.lead(log.tp, 1)
        running.wait(
            lambda: (status := running.status(log.tp)) is not None and status.leader_epoch == 1,
            "the new epoch",
        )
    running.wait(lambda: stored_next(store, log.tp) == 20, "the segments to be stored")
    running.stop()


# -- leads ----------------------------------------------------------------------------------------


def test_commit_of_an_earlier_epoch_is_not_taken_over(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    leadership: LeadershipByHand,
) -> None:
    """Whether or not that commit moved the watermark, the new epoch reads the result."""
    key = LAYOUT.watermark_key(log.tp)
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        with store.hold("put", key):
            running.wait(lambda: store.count("put", key) == 1, "the commit to begin")
            lose(running, leadership, log)
            log.lead(1)
            leadership.lead(log.tp, 1)
            running.wait(lambda: running.status(log.tp) is not None, "the lead")
            assert store.count("get", key) == 1
        running.wait(lambda: store.count("get", key) == 2, "the watermark to be read anew")
        log.closed_segments(1)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 20, "what follows")
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    assert watermark.leader_epoch == 1
    check_archive(store, log.tp)


@pytest.mark.usefixtures("quick_gaps")
def test_gap_recorded_in_an_earlier_epoch_is_counted(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The watermark has passed the gap, so it will not be found again."""
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    log.closed_segments(3)
    for base in (0, 10, 20):
        log.unlink(base)
    log_dir.checkpoint_high_watermarks()
    key = LAYOUT.watermark_key(log.tp)
    moves = store.count("put", key)
    site.leadership = leadership = LeadershipByHand({log.tp: 0})
    with capture_logs() as logs, ExitStack() as held:
        held.enter_context(store.hold("put", key))
        with site.running() as running:
            running.wait(lambda: store.count("put", key) > moves, "the gap to be passed")
            log.lead(1)
            leadership.lead(log.tp, 1)
            running.wait(
                lambda: (s := running.status(log.tp)) and s.leader_epoch == 1, "the new epoch"
            )
            held.close()
            running.wait(lambda: stored_next(store, log.tp) == 40, "what follows")
    assert recorded_gaps(store, log.tp) == [(10, 30)]
    told = [entry["records"] for entry in logs if entry["event"] == "gap.recorded"]
    assert told == [20]


def test_upload_of_an_earlier_epoch_is_compared_before_its_commit(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    leadership: LeadershipByHand,
) -> None:
    key = key_of(log.tp, 0)
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        with store.hold("put", key):
            running.wait(lambda: store.count("put", key) == 1, "the upload to begin")
            lose(running, leadership, log)
            log.lead(1)
            leadership.lead(log.tp, 1)
            wm_key = LAYOUT.watermark_key(log.tp)
            running.wait(lambda: store.count("get", wm_key) == 2, "the archive to be read anew")
        running.wait(lambda: stored_next(store, log.tp) == 10, "the watermark")
    looks = store.count("head", key) + store.count("put", key)
    assert looks > 1, "believed, though another leader may have written it since"
    check_archive(store, log.tp)


def test_upload_of_an_earlier_epoch_does_not_move_the_watermark_back(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    leadership: LeadershipByHand,
) -> None:
    """Another leader has committed up to the middle of the segment, under other base offsets."""
    theirs = Watermark(BaseOffset(15), Offset(20), LeaderEpoch(0), BrokerId(2), None, 1, "theirs")
    wm_key = LAYOUT.watermark_key(log.tp)
    log.closed_segments(1)
    log.closed_segment(20)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        with store.hold("put", key_of(log.tp, 10)):
            running.wait(lambda: stored_next(store, log.tp) == 10, "the first segment")
            running.wait(lambda: store.count("put", key_of(log.tp, 10)) == 1, "the second")
            lose(running, leadership, log)
            for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
                store.put_object(key_of(log.tp, 15, kind), BytesBody(b""))
            store.put_object(wm_key, BytesBody(encode_watermark(theirs)))
            reads = store.count("get", wm_key)
            log.lead(1)
            leadership.lead(log.tp, 1)
            running.wait(lambda: store.count("get", wm_key) > reads, "the new epoch to read it")
        running.wait(lambda: stored_next(store, log.tp) == 30, "the rest")
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    assert watermark.base_offset == 20
    assert watermark.leader_epoch == 1


def test_segments_queued_when_the_lead_is_lost_are_not_uploaded(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    leadership: LeadershipByHand,
) -> None:
    """A second partition, queued behind them, shows that their turn has passed."""
    log.closed_segments(4)
    behind = log_dir.create("behind")
    behind.closed_segments(1)
    for base in log.bases()[:-1]:
        log.set_age(base, 100)
    log_dir.checkpoint_high_watermarks()
    with site.running(threads=1) as running:
        with store.hold("put", key_of(log.tp, 0)):
            running.wait(lambda: store.count("put", key_of(log.tp, 0)) == 1, "the first")
            leadership.lead(behind.tp, 0)
            running.wait(
                lambda: running.daemon.status.snapshot().queued_segments == 4, "all in the queue"
            )
            lose(running, leadership, log)
        running.wait(lambda: stored_next(store, behind.tp) == 10, "the other partition")
    assert stored_logs(store, log.tp).keys() == {0}
    assert stored_next(store, log.tp) is None


def test_unknown_leads_keep_their_pins_and_send_nothing(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    leadership: LeadershipByHand,
) -> None:
    """Segments that close in this time are pinned as well, and uploaded once the source works
    again.
    """
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()

    def held(segments: int) -> bool:
        status = running.status(log.tp)
        return (
            status is not None
            and status.unstored_segments == segments
            and status.waiting_for == "a source of leadership that answers"
        )

    with site.running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 10, "the first segment")
        leadership.doubt()
        running.wait(lambda: not running.daemon.status.snapshot().ready, "the doubt")
        requests = len(store.requests)
        log.closed_segments(1)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: held(1), "one to be held")
        log.closed_segments(1)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: held(2), "another to be held")
        for base in (0, 10, 20):
            log.unlink(base)
        assert len(store.requests) == requests
        leadership.lead(log.tp, 0)
        running.wait(lambda: stored_next(store, log.tp) == 30, "what was held")
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20)}
    assert recorded_gaps(store, log.tp) == []


def test_segments_queued_when_leads_become_unknown_wait_for_the_next_known_view(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    leadership: LeadershipByHand,
) -> None:
    """That view has the same leads as before, and still it must wake the queue."""
    log.closed_segments(4)
    log_dir.checkpoint_high_watermarks()

    def idle() -> bool:
        seen = running.daemon.status.snapshot()
        return (seen.queued_segments, seen.uploading_segments, seen.ready) == (0, 0, False)

    with site.running(threads=1, rescan_interval=60) as running:
        with store.hold("put", key_of(log.tp, 0)):
            running.wait(lambda: store.count("put", key_of(log.tp, 0)) == 1, "the first")
            running.wait(
                lambda: running.daemon.status.snapshot().queued_segments == 3, "all in the queue"
            )
            leadership.doubt()
            running.wait(lambda: not running.daemon.status.snapshot().ready, "the doubt")
        running.wait(idle, "the first to end, and the queue to be emptied")
        assert stored_logs(store, log.tp).keys() == {0}
        assert stored_next(store, log.tp) is None
        leadership.lead(log.tp, 0)
        running.wait(lambda: stored_next(store, log.tp) == 40, "all of them")


# -- recreated topics and moved log dirs ----------------------------------------------------------


def test_recreated_topic_does_not_continue_the_archive_of_the_old_one(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    leadership: LeadershipByHand,
) -> None:
    """Recreated between two rescans with the same name and epoch; only partition.metadata
    differs.
    """
    log.closed_segments(5)
    log_dir.checkpoint_high_watermarks()
    with site.running(rescan_interval=0.1) as running:
        running.wait(lambda: stored_next(store, log.tp) == 50, "the first topic")
        before = watermark_of(store, log.tp)
        log.delete_topic()
        new = log_dir.create(topic_id=ANOTHER_TOPIC_ID)
        new.append(3)
        new.closed_segments(7)  # beyond where the old one ended
        log_dir.checkpoint_high_watermarks()
        running.wait(
            lambda: (
                (s := running.status(log.tp)) is not None
                and ANOTHER_TOPIC_ID in (s.last_error or "")
            ),
            "the reason",
        )
    assert leadership.view().leads == {log.tp: 0}
    assert watermark_of(store, log.tp) == before
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in range(0, 50, 10)}


def test_segments_pinned_of_the_old_topic_do_not_enter_the_new_topics_archive(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    leadership: LeadershipByHand,
) -> None:
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    log.closed_segments(2)
    with site.running(rescan_interval=0.1) as running:
        running.wait(
            lambda: (s := running.status(log.tp)) is not None and s.unstored_segments == 2, "pins"
        )
        log.delete_topic()
        new = log_dir.create(topic_id=ANOTHER_TOPIC_ID)
        for _ in range(2):
            new.closed_segment(size=50)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 20, "the new topic")
    assert leadership.view().leads == {log.tp: 0}
    assert stored_logs(store, log.tp) == {base: new.written[base] for base in (0, 10)}
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    assert watermark.topic_id == ANOTHER_TOPIC_ID
    assert recorded_gaps(store, log.tp) == []


def test_move_to_another_log_dir_keeps_segments_that_only_a_pin_holds(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, tmp_path: Path
) -> None:
    """The broker copies the existing segments and swaps the directory names; deleted segments are
    not copied.
    """
    there = LogDir(tmp_path / "logs2")
    site.log_dirs.append(there)
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    log.closed_segments(3)
    with site.running(rescan_interval=0.1) as running:
        running.wait(
            lambda: (s := running.status(log.tp)) is not None and s.unstored_segments == 3, "pins"
        )
        log.unlink(0)
        future = there.path / f"{log.tp}.{uuid.uuid4().hex}-future"
        shutil.copytree(log.path, future)
        shutil.rmtree(log.delete_topic())
        log.path = future.rename(there.path / str(log.tp))
        there.partitions[log.tp] = log_dir.partitions.pop(log.tp)
        log_dir.checkpoint_high_watermarks()
        there.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 30, "all three")
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20)}
    assert recorded_gaps(store, log.tp) == []


# -- gaps -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_gaps")
def test_deleted_damaged_segment_becomes_a_gap_and_later_segments_are_stored(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(3)
    path = log.file(0)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    log_dir.checkpoint_high_watermarks()
    with site.running(rescan_interval=0.1) as running:
        running.wait(lambda: 20 in stored_logs(store, log.tp), "the ones behind it")
        assert stored_next(store, log.tp) is None
        log.unlink(0)
        running.wait(lambda: stored_next(store, log.tp) == 30, "the watermark")
    assert recorded_gaps(store, log.tp) == [(0, 10)]
    assert stored_logs(store, log.tp).keys() == {10, 20}


def test_deleted_damaged_segment_is_read_twice_before_it_is_given_up(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first read itself may have failed."""
    monkeypatch.setattr(segment_state, "_FIRST_HOLD", 60.0)
    monkeypatch.setattr(segment_state, "_LONGEST_HOLD", 60.0)
    log.closed_segments(1)
    path = log.file(0)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    with site.running() as running:
        seen = running.daemon.status.snapshot
        running.wait(lambda: seen().pinned_files == 3, "the pins")
        log.unlink(0)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: (s := running.status(log.tp)) and s.last_error, "the first reading")
        assert seen().pinned_files == 3
        holds_for(lambda: seen().pinned_files == 3, 0.3, "the pins until the second reading")


@pytest.mark.usefixtures("quick_gaps")
def test_gap_after_another_brokers_watermark_waits_longer(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The sidecar of that broker may still hold the missing segments, and may lead again."""
    ahead = 0.0
    site.clock = Clock(lambda: SYSTEM_CLOCK.monotonic() + ahead, SYSTEM_CLOCK.wall)
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    site.broker_id = 2
    other = log_dir.create("other")
    log.closed_segments(3)
    for base in range(0, 40, 10):
        log.unlink(base)
    log_dir.checkpoint_high_watermarks()
    with site.running(rescan_interval=0.1) as running:
        running.wait(
            lambda: (
                (s := running.status(log.tp)) is not None
                and s.waiting_for == "a second check of the gap [20, 40)"
            ),
            "the gap to be seen",
        )
        holds_for(lambda: recorded_gaps(store, log.tp) == [], 0.4, "the first patience")
        ahead = PARK_SECONDS - 60
        other.closed_segments(1)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, other.tp) == 10, "another look round")
        assert recorded_gaps(store, log.tp) == []
        ahead = PARK_SECONDS + 1
        running.wait(lambda: stored_next(store, log.tp) == 50, "patience to end")
    assert recorded_gaps(store, log.tp) == [(20, 40)]
