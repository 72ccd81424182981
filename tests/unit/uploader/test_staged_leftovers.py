"""What truncation leaves as `.deleted` lies among what retention has renamed."""

from pathlib import Path

from sidetier.segments.names import FileKind
from sidetier.storage.fake import FakeStorage
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import Site, stored_logs, stored_next
from tests.harness.log_dir import LogDir, record_batch


def test_an_empty_leftover_does_not_cut_the_segment_before_it(tmp_path: Path) -> None:
    """First seen staged, a segment has its end from the names beside it: one of them lies."""
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


def test_a_leftover_of_another_lineage_is_never_stored(tmp_path: Path) -> None:
    """It reaches over the segment behind it, which is the log's own."""
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
