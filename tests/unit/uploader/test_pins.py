"""Pins on real files: renames and deletions by the broker do not affect open files."""

import os
from pathlib import Path

import pytest

from sidetier.segments.errors import SegmentChangedError, SegmentGoneError
from sidetier.segments.indexes import PREALLOCATED_TIMEINDEX_BYTES
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import REQUIRED_KINDS, FileKind
from sidetier.segments.offsets import BaseOffset
from sidetier.uploader.pinning.pins import PinnedSegment, pin, still_the_same
from tests.harness.log_dir import START_MS, PartitionLog

SEGMENT = ClosedSegment(BaseOffset(0), BaseOffset(10), marked_for_deletion=False)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def pinned_log(pinned: PinnedSegment) -> bytes:
    return os.pread(pinned.log, pinned.identity.size, 0)


@pytest.fixture
def data(log: PartitionLog) -> bytes:
    log.closed_segment()
    return log.written[0]


def test_all_three_files_are_opened(log: PartitionLog, data: bytes) -> None:
    closed: list[tuple[int, int]] = []
    pinned = pin(str(log.path), SEGMENT, lambda files, size: closed.append((files, size)))
    assert set(pinned.descriptors) == set(REQUIRED_KINDS)
    assert pinned_log(pinned) == data
    assert pinned.name == str(log.file(0))
    assert not any(os.get_inheritable(fd) for fd in pinned.descriptors.values())
    pinned.close()
    pinned.close()
    assert closed == [(3, len(data))]


@pytest.mark.parametrize("how", ["rename", "unlink", "delete the topic"])
def test_pinned_segment_stays_readable(log: PartitionLog, data: bytes, how: str) -> None:
    pinned = pin(str(log.path), SEGMENT)
    assert not pinned.unlinked()
    if how == "rename":
        log.stage(0)
    elif how == "unlink":
        log.unlink(0)
    else:
        log.delete_topic()
    assert pinned_log(pinned) == data
    pinned.check_unchanged()
    assert pinned.unlinked() is (how == "unlink")
    assert still_the_same(str(log.path), pinned)
    pinned.close()


def test_segment_renamed_between_listing_and_open_is_found(log: PartitionLog, data: bytes) -> None:
    log.stage(0)
    pinned = pin(str(log.path), SEGMENT)
    assert pinned_log(pinned) == data
    assert set(pinned.descriptors) == set(REQUIRED_KINDS)
    pinned.close()


def test_files_of_one_segment_may_have_either_name(log: PartitionLog, data: bytes) -> None:
    """The broker renames them one after another."""
    log.file(0).rename(log.file(0, deleted=True))
    pinned = pin(str(log.path), SEGMENT)
    assert pinned_log(pinned) == data
    assert set(pinned.descriptors) == set(REQUIRED_KINDS)
    pinned.close()


@pytest.mark.parametrize("how", ["unlink", "delete the topic"])
def test_error_for_a_deleted_segment_names_the_file_and_leaves_nothing_open(
    log: PartitionLog, data: bytes, how: str
) -> None:
    assert data
    if how == "unlink":
        log.unlink(0)
    else:
        log.delete_topic()
    before = descriptors()
    with pytest.raises(SegmentGoneError, match=r"00000000000000000000\.log"):
        pin(str(log.path), SEGMENT)
    assert descriptors() == before


def test_missing_index_does_not_prevent_a_pin(log: PartitionLog, data: bytes) -> None:
    log.file(0, FileKind.INDEX).unlink()
    pinned = pin(str(log.path), SEGMENT)
    assert pinned_log(pinned) == data
    assert set(pinned.descriptors) == {FileKind.LOG, FileKind.TIMEINDEX}
    pinned.close()


def test_symbolic_link_is_not_followed(log: PartitionLog, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(data)
    log.file(0).unlink()
    log.file(0).symlink_to(tmp_path / "secret")
    before = descriptors()
    with pytest.raises(OSError, match="symbolic links"):
        pin(str(log.path), SEGMENT)
    assert descriptors() == before


def test_index_that_cannot_be_opened_leaves_nothing_open(
    log: PartitionLog, data: bytes, tmp_path: Path
) -> None:
    assert data
    log.file(0, FileKind.TIMEINDEX).unlink()
    log.file(0, FileKind.TIMEINDEX).symlink_to(tmp_path)
    before = descriptors()
    with pytest.raises(OSError, match="symbolic links"):
        pin(str(log.path), SEGMENT)
    assert descriptors() == before


def test_truncation_in_place_is_detected(log: PartitionLog, data: bytes) -> None:
    pinned = pin(str(log.path), SEGMENT)
    os.truncate(log.file(0), len(data) - 1)
    with pytest.raises(SegmentChangedError, match="changed while it was pinned"):
        pinned.check_unchanged()
    pinned.close()


def test_rewrite_in_place_with_equal_size_is_detected(log: PartitionLog, data: bytes) -> None:
    log.set_age(0, 10)
    pinned = pin(str(log.path), SEGMENT)
    with log.file(0).open("r+b") as file:
        file.write(bytes(len(data)))
    with pytest.raises(SegmentChangedError):
        pinned.check_unchanged()
    pinned.close()


def test_replaced_file_under_the_same_name_is_detected(log: PartitionLog, data: bytes) -> None:
    """Compaction swaps a new file in."""
    pinned = pin(str(log.path), SEGMENT)
    log.stage(0)
    log.file(0).write_bytes(data)
    pinned.check_unchanged()
    assert not still_the_same(str(log.path), pinned)
    pinned.close()


def test_retention_counts_from_the_largest_timestamp_in_the_time_index(
    log: PartitionLog, data: bytes
) -> None:
    assert data
    pinned = pin(str(log.path), SEGMENT)
    assert pinned.times().largest_timestamp == (START_MS + 9) / 1000
    pinned.close()


@pytest.mark.parametrize(
    "entries", [b"", bytes(PREALLOCATED_TIMEINDEX_BYTES), b"\xff" * 8 + bytes(4), b"half"]
)
def test_retention_counts_from_the_last_append_without_a_timestamp(
    log: PartitionLog, entries: bytes
) -> None:
    """No entry, a preallocated index that is being rebuilt, records without timestamps, damage."""
    log.set_age(0, 100)
    log.file(0, FileKind.TIMEINDEX).write_bytes(entries)
    pinned = pin(str(log.path), SEGMENT)
    assert pinned.times().largest_timestamp == pytest.approx(log.file(0).stat().st_mtime, abs=1e-3)
    pinned.close()


def test_record_of_1970_is_not_taken_for_padding(log: PartitionLog) -> None:
    log.file(0, FileKind.TIMEINDEX).write_bytes(bytes(12))
    pinned = pin(str(log.path), SEGMENT)
    assert pinned.times().largest_timestamp == 0
    pinned.close()


def test_roll_time_is_the_modification_time_of_the_first_trimmed_index(log: PartitionLog) -> None:
    """On a slow topic that is hours after the last append; a later rewrite of one index does not
    count.
    """
    log.set_age(0, 7200)
    for kind, age in ((FileKind.INDEX, 60), (FileKind.TIMEINDEX, 3600)):
        then = log.file(0).stat().st_mtime_ns + (7200 - age) * 10**9
        os.utime(log.file(0, kind), ns=(then, then))
    pinned = pin(str(log.path), SEGMENT)
    assert pinned.times().rolled == pytest.approx(log.file(0).stat().st_mtime + 3600)
    pinned.close()
