"""The status of single segments and of pinned ranges."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidetier.leadership.port import TopicConfig
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.status import PartitionState, PinnedRange, SegmentStatus
from sidetier.telemetry.status_json import partition_row
from sidetier.uploader.clock import Clock
from sidetier.uploader.pinning.pins import SegmentTimes, pin
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import (
    DEFAULT_RETENTION,
    SegmentState,
    Timeline,
    TrackedSegment,
)
from sidetier.uploader.status_board import DeletionEstimate, StatusBoard, pinned_ranges
from tests.harness.daemons import LeadershipByHand, Site
from tests.harness.log_dir import LogDir
from tests.harness.partitions import archive, made

TP = TopicPartition("t", 0)
NOW, STARTED = 1_700_000_000.0, 50.0


def tracked(
    base: int, end: int | None, stage: SegmentState = SegmentState.CLOSED
) -> TrackedSegment:
    following = None if end is None else BaseOffset(end)
    segment = ClosedSegment(BaseOffset(base), following, marked_for_deletion=base == 0)
    return TrackedSegment(segment, 10 * base + 1, 0, Timeline(0), DEFAULT_RETENTION, stage=stage)


def partition_of(*segments: TrackedSegment) -> Partition:
    partition = Partition(TP, LeaderEpoch(3))
    partition.log.tracked = {one.segment.base_offset: one for one in segments}
    return partition


def board() -> StatusBoard:
    return StatusBoard("c", BrokerId(1), Clock(lambda: STARTED, lambda: NOW))


def test_oldest_unstored_segments_are_listed_individually() -> None:
    failed = tracked(0, 10, SegmentState.CLOSED)
    failed.hold.fail("503", STARTED)
    partition = partition_of(tracked(20, 30), failed, tracked(10, 20, SegmentState.UPLOADING))
    partition.hold.fail("no answer", STARTED)
    told = board()
    told.update(partition, DeletionEstimate(60, None))
    [status] = told.snapshot().partitions
    assert told.snapshot(with_partitions=False).partitions == ()
    assert status.segments == (
        SegmentStatus(
            BaseOffset(0),
            status.segments[0].next_offset,
            1,
            "closed",
            pinned=False,
            marked_for_deletion=True,
            error="503",
            retry_at_ms=int(NOW * 1000) + 1000,
        ),
        *status.segments[1:],
    )
    assert [(one.base_offset, one.stage) for one in status.segments] == [
        (0, "closed"),
        (10, "uploading"),
        (20, "closed"),
    ]
    assert status.retry_at_ms == int(NOW * 1000) + 1000
    assert partition_row(status)["segments"][1]["stage"] == "uploading"


def test_archived_partition_waits_for_nothing() -> None:
    partition = made(next_offset=20)
    partition.archive = archive(20, base=10)
    told = board()
    told.update(partition, DeletionEstimate(60, None))
    [status] = told.snapshot().partitions
    assert (status.state, status.waiting_for) == (PartitionState.ARCHIVED, None)
    assert (status.watermark_base, status.next_offset, status.unstored_segments) == (10, 20, 0)


def test_old_message_format_is_reported_with_the_command_that_accepts_its_loss() -> None:
    partition = made(10, 20, 30, next_offset=10)
    for base in (10, 20):
        partition.log.tracked[BaseOffset(base)].cannot_be_archived(
            "message format v1", STARTED, accepted=False
        )
    told = board()
    told.update(partition, DeletionEstimate(60, None))
    [status] = told.snapshot().partitions
    assert "sidetier ack-gap orders 0 10 30 --unarchivable" in (status.waiting_for or "")
    assert status.last_error == "message format v1"
    assert status.segments[0].retry_at_ms == int(NOW + 300) * 1000


def test_only_the_start_of_a_long_backlog_is_listed() -> None:
    told = board()
    many = (tracked(base, base + 10) for base in range(0, 10_000, 10))
    told.update(partition_of(*many), DeletionEstimate(60, None))
    [status] = told.snapshot().partitions
    assert status.unstored_segments == 1000
    assert [one.base_offset for one in status.segments] == list(range(0, 160, 10))


def deletion_of(one: TrackedSegment, config: TopicConfig) -> float | None:
    return DeletionEstimate(60, None).of(one, config)


def test_deletion_time_counts_from_the_largest_timestamp_not_from_the_last_append() -> None:
    one = tracked(10, 20)
    one.modified_ns = int(NOW * 1e9)
    one.times = SegmentTimes(largest_timestamp=NOW - 3500, rolled=NOW)
    assert deletion_of(one, TopicConfig(retention=3600.0)) == NOW + 100 + 60
    one.times = None
    assert deletion_of(one, TopicConfig(retention=3600.0)) == NOW + 3600 + 60
    assert deletion_of(one, TopicConfig()) is None


def test_infinite_retention_differs_from_unknown_retention() -> None:
    one = tracked(10, 20)
    one.times = SegmentTimes(largest_timestamp=NOW, rolled=NOW)
    estimate = DeletionEstimate(60, 3600.0)
    assert estimate.of(one, TopicConfig()) == NOW + 3660
    assert estimate.of(one, TopicConfig(retention=0.0)) == NOW + 60
    assert estimate.of(one, TopicConfig(retention=float("inf"))) is None
    one.due_since = NOW
    assert estimate.of(one, TopicConfig(retention=float("inf"))) == NOW + 60


def test_deletion_by_size_is_estimated_as_immediate() -> None:
    one = tracked(10, 20)
    one.times = SegmentTimes(largest_timestamp=NOW, rolled=NOW)
    one.due_since = NOW - 5
    assert deletion_of(one, TopicConfig(retention=3600.0)) == NOW - 5 + 60
    assert deletion_of(one, TopicConfig()) == NOW - 5 + 60


def test_segment_with_old_timestamps_is_more_urgent() -> None:
    past, present = tracked(10, 20), tracked(20, 30)
    past.times = SegmentTimes(largest_timestamp=NOW - 10 * DEFAULT_RETENTION, rolled=NOW)
    present.times = SegmentTimes(largest_timestamp=NOW, rolled=NOW)
    past.modified_ns = present.modified_ns = int(NOW * 1e9)
    assert past.urgency < present.urgency
    present.due_since = NOW - 20 * DEFAULT_RETENTION
    assert present.urgency < past.urgency


def test_age_of_a_closed_segment_counts_from_its_roll() -> None:
    one = tracked(0, 10)
    one.modified_ns = int((NOW - 7200) * 1e9)
    one.times = SegmentTimes(largest_timestamp=NOW - 7200, rolled=NOW - 30)
    told = board()
    told.update(partition_of(one), DeletionEstimate(60, None))
    [status] = told.snapshot().partitions
    assert status.oldest_unstored_age_seconds == pytest.approx(30)


@pytest.fixture
def pinned(tmp_path: Path) -> Iterator[Partition]:
    """Segments 0, 10, 20 and 40 of a log, all pinned."""
    log = LogDir(tmp_path / "logs").create()
    log.closed_segments(5)
    found = [tracked(base, base + 10) for base in (0, 10, 20, 40)]
    for one in found:
        one.pinned = pin(
            str(log.path), ClosedSegment(one.segment.base_offset, None, marked_for_deletion=False)
        )
    partition = partition_of(*found)
    yield partition
    partition.close()


def test_adjacent_pinned_segments_form_one_range(pinned: Partition) -> None:
    assert [(one.start_offset, one.end_offset) for one in pinned_ranges([pinned])] == [
        (0, 30),
        (40, 50),
    ]
    assert next(pinned_ranges([pinned])).size_bytes == 1 + 101 + 201
    pinned.log.tracked[BaseOffset(10)].close()
    assert [one.start_offset for one in pinned_ranges([pinned])] == [0, 20, 40]


def test_pins_are_reported_after_the_lead_is_lost(tmp_path: Path) -> None:
    store, leadership = FakeStorage(), LeadershipByHand({TP: 0})
    directory = LogDir(tmp_path / "logs")
    log = directory.create()
    with store.away(), Site([directory], store, leadership).running() as daemon:
        log.closed_segments(2)
        directory.checkpoint_high_watermarks()

        def pins() -> tuple[PinnedRange, ...]:
            return daemon.daemon.status.snapshot().pins

        daemon.wait(lambda: [one.end_offset for one in pins()] == [20], "both to be held open")
        leadership.lose(TP)
        daemon.wait(lambda: not daemon.daemon.status.snapshot().partitions, "the lead to be lost")
        daemon.wait(lambda: [one.end_offset for one in pins()] == [20], "both to be told still")
