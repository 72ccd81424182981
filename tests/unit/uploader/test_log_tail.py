"""What only the broker has of a partition: when the first record of a segment was appended."""

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
    """As of a segment that began and was last appended to so many seconds after STARTED."""
    begin = log.file(base, FileKind.SNAPSHOT)
    if not begin.exists():
        begin = log.path / "partition.metadata"
    os.utime(begin, (STARTED + began, STARTED + began))
    return first_append(str(log.path), BaseOffset(base), STARTED + last) - STARTED


def test_the_first_batch_says_it(log: PartitionLog) -> None:
    assert appended(log, 10, began=-60, last=60) == pytest.approx(0.01)


@pytest.mark.parametrize(("began", "last", "expected"), [(30, 60, 30), (-60, -30, -30)])
def test_timestamps_of_the_past_or_future_do_not_count(
    log: PartitionLog, began: float, last: float, expected: float
) -> None:
    """Not before the segment began, and not after its last append."""
    assert appended(log, 10, began=began, last=last) == pytest.approx(expected)


def test_the_first_segment_begins_with_the_partition(log: PartitionLog) -> None:
    log.file(0, FileKind.SNAPSHOT).unlink()
    assert appended(log, 0, began=5, last=60) == pytest.approx(5)


def test_without_a_readable_batch_it_is_the_last_append(log: PartitionLog) -> None:
    log.file(10).write_bytes(b"damaged")
    assert appended(log, 10, began=-60, last=60) == pytest.approx(60)
