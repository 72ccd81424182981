"""Append time of a segment's first record, for records that only the broker has."""

import os
from pathlib import Path

import pytest

from sidetier.config.uploader import EarlyLimits
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset
from sidetier.uploader import log_tail
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.early import is_due
from sidetier.uploader.gates.divergence import read_history
from sidetier.uploader.gates.high_watermark import CommittedGate
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from sidetier.uploader.log_tail import LogTail, LogTails, first_append
from sidetier.uploader.state.partition import Partition
from tests.harness.log_dir import START_MS, LogDir, PartitionLog

STARTED = START_MS / 1000
FAR = 4e9
"""Later than any test, in seconds since 1970."""


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    log = LogDir(tmp_path / "logs").create()
    log.closed_segment()
    log.append(5)
    return log


def appended(log: PartitionLog, base: int, began: float, last: float) -> float:
    """Append time for a segment that began and was last appended to these seconds after STARTED."""
    begin = log.file(base, FileKind.SNAPSHOT)
    if not begin.exists():
        begin = log.path / "partition.metadata"
    os.utime(begin, (STARTED + began, STARTED + began))
    return first_append(str(log.path), BaseOffset(base), STARTED + last) - STARTED


def test_first_batch_gives_the_append_time(log: PartitionLog) -> None:
    assert appended(log, 10, began=-60, last=60) == pytest.approx(0.01)


@pytest.mark.parametrize(("began", "last", "expected"), [(30, 60, 30), (-60, -30, -30)])
def test_timestamps_outside_the_segments_lifetime_do_not_count(
    log: PartitionLog, began: float, last: float, expected: float
) -> None:
    """The result is not before the segment began and not after its last append."""
    assert appended(log, 10, began=began, last=last) == pytest.approx(expected)


def test_first_segment_begins_with_the_partition(log: PartitionLog) -> None:
    log.file(0, FileKind.SNAPSHOT).unlink()
    assert appended(log, 0, began=5, last=60) == pytest.approx(5)


def test_last_append_counts_without_a_readable_batch(log: PartitionLog) -> None:
    log.file(10).write_bytes(b"damaged")
    assert appended(log, 10, began=-60, last=60) == pytest.approx(60)


# -- a log whose archive ends in the active segment --------------------------------------------


def partition_of(log: PartitionLog, archived_to: int | None) -> Partition:
    partition = Partition(log.tp, LeaderEpoch(0), log.topic_id)
    partition.move_to(str(log.path), None)
    partition.log.active = log.active
    if archived_to is not None:
        local = read_history(str(log.path), log.active, Offset(archived_to), RememberedEpochs())
        partition.archive = ArchiveState(
            next_offset=Offset(archived_to), position=local.archive_end
        )
    return partition


def test_only_what_is_not_archived_of_the_active_segment_counts(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(45)
    began = log.file(10, FileKind.SNAPSHOT)
    os.utime(began, (STARTED - 60, STARTED - 60))
    tails, size = LogTails(CommittedGate(lambda: 0.0)), len(log.written[10])
    for archived_to, tenths in ((None, 10), (10, 10), (40, 4), (55, 1)):
        unarchived = tenths * size // 10
        tail = tails.measure(partition_of(log, archived_to))
        assert tail is not None
        assert (tail.active_bytes, tail.written_bytes) == (unarchived, unarchived)
        assert tail.unarchived_since == pytest.approx(STARTED + (archived_to or 10) / 1000)
    monkeypatch.setattr(log_tail, "_batch_at", None)
    for archived_to in (60, 90):  # the file is not opened: most partitions have no new records
        assert tails.measure(partition_of(log, archived_to)) == LogTail(None, 0, None)


def test_unwritten_bytes_of_a_preallocated_segment_do_not_count(log: PartitionLog) -> None:
    size = len(log.written[10])
    os.truncate(log.file(10), 8 << 20)
    tail = LogTails(CommittedGate(lambda: 0.0)).measure(partition_of(log, None))
    assert tail is not None
    assert tail.active_bytes == 8 << 20
    assert size <= tail.written_bytes <= size + 64 * 1024
    assert tail.has_batch


@pytest.mark.parametrize("archived_to", [None, 20])
def test_batch_counts_where_the_file_system_has_fewer_blocks_than_bytes(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, archived_to: int | None
) -> None:
    """A file system that compresses: the blocks end below the archived part."""
    log.append(30)
    monkeypatch.setattr(log_tail, "_BLOCK_BYTES", 0)
    tail = LogTails(CommittedGate(lambda: 0.0)).measure(partition_of(log, archived_to))
    assert tail is not None
    assert tail.has_batch
    assert is_due(tail, None, FAR, EarlyLimits(1 << 30, 60.0)) == 0


def test_preallocated_segment_without_a_batch_is_not_due_until_it_has_one(
    log_dir: LogDir,
) -> None:
    log = log_dir.create("preallocated")
    tails, limits = LogTails(CommittedGate(lambda: 0.0)), EarlyLimits(1, 1.0)
    os.truncate(log.file(0), 8 << 20)
    tail = tails.measure(partition_of(log, None))
    assert tail is not None
    assert is_due(tail, None, FAR, limits) is None
    os.truncate(log.file(0), 0)
    log.append(5)
    tail = tails.measure(partition_of(log, None))
    assert tail is not None
    assert is_due(tail, None, FAR, limits) == 0


def test_whole_segment_counts_until_the_archive_end_is_found(log: PartitionLog) -> None:
    """A measurement reads no batch but the first: the search for it may take long."""
    log.append(45)
    tails, partition = LogTails(CommittedGate(lambda: 0.0)), partition_of(log, 40)
    found, partition.archive = partition.archive, ArchiveState(next_offset=Offset(40))
    size = len(log.written[10])
    for archive, unarchived in ((partition.archive, size), (found, 4 * size // 10)):
        partition.archive = archive
        tail = tails.measure(partition)
        assert tail is not None
        assert tail.active_bytes == unarchived
