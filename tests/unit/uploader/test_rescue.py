"""Rescue: a follower stores segments that its leader's sidecar does not store, e.g. because it is
dead.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from sidetier.leadership.port import TopicConfig
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.status import Role
from sidetier.uploader.state import segment as segment_state
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
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog
from tests.harness.replicas import replica
from tests.harness.waiting import holds_for, wait_until

PATIENCE = 0.3
RESCUE = {"enabled": True, "patience": PATIENCE, "before_deletion": 600.0}
QUIET = 0.8
"""Longer than a follower's patience, and longer than the interval to its next check."""


@pytest.fixture(autouse=True)
def _short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_state, "_FIRST_HOLD", 0.02)
    monkeypatch.setattr(segment_state, "_LONGEST_HOLD", 0.1)


@pytest.fixture
def copy_dir(tmp_path: Path) -> LogDir:
    """The log dir of broker 2, a follower."""
    return LogDir(tmp_path / "copy", broker_id=2)


@pytest.fixture
def follower(copy_dir: LogDir, store: FakeStorage) -> Site:
    """Broker 2, which leads no partition."""
    return Site(
        [copy_dir],
        store,
        leadership=LeadershipByHand(),
        broker_id=2,
        settings={"rescue": RESCUE},
    )


@pytest.fixture
def leader(site: Site) -> Site:
    """Broker 1, which has followers."""
    site.settings = {"rescue": RESCUE}
    return site


class Topics:
    """A TopicConfigSource with the same answer for all topics."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        return dict.fromkeys(topics, self.config)

    def close(self) -> None:
        """Do nothing; there is nothing to close."""


def expire(running: RunningDaemon, log: PartitionLog, *bases: int, stored: int = 0) -> None:
    """Act as retention: rename all segments, and unlink them once those not stored can be
    pinned.
    """
    for base in bases:
        log.stage(base)
    wanted = {base for base in bases if base >= stored}

    def marked_for_deletion() -> set[int]:
        status = running.status(log.tp)
        rows = status.segments if status else ()
        return {row.base_offset for row in rows if row.marked_for_deletion and row.pinned}

    running.wait(lambda: wanted <= marked_for_deletion(), f"{sorted(wanted)} to be held")
    delete(log, *bases)


def delete(log: PartitionLog, *bases: int) -> None:
    for base in bases:
        log.unlink(base)


def held(running: RunningDaemon) -> int:
    return running.daemon.status.snapshot().pinned_files // 3


def wait_for_pins(running: RunningDaemon, count: int) -> None:
    running.wait(lambda: held(running) == count, f"{count} pinned segments")


def archive_two(leader: Site, log: PartitionLog) -> None:
    """Let the leader store the first two segments."""
    log.closed_segments(2)
    leader.log_dirs[0].checkpoint_high_watermarks()
    leader.settle()


# -- when a follower does nothing -----------------------------------------------------------------


def test_no_partition_is_followed_with_rescue_disabled(
    follower: Site, copy_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(3)
    copy = replica(copy_dir, log, (10, 20, 30))
    copy_dir.checkpoint_high_watermarks()
    with follower.running(rescue={"enabled": False}) as running:
        running.wait(lambda: running.daemon.status.snapshot().ready, "readiness")
        delete(copy, 0)
        holds_for(lambda: store.count() == 0 and held(running) == 0, QUIET, "nothing")


def test_replica_of_another_history_is_not_stored(
    leader: Site, follower: Site, copy_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    archive_two(leader, log)
    copy = replica(copy_dir, log, (10,))
    copy.truncate(15)
    copy.lead(1)  # from offset 15 this copy diverges from the archive, which ends at 20
    copy.append(15)
    copy.roll()
    copy_dir.checkpoint_high_watermarks()
    before = dict(store.contents())
    with follower.running() as running:
        wait_for_pins(running, 1)
        expire(running, copy, 0, 10)
        reads = store.count("get")
        running.wait(lambda: store.count("get") >= reads + 2, "a second reading")
        assert store.contents() == before
        status = running.status(log.tp)
        assert status is not None
        assert "has diverged from the archive at offset 15" in (status.last_error or "")


# -- when a follower stores segments --------------------------------------------------------------


def test_follower_stores_segments_the_broker_deletes(
    leader: Site, follower: Site, copy_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    archive_two(leader, log)
    log.closed_segments(3)
    copy = replica(copy_dir, log, (10, 20, 30, 40, 50))
    copy_dir.checkpoint_high_watermarks()
    with follower.running() as running:
        wait_for_pins(running, 1)
        expire(running, copy, 0, 10, 20, stored=20)
        running.wait(lambda: (s := running.status(log.tp)) and s.role is Role.FOLLOWER, "the role")
        running.wait(lambda: stored_next(store, log.tp) == 30, "the rescue")
        holds_for(lambda: stored_next(store, log.tp) == 30, QUIET, "no more than is at risk")
        running.wait(lambda: running.status(log.tp) is None, "nothing at risk")
        copy.stage(30)
        copy.stage(40)
        running.wait(lambda: stored_next(store, log.tp) == 50, "the rest")
    check_archive(store, log.tp)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in range(0, 50, 10)}
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    assert (watermark.broker_id, watermark.leader_epoch) == (2, 0)


def test_follower_does_not_start_the_archive_above_records_the_leader_has(
    leader: Site, follower: Site, copy_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The leader's sidecar returns before the follower's sidecar has written the first
    watermark.
    """
    log.closed_segments(3)
    copy = replica(copy_dir, log, (10, 20, 30))
    delete(copy, 0)
    for base in (10, 20):
        copy.set_age(base, 3500)
    for directory in (copy_dir, leader.log_dirs[0]):
        directory.checkpoint_high_watermarks()
    leader.topic_configs = follower.topic_configs = Topics(TopicConfig(retention=3600.0))
    first, second = key_of(log.tp, 0), key_of(log.tp, 10)
    with ExitStack() as stack:
        with store.hold("put", first):
            with store.hold("put", second):
                following = stack.enter_context(follower.running())
                following.wait(lambda: store.count("put", second), "the follower's upload")
                leading = stack.enter_context(leader.running())
                leading.wait(lambda: store.count("put", first), "the leader's")
            holds_for(lambda: watermark_of(store, log.tp) is None, QUIET, "no watermark")
        leading.wait(lambda: stored_next(store, log.tp) == 30, "all of it")
    check_archive(store, log.tp)
    mark = watermark_of(store, log.tp)
    assert mark is not None
    assert mark.start_offset == 0


def test_follower_with_earlier_records_lowers_the_recorded_start(
    follower: Site, copy_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """It does so before it stores anything, so that the leader does not begin above these
    records.
    """
    log.closed_segments(2)
    copy = replica(copy_dir, log, (10, 20))
    copy.set_age(0, 3500)
    copy.set_age(10, 100)
    copy_dir.checkpoint_high_watermarks()
    follower.topic_configs = Topics(TopicConfig(retention=3600.0))
    record = {"version": 1, "start_offset": 10, "offset_reset": "earliest", "topic_id": TOPIC_ID}
    store.put_object(LAYOUT.start_key(log.tp), BytesBody(json.dumps(record).encode()))
    first = key_of(log.tp, 0)
    with follower.running() as running:
        with store.hold("put", first):
            running.wait(lambda: store.count("put", first), "the follower's upload")
            lowered = json.loads(store.contents()[LAYOUT.start_key(log.tp)])
            assert lowered["start_offset"] == 0
        running.wait(lambda: stored_next(store, log.tp) == 10, "the rescue")
    check_archive(store, log.tp)


def test_segments_near_their_deletion_by_size_are_stored_before_it(
    follower: Site, copy_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(4)
    copy = replica(copy_dir, log, (10, 20, 30, 40))
    size = len(copy.written[0])
    copy_dir.checkpoint_high_watermarks()
    follower.topic_configs = Topics(TopicConfig(retention_bytes=3 * size))
    with follower.running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 20, "the rescue")
        holds_for(lambda: stored_next(store, log.tp) == 20, QUIET, "no more than is at risk")
    check_archive(store, log.tp)


def test_segment_that_ages_without_any_event_is_stored_in_time(
    follower: Site, copy_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(2)
    copy = replica(copy_dir, log, (10, 20))
    copy.set_age(0, 2998.5)
    copy.set_age(10, 100)
    copy_dir.checkpoint_high_watermarks()
    follower.topic_configs = Topics(TopicConfig(retention=3600.0))
    with follower.running() as running:
        wait_for_pins(running, 1)
        assert store.count() == 0
        running.wait(lambda: stored_next(store, log.tp) == 10, "the rescue")


def test_partition_with_a_lost_lead_is_followed(
    leader: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The former leader's backlog is stored although the broker has deleted it."""
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    leadership = leader.leadership = LeadershipByHand({log.tp: 0})
    with leader.running() as running:
        log.closed_segments(3)
        wait_for_pins(running, 3)
        leadership.lose(log.tp)
        expire(running, log, 0, 10)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 20, "the rescue")
        leadership.lead(log.tp, 0)
        running.wait(lambda: stored_next(store, log.tp) == 30, "the lead")
    check_archive(store, log.tp)


def test_follower_that_becomes_leader_has_pinned_the_deleted_segments(
    leader: Site, follower: Site, copy_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """A lead change with a backlog older than the retention."""
    archive_two(leader, log)
    log.closed_segments(2)
    copy = replica(copy_dir, log, (10, 20, 30, 40))
    copy_dir.checkpoint_high_watermarks()
    leadership = follower.leadership = LeadershipByHand()
    with follower.running(rescue={**RESCUE, "patience": 30.0}) as running:
        wait_for_pins(running, 1)
        expire(running, copy, 0, 10, 20, stored=20)
        running.wait(lambda: running.status(log.tp) is not None, "what is at risk")
        copy.lead(1)
        leadership.lead(log.tp, 1)
        running.wait(lambda: stored_next(store, log.tp) == 40, "all of it")
    check_archive(store, log.tp)
    assert recorded_gaps(store, log.tp) == []


# -- leader and follower at once ------------------------------------------------------------------


@pytest.mark.parametrize("held_back", [FileKind.INDEX, FileKind.LOG])
@pytest.mark.parametrize(
    "roll_at", [(10, 20, 30, 40), (15, 25, 40), (10, 35, 40)], ids=["alike", "other", "longer"]
)
def test_slow_leader_and_rescuing_follower_do_not_conflict(
    leader: Site,
    follower: Site,
    store: FakeStorage,
    held_back: FileKind,
    roll_at: tuple[int, ...],
) -> None:
    """Replicas can have other segment boundaries; each sidecar continues after the segments of the
    other.
    """
    (copy_dir,) = follower.log_dirs
    log = leader.log_dirs[0].create()
    archive_two(leader, log)
    log.closed_segments(2)
    copy = replica(copy_dir, log, roll_at)
    copy_dir.checkpoint_high_watermarks()
    leader.log_dirs[0].checkpoint_high_watermarks()
    slow = key_of(log.tp, 20, held_back)
    with ExitStack() as stack:
        with store.hold("put", slow):
            leading = stack.enter_context(leader.running())
            leading.wait(lambda: store.count("put", slow) == 1, "the slow upload")
            following = stack.enter_context(follower.running())
            wait_for_pins(following, 1)
            expire(following, copy, 0, *roll_at[:-1], stored=20)
            following.wait(lambda: following.status(log.tp) is not None, "what is at risk")
            following.wait(lambda: store.count("put", slow) >= 2 or is_past(store, log), "both")
        leading.wait(lambda: stored_next(store, log.tp) == 40, "the end")
        log.closed_segments(1)
        leader.log_dirs[0].checkpoint_high_watermarks()
        leading.wait(lambda: stored_next(store, log.tp) == 50, "the leader to go on")
    check_archive(store, log.tp)
    assert recorded_gaps(store, log.tp) == []


def is_past(store: FakeStorage, log: PartitionLog) -> bool:
    return (stored_next(store, log.tp) or 0) > 20


def test_leader_continues_after_the_followers_segments(
    leader: Site, follower: Site, copy_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The watermark is of the same epoch, so the leader neither stands down nor conflicts."""
    archive_two(leader, log)
    log.closed_segments(3)
    copy = replica(copy_dir, log, (10, 25, 40, 50))
    copy_dir.checkpoint_high_watermarks()
    with follower.running() as following:
        wait_for_pins(following, 1)
        expire(following, copy, 0, 10, 25, stored=20)
        following.wait(lambda: stored_next(store, log.tp) == 40, "the rescue")
        leader.log_dirs[0].checkpoint_high_watermarks()
        with leader.running() as leading:
            leading.wait(lambda: stored_next(store, log.tp) == 50, "the leader")
            log.closed_segments(1)
            leader.log_dirs[0].checkpoint_high_watermarks()
            leading.wait(lambda: stored_next(store, log.tp) == 60, "the leader to go on")
    check_archive(store, log.tp)


def test_two_rescuing_followers_do_not_conflict(
    leader: Site, tmp_path: Path, log: PartitionLog, store: FakeStorage
) -> None:
    archive_two(leader, log)
    log.closed_segments(4)
    with ExitStack() as stack:
        copies = []
        for broker_id, roll_at in ((2, (15, 30, 45, 60)), (3, (10, 20, 40, 55, 60))):
            directory = LogDir(tmp_path / f"broker-{broker_id}", broker_id=broker_id)
            copy = replica(directory, log, roll_at)
            directory.checkpoint_high_watermarks()
            site = Site([directory], store, LeadershipByHand(), broker_id=broker_id)
            running = stack.enter_context(site.running(rescue=RESCUE))
            wait_for_pins(running, 1)
            copies.append((running, copy))
        for running, copy in copies:
            expire(running, copy, *copy.bases()[:-1], stored=20)
        wait_until(lambda: stored_next(store, log.tp) == 60, 20, "the rescue")
    check_archive(store, log.tp)


def test_partition_that_arrives_on_the_broker_is_followed(
    follower: Site, copy_dir: LogDir, log: PartitionLog
) -> None:
    log.closed_segments(2)
    with follower.running() as running:
        running.wait(lambda: running.daemon.status.snapshot().ready, "readiness")
        replica(copy_dir, log, (10, 20))
        wait_for_pins(running, 1)
        assert TopicPartition("t", 0) not in {
            status.topic_partition for status in running.daemon.status.snapshot().partitions
        }
