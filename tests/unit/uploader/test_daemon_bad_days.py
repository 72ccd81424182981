"""The daemon while the store, the disk, the broker or one of its own threads fails."""

import contextlib
import errno
import threading
from pathlib import Path

import pytest

from sidetier.archive.objects.starts import keep_earliest_start
from sidetier.config.units import parse_size
from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import StoreTimeoutError
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.status import PartitionState
from sidetier.uploader import engine, scheduler
from sidetier.uploader.clock import SYSTEM_CLOCK, Clock
from sidetier.uploader.daemon import DaemonDiedError
from sidetier.uploader.pinning import table as pin_table
from sidetier.uploader.state import segment as segment_state
from sidetier.uploader.watching import disk
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import (
    LAYOUT,
    ConfigsByHand,
    LeadershipByHand,
    RunningDaemon,
    Site,
    key_of,
    stored_logs,
    stored_next,
)
from tests.harness.intercepted_store import MortalStore
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.waiting import holds_for


@pytest.fixture(autouse=True)
def _short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after 20 ms instead of one second."""
    monkeypatch.setattr(segment_state, "_FIRST_HOLD", 0.02)
    monkeypatch.setattr(segment_state, "_LONGEST_HOLD", 0.1)


def wait_for_next(running: RunningDaemon, store: FakeStorage, log: PartitionLog) -> None:
    running.wait(
        lambda: stored_next(store, log.tp) == log.active, f"{log.tp} to be stored to {log.active}"
    )


# -- the store ------------------------------------------------------------------------------------


def test_daemon_catches_up_after_a_store_outage(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The broker deletes segments during the outage; the sidecar keeps their files open."""
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        wait_for_next(running, store, log)
        with store.away():
            bases = log.closed_segments(5)
            log_dir.checkpoint_high_watermarks()
            running.wait(
                lambda: (s := running.status(log.tp)) is not None and s.unstored_segments == 5,
                "all five to be held",
            )
            for base in (0, *bases):
                log.stage(base)
                log.unlink(base)
            failures = len(store.requests)
            running.wait(lambda: len(store.requests) > failures + 2, "probes that fail")
            assert stored_next(store, log.tp) == 10
        wait_for_next(running, store, log)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, *bases)}
    assert recorded_gaps(store, log.tp) == []


@pytest.mark.parametrize(
    "key",
    [
        *(
            key_of(TopicPartition("t", 0), 0, kind)
            for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG)
        ),
        "c/t-0/_metadata",
        "c/t-0/offset.wm",
    ],
)
def test_lost_answer_to_a_successful_write_is_harmless(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, key: str
) -> None:
    log.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    store.fail("put", StoreTimeoutError("no answer"), key=key, after=True)
    with site.running() as running:
        wait_for_next(running, store, log)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20)}
    check_archive(store, log.tp)


def test_deleted_watermark_is_written_again_by_a_running_sidecar(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """For example a lifecycle rule deletes it. A listing finds the stored segments, also below the
    log start.
    """
    log.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        wait_for_next(running, store, log)
        store.delete_object(LAYOUT.watermark_key(log.tp))
        log.stage(0)
        log.unlink(0)
        bases = log.closed_segments(2)
        log_dir.checkpoint_high_watermarks()
        wait_for_next(running, store, log)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20, *bases)}
    assert recorded_gaps(store, log.tp) == []
    check_archive(store, log.tp)


# -- deletions by the broker ----------------------------------------------------------------------


def test_segments_marked_for_deletion_before_the_start_are_stored(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(4)
    for base in (0, 10):
        log.stage(base)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20, 30)}


def test_active_segment_that_expires_as_a_whole_is_stored(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    with site.running() as running:
        for _ in range(3):
            log.append(10)
            log.expire_active()
            log_dir.checkpoint_high_watermarks()
            wait_for_next(running, store, log)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20)}
    assert recorded_gaps(store, log.tp) == []


@pytest.mark.parametrize("on_gap", ["halt", "step_over"])
def test_gap_before_the_first_watermark_survives_a_restart(  # noqa: PLR0913, PLR0917 - fixtures
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    on_gap: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """A segment is deleted before it is archived, and the sidecar stops before it records the gap.
    The log begins later by then.
    """
    log.closed_segments(2)
    monkeypatch.setattr(engine, "_HOUSEKEEPING_SECONDS", 0.02)
    bounds = {"min_free_disk": "0", "max_deleted_bytes": 0}  # a deleted file is not held
    with site.running(on_gap=on_gap, pins=bounds, rescan_interval=0.1) as running:
        running.wait(lambda: running.status(log.tp), "the partition to be looked at")
        log.unlink(0)
        running.wait(lambda: LAYOUT.start_key(log.tp) in store.contents(), "the start's record")
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    request.getfixturevalue("quick_gaps")
    daemon = site.settle(on_gap=on_gap)
    (status,) = daemon.status.snapshot().partitions
    if on_gap == "halt":
        assert status.state is PartitionState.HALTED
        assert "offsets [0, 10)" in (status.last_error or "")
        assert not stored_logs(store, log.tp)
    else:
        assert recorded_gaps(store, log.tp) == [(0, 10)]
        assert stored_next(store, log.tp) == 40


@pytest.mark.usefixtures("quick_gaps")
def test_segment_of_another_sidecar_beyond_an_initial_gap_is_adopted(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, tmp_path: Path
) -> None:
    """The sidecar of an earlier leader stored a segment with other boundaries and stopped before
    its first watermark; the records before that segment are deleted, too.
    """
    log.closed_segments(3)
    theirs = LogDir(tmp_path / "theirs")
    copy = log.copy_to(theirs, {10})
    copy.rename_to(str(log.tp))
    copy.roll()
    theirs.partitions[log.tp] = copy
    theirs.checkpoint_high_watermarks()
    Site([theirs], store).settle()
    assert stored_logs(store, log.tp).keys() == {0, 10}
    for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX):
        store.delete_object(key_of(log.tp, 0, kind))
    store.delete_object(LAYOUT.metadata_key(log.tp))
    store.delete_object(LAYOUT.watermark_key(log.tp))
    keep_earliest_start(store, LAYOUT, log.tp, Offset(0), None)
    log.unlink(0)
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()

    site.settle()
    assert recorded_gaps(store, log.tp) == [(0, 10)]
    assert stored_next(store, log.tp) == 50
    assert stored_logs(store, log.tp).keys() == {10, 30, 40}
    check_archive(store, log.tp)


@pytest.mark.parametrize("rolls", [{20}, {0, 10, 20, 30}])
def test_log_dir_move_with_other_segment_boundaries_does_not_wait_for_the_old_directory(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, tmp_path: Path, rolls: set[int]
) -> None:
    """The broker deletes the old directory a minute after the move."""
    target = LogDir(tmp_path / "target")
    site = Site([log_dir, target], store)
    log.closed_segments(3)
    with site.running(rescan_interval=0.05) as running:
        running.wait(lambda: running.daemon.status.snapshot().pinned_files == 9, "the pins")
        copy = log.copy_to(target, rolls)
        copy.rename_to(str(log.tp))
        log.rename_to(f"{log.tp}.{'0' * 32}-delete")
        target.partitions[log.tp] = copy
        copy.closed_segments(1)
        target.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 40, "what was closed")
    assert log.path.exists()
    check_archive(store, log.tp)


@pytest.mark.usefixtures("quick_gaps")
def test_segment_stored_above_the_watermark_and_then_deleted_locally_is_no_gap(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The sidecar is killed between the `.log` and the watermark; the broker deletes before the
    next start.
    """
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    log.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    store.refuse(LAYOUT.watermark_key(log.tp))
    with site.running() as running:
        running.wait(lambda: stored_logs(store, log.tp).keys() == {0, 10, 20, 30}, "the uploads")
        running.wait(lambda: "_metadata" in "".join(store.contents()), "the watermark's turn")
    store.heal()
    for base in (0, 10, 20):
        log.unlink(base)
    site.settle()
    assert recorded_gaps(store, log.tp) == []
    assert stored_next(store, log.tp) == 40
    check_archive(store, log.tp)


def test_closed_segment_that_waits_stays_open_when_the_broker_deletes_it(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The broker deletes it while it still waits for the high watermark."""
    log_dir.checkpoint_high_watermarks()
    bases = log.closed_segments(2)
    with site.running() as running:
        running.wait(
            lambda: running.daemon.status.snapshot().pinned_files == 6, "six files to be open"
        )
        for base in bases:
            log.stage(base)
            log.unlink(base)
        log_dir.checkpoint_high_watermarks()
        wait_for_next(running, store, log)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in bases}


# -- where a partition without a watermark begins ------------------------------------------------


def test_latest_skips_existing_segments_and_stores_those_that_close_later(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    site.settings = {"offset_reset": "latest"}
    with site.running() as running:
        running.wait(lambda: LAYOUT.start_key(log.tp) in store.contents(), "the start's record")
        log.closed_segments(2)
        log_dir.checkpoint_high_watermarks()
        wait_for_next(running, store, log)
    assert stored_logs(store, log.tp).keys() == {30, 40}
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    assert stored_logs(store, log.tp).keys() == {30, 40, 50}


# -- bounds ---------------------------------------------------------------------------------------


class _Pauses(threading.Event):
    """The pauses of a daemon with one upload thread: its clock moves on, and no time passes."""

    seconds = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds += timeout or 0.0
        return self.is_set()

    def settle(self, site: Site, max_bytes_per_second: int) -> float:
        """Return the seconds that it takes by the daemon's clock; a loaded machine takes more."""
        site.abandoned = self
        site.clock = Clock(lambda: SYSTEM_CLOCK.monotonic() + self.seconds, SYSTEM_CLOCK.wall)
        begun = site.clock.monotonic()
        site.settle(threads=1, max_bytes_per_second=max_bytes_per_second)
        return site.clock.monotonic() - begun


def test_bandwidth_limit_applies_to_uploads(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    for _ in range(4):
        log.closed_segment(50, batch=10, size=1000)
    log_dir.checkpoint_high_watermarks()
    size = sum(len(data) for data in log.written.values())
    seconds = _Pauses().settle(site, size)  # one second, apart from the initial burst
    assert stored_next(store, log.tp) == log.active
    assert seconds > 0.6


def test_bandwidth_limit_applies_to_verification(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segment(200, batch=10, size=1000)
    log_dir.checkpoint_high_watermarks()
    rate = sum(len(data) for data in log.written.values())
    seconds = _Pauses().settle(site, rate)
    assert stored_next(store, log.tp) == log.active
    assert seconds > 1.1, "three quarters of a second to verify, and as much to send"


def test_open_files_stay_within_max_files(site: Site, log_dir: LogDir, store: FakeStorage) -> None:
    logs = [log_dir.create("t", number) for number in range(5)]
    for log in logs:
        log.closed_segments(20)
    seen = []

    with site.running(pins={"max_files": 30, "min_free_disk": "0"}) as running:
        running.wait(
            lambda: all(running.status(log.tp) is not None for log in logs), "all to be listed"
        )
        running.wait(
            lambda: running.daemon.status.snapshot().pinned_files, "the first files to be held"
        )
        log_dir.checkpoint_high_watermarks()

        def done() -> bool:
            seen.append(_open_segments(log_dir.path))
            return all(stored_next(store, log.tp) == 200 for log in logs)

        running.wait(done, "everything to be stored")
    assert 3 <= max(seen) <= 30 + 2 * 3  # two uploads finish after their place was given away


def test_file_written_while_it_waits_for_a_thread_returns_to_the_gate(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    """It is not held open, for lack of room: it may have been truncated, and another leader may
    have appended records beyond the high watermark.
    """
    first, second = log_dir.create("first"), log_dir.create("second")
    for log in (first, second):
        log.closed_segment()
    first.set_age(0, 1000)
    log_dir.checkpoint_high_watermarks()
    # Otherwise the second partition takes the thread if its archive is read first.
    leadership = site.leadership = LeadershipByHand({first.tp: 0})
    at_work = key_of(first.tp, 0, FileKind.INDEX)
    with site.running(threads=1, pins={"max_files": 3, "min_free_disk": "0"}) as running:
        with store.hold("put", at_work):
            running.wait(lambda: store.count("put", at_work) == 1, "the thread to be at work")
            leadership.lead(second.tp, 0)
            seen = running.daemon.status.snapshot
            running.wait(lambda: seen().queued_segments == 1, "the other segment to be queued")
            second.set_age(0, -5)
        wait_for_next(running, store, first)
        running.wait(
            lambda: (
                (s := running.status(second.tp)) is not None
                and s.waiting_for == "segment 0 waits for the high watermark"
            ),
            "the gate",
        )
        assert stored_logs(store, second.tp) == {}
        log_dir.checkpoint_high_watermarks()
        wait_for_next(running, store, second)


def test_segments_the_broker_deletes_first_are_uploaded_first(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    first = log_dir.create("first")
    first.closed_segment()
    young, old, marked_for_deletion = (
        log_dir.create(topic) for topic in ("young", "old", "staged")
    )
    for log, age in ((young, 0), (old, 5000), (marked_for_deletion, 0)):
        log.closed_segments(2)
        log.set_age(0, age)
    marked_for_deletion.stage(0)
    log_dir.checkpoint_high_watermarks()
    leadership = site.leadership = LeadershipByHand({first.tp: 0})
    at_work = key_of(first.tp, 0, FileKind.INDEX)
    with site.running(threads=1, request_threads=3) as running:
        with store.hold("put", at_work):  # until all three wait for the one upload thread
            running.wait(lambda: store.count("put", at_work) == 1, "the thread to be at work")
            for log in (young, old, marked_for_deletion):
                leadership.lead(log.tp, 0)
            seen = running.daemon.status.snapshot
            running.wait(lambda: seen().queued_segments >= 6, "all the others to be queued")
        for log in (young, old, marked_for_deletion):
            wait_for_next(running, store, log)
    order = [r.key.split("/")[1] for r in store.requests if r.key.endswith("000000.log")]
    assert order.index("staged-0") < order.index("young-0")


def test_full_disk_releases_the_pins_of_deleted_segments_and_reports_it(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "_HOUSEKEEPING_SECONDS", 0.02)
    free = threading.Event()
    monkeypatch.setattr(
        pin_table, "free_bytes", lambda _: (10**6 if not free.is_set() else 0, parse_size("1MB"))
    )
    log_dir.checkpoint_high_watermarks()
    bases = log.closed_segments(2)
    with site.running(pins={"min_free_disk": "1KB"}) as running:
        running.wait(lambda: running.daemon.status.snapshot().pinned_files == 6, "the pins")
        log.unlink(bases[0])
        free.set()
        running.wait(lambda: running.daemon.status.snapshot().pinned_files == 3, "room")
    assert log.file(bases[1]).exists()


# -- the files ------------------------------------------------------------------------------------


def test_file_that_cannot_be_opened_blocks_only_its_own_segment(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, tmp_path: Path
) -> None:
    """A broker never creates a symbolic link there, so the sidecar does not follow it."""
    other = log_dir.create("other")
    log.closed_segments(3)
    other.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    log.file(10).rename(tmp_path / "elsewhere")
    log.file(10).symlink_to(tmp_path / "elsewhere")
    with site.running() as running:
        wait_for_next(running, store, other)
        running.wait(lambda: stored_next(store, log.tp) == 10, "what comes before it")
        running.wait(
            lambda: (
                (s := running.status(log.tp)) is not None
                and str(log.file(10)) in (s.last_error or "")
            ),
            "the status to name the file",
        )
        log.file(10).unlink()
        (tmp_path / "elsewhere").rename(log.file(10))
        log_dir.checkpoint_high_watermarks()
        wait_for_next(running, store, log)


def test_directory_that_cannot_be_listed_is_tried_again(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = log_dir.create("other")
    for each in (log, other):
        each.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    failing = threading.Event()
    failing.set()

    def list_names(directory: str) -> list[str]:
        if failing.is_set() and directory == str(log.path):
            raise OSError(errno.EIO, "Input/output error", directory)
        return disk.list_names(directory)

    monkeypatch.setattr(scheduler, "list_names", list_names)
    with site.running() as running:
        wait_for_next(running, store, other)
        running.wait(
            lambda: (
                (s := running.status(log.tp)) is not None
                and "Input/output error" in (s.last_error or "")
            ),
            "the status to say so",
        )
        failing.clear()
        wait_for_next(running, store, log)


def test_partition_behind_a_symbolic_link_is_archived(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, tmp_path: Path
) -> None:
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    log.path.rename(tmp_path / "big")
    log.path.symlink_to(tmp_path / "big")
    site.settle()
    assert stored_next(store, log.tp) == 20


def test_link_that_is_not_followed_is_reported_in_the_status(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, tmp_path: Path
) -> None:
    """The partition continues once its directory is back."""
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    log.path.rename(tmp_path / "big")
    log.path.symlink_to(tmp_path / "nowhere")
    with site.running(rescan_interval=0.05) as running:
        running.wait(lambda: running.status(log.tp), "a status")
        status = running.status(log.tp)
        assert status is not None
        assert status.state is PartitionState.HALTED
        assert f"{log.path} is a symbolic link" in (status.last_error or "")
        running.wait(lambda: running.daemon.status.snapshot().log_dir_problems, "the problem")
        log.path.unlink()
        (tmp_path / "big").rename(log.path)
        wait_for_next(running, store, log)
        running.wait(lambda: not running.daemon.status.snapshot().log_dir_problems, "its end")


@pytest.fixture
def two(tmp_path: Path, store: FakeStorage) -> tuple[Site, PartitionLog, PartitionLog]:
    """Two log dirs with two committed segments each; no sidecar stores the segments of the
    second.
    """
    logs = []
    for name in ("first", "second"):
        log_dir = LogDir(tmp_path / name)
        logs.append(log_dir.create(name))
        logs[-1].closed_segments(2)
        log_dir.checkpoint_high_watermarks()
    site = Site([LogDir(log.path.parent) for log in logs], store)
    site.leadership = LeadershipByHand({log.tp: 0 for log in logs})
    return site, logs[0], logs[1]


def test_log_dir_that_is_unreadable_at_the_start_is_archived_once_it_is_back(
    two: tuple[Site, PartitionLog, PartitionLog],
    store: FakeStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "_HOUSEKEEPING_SECONDS", 0.02)
    site, first, second = two
    second.path.parent.rename(tmp_path / "away")
    with site.running() as running:
        wait_for_next(running, store, first)
        (problem,) = running.daemon.status.snapshot().log_dir_problems
        assert f"log dir {second.path.parent} cannot be read" in problem
        (tmp_path / "away").rename(second.path.parent)
        wait_for_next(running, store, second)


def test_follower_keeps_its_pins_while_the_log_dir_is_unreadable(
    two: tuple[Site, PartitionLog, PartitionLog], tmp_path: Path
) -> None:
    """Including names in the spool; as after a scandir(2) that fails for lack of descriptors."""
    site, first, second = two
    site.leadership = LeadershipByHand({first.tp: 0})
    site.topic_configs = ConfigsByHand({name: TopicConfig() for name in ("first", "second")})
    spool, rescue = tmp_path / "spool", {"enabled": True, "patience": 60.0}
    spool.mkdir()
    for base in (0, 10):
        second.stage(base)
    pins = {"min_free_disk": "0", "spool": [str(spool)]}
    with site.running(pins=pins, rescue=rescue, rescan_interval=0.05) as running:
        seen = running.daemon.status.snapshot

        def names() -> int:
            return len(list((spool / "c" / "second-0").rglob("*.log")))

        running.wait(lambda: seen().pinned_files == 6 and names() == 2, "pins of a follower")
        second.path.parent.rename(tmp_path / "away")
        running.wait(lambda: seen().log_dir_problems, "the log dir to be missed")
        holds_for(lambda: seen().pinned_files == 6 and names() == 2, 0.3, "all of its pins")
        (tmp_path / "away").rename(second.path.parent)
        running.wait(lambda: not seen().log_dir_problems, "the log dir to be back")
        holds_for(lambda: seen().pinned_files == 6 and names() == 2, 0.3, "all of its pins")


def test_deleted_topic_ends_without_an_error(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    other = log_dir.create("other")
    log.closed_segments(2)
    with site.running() as running:
        running.wait(
            lambda: running.daemon.status.snapshot().pinned_files == 6, "six files to be open"
        )
        log.delete_topic()
        other.closed_segments(1)
        del log_dir.partitions[log.tp]
        log_dir.checkpoint_high_watermarks({other.tp: 10, log.tp: 20})
        wait_for_next(running, store, other)
    assert stored_next(store, log.tp) is None


# -- endings --------------------------------------------------------------------------------------


def test_stop_finishes_and_commits_uploads_under_way(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(4)
    log_dir.checkpoint_high_watermarks()
    leadership = site.leadership = LeadershipByHand({log.tp: 0})
    with store.hold("put", key_of(log.tp, 0)):
        running = site.running(threads=1)
        running.start()
        running.wait(lambda: store.count("put", key_of(log.tp, 0)), "an upload under way")
        running.daemon.stop()
        running.daemon.stop()
        running.wait(lambda: leadership.stopped, "the drain")
    running.join()
    assert running.error is None
    assert stored_next(store, log.tp) == 10, "the one under way is committed, no other begins"
    assert stored_logs(store, log.tp).keys() == {0}


def test_upload_beyond_the_grace_period_is_abandoned(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    with store.hold("put", key_of(log.tp, 0)):
        running = site.running(shutdown_grace=0.05)
        running.start()
        running.wait(lambda: store.count("put", key_of(log.tp, 0)), "an upload under way")
        running.stop()
        assert running.error is None
        assert stored_next(store, log.tp) is None
    site.settle()
    assert stored_logs(store, log.tp) == {0: log.written[0]}
    assert stored_next(store, log.tp) == 10


def test_stop_before_run_ends_at_once(site: Site, log: PartitionLog, store: FakeStorage) -> None:
    log.closed_segments(1)
    running = site.running()
    running.daemon.stop()
    running.start()
    running.join()
    assert running.error is None
    assert store.requests == []


def test_death_of_a_worker_ends_the_daemon_with_its_reason(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    site.store = MortalStore(store, 5)
    running = site.running()
    running.start()
    running.join()
    assert isinstance(running.error, DaemonDiedError)
    assert "KilledError" in str(running.error)
    snapshot = running.daemon.status.snapshot()
    assert not snapshot.alive
    assert snapshot.death == str(running.error)


def test_death_of_the_leadership_source_ends_the_daemon(site: Site, log: PartitionLog) -> None:
    leadership = site.leadership = LeadershipByHand({log.tp: 0})
    running = site.running()
    running.start()
    running.wait(lambda: running.status(log.tp), "the partition to be known")
    leadership.death = OSError("the log is gone")
    running.join()
    assert isinstance(running.error, DaemonDiedError)
    assert "the log is gone" in str(running.error)


def test_all_files_are_closed_at_the_end(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(5)
    with site.running() as running:
        running.wait(lambda: running.daemon.status.snapshot().pinned_files == 15, "the pins")
        assert _open_segments(log_dir.path) == 15
    assert _open_segments(log_dir.path) == 0
    assert stored_next(store, log.tp) is None


def _open_segments(log_dir: Path) -> int:
    """Descriptors of this process on files below the log dir."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(link.readlink()).startswith(str(log_dir))
    return count
