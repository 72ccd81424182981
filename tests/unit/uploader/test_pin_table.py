"""The number of pins is bounded; the most urgent segments stay pinned."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from sidetier.config.uploader import PinsConfig
from sidetier.segments.errors import SegmentGoneError
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.pinning import table as pin_table
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import SegmentState, Timeline, TrackedSegment
from tests.harness.log_dir import LogDir, PartitionLog


class Shelf:
    """Closed segments of ten offsets, older ones lower, and a pin table for some of them."""

    def __init__(self, log: PartitionLog, segments: int, room: int) -> None:
        self.log = log
        self.bases = log.closed_segments(segments)
        for number, base in enumerate(self.bases):
            log.set_age(base, 1000 - number)
        self.table = PinTable(3 * room)
        self.tracked: dict[int, TrackedSegment] = {}

    def track(self, *bases: int) -> None:
        for base in bases:
            segment = ClosedSegment(
                BaseOffset(base), BaseOffset(base + 10), marked_for_deletion=False
            )
            found = self.table.track(str(self.log.path), segment, Timeline(0.0), 60.0)
            assert found is not None
            self.tracked[base] = found

    def pinned(self) -> list[int]:
        return [base for base, tracked in sorted(self.tracked.items()) if tracked.pinned]


@pytest.fixture
def shelf(log: PartitionLog) -> Iterator[Shelf]:
    shelf = Shelf(log, 5, 3)
    yield shelf
    for tracked in shelf.tracked.values():
        tracked.close()
    assert shelf.table.totals.segments == 0
    assert shelf.table.totals.bytes == 0


def test_segments_are_pinned_while_there_is_room(shelf: Shelf) -> None:
    shelf.track(0, 10)
    assert shelf.pinned() == [0, 10]
    assert shelf.table.totals.segments == 2
    assert shelf.table.totals.bytes == sum(len(shelf.log.written[base]) for base in (0, 10))


@pytest.mark.parametrize("order", [(0, 10, 20, 30, 40), (40, 30, 20, 10, 0), (20, 40, 0, 30, 10)])
def test_most_urgent_segments_stay_pinned_in_any_order_of_arrival(
    shelf: Shelf, order: tuple[int, ...]
) -> None:
    shelf.track(*order)
    assert shelf.pinned() == [0, 10, 20]


def test_segment_marked_for_deletion_later_becomes_urgent(shelf: Shelf) -> None:
    shelf.track(20, 30, 40)
    newest = shelf.tracked[40]
    newest.segment = ClosedSegment(BaseOffset(40), BaseOffset(50), marked_for_deletion=True)
    shelf.track(0, 10)
    assert shelf.pinned() == [0, 10, 40]


def test_segment_being_uploaded_is_never_unpinned(shelf: Shelf) -> None:
    shelf.track(20, 30, 40)
    shelf.tracked[40].stage = SegmentState.UPLOADING
    shelf.track(0, 10)
    assert shelf.pinned() == [0, 10, 40]
    shelf.tracked[40].stage = SegmentState.CLOSED
    shelf.track(20)
    assert shelf.pinned() == [0, 10, 20]


def test_upload_takes_the_pin_of_another_segment(shelf: Shelf) -> None:
    shelf.track(0, 10, 20, 40)
    assert shelf.pinned() == [0, 10, 20]
    last = shelf.tracked[40]
    last.stage = SegmentState.UPLOADING
    shelf.table.pin_again(str(shelf.log.path), last)
    assert shelf.pinned() == [0, 10, 40]


def test_uploads_beyond_the_bound_are_still_pinned(log: PartitionLog) -> None:
    shelf = Shelf(log, 3, 1)
    shelf.track(0, 10, 20)
    for base in (0, 10, 20):
        shelf.tracked[base].stage = SegmentState.UPLOADING
        if shelf.tracked[base].pinned is None:
            shelf.table.pin_again(str(log.path), shelf.tracked[base])
    assert shelf.pinned() == [0, 10, 20]
    for tracked in shelf.tracked.values():
        tracked.close()


def test_vanished_segment_is_not_tracked(shelf: Shelf) -> None:
    shelf.log.unlink(0)
    segment = ClosedSegment(BaseOffset(0), BaseOffset(10), marked_for_deletion=False)
    assert shelf.table.track(str(shelf.log.path), segment, Timeline(0.0), 60.0) is None


def test_pinning_a_deleted_segment_again_raises_segment_gone(shelf: Shelf) -> None:
    shelf.track(0)
    shelf.tracked[0].close()
    shelf.log.unlink(0)
    with pytest.raises(SegmentGoneError):
        shelf.table.pin_again(str(shelf.log.path), shelf.tracked[0])


def test_segment_that_cannot_be_opened_is_tracked_with_its_error(
    shelf: Shelf, tmp_path: Path
) -> None:
    shelf.log.file(0).unlink()
    shelf.log.file(0).symlink_to(tmp_path)
    shelf.track(0)
    assert shelf.pinned() == []
    hold = shelf.tracked[0].hold
    assert hold.until > 0
    assert str(shelf.log.file(0)) in (hold.error or "")


def test_refill_pins_the_oldest_segments_while_there_is_room(shelf: Shelf) -> None:
    shelf.track(0, 10, 20, 30, 40)
    partition = Partition(TopicPartition("t", 0), LeaderEpoch(0))
    partition.log.tracked = {BaseOffset(base): shelf.tracked[base] for base in shelf.tracked}
    shelf.tracked[10].close()
    shelf.tracked[20].close()
    shelf.log.unlink(10)  # deleted since
    shelf.table.refill(str(shelf.log.path), partition)
    assert shelf.pinned() == [0, 20, 30]


def test_one_segment_is_pinned_even_with_a_bound_of_zero(log: PartitionLog) -> None:
    shelf = Shelf(log, 1, 0)
    shelf.track(0)
    assert shelf.pinned() == [0]
    shelf.tracked[0].close()


# -- bounds on deleted segments that only pins hold -----------------------------------------------


@dataclass
class Disks:
    """Two log dirs with one partition each, whose deleted segments only pins hold."""

    table: PinTable
    partitions: list[Partition]
    size: int

    def held(self) -> list[list[int]]:
        """Base offsets that are still pinned, by log dir."""
        return [
            [base for base, tracked in sorted(partition.log.tracked.items()) if tracked.pinned]
            for partition in self.partitions
        ]

    @property
    def log_dirs(self) -> list[str]:
        return [str(partition.log_dir) for partition in self.partitions]

    def device(self, directory: str) -> int:
        """Device numbers that put each log dir on a file system of its own: 1 and 2."""
        return 1 + self.log_dirs.index(directory)

    def enforce(
        self, config: PinsConfig, device: Callable[[str], int | None] | None = None
    ) -> CollectorRegistry:
        registry = CollectorRegistry()
        pin_table.enforce_bounds(
            self.table,
            config,
            self.log_dirs,
            self.partitions,
            SYSTEM_CLOCK,
            Metrics(registry),
            device or self.device,
        )
        return registry


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    table = PinTable(100)
    partitions = []
    for name, age in (("old", 2000), ("young", 1000)):
        log_dir = LogDir(tmp_path / name)
        log = log_dir.create(name)
        partition = Partition(log.tp, LeaderEpoch(0), log_dir=str(log_dir))
        for number, base in enumerate(log.closed_segments(3)):
            log.set_age(base, age - number)
            segment = ClosedSegment(base, BaseOffset(base + 10), marked_for_deletion=False)
            tracked = table.track(str(log.path), segment, Timeline(0.0), 60.0)
            assert tracked is not None
            partition.log.tracked[base] = tracked
            log.unlink(base)
        partitions.append(partition)
    yield Disks(table, partitions, partitions[0].log.tracked[BaseOffset(0)].size)
    for partition in partitions:
        for held in partition.log.tracked.values():
            held.close()
    assert table.totals.segments == 0


def test_bound_on_deleted_bytes_counts_all_log_dirs_together(disks: Disks) -> None:
    """The newest segments are released first, in whichever log dir they are."""
    released = disks.table.enforce(disks.partitions, 4 * disks.size, {})
    assert [pin.base_offset for pin in released] == [20, 10]
    assert disks.held() == [[0, 10, 20], [0]]
    assert disks.table.totals.deleted_bytes == 4 * disks.size
    assert disks.table.enforce(disks.partitions, 4 * disks.size, {}) == []


def test_disk_below_min_free_releases_only_pins_of_its_own_log_dir(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer files on another disk would free no space there."""
    short, _ = disks.log_dirs
    floor = 10 * disks.size
    monkeypatch.setattr(
        pin_table,
        "free_bytes",
        lambda log_dir: (floor - disks.size - 1 if log_dir == short else floor, 10**9),
    )
    config = PinsConfig.model_validate({"min_free_disk": f"{floor}B"})
    disks.enforce(config)
    assert disks.held() == [[0], [0, 10, 20]]


def test_shortage_of_a_disk_that_two_log_dirs_share_is_freed_once(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest segment of both is released, not the newest of each."""
    floor = 10 * disks.size
    monkeypatch.setattr(pin_table, "free_bytes", lambda _: (floor - disks.size, 10**9))
    config = PinsConfig.model_validate({"min_free_disk": f"{floor}B"})
    disks.enforce(config, lambda _: 7)
    assert disks.held() == [[0, 10, 20], [0, 10]]


def test_pins_released_for_a_full_disk_count_against_the_total_bound(disks: Disks) -> None:
    short = {1: 2 * disks.size}
    disks.table.enforce(disks.partitions, 4 * disks.size, short, device=disks.device)
    assert disks.held() == [[0], [0, 10, 20]]
    assert disks.table.totals.deleted_bytes == 4 * disks.size


def test_segment_being_uploaded_stays_pinned_regardless_of_the_bounds(disks: Disks) -> None:
    _, young = disks.partitions
    young.log.tracked[BaseOffset(20)].stage = SegmentState.UPLOADING
    disks.table.enforce(disks.partitions, 0, {})
    assert disks.held() == [[], [20]]
    assert disks.table.totals.deleted_bytes == disks.size


def test_pin_whose_file_system_fails_is_released_and_counted(disks: Disks) -> None:
    """fstat(2) fails, as for a disk that is gone; the pins on the other disk stay."""
    failed = disks.partitions[0].log.tracked[BaseOffset(10)]
    assert failed.pinned is not None
    os.close(failed.pinned.log)
    with pytest.raises(OSError, match="Bad file descriptor"):
        failed.held_alone()
    assert not failed.unlinked()
    registry = disks.enforce(PinsConfig.model_validate({"min_free_disk": "0"}))
    assert disks.held() == [[0, 20], [0, 10, 20]]
    assert failed.hold.error is not None
    assert "Bad file descriptor" in failed.hold.error
    assert registry.get_sample_value("sidetier_errors_total", {"kind": "OSError"}) == 1
    assert disks.table.totals.deleted_bytes == 5 * disks.size


def test_pin_of_an_upload_stays_although_its_file_system_fails(
    disks: Disks,
) -> None:
    """The upload uses its descriptors: another file must not get their numbers."""
    busy = disks.partitions[0].log.tracked[BaseOffset(10)]
    busy.stage = SegmentState.UPLOADING
    assert busy.pinned is not None
    os.close(busy.pinned.log)
    disks.enforce(PinsConfig.model_validate({"min_free_disk": "0"}))
    assert disks.held() == [[0, 10, 20], [0, 10, 20]]
