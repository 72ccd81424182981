"""Deletion of the oldest segments: what readers see meanwhile, after a kill, beside a sidecar."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import pytest

from sidetier.archive.gc.collector import Collectable, PartitionCollector
from sidetier.archive.gc.listing import NotCollectableError
from sidetier.archive.gc.retention import Need, Retention
from sidetier.archive.objects.pinterest_metadata import decode_metadata
from sidetier.archive.objects.starts import keep_earliest_start
from sidetier.archive.objects.watermark import (
    Watermark,
    decode_watermark,
    read_watermark,
    write_watermark,
)
from sidetier.archive.reader import Gap, GapReason, ReachedEnd
from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RefusedConditionError,
)
from sidetier.segments.keys import parse_object_key
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import Condition, IfMatch, RemoteStorage
from sidetier.storage.retrying import RetryingStorage
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import LAYOUT, Site, key_of, stored_logs, stored_next, watermark_of
from tests.harness.intercepted_store import InterceptedStore, KilledError, MortalStore, StoreCall
from tests.harness.log_dir import START_MS, TOPIC_ID, LogDir, PartitionLog
from tests.harness.made_archive import offsets, reading, take_to_end
from tests.unit.uploader.test_quarantine import copied

AGE = 1000.0
"""Age limit of the tests, in seconds. A record's timestamp is START_MS + its offset."""


def past(offset: int) -> int:
    """The time in ms at which exactly the records below the offset are past their retention."""
    return START_MS + offset + int(AGE * 1000)


def collector(
    store: RemoteStorage,
    tp: TopicPartition,
    below: int = 30,
    needs: Sequence[Need] = (),
    wait: Callable[[int], None] = lambda _: None,
) -> PartitionCollector:
    """A collector at the time at which the records below an offset are past their retention."""
    return PartitionCollector(
        store,
        LAYOUT,
        tp,
        Retention(age=AGE),
        needs=needs,
        wait=wait,
        now_ms=lambda: past(below),
    )


@pytest.fixture
def tp(log_dir: LogDir, log: PartitionLog, site: Site) -> TopicPartition:
    """Archive segments 0, 10, 20, 30 and 40 of ten records each."""
    log.closed_segments(5)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    return log.tp


def files_below(store: FakeStorage, tp: TopicPartition, offset: int) -> list[str]:
    prefix = LAYOUT.partition_prefix(tp)
    parsed = ((key, parse_object_key(key, prefix)) for key in store.contents())
    return [key for key, name in parsed if name is not None and name[0] < offset]


def named(store: FakeStorage, tp: TopicPartition) -> list[int]:
    key = LAYOUT.metadata_key(tp)
    return [entry.base_offset for entry in decode_metadata(store.contents()[key], key).entries]


def check_readable(store: FakeStorage, tp: TopicPartition, end: int = 50) -> int:
    """Read everything from the archive start on; return the start. Below it is out of range."""
    with reading(store, layout=LAYOUT) as reader:
        bounds = reader.bounds(tp)
        assert bounds is not None
        start = int(bounds.start_offset)
        reader.assign(tp, start)
        taken = take_to_end(reader)
        assert isinstance(taken[-1], ReachedEnd), taken[-1]
        assert offsets(taken) == list(range(start, end))
        if start:
            reader.seek(tp, 0)
            missing = take_to_end(reader)[-1]
            assert isinstance(missing, Gap)
            assert (missing.offsets.start, missing.offsets.end) == (0, start)
            assert missing.reason is GapReason.BELOW_START
    return start


def check_pinterest(store: FakeStorage, tp: TopicPartition) -> None:
    """Pinterest's consumer finds every segment that `_metadata` names, without a gap."""
    logs = stored_logs(store, tp)
    entries = named(store, tp)
    assert set(entries) <= logs.keys()
    assert entries == list(range(entries[0], 50, 10))


def test_oldest_segments_are_deleted_and_the_rest_is_one_archive(
    store: FakeStorage, tp: TopicPartition
) -> None:
    before = store.contents()
    planned = collector(store, tp).survey()
    assert store.contents() == before, "a survey writes nothing"
    done = collector(store, tp).collect()
    assert planned == done
    assert (done.start, done.new_start, done.segments) == (0, 30, 3)
    removed = before.keys() - store.contents().keys()
    assert removed == {key for key in before if key in files_before(before, tp, 30)}
    assert done.size_bytes == sum(len(before[key]) for key in removed)
    assert check_readable(store, tp) == 30
    check_pinterest(store, tp)
    check_archive(store, tp, start=30)
    old, new = (read_mark(contents, tp) for contents in (before, store.contents()))
    assert replace(old, start_offset=Offset(30), nonce=None) == replace(new, nonce=None)


def files_before(contents: dict[str, bytes], tp: TopicPartition, offset: int) -> list[str]:
    prefix = LAYOUT.partition_prefix(tp)
    parsed = ((key, parse_object_key(key, prefix)) for key in contents)
    return [key for key, name in parsed if name is not None and name[0] < offset]


def read_mark(contents: dict[str, bytes], tp: TopicPartition) -> Watermark:
    key = LAYOUT.watermark_key(tp)
    return decode_watermark(contents[key], key)


def test_only_what_repair_builds_again_is_deleted_in_any_version(
    store: FakeStorage, tp: TopicPartition
) -> None:
    """The conditional deletes are made by several threads, of `.log`s first."""
    deletes: list[tuple[str, Condition | None]] = []

    class Recording(InterceptedStore):
        def intercept(self, call: StoreCall) -> object:
            if call.operation == "delete":
                deletes.append((call.key, call.condition))
            return super().intercept(call)

    etags = {row.key: row.etag for row in store.list_objects("")}
    below = files_below(store, tp, 30)
    with ThreadPoolExecutor(3) as pool:
        PartitionCollector(
            Recording(store),
            LAYOUT,
            tp,
            Retention(age=AGE),
            for_each=pool.map,
            now_ms=lambda: past(30),
        ).collect()
    indexes = (FileKind.INDEX.value, FileKind.TIMEINDEX.value)
    assert dict(deletes) == {
        key: None if key.endswith(indexes) else IfMatch(etags[key]) for key in below
    }
    assert len(deletes) == len(below)
    assert {key for key, _ in deletes[:3]} == {key_of(tp, base) for base in (0, 10, 20)}


def test_a_second_collection_has_nothing_to_do(store: FakeStorage, tp: TopicPartition) -> None:
    collector(store, tp).collect()
    before, changes = store.contents(), store.changes
    done = collector(store, tp).collect()
    assert (done.segments, done.size_bytes, done.new_start) == (0, 0, 30)
    assert (store.contents(), store.changes) == (before, changes)


def test_a_later_collection_continues(store: FakeStorage, tp: TopicPartition) -> None:
    collector(store, tp, below=10).collect()
    assert check_readable(store, tp) == 10
    collector(store, tp, below=20).collect()
    assert check_readable(store, tp) == 20
    check_archive(store, tp, start=20)


def test_newest_segment_and_watermark_survive_any_age(
    store: FakeStorage, tp: TopicPartition
) -> None:
    done = collector(store, tp, below=10**9).collect()
    assert done.new_start == 40
    assert done.reason == "the newest segment is always kept"
    assert stored_logs(store, tp).keys() == {40}
    assert stored_next(store, tp) == 50
    assert check_readable(store, tp) == 40
    check_pinterest(store, tp)


def test_segments_that_a_consumer_needs_are_kept(store: FakeStorage, tp: TopicPartition) -> None:
    done = collector(
        store, tp, needs=[Need(Offset(15), "consumer group billing", TOPIC_ID)]
    ).collect()
    assert done.new_start == 10
    assert done.reason == "consumer group billing still needs offset 15"
    assert check_readable(store, tp) == 10


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_any_request_leaves_a_readable_archive_and_the_next_collection_finishes(
    store: FakeStorage, tp: TopicPartition, *, after: bool
) -> None:
    undisturbed = copied(store)
    collector(undisturbed, tp).collect()
    for lives in count():
        survivor = copied(store)
        try:
            collector(MortalStore(survivor, lives, after=after), tp).collect()
        except KilledError:
            start = check_readable(survivor, tp)
            assert start in {0, 30}
            check_pinterest(survivor, tp)
            check_listing(survivor, tp)
        else:
            break
        collector(survivor, tp).collect()
        assert survivor.contents().keys() == undisturbed.contents().keys()
        assert check_readable(survivor, tp) == 30
        check_archive(survivor, tp, start=30)
    assert lives >= 15


def check_listing(store: FakeStorage, tp: TopicPartition) -> None:
    """No `.log` is without its indexes, and `.log`s are deleted from the oldest on."""
    logs = stored_logs(store, tp)
    contents = store.contents()
    for base in logs:
        assert key_of(tp, base, FileKind.INDEX) in contents
        assert key_of(tp, base, FileKind.TIMEINDEX) in contents
    assert sorted(logs) == list(range(min(logs), 50, 10))


def test_files_below_the_start_are_deleted_also_if_nothing_is_expired(
    store: FakeStorage, tp: TopicPartition
) -> None:
    """A killed collection has left them, and the retention was raised meanwhile."""
    with pytest.raises(KilledError):
        collector(MortalStore(store, 12), tp).collect()
    assert watermark_of(store, tp).start_offset == 30  # type: ignore[union-attr]
    assert files_below(store, tp, 30)
    collector(store, tp, below=0).collect()
    assert not files_below(store, tp, 30)
    assert check_readable(store, tp) == 30


def test_reader_with_an_older_snapshot_finds_deleted_offsets_out_of_range(
    store: FakeStorage, tp: TopicPartition
) -> None:
    with reading(store, layout=LAYOUT) as reader:
        reader.assign(tp, 0)
        first = offsets(take_to_end(reader))
        assert first == list(range(50))
        collector(store, tp).collect()
        reader.seek(tp, 5)
        missing = take_to_end(reader)[-1]
        assert isinstance(missing, Gap), missing
        assert missing.reason is GapReason.BELOW_START
        assert (missing.offsets.start, missing.offsets.end) == (5, 30)
        reader.seek(tp, 30)
        assert offsets(take_to_end(reader)) == list(range(30, 50))


def test_entries_below_the_start_are_removed_also_if_their_objects_are_gone(
    store: FakeStorage, tp: TopicPartition
) -> None:
    """A sidecar listed the segments before they were deleted, and wrote a new `_metadata` after."""
    key = LAYOUT.metadata_key(tp)
    old = store.contents()[key]
    collector(store, tp).collect()
    store.put_object(key, BytesBody(old))
    assert named(store, tp) == [0, 10, 20, 30, 40]
    collector(store, tp).collect()
    assert named(store, tp) == [30, 40]


def test_archive_whose_segments_have_no_entries_is_not_touched(
    store: FakeStorage, tp: TopicPartition
) -> None:
    """Only `_metadata` tells a late sidecar's segment from the archive's."""
    store.delete_object(LAYOUT.metadata_key(tp))
    before = store.contents()
    with pytest.raises(NotCollectableError, match="run `sidetier repair`"):
        collector(store, tp).collect()
    assert store.contents() == before


def test_entries_that_are_added_after_the_survey_are_removed(
    store: FakeStorage, tp: TopicPartition
) -> None:
    key = LAYOUT.metadata_key(tp)
    whole = store.contents()[key]
    document = json.loads(whole)
    index = document["metadata"]["timeindex"]
    index["entries"] = index["entries"][3:]
    store.put_object(key, BytesBody(json.dumps(document).encode()))

    def repaired() -> None:
        store.put_object(key, BytesBody(whole))

    store.race("put", repaired, key=LAYOUT.watermark_key(tp))
    collector(store, tp).collect()
    assert named(store, tp) == [30, 40]
    assert stored_logs(store, tp).keys() == {30, 40}


def test_commit_of_a_sidecar_between_read_and_write_of_the_watermark_is_kept(
    store: FakeStorage, tp: TopicPartition, log: PartitionLog, log_dir: LogDir, site: Site
) -> None:
    def commit() -> None:
        log.closed_segment()
        log_dir.checkpoint_high_watermarks()
        site.settle()

    store.race("put", commit, key=LAYOUT.watermark_key(tp))
    collector(store, tp).collect()
    assert stored_next(store, tp) == 60
    assert check_readable(store, tp, end=60) == 30
    check_archive(store, tp, start=30)


def test_commit_of_a_sidecar_between_read_and_write_of_metadata_is_kept(
    store: FakeStorage, tp: TopicPartition, log: PartitionLog, log_dir: LogDir, site: Site
) -> None:
    def commit() -> None:
        log.closed_segment()
        log_dir.checkpoint_high_watermarks()
        site.settle()

    store.race("put", commit, key=LAYOUT.metadata_key(tp))
    collector(store, tp).collect()
    assert named(store, tp) == [30, 40, 50]
    check_archive(store, tp, start=30)


def test_running_sidecar_continues_and_keeps_the_new_start(
    store: FakeStorage, tp: TopicPartition, log: PartitionLog, log_dir: LogDir, site: Site
) -> None:
    with site.running() as running:
        running.wait(lambda: running.status(tp), "the partition")
        log.closed_segment()
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, tp) == 60, "the first commit")
        collector(store, tp).collect()
        log.closed_segments(2)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, tp) == 80, "the next commit")
        collector(store, tp, below=50).collect()
        log.closed_segment()
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, tp) == 90, "the last commit")
    assert site.registry.get_sample_value("sidetier_conflicts_total") == 0
    assert check_readable(store, tp, end=90) == 50
    assert named(store, tp) == [50, 60, 70, 80]
    check_archive(store, tp, start=50)


@pytest.mark.parametrize("recorded", [0, 10])
def test_collected_records_are_no_gap_for_a_sidecar_that_starts_afterwards(
    store: FakeStorage,
    tp: TopicPartition,
    log: PartitionLog,
    log_dir: LogDir,
    site: Site,
    recorded: int,
) -> None:
    """The recorded start was not compared with the archive's: a sidecar was killed before it."""
    keep_earliest_start(store, LAYOUT, tp, Offset(recorded), TOPIC_ID)
    collector(store, tp).collect()
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()
    site.settle()
    assert stored_next(store, tp) == 60
    assert recorded_gaps(store, tp) == []


def test_gap_below_the_start_is_recorded_before_the_start_moves(
    store: FakeStorage, tp: TopicPartition
) -> None:
    collector(store, tp, below=20).collect()
    keep_earliest_start(store, LAYOUT, tp, Offset(15), TOPIC_ID)
    collector(store, tp, below=30).collect()
    assert recorded_gaps(store, tp) == [(15, 20)]


def test_nothing_more_is_deleted_once_the_archive_was_replaced(
    store: FakeStorage, tp: TopicPartition
) -> None:
    """While the collection waits between two batches, the topic is retired and created again."""

    def replaced(_: int) -> None:
        key = LAYOUT.watermark_key(tp)
        mark = read_watermark(store, key)
        assert mark is not None
        other = replace(mark.watermark, topic_id="another", start_offset=Offset(0))
        write_watermark(store, key, other, mark.etag)

    with pytest.raises(ArchiveConflictError, match="no further object is deleted"):
        collector(store, tp, wait=replaced).collect()
    assert stored_logs(store, tp).keys() == {0, 10, 20, 30, 40}


@pytest.mark.parametrize("topic_id", ["another", None])
def test_need_of_another_topic_deletes_nothing(
    store: FakeStorage, tp: TopicPartition, topic_id: str | None
) -> None:
    """The topic was recreated, and archived anew, after the consumer's progress was read."""
    before = store.contents()
    with pytest.raises(NotCollectableError, match="topic of the same name"):
        collector(store, tp, needs=[Need(Offset(40), "mirror dr", topic_id)]).collect()
    assert store.contents() == before


def test_nothing_is_deleted_while_segments_are_moved(
    store: FakeStorage, tp: TopicPartition
) -> None:
    key = LAYOUT.watermark_key(tp)
    mark = read_watermark(store, key)
    assert mark is not None
    write_watermark(store, key, replace(mark.watermark, pending="{}"), mark.etag)
    before = store.contents()
    with pytest.raises(NotCollectableError, match="are being moved"):
        collector(store, tp).collect()
    assert store.contents() == before


@pytest.mark.parametrize("data", [None, b"00000000000000000040"], ids=["absent", "pinterest"])
def test_nothing_is_deleted_without_our_watermark(
    store: FakeStorage, tp: TopicPartition, data: bytes | None
) -> None:
    key = LAYOUT.watermark_key(tp)
    if data is None:
        store.delete_object(key)
    else:
        store.put_object(key, BytesBody(data))
    before = store.contents()
    with pytest.raises(NotCollectableError):
        collector(store, tp).collect()
    assert store.contents() == before


def test_error_of_the_store_during_deletes_is_raised_and_repaired(
    store: FakeStorage, tp: TopicPartition
) -> None:
    store.fail("delete", ObjectNotFoundError("x"), nth=2)
    with pytest.raises(ObjectNotFoundError):
        collector(store, tp).collect()
    assert check_readable(store, tp) == 30
    done: Collectable = collector(store, tp).collect()
    assert done.segments == 2
    assert not files_below(store, tp, 30)


@pytest.mark.parametrize("key", [LAYOUT.watermark_key, LAYOUT.metadata_key])
def test_refusal_of_a_condition_that_holds_is_no_change_by_others(
    store: FakeStorage, tp: TopicPartition, key: Callable[[TopicPartition], str]
) -> None:
    store.refuse(key(tp), PreconditionFailedError("412"))
    retrying = RetryingStorage(store, url="s3://archive")
    with pytest.raises(RefusedConditionError, match="s3://archive refuses a condition that holds"):
        collector(retrying, tp).collect()
    assert len(stored_logs(store, tp)) == 5, "nothing is deleted"
    store.heal()
    assert collector(retrying, tp).collect().new_start == 30


def test_pinterest_segments_expire_by_the_time_at_which_they_were_stored(
    store: FakeStorage, tp: TopicPartition
) -> None:
    """Their `.log`s have no metadata. The fake store's clock is far behind the records' times."""
    for base in (0, 10):
        key = key_of(tp, base)
        store.put_object(key, BytesBody(store.contents()[key]))
    stored_ms = {row.key: row.modified_ms for row in store.list_objects("")}
    just_before = min(stored_ms[key_of(tp, base)] for base in (0, 10)) + int(AGE * 1000)
    kept = PartitionCollector(
        store, LAYOUT, tp, Retention(age=AGE), now_ms=lambda: just_before
    ).survey()
    assert kept.new_start == 0
    done = PartitionCollector(
        store, LAYOUT, tp, Retention(age=AGE), now_ms=lambda: just_before + 10**6
    ).collect()
    assert done.new_start is not None
    assert done.new_start >= BaseOffset(20)
    assert check_readable(store, tp) == done.new_start
