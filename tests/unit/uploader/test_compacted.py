"""Compacted topics: Kafka's log cleaner rewrites segments while they are archived."""

from typing import Literal

import pytest

from sidetier.archive.objects.notes import noted_next_offset, noted_records
from sidetier.config.model import TopicsConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.headers import walk_headers
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.gates.topic_rules import CLEANER_CHECKPOINT_NAME, CleanerCheckpoints
from tests.harness.archive_sound import recorded_gaps
from tests.harness.batches import pread_of
from tests.harness.daemons import LAYOUT, ConfigsByHand, Site, key_of, stored_logs, stored_next
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.splits import plan_of, read_splits


@pytest.fixture
def compacted(site: Site, log: PartitionLog) -> Site:
    site.topics = TopicsConfig(compacted="as_closed")
    site.topic_configs = ConfigsByHand({log.tp.topic: TopicConfig(compacted=True)})
    return site


def merge(log: PartitionLog, *bases: int, first: int = 0) -> set[int]:
    """Act as the log cleaner: keep every second batch of the segments, under the name of the first;
    return the base offsets of the kept batches.
    """
    data = b"".join(log.written[base] for base in bases)
    headers = list(walk_headers(pread_of(data), len(data)))[first::2]
    left = b"".join(data[at : at + header.length] for at, header in headers)
    for base in bases:
        log.stage(base)
        del log.written[base]
    log.file(bases[0]).write_bytes(left)
    log.written[bases[0]] = left
    return {header.base_offset for _, header in headers}


def stored_batches(store: FakeStorage, log: PartitionLog) -> set[int]:
    return {
        header.base_offset
        for data in stored_logs(store, log.tp).values()
        for _, header in walk_headers(pread_of(data), len(data))
    }


def test_segments_merged_before_their_upload_lose_no_records(
    compacted: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The pinned file ends where the second of the merged segments began."""
    log.closed_segments(3, 20)
    log_dir.checkpoint_high_watermarks()
    running = compacted.running(rescan_interval=0.05)
    seen = running.daemon.status.snapshot
    with store.hold("get", LAYOUT.watermark_key(log.tp)):
        running.start()
        running.wait(lambda: seen().pinned_files == 9, "the pins of three segments")
        left = merge(log, 0, 20)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: seen().pinned_files == 6, "the second one to be let go")
    running.wait(lambda: stored_next(store, log.tp) == 60, "all of them")
    running.stop()
    assert left <= stored_batches(store, log)
    head = store.head_object(key_of(log.tp, 0))
    assert noted_next_offset(head) == Offset(40)
    assert noted_records(head) is None, "its bytes end below 40"


def test_segment_pinned_before_compaction_is_stored_as_it_was(
    compacted: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(2, 20)
    log_dir.checkpoint_high_watermarks()
    before = dict(log.written)
    running = compacted.running(rescan_interval=0.05)
    seen = running.daemon.status.snapshot
    with store.hold("get", LAYOUT.watermark_key(log.tp)):
        running.start()
        running.wait(lambda: seen().pinned_files == 6, "the pins of two segments")
        merge(log, 0)
    running.wait(lambda: stored_next(store, log.tp) == 40, "both of them")
    running.stop()
    assert stored_logs(store, log.tp)[0] == before[0]


def test_merged_file_is_stored_from_the_archive_end_offset_on(
    compacted: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The first batch there was compacted away: a reader must not report its offsets as lost."""
    log.closed_segment(20)
    log_dir.checkpoint_high_watermarks()
    compacted.settle()
    log.closed_segments(2, 20)
    left = merge(log, 0, 20, first=1)
    assert min(base for base in left if base >= 20) == 25
    log_dir.checkpoint_high_watermarks()
    compacted.settle()
    assert stored_next(store, log.tp) == 60
    told = read_splits(store, plan_of(store, log.tp, layout=LAYOUT).splits, layout=LAYOUT)
    assert told.offsets == [*range(20), *range(25, 30), *range(35, 60)]


def empty(log: PartitionLog, base: int) -> None:
    """Act as the log cleaner: leave a segment file without any record."""
    for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX):
        log.file(base, kind).write_bytes(b"")
    log.written[base] = b""


@pytest.mark.parametrize("bases", [(0,), (20,), (0, 20), (20, 40), (40,), (0, 20, 40)])
def test_segment_without_records_is_skipped(
    compacted: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, bases: tuple[int, ...]
) -> None:
    """The next closed segment covers its offsets, so there is no gap."""
    log.closed_segments(3, 20)
    for base in bases:
        empty(log, base)
    log_dir.checkpoint_high_watermarks()
    daemon = compacted.settle()
    (status,) = daemon.status.snapshot().partitions
    assert status.unstored_segments == 0
    log.closed_segments(1, 20)
    log_dir.checkpoint_high_watermarks()
    compacted.settle()
    assert stored_next(store, log.tp) == 80
    assert recorded_gaps(store, log.tp) == []
    told = read_splits(store, plan_of(store, log.tp, layout=LAYOUT).splits, layout=LAYOUT)
    gone = {offset for base in bases for offset in range(base, base + 20)}
    assert told.offsets == [offset for offset in range(80) if offset not in gone]


def test_segment_without_records_of_a_plain_topic_is_damaged(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(2, 20)
    empty(log, 20)
    log_dir.checkpoint_high_watermarks()
    daemon = site.daemon()
    daemon.run_until_settled(patience=0.5)
    (status,) = daemon.status.snapshot().partitions
    assert "holds no record batch" in (status.last_error or "")
    assert stored_next(store, log.tp) == 20


# -- compacted segments of a topic that no broker reports as compacted -----------------------------


def note_cleaned(log_dir: LogDir, log: PartitionLog, first_dirty: int) -> None:
    """Write the cleaner offset checkpoint, as the broker does after each run of its cleaner."""
    rows = f"{log.tp.topic} {log.tp.partition} {first_dirty}\n"
    (log_dir.path / CLEANER_CHECKPOINT_NAME).write_text(f"0\n1\n{rows}")


def clean(log_dir: LogDir, log: PartitionLog) -> None:
    """Write three segments; the last batch of the first one has been compacted away."""
    log.closed_segments(3, 20)
    assert merge(log, 0) == {0, 10}
    log_dir.checkpoint_high_watermarks()


def test_segments_compacted_before_cleanup_policy_delete_are_stored(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    clean(log_dir, log)
    note_cleaned(log_dir, log, 20)
    site.topic_configs = ConfigsByHand({log.tp.topic: TopicConfig()})
    site.settle()
    assert stored_next(store, log.tp) == 60
    assert noted_next_offset(store.head_object(key_of(log.tp, 0))) == Offset(20)


@pytest.mark.parametrize("first_dirty", [None, 0])
def test_missing_records_beyond_the_cleaner_checkpoint_are_an_error(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, first_dirty: int | None
) -> None:
    clean(log_dir, log)
    if first_dirty is not None:
        note_cleaned(log_dir, log, first_dirty)
    daemon = site.daemon()
    daemon.run_until_settled(patience=0.5)
    (status,) = daemon.status.snapshot().partitions
    assert "records between are missing" in (status.last_error or "")
    assert stored_next(store, log.tp) is None


@pytest.mark.parametrize(("setting", "stored"), [("as_closed", 60), ("refuse", None)])
def test_cleaner_checkpoint_shows_compacted_segments_without_a_broker(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    setting: Literal["as_closed", "refuse"],
    stored: int | None,
) -> None:
    clean(log_dir, log)
    note_cleaned(log_dir, log, 20)
    site.topics = TopicsConfig(compacted=setting)
    daemon = site.settle()
    assert stored_next(store, log.tp) == stored
    if stored is None:
        (status,) = daemon.status.snapshot().partitions
        assert "topics.compacted: as_closed" in (status.last_error or "")


def test_cleaner_checkpoint_is_read_again_after_a_second(
    log_dir: LogDir, log: PartitionLog
) -> None:
    now = [0.0]
    checkpoints = CleanerCheckpoints(lambda: now[0])
    here, tp = str(log_dir), log.tp
    assert not checkpoints.has_cleaned(here, tp, Offset(0))
    note_cleaned(log_dir, log, 20)
    assert not checkpoints.has_cleaned(here, tp, Offset(0)), "it was looked at just now"
    now[0] = 1.0
    assert checkpoints.has_cleaned(here, tp, Offset(19))
    assert not checkpoints.has_cleaned(here, tp, Offset(20))
    (log_dir.path / CLEANER_CHECKPOINT_NAME).write_bytes(b"\xff")
    now[0] = 2.0
    assert not checkpoints.has_cleaned(here, tp, Offset(0))
