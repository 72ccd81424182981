"""Truncated segments renamed to `.deleted` lie among the segments that retention has renamed."""

from pathlib import Path

import pytest

from sidetier.segments.names import FileKind
from sidetier.storage.fake import FakeStorage
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import LAYOUT, Site, key_of, stored_logs, stored_next
from tests.harness.log_dir import LogDir, PartitionLog, record_batch


@pytest.mark.usefixtures("quick_gaps", "quick_divergences")
def test_truncated_segment_that_overlaps_the_next_one_does_not_block_it(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """It was left by a truncation below the log start. The following segment is stored from the end
    of the overlap at first, and as a whole once the leftover is deleted.
    """
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    log.closed_segment(15)  # not committed, and held open until it is
    with Site([log_dir], store).running() as running:
        running.wait(
            lambda: (s := running.status(log.tp)) is not None and s.unstored_segments == 1,
            "what is to be thrown away",
        )
        log.begin_at(20)
        log.lead(1)
        log.closed_segments(2)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: key_of(log.tp, 30) in store.contents(), "what lies behind")
        for path in log.path.glob("*.deleted"):
            path.unlink()
        running.wait(lambda: stored_next(store, log.tp) == log.active, "all of it")
    assert recorded_gaps(store, log.tp) == [(10, 20)]
    check_archive(store, log.tp)


def store_five(tmp_path: Path, log: PartitionLog, log_dir: LogDir, store: FakeStorage) -> LogDir:
    """Archive up to offset 5; return the log dir of the leader at that time."""
    log.append(5)
    log.roll()
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    return LogDir(tmp_path / "others")


def stage_first(others: LogDir, log: PartitionLog, begins: int) -> None:
    """Mark the written segments for deletion; the log keeps only later offsets of that epoch."""
    log.roll()
    log.closed_segment(10)
    log.stage(0)
    log._epochs = [(1, begins)]
    log._write_epochs()
    others.checkpoint_high_watermarks()


@pytest.mark.usefixtures("quick_gaps")
@pytest.mark.parametrize("base", [0, 2], ids=["its name is taken", "its name is free"])
def test_leftover_whose_batch_contains_the_archive_end_does_not_block(
    tmp_path: Path, log: PartitionLog, log_dir: LogDir, store: FakeStorage, base: int
) -> None:
    """Found by random runs. The stored records were truncated, but the next leader's log begins
    above them and cannot show that. An older segment that it still holds open has other batches
    there.
    """
    others = store_five(tmp_path, log, log_dir, store)
    log = others.create(epoch=1)
    log.append(base)
    log.append(10 - base, batch=10)
    stage_first(others, log, 10)
    with Site([others], store).running() as running:
        running.wait(lambda: store.count("list", LAYOUT.partition_prefix(log.tp)) > 0, "a look")
        running.wait(lambda: "within the record batch" in str(running.status(log.tp)), "a try")
        log.unlink(0)
        running.wait(lambda: stored_next(store, log.tp) == log.active, "what lies behind")
    assert recorded_gaps(store, log.tp) == [(5, 10)]
    assert list(stored_logs(store, log.tp)) == [0, 10]
    check_archive(store, log.tp)


@pytest.mark.usefixtures("quick_gaps")
def test_batches_after_the_archive_end_are_stored_when_it_lies_within_a_batch(
    tmp_path: Path, log: PartitionLog, log_dir: LogDir, store: FakeStorage
) -> None:
    """The segment is of this history, committed and pinned: the gap ends with the batch."""
    others = store_five(tmp_path, log, log_dir, store)
    log = others.create(epoch=1)
    log.append(50, batch=10)
    stage_first(others, log, 50)
    with Site([others], store).running() as running:
        running.wait(lambda: "within the record batch" in str(running.status(log.tp)), "a try")
        log.unlink(0)
        running.wait(lambda: stored_next(store, log.tp) == log.active, "what lies behind")
    assert recorded_gaps(store, log.tp) == [(5, 10)]
    assert list(stored_logs(store, log.tp)) == [0, 10, 50]
    check_archive(store, log.tp)


def test_empty_leftover_does_not_cut_the_segment_before_it(tmp_path: Path) -> None:
    """A segment first seen as `.deleted` gets its end from the neighbouring file names; one of them
    is misleading.
    """
    log_dir = LogDir(tmp_path)
    log = log_dir.create()
    first = log.closed_segment(10)
    log.closed_segment(10)
    log.stage(first)
    log.file(6, FileKind.LOG, deleted=True).touch()
    log_dir.checkpoint_high_watermarks()
    store = FakeStorage()
    Site([log_dir], store).settle()
    check_archive(store, log.tp)
    assert stored_next(store, log.tp) == 20
    assert stored_logs(store, log.tp)[first] == log.written[first]
    assert recorded_gaps(store, log.tp) == []


def test_leftover_of_another_epoch_history_is_never_stored(tmp_path: Path) -> None:
    """It overlaps the following segment, which belongs to the log."""
    log_dir = LogDir(tmp_path)
    log = log_dir.create(epoch=3)
    first, second = log.closed_segments(2)
    log.closed_segment(10)
    log.stage(first)
    log.stage(second)
    thrown_away = record_batch(6, [b"never committed"] * 9, epoch=2)
    log.file(6, FileKind.LOG, deleted=True).write_bytes(thrown_away)
    log_dir.checkpoint_high_watermarks()
    store = FakeStorage()
    Site([log_dir], store).settle()
    check_archive(store, log.tp)
    assert stored_next(store, log.tp) == 30
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (first, second, 20)}
