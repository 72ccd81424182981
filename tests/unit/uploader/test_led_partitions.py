"""Pins survive a short loss of the lead; no other state does."""

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from sidetier.leadership.port import LeadershipView
from sidetier.segments.offsets import LeaderEpoch, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import Clock
from sidetier.uploader.led_partitions import LedPartitions
from sidetier.uploader.state.decisions import PARK_SECONDS
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.log_dirs import LogDirs
from tests.harness.daemons import LeadershipByHand, Site, stored_logs, stored_next
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog
from tests.harness.waiting import holds_for

if TYPE_CHECKING:
    from sidetier.uploader.state.partition import Partition


ANOTHER_ID = "BBBBBBBBBBBBBBBBBBBBBQ"


def view(
    leads: dict[TopicPartition, int], topic_ids: dict[str, str] | None = None
) -> LeadershipView:
    epochs = {tp: LeaderEpoch(epoch) for tp, epoch in leads.items()}
    return LeadershipView(epochs, topic_ids or {}, known=True)


class Follower:
    """A set of led partitions with a manual clock."""

    def __init__(self, log_dir: LogDir) -> None:
        self.now = 0.0
        self.dropped: list[Partition] = []
        self.log_dirs = log_dirs = LogDirs([str(log_dir)], lambda _: True)
        metrics = Metrics(CollectorRegistry())
        clock = Clock(lambda: self.now, lambda: self.now)
        self.errors = UnexpectedErrors(metrics, clock)
        self.leads = LedPartitions(
            log_dirs, metrics, self.errors, self.dropped.append, clock.monotonic
        )

    def follow(self, view: LeadershipView) -> "list[Partition]":
        """Apply the view and find the directories of newly led partitions, as the engine does."""
        partitions = self.leads.follow(view)
        for partition in partitions:
            self.leads.locate(partition)
        return partitions


def test_only_partitions_of_the_view_are_led(log_dir: LogDir, log: PartitionLog) -> None:
    other = log_dir.create("other")
    at = Follower(log_dir)
    (partition,) = at.follow(view({log.tp: 1}))
    assert partition.topic_partition == log.tp
    assert at.leads.get(other.tp) is None


def test_partition_returns_from_parking_with_its_lead(log_dir: LogDir, log: PartitionLog) -> None:
    at = Follower(log_dir)
    (first,) = at.follow(view({log.tp: 1}))
    assert at.follow(view({})) == []
    assert at.dropped == [first]
    assert first.lost
    assert at.leads.get(log.tp) is None
    (again,) = at.follow(view({log.tp: 2}))
    assert again is first
    assert (again.lost, again.leader_epoch, again.archive) == (False, 2, None)


def test_new_epoch_reloads_the_archive_and_keeps_the_pins(
    log_dir: LogDir, log: PartitionLog
) -> None:
    at = Follower(log_dir)
    (first,) = at.follow(view({log.tp: 1}))
    (again,) = at.follow(view({log.tp: 2}))
    assert again is first
    assert again.leader_epoch == 2
    assert at.dropped == []


def test_parked_partition_is_released_after_park_seconds(
    log_dir: LogDir, log: PartitionLog
) -> None:
    at = Follower(log_dir)
    (partition,) = at.follow(view({log.tp: 1}))
    at.follow(view({}))
    at.now = PARK_SECONDS - 1
    at.leads.release_parked()
    assert list(at.leads.with_parked()) == [partition]
    assert not partition.released
    at.now = PARK_SECONDS
    at.leads.release_parked()
    assert list(at.leads.with_parked()) == []
    assert partition.released


@pytest.mark.parametrize("follows", [False, True], ids=["led only", "followed, too"])
def test_partition_of_a_deleted_topic_is_released_at_once(
    log_dir: LogDir, log: PartitionLog, *, follows: bool
) -> None:
    """The leadership view lists all topics, and this one is missing."""
    at = Follower(log_dir)
    if follows:
        at.leads.begin_to_follow()
    (partition,) = at.follow(view({log.tp: 1}, {"t": TOPIC_ID, "other": ANOTHER_ID}))
    log.delete_topic()
    at.follow(view({}, {"other": ANOTHER_ID}))
    assert partition.released
    assert list(at.leads.with_parked()) == []


@pytest.mark.parametrize("topic_ids", [{}, {"t": TOPIC_ID}], ids=["no ids", "ids"])
@pytest.mark.parametrize("follows", [False, True], ids=["led only", "followed, too"])
def test_partition_that_was_reassigned_is_parked(
    log_dir: LogDir, log: PartitionLog, topic_ids: dict[str, str], *, follows: bool
) -> None:
    """It returns with its pins if the reassignment is reverted."""
    at = Follower(log_dir)
    if follows:
        at.leads.begin_to_follow()
    (partition,) = at.follow(view({log.tp: 1}, topic_ids))
    gone = log.delete_topic()
    at.follow(view({}, topic_ids))
    assert (partition.lost, partition.released) == (True, False)
    assert list(at.leads.with_parked()) == [partition]
    assert at.dropped == [partition]
    gone.rename(log.path)
    (again,) = at.follow(view({log.tp: 2}, topic_ids))
    assert (again is partition, again.lost, again.released) == (True, False, False)


def test_followed_partition_that_left_a_log_dir_is_parked(
    log_dir: LogDir, log: PartitionLog
) -> None:
    """During a move between log dirs it may briefly be in neither."""
    at = Follower(log_dir)
    at.leads.begin_to_follow()
    at.follow(view({log.tp: 1}))
    at.follow(view({}))
    (partition,) = at.leads.followed()
    partition.note_risk(1)
    gone = log.delete_topic()
    at.log_dirs.rescan()
    assert at.leads.find_followed() == []
    assert list(at.leads.with_parked()) == [partition]
    assert (partition.lost, partition.released) == (True, False)
    gone.rename(log.path)
    at.log_dirs.rescan()
    (again,) = at.leads.find_followed()
    assert (again is partition, again.lost, again.follows) == (True, False, True)
    again.note_risk(1)
    gone = log.delete_topic()
    at.log_dirs.rescan()
    at.leads.find_followed()
    at.now = PARK_SECONDS
    at.leads.release_parked()
    assert partition.released


def test_followed_partition_without_segments_at_risk_is_released_with_its_replica(
    log_dir: LogDir, log: PartitionLog
) -> None:
    """The leader has every record; a broker that is being emptied must not keep the files open."""
    at = Follower(log_dir)
    at.leads.begin_to_follow()
    at.follow(view({log.tp: 1}))
    at.follow(view({}))
    (partition,) = at.leads.followed()
    log.delete_topic()
    at.log_dirs.rescan()
    at.leads.find_followed()
    assert partition.released


def test_topic_recreated_in_a_new_epoch_starts_with_fresh_state(
    log_dir: LogDir, log: PartitionLog
) -> None:
    at = Follower(log_dir)
    (first,) = at.follow(view({log.tp: 1}, {"t": TOPIC_ID}))
    (second,) = at.follow(view({log.tp: 2}, {"t": ANOTHER_ID}))
    assert second is not first
    assert first.released


def test_topic_recreated_in_the_same_epoch_is_detected_by_its_id(
    log_dir: LogDir, log: PartitionLog
) -> None:
    at = Follower(log_dir)
    (first,) = at.follow(view({log.tp: 1}, {"t": TOPIC_ID}))
    assert at.follow(view({log.tp: 1}, {"t": TOPIC_ID, "other": ANOTHER_ID})) == []
    log.delete_topic()
    log_dir.create(topic_id=ANOTHER_ID)
    (second,) = at.follow(view({log.tp: 1}, {"t": ANOTHER_ID}))
    assert second is not first
    assert first.released
    assert second.topic_id == ANOTHER_ID


def test_recreated_topic_is_detected_by_its_directory(log_dir: LogDir, log: PartitionLog) -> None:
    """The broker writes the topic ID into the directory later than it creates the directory."""
    at = Follower(log_dir)
    (partition,) = at.follow(view({log.tp: 1}))
    assert (partition.topic_id, partition.generation) == (TOPIC_ID, 0)
    log.delete_topic()
    metadata = log_dir.create(topic_id=ANOTHER_ID).path / "partition.metadata"
    text = metadata.read_text()
    metadata.unlink()
    for damaged in (None, ""):
        if damaged is not None:
            metadata.write_text(damaged)
        at.leads.locate(partition)
        assert (partition.topic_id, partition.generation) == (TOPIC_ID, 0)
        assert partition.unsure, "nothing is sent in the name of the old topic"
        assert at.follow(view({log.tp: 1})) == []
        assert partition.unsure
    metadata.write_text(text)
    at.now += 60
    for _ in range(2):
        at.leads.locate(partition)
        assert (partition.topic_id, partition.generation) == (ANOTHER_ID, 1)
        assert not partition.unsure


def test_view_of_the_deleted_topic_does_not_apply_to_its_successor(
    log_dir: LogDir, log: PartitionLog
) -> None:
    """The directory changes first: the epoch in the view belongs to the deleted topic."""
    at = Follower(log_dir)
    (partition,) = at.follow(view({log.tp: 7}, {"t": TOPIC_ID}))
    assert (partition.topic_id, partition.unsure) == (TOPIC_ID, False)
    log.delete_topic()
    log_dir.create(topic_id=ANOTHER_ID)
    at.leads.locate(partition)
    assert (partition.topic_id, partition.unsure) == (ANOTHER_ID, True)
    at.follow(view({log.tp: 7}, {"t": TOPIC_ID, "other": TOPIC_ID}))
    assert (partition.topic_id, partition.unsure) == (ANOTHER_ID, True)
    (partition,) = at.follow(view({log.tp: 0}, {"t": ANOTHER_ID}))
    assert (partition.leader_epoch, partition.unsure) == (0, False)


def test_directory_of_the_deleted_topic_is_not_uploaded_under_its_successor(
    log_dir: LogDir, log: PartitionLog
) -> None:
    """The view changes first."""
    at = Follower(log_dir)
    at.follow(view({log.tp: 7}, {"t": TOPIC_ID}))
    (partition,) = at.follow(view({log.tp: 0}, {"t": ANOTHER_ID}))
    assert partition.unsure
    log.delete_topic()
    log_dir.create(topic_id=ANOTHER_ID)
    at.leads.locate(partition)
    assert (partition.topic_id, partition.unsure) == (ANOTHER_ID, False)


def test_unknown_view_only_marks_the_leads_as_unsure(log_dir: LogDir, log: PartitionLog) -> None:
    at = Follower(log_dir)
    (partition,) = at.follow(view({log.tp: 1}))
    assert at.follow(LeadershipView()) == []
    assert (at.leads.known, partition.unsure, partition.lost) == (False, True, False)
    assert list(at.leads) == [partition]
    assert at.dropped == []
    assert at.follow(view({log.tp: 1})) == []
    assert (at.leads.known, partition.unsure) == (True, False)


def test_segment_deleted_while_the_lead_was_lost_is_stored(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """A flapping session must not lose records that only a pin still holds."""
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    leadership = site.leadership = LeadershipByHand({log.tp: 0})
    with site.running() as running:
        log.closed_segments(2)
        log.append(3)
        running.wait(lambda: (s := running.status(log.tp)) and s.unstored_segments == 2, "pins")
        leadership.lose(log.tp)
        running.wait(lambda: running.status(log.tp) is None, "the loss")
        for base in (0, 10):
            log.stage(base)
            log.unlink(base)
        leadership.lead(log.tp, 0)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 20, "both segments")
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10)}


def test_reassignment_during_an_outage_loses_no_pinned_segment(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The store is away, and the partition comes back."""
    log_dir.checkpoint_high_watermarks({log.tp: 0})
    leadership = site.leadership = LeadershipByHand({log.tp: 0})
    with site.running(rescue={"enabled": True}, rescan_interval=0.05) as running:
        log.closed_segments(2)
        log.append(3)
        running.wait(lambda: running.daemon.status.snapshot().pinned_files == 6, "pins")
        for base in (0, 10):
            log.stage(base)
            log.unlink(base)
        gone = log.delete_topic()
        leadership.lose(log.tp)
        running.wait(lambda: running.status(log.tp) is None, "the loss")
        holds_for(lambda: running.daemon.status.snapshot().pinned_files == 6, 0.2, "the pins")
        gone.rename(log.path)
        leadership.lead(log.tp, 0)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 20, "both segments")
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10)}
