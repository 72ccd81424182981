"""The hard-link spool: segments that the broker deletes while no sidecar runs are still stored."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from sidetier.config.uploader import PinsConfig
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, LeaderEpoch
from sidetier.segments.producer_snapshot import encode_snapshot
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader import engine
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.daemon import DaemonDiedError
from sidetier.uploader.pinning import spool, spooling
from sidetier.uploader.pinning.pins import pin
from sidetier.uploader.pinning.spool import Spool, late_home, spool_homes
from sidetier.uploader.pinning.spooling import take_spooled
from sidetier.uploader.pinning.table import PinTable, enforce_bounds
from sidetier.uploader.state.partition import DirectoryState, Partition
from sidetier.uploader.state.segment import Timeline
from sidetier.uploader.watching.disk import EPOCH_CHECKPOINT_NAME
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import (
    LeadershipByHand,
    RunningDaemon,
    Site,
    key_of,
    stored_logs,
    stored_next,
)
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog
from tests.harness.waiting import wait_until

ANOTHER_ID = "BBBBBBBBBBBBBBBBBBBBBQ"
KINDS = (".log", ".index", ".timeindex")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The spool directory."""
    path = tmp_path / "spool"
    path.mkdir()
    return path


@pytest.fixture
def spooling_site(site: Site, home: Path) -> Site:
    """A daemon with that spool."""
    site.settings = {"pins": {"min_free_disk": "0", "spool": [str(home)]}}
    return site


@dataclass(frozen=True)
class Bench:
    """Fixtures that most of these tests need."""

    site: Site
    log_dir: LogDir
    log: PartitionLog
    store: FakeStorage
    home: Path


@pytest.fixture
def bench(
    spooling_site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, home: Path
) -> Bench:
    return Bench(spooling_site, log_dir, log, store, home)


def names(home: Path) -> list[str]:
    """Names of the segment files of t-0 in the spool."""
    place = home / "c" / "t-0" / TOPIC_ID
    found = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    return [name for name in found if not name.startswith(EPOCH_CHECKPOINT_NAME)]


def segment_names(*bases: int) -> list[str]:
    return sorted(f"{base:020d}-{base + 10:020d}{suffix}" for base in bases for suffix in KINDS)


def spool_and_stop(site: Site, log_dir: LogDir, log: PartitionLog, count: int) -> None:
    """Close `count` uncommitted segments and stop the sidecar. Its shutdown does not touch the
    spool.
    """
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    with site.running() as running:
        log.closed_segments(count)
        wait_for_unstored(running, log, count)
    log_dir.checkpoint_high_watermarks()


def wait_for_unstored(running: RunningDaemon, log: PartitionLog, count: int) -> None:
    def told() -> bool:
        status = running.status(log.tp)
        return status is not None and status.unstored_segments == count

    running.wait(told, f"{count} unstored segments")


def delete(log: PartitionLog, *bases: int) -> None:
    for base in bases:
        log.stage(base)
        log.unlink(base)


def run_until_stored(site: Site, log: PartitionLog, store: FakeStorage, end: int) -> None:
    with site.running() as running:
        running.wait(lambda: stored_next(store, log.tp) == end, f"everything below {end}")


# -- life of a link -------------------------------------------------------------------------------


def test_closed_segment_has_hard_links_until_it_is_stored(
    spooling_site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, home: Path
) -> None:
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    with spooling_site.running() as running:
        log.closed_segments(2)
        running.wait(lambda: names(home) == segment_names(0, 10), "second names")
        second = home / "c" / "t-0" / TOPIC_ID / segment_names(0)[1]
        assert second.samefile(log.file(0, FileKind.LOG))
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 20, "both segments")
        running.wait(lambda: names(home) == [], "the names to go")


def test_follower_links_a_segment_near_its_deletion_at_the_first_listing(
    spooling_site: Site, log: PartitionLog, home: Path
) -> None:
    """No other event may occur in the directory before the broker unlinks it."""
    spooling_site.leadership = LeadershipByHand()
    century = 100 * 365 * 86400  # the records are years old
    with spooling_site.running(rescue={"enabled": True}, local_retention=century) as running:
        log.closed_segments(2)
        running.wait(lambda: running.daemon.status.snapshot().pinned_files == 3, "a pin")
        assert names(home) == []
        log.stage(0)
        running.wait(lambda: set(segment_names(0)) <= set(names(home)), "second names")


def test_segments_deleted_while_no_sidecar_ran_are_stored(
    spooling_site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, home: Path
) -> None:
    spool_and_stop(spooling_site, log_dir, log, 3)
    delete(log, 0, 10, 20)
    run_until_stored(spooling_site, log, store, 30)
    check_archive(store, log.tp)
    assert recorded_gaps(store, log.tp) == []
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20)}
    wait_until(lambda: names(home) == [], 5, "the names to go")


@pytest.mark.usefixtures("quick_gaps")
@pytest.mark.parametrize(("epoch", "gaps"), [(1, []), (2, [(0, 15)])])
def test_epochs_dropped_by_the_broker_are_remembered_over_a_restart(
    bench: Bench, epoch: int, gaps: list[tuple[int, int]]
) -> None:
    """The sidecar dies before it sees the high watermark pass a segment of two leader epochs, and
    the broker deletes the segment: only the spool knows where the second epoch began. If the log
    continues in a third epoch, an unseen election may have truncated the spooled segment.
    """
    log = bench.log
    log.append(5)
    log.lead(1)
    spool_and_stop(bench.site, bench.log_dir, log, 1)
    assert not list((bench.home / "c" / "t-0" / TOPIC_ID).glob("*.committed"))
    if epoch > log.epoch:
        log.lead(epoch)
    log.closed_segment()
    delete(log, 0)
    log.start_at(15)
    bench.log_dir.checkpoint_high_watermarks()
    run_until_stored(bench.site, log, bench.store, 25)
    assert recorded_gaps(bench.store, log.tp) == gaps


def test_deleted_segments_are_a_gap_without_a_spool(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """Control for the test above: the result without a spool."""
    spool_and_stop(site, log_dir, log, 3)
    delete(log, 0, 10, 20)
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 40, "the rest")
    assert list(stored_logs(store, log.tp)) == [30]


def test_segment_closed_for_lack_of_descriptors_is_reopened_from_the_spool(
    spooling_site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, home: Path
) -> None:
    pins = {"min_free_disk": "0", "spool": [str(home)], "max_files": 3}
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    with spooling_site.running(pins=pins) as running:
        for count in range(1, 5):
            log.closed_segment()
            running.wait(lambda n=count: len(names(home)) == 3 * n, "names")  # type: ignore[misc]
        assert running.daemon.status.snapshot().pinned_files <= 3
        delete(log, 0, 10, 20, 30)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 40, "all of them")
    assert recorded_gaps(store, log.tp) == []


# -- kills ----------------------------------------------------------------------------------------


def kill_at(monkeypatch: pytest.MonkeyPatch, name: str, lives: int) -> Callable[[], None]:
    """Die at the given call of the spool's function; return a function that ends this."""
    real, left = getattr(spool, name), [lives]

    def dying(*arguments: object) -> None:
        if left[0] == 0:
            raise KilledError(f"at {name}")
        left[0] -= 1
        real(*arguments)

    monkeypatch.setattr(spool, name, dying)
    return lambda: monkeypatch.setattr(spool, name, real)


@pytest.mark.parametrize("gone", [False, True], ids=["still there", "deleted meanwhile"])
@pytest.mark.parametrize("lives", range(1, 6))
def test_kill_between_the_links_of_one_segment_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lives: int, *, gone: bool
) -> None:
    """The `.log` is linked first: indexes can be rebuilt from it."""
    log_dir, log, store = bench.log_dir, bench.log, bench.store
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    live_again = kill_at(monkeypatch, "_link", lives)
    running = bench.site.running()
    running.start()
    running.join()
    assert isinstance(running.error, KilledError)
    live_again()
    whole = [0, 10] if lives >= 4 else [0]
    if gone:
        delete(log, *whole)
    log_dir.checkpoint_high_watermarks()
    run_until_stored(bench.site, log, store, 20)
    check_archive(store, log.tp)
    assert recorded_gaps(store, log.tp) == []
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10)}
    wait_until(lambda: names(bench.home) == [], 5, "the names to go")


@pytest.mark.parametrize("lives", range(6))
def test_kill_between_the_upload_and_the_removal_of_the_links_is_harmless(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lives: int
) -> None:
    log_dir, log, store = bench.log_dir, bench.log, bench.store
    spool_and_stop(bench.site, log_dir, log, 2)
    live_again = kill_at(monkeypatch, "_unlink", lives)
    running = bench.site.running()
    running.start()
    running.join()
    assert isinstance(running.error, KilledError)
    live_again()
    delete(log, 0, 10)
    run_until_stored(bench.site, log, store, 20)
    with bench.site.running() as running:
        running.wait(lambda: names(bench.home) == [], "the names to go")
    check_archive(store, log.tp)
    assert recorded_gaps(store, log.tp) == []
    assert store.count("put", key_of(log.tp, 0)) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("lives", range(14))
def test_kill_at_any_request_and_deletion_before_the_next_start_lose_nothing(
    spooling_site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    lives: int,
    *,
    after: bool,
) -> None:
    spool_and_stop(spooling_site, log_dir, log, 2)
    spooling_site.store = MortalStore(store, lives, after=after)
    running = spooling_site.running(threads=1, request_threads=1)
    running.start()
    wait_until(lambda: running.error or stored_next(store, log.tp) == 20, 10, "a death or the end")
    running.stop()
    assert running.error is None or isinstance(running.error, DaemonDiedError)
    delete(log, 0, 10)
    check_archive(store, log.tp)
    spooling_site.store = store
    run_until_stored(spooling_site, log, store, 20)
    check_archive(store, log.tp)
    assert recorded_gaps(store, log.tp) == []
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10)}


# -- truncated segments ---------------------------------------------------------------------------


def test_truncated_segments_in_the_spool_are_not_stored(
    spooling_site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, home: Path
) -> None:
    spool_and_stop(spooling_site, log_dir, log, 3)
    log.truncate(10)
    log.unlink(20)
    log.lead(1)
    log.append(20)
    log.roll()
    log_dir.checkpoint_high_watermarks()
    run_until_stored(spooling_site, log, store, 30)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10)}
    wait_until(lambda: names(home) == [], 5, "the names to go")


def test_file_rewritten_in_place_and_deleted_is_stored_with_its_new_content(
    spooling_site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """Truncation changes the file itself, so its link has the bytes of the new epoch history."""
    spool_and_stop(spooling_site, log_dir, log, 2)
    log.truncate(5)
    log.unlink(10)
    log.unlink(20)
    log.lead(1)
    log.append(30)
    log.roll()
    log.closed_segment()
    delete(log, 0)
    log_dir.checkpoint_high_watermarks()
    run_until_stored(spooling_site, log, store, 45)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 35)}


def test_deleted_producer_snapshot_does_not_keep_a_segment_out_of_the_spool(
    log_dir: LogDir, log: PartitionLog, home: Path
) -> None:
    """The broker deletes all but the newest snapshots long before their segments."""
    log.closed_segments(1)
    place = home / "t-0"
    snapshot = log.file(0, FileKind.SNAPSHOT)
    snapshot.write_bytes(encode_snapshot() + b"a producer")  # an empty one is not pinned
    pinned = pin(
        str(log.path), ClosedSegment(BaseOffset(0), BaseOffset(10), marked_for_deletion=False)
    )
    try:
        assert FileKind.SNAPSHOT in pinned.descriptors
        snapshot.unlink()
        kept = kept_by(home, log_dir).keep(str(place), pinned)
    finally:
        pinned.close()
    assert kept is not None
    assert sorted(path.suffix for path in place.iterdir()) == sorted(KINDS)


def test_segment_without_its_index_is_not_spooled_partially(
    log_dir: LogDir, log: PartitionLog, home: Path
) -> None:
    log.closed_segments(1)
    place = home / "t-0"
    pinned = pin(
        str(log.path), ClosedSegment(BaseOffset(0), BaseOffset(10), marked_for_deletion=False)
    )
    try:
        log.file(0, FileKind.TIMEINDEX).unlink()
        assert kept_by(home, log_dir).keep(str(place), pinned) is None
    finally:
        pinned.close()
    assert list(place.iterdir()) == []


# -- process start --------------------------------------------------------------------------------


def kept_by(home: Path, log_dir: LogDir) -> Spool:
    return Spool({str(log_dir.path): str(home)}, "c")


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, [0, 10, 20]),
        ({"max_deleted_bytes": 1200}, [0, 10]),
        ({"max_deleted_bytes": 0}, []),
        ({"min_free_disk": "1000TiB"}, []),
    ],
    ids=["room", "bytes", "no bytes", "disk"],
)
def test_bounds_apply_from_the_start(
    spooling_site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    home: Path,
    settings: dict[str, object],
    left: list[int],
) -> None:
    """The newest segments are released first; segments the broker still has take no extra space and
    stay.
    """
    spool_and_stop(spooling_site, log_dir, log, 4)
    for number, base in enumerate((0, 10, 20, 30)):
        log.set_age(base, 1000 - number)
    delete(log, 0, 10, 20)
    config = PinsConfig.model_validate({"min_free_disk": "0", **settings})
    found, metrics = kept_by(home, log_dir), Metrics(CollectorRegistry())
    spooling.begin(found, [str(log_dir)])
    left_over = found.untaken.values()
    enforce_bounds(PinTable(3), config, [str(log_dir)], left_over, SYSTEM_CLOCK, metrics)
    assert names(home) == segment_names(*left, 30)


def test_leftovers_without_a_log_are_removed_at_the_start(
    spooling_site: Site, log_dir: LogDir, log: PartitionLog, home: Path
) -> None:
    spool_and_stop(spooling_site, log_dir, log, 2)
    place = home / "c" / "t-0" / TOPIC_ID
    (place / segment_names(0)[1]).unlink()
    (place / f"{EPOCH_CHECKPOINT_NAME}.new").write_text("0\n")
    spooling.begin(kept_by(home, log_dir), [str(log_dir)])
    assert names(home) == segment_names(10)
    assert {path.name for path in place.iterdir()} == {*names(home), EPOCH_CHECKPOINT_NAME}


def test_links_of_partitions_that_no_longer_exist_are_removed(
    spooling_site: Site, log_dir: LogDir, log: PartitionLog, home: Path
) -> None:
    spool_and_stop(spooling_site, log_dir, log, 2)
    log.delete_topic()
    log_dir.create(topic_id=ANOTHER_ID)
    spooling.begin(kept_by(home, log_dir), [str(log_dir)])
    assert not (home / "c" / "t-0" / TOPIC_ID).exists()


def test_nothing_is_removed_while_the_log_dir_is_offline(
    spooling_site: Site, log_dir: LogDir, log: PartitionLog, home: Path
) -> None:
    spool_and_stop(spooling_site, log_dir, log, 2)
    log_dir.path.rename(log_dir.path.with_name("away"))
    spooling.begin(kept_by(home, log_dir), [str(log_dir)])
    assert names(home) == segment_names(0, 10)


# -- several log dirs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoLogDirs:
    """Two log dirs on one mount that share a spool; t-0 is in the second."""

    site: Site
    first: LogDir
    second: LogDir
    log: PartitionLog

    def checkpoint(self, *, committed: bool) -> None:
        self.first.checkpoint_high_watermarks()
        self.second.checkpoint_high_watermarks(None if committed else {self.log.tp: 0})

    def begin(self, home: Path) -> Spool:
        """Run the first step of a start."""
        log_dirs = [str(self.first), str(self.second)]
        found = Spool(dict.fromkeys(log_dirs, str(home)), "c")
        spooling.begin(found, log_dirs)
        return found


@pytest.fixture
def two(tmp_path: Path, store: FakeStorage, home: Path) -> TwoLogDirs:
    """Two segments in the spool that are no longer in any log dir."""
    first, second = LogDir(tmp_path / "a"), LogDir(tmp_path / "b")
    first.create("other")
    log = second.create()
    site = Site([first, second], store)
    site.settings = {"pins": {"min_free_disk": "0", "spool": [str(home)]}}
    two = TwoLogDirs(site, first, second, log)
    two.checkpoint(committed=False)
    with site.running() as running:
        log.closed_segments(2)
        running.wait(lambda: names(home) == segment_names(0, 10), "second names")
    delete(log, 0, 10)
    return two


def test_log_dirs_on_one_mount_share_a_spool(
    two: TwoLogDirs, store: FakeStorage, home: Path
) -> None:
    two.checkpoint(committed=True)
    run_until_stored(two.site, two.log, store, 20)
    assert set(stored_logs(store, two.log.tp)) == {0, 10}
    assert recorded_gaps(store, two.log.tp) == []
    wait_until(lambda: names(home) == [], 5, "the names to go")


def test_partition_moved_to_another_log_dir_keeps_its_spooled_segments(
    two: TwoLogDirs, store: FakeStorage, tmp_path: Path, home: Path
) -> None:
    """Also when each log dir has its own spool."""
    two.log.path.rename(two.first.path / "t-0")
    two.first.checkpoint_high_watermarks({two.log.tp: 20})
    homes = tmp_path / "another"
    homes.mkdir()
    log_dirs = [str(two.first), str(two.second)]
    own = Spool({log_dirs[0]: str(homes), log_dirs[1]: str(home)}, "c")
    spooling.begin(own, log_dirs)
    assert names(home) == segment_names(0, 10)
    place = home / "c" / "t-0" / TOPIC_ID
    assert str(place) in own.places(str(two.first.path / "t-0"), TOPIC_ID)
    run_until_stored(two.site, two.log, store, 20)
    assert set(stored_logs(store, two.log.tp)) == {0, 10}


@pytest.mark.parametrize("how", ["missing", "an empty mount point"])
def test_nothing_is_removed_while_another_log_dir_is_unreadable(
    two: TwoLogDirs, home: Path, how: str
) -> None:
    """The partition may be in the unreadable log dir."""
    (two.second.path / "t-0").rename(home.with_name("gone"))
    if how == "missing":
        two.first.path.rename(home.with_name("away"))
    else:
        (two.first.path / "meta.properties").unlink()
    two.begin(home)
    assert names(home) == segment_names(0, 10)


def test_partition_being_moved_to_another_log_dir_keeps_its_links(
    two: TwoLogDirs, home: Path
) -> None:
    two.log.path.rename(two.first.path / f"t-0.{'0' * 32}-future")
    two.begin(home)
    assert names(home) == segment_names(0, 10)


def test_links_to_the_old_log_dirs_copy_are_removed_once_the_new_copy_exists(
    log_dir: LogDir, log: PartitionLog, tmp_path: Path, home: Path
) -> None:
    """The broker has copied the segment: the pin holds the broker's new file."""
    log.closed_segments(1)
    place = home / "c" / "t-0" / TOPIC_ID
    place.mkdir(parents=True)
    for name in segment_names(0):
        copy = tmp_path / name
        copy.write_bytes((log.path / (name[:20] + copy.suffix)).read_bytes())
        os.link(copy, place / name)
        copy.unlink()
    partition = identified(log)
    pins = PinTable(100)
    take_spooled(kept_by(home, log_dir), partition, pins, Timeline(0.0), 60.0)
    tracked = partition.log.tracked[BaseOffset(0)]
    assert names(home) == []
    assert not tracked.held_alone()
    partition.close()


def identified(log: PartitionLog) -> Partition:
    return Partition(
        log.tp,
        LeaderEpoch(0),
        topic_id=TOPIC_ID,
        directory=str(log.path),
        log_dir=str(log.path.parent),
        directory_state=DirectoryState(identified=True),
    )


# -- the bounds -----------------------------------------------------------------------------------


def test_segment_pinned_before_its_links_were_found_counts_once_it_is_deleted(
    log_dir: LogDir, log: PartitionLog, home: Path
) -> None:
    """The broker may write the topic ID after the first listing; the spool is read then."""
    log.closed_segments(1)
    place = home / "c" / "t-0" / TOPIC_ID
    place.mkdir(parents=True)
    for name in segment_names(0):
        os.link(log.path / (name[:20] + Path(name).suffix), place / name)
    partition, pins = identified(log), PinTable(100)
    segment = ClosedSegment(BaseOffset(0), BaseOffset(10), marked_for_deletion=False)
    tracked = pins.track(str(log.path), segment, Timeline(0.0), 60.0)
    assert tracked is not None
    partition.log.tracked[BaseOffset(0)] = tracked
    take_spooled(kept_by(home, log_dir), partition, pins, Timeline(0.0), 60.0)
    assert not tracked.held_alone()
    log.unlink(0)
    assert tracked.held_alone()
    assert tracked.unlinked()
    assert [pin.base_offset for pin in pins.enforce([partition], 0, {})] == [0]
    assert names(home) == []


def test_unclaimed_spooled_segments_are_bounded_while_the_sidecar_runs(
    spooling_site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They belong to a partition that is led elsewhere, and the broker deletes it after the
    start.
    """
    monkeypatch.setattr(engine, "_HOUSEKEEPING_SECONDS", 0.02)
    spool_and_stop(spooling_site, log_dir, log, 2)
    spooling_site.leadership = LeadershipByHand({})
    pins = {"min_free_disk": "0", "spool": [str(home)], "max_deleted_bytes": 0}
    with spooling_site.running(pins=pins) as running:
        running.wait(lambda: running.daemon.status.snapshot().ready, "the start")
        assert names(home) == segment_names(0, 10)
        delete(log, 10)
        running.wait(lambda: names(home) == segment_names(0), "the deleted one to be let go")


# -- disk errors ----------------------------------------------------------------------------------


def test_link_that_cannot_be_removed_does_not_end_the_daemon(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory cannot be unlinked, not even by root."""
    log_dir, log, store, home = bench.log_dir, bench.log, bench.store, bench.home
    spool_and_stop(bench.site, log_dir, log, 2)
    index = home / "c" / "t-0" / TOPIC_ID / segment_names(0)[0]
    index.unlink()
    index.mkdir()
    run_until_stored(bench.site, log, store, 20)
    assert "spool.not_removed" in capsys.readouterr().out
    wait_until(lambda: set(names(home)) <= set(segment_names(0)), 5, "the other segment's names")


def test_unreadable_spool_does_not_prevent_pins(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """The spool directory is a link to itself: segments are pinned and stored without it."""
    log_dir, log, store, home = bench.log_dir, bench.log, bench.store, bench.home
    place = home / "c" / "t-0"
    place.parent.mkdir()
    place.symlink_to(place)
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    run_until_stored(bench.site, log, store, 20)
    assert "spool.unreadable" in capsys.readouterr().out


def test_log_dir_that_was_unreadable_gets_its_spool_once_it_is_back(
    log_dir: LogDir, home: Path, tmp_path: Path
) -> None:
    away = str(tmp_path / "away")
    assert spool_homes([str(log_dir), away], [str(home)]) == {str(log_dir): str(home)}
    late = Spool({}, "c", lambda log_dir: late_home(log_dir, [str(home)]))
    LogDir(tmp_path / "away")
    assert late.place(f"{away}/t-0", TOPIC_ID) == str(home / "c" / "t-0" / TOPIC_ID)
    assert late_home(away, ["/proc"]) is None


# -- unusable spools ------------------------------------------------------------------------------


def test_log_dir_uses_the_spool_on_its_mount(log_dir: LogDir, home: Path) -> None:
    assert spool_homes([str(log_dir)], [str(home)]) == {str(log_dir): str(home)}
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EXDEV, "another mount"),
        (errno.EPERM, "fs.protected_hardlinks"),
        (errno.EACCES, "may not write"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_refused_hard_links_are_reported_at_the_start(
    log_dir: LogDir, home: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ConfigurationError, match=reason):
        spool_homes([str(log_dir)], [str(home)])


@pytest.mark.parametrize(
    ("number", "served"),
    [(errno.EROFS, ["b"]), (errno.EIO, ["b"]), (errno.ENOSPC, ["a", "b"])],
    ids=["read-only", "an I/O error", "full"],
)
def test_failing_or_full_disk_does_not_keep_the_sidecar_from_starting(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, number: int, served: list[str]
) -> None:
    log_dirs = [str(LogDir(tmp_path / name)) for name in "ab"]
    link = os.link

    def refuse(source: str, target: str) -> None:
        if source.startswith(log_dirs[0]):
            raise OSError(number, os.strerror(number))
        link(source, target)

    monkeypatch.setattr(os, "link", refuse)
    assert spool_homes(log_dirs, [str(home)]) == {
        str(tmp_path / name): str(home) for name in served
    }


def test_missing_spool_or_spool_on_another_mount_is_reported_at_the_start(
    log_dir: LogDir, home: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere: No such file"):
        spool_homes([str(log_dir)], [str(home / "nowhere")])
    with pytest.raises(ConfigurationError, match=r"none of /proc is on the file system"):
        spool_homes([str(log_dir)], ["/proc"])
