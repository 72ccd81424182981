"""Work the daemon had begun when the leader, the topic or the log dir changed."""

import shutil
import uuid
from pathlib import Path

import pytest

from sidetier.storage.fake import FakeStorage
from sidetier.uploader.state import segment as segment_state
from tests.harness.archive_sound import recorded_gaps
from tests.harness.daemons import (
    LeadershipByHand,
    RunningDaemon,
    Site,
    key_of,
    stored_logs,
    stored_next,
)
from tests.harness.log_dir import LogDir, PartitionLog

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


# -- leads ----------------------------------------------------------------------------------------


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
