"""Append time of a segment's first record, for records that only the broker has."""

import os
from pathlib import Path

import pytest

from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset
from sidetier.uploader.log_tail import first_append
from tests.harness.log_dir import START_MS, LogDir, PartitionLog

STARTED = START_MS / 1000


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
