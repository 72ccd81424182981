"""Reading an archive and moving its watermark while other writers do the same."""

import json
from dataclasses import replace

import pytest

from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    decode_metadata,
    encode_metadata,
)
from sidetier.archive.objects.watermark import Watermark, decode_watermark, encode_watermark
from sidetier.segments.errors import (
    ArchiveConflictError,
    MalformedObjectError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NEXT_OFFSET_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfMatch, PutOptions, RemoteStorage
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.errors import StandDownError
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY
from sidetier.uploader.state.segment import StoredSegment
from tests.harness.archive_sound import recorded_gaps
from tests.harness.daemons import LAYOUT, key_of, stored_next, watermark_of
from tests.harness.intercepted_store import InterceptedStore, StoreCall

TP = TopicPartition("t", 0)
KEY = LAYOUT.watermark_key(TP)
METADATA = LAYOUT.metadata_key(TP)


def leader(epoch: int = 1, broker: int = 1, topic_id: str | None = None) -> Leader:
    return Leader(BrokerId(broker), LeaderEpoch(epoch), topic_id)


def segment(base: int, end: int, modified_ms: int = 0) -> StoredSegment:
    return StoredSegment(BaseOffset(base), Offset(end), modified_ms, 10, 10)


def archive_writer_of(store: RemoteStorage, cache_bytes: int = 1 << 20) -> ArchiveWriter:
    return ArchiveWriter(store, LAYOUT, MetadataCache(cache_bytes))


def put_segment(
    store: FakeStorage, base: int, end: int | None, epochs: tuple[int, int, int] = (1, 1, 1)
) -> None:
    """Store the three objects of a segment; `epochs` are the leader epochs of their writers."""
    kinds = (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG)
    for kind, epoch in zip(kinds, epochs, strict=True):
        notes = {WRITER_EPOCH_KEY: str(epoch)}
        if kind is FileKind.LOG and end is not None:
            notes[NEXT_OFFSET_KEY] = str(end)
        store.put_object(key_of(TP, base, kind), BytesBody(b"x"), PutOptions(metadata=notes))


def named(store: FakeStorage) -> list[int]:
    data = store.contents()[METADATA]
    return [entry.base_offset for entry in decode_metadata(data, METADATA).entries]


def put_watermark(store: FakeStorage, watermark: Watermark) -> None:
    store.put_object(KEY, BytesBody(encode_watermark(watermark)))


def test_metadata_is_written_before_the_watermark(store: FakeStorage) -> None:
    archive = archive_writer_of(store).commit(TP, ArchiveState(), [segment(0, 10)], leader())
    assert [r.key for r in store.requests if r.operation == "put"] == [METADATA, KEY]
    assert archive.next_offset == 10
    assert watermark_of(store, TP) == archive.watermark


def test_one_commit_covers_several_segments(store: FakeStorage) -> None:
    archive_writer = archive_writer_of(store)
    archive = archive_writer.commit(TP, ArchiveState(), [segment(0, 10), segment(10, 25)], leader())
    assert archive.watermark is not None
    assert (archive.watermark.base_offset, archive.next_offset) == (10, 25)
    assert named(store) == [0, 10]
    assert store.count("put") == 2


def test_load_returns_the_committed_state(store: FakeStorage) -> None:
    written = archive_writer_of(store).commit(
        TP, ArchiveState(), [segment(0, 10)], leader(3, 7, "T" * 22)
    )
    read = archive_writer_of(store).load(TP, leader(3, 7, "T" * 22))
    read_only = replace(written, claimed=False, epoch_history=None)
    assert read == read_only, "who has only read it has claimed nothing"
    assert store.count("get", KEY) == 1


def test_a_partition_without_a_watermark_is_empty(store: FakeStorage) -> None:
    assert archive_writer_of(store).load(TP, leader()) == ArchiveState()


@pytest.mark.parametrize(
    ("theirs", "ours", "refused"), [(2, 1, True), (1, 1, False), (1, 2, False)]
)
def test_load_stands_down_for_the_watermark_of_a_later_leader(
    store: FakeStorage, theirs: int, ours: int, *, refused: bool
) -> None:
    put_watermark(store, Watermark(BaseOffset(0), Offset(10), LeaderEpoch(theirs), nonce="n"))
    archive_writer = archive_writer_of(store)
    if refused:
        with pytest.raises(StandDownError, match="leader epoch 2"):
            archive_writer.load(TP, leader(ours))
    else:
        assert archive_writer.load(TP, leader(ours)).next_offset == 10


def test_load_refuses_a_watermark_of_another_topic_id(store: FakeStorage) -> None:
    put_watermark(store, Watermark(BaseOffset(0), Offset(10), topic_id="A" * 22, nonce="n"))
    with pytest.raises(ArchiveConflictError, match="deleted and created again"):
        archive_writer_of(store).load(TP, leader(topic_id="B" * 22))


def test_error_for_a_malformed_watermark_names_the_key(store: FakeStorage) -> None:
    store.put_object(KEY, BytesBody(b"nonsense"))
    with pytest.raises(MalformedObjectError, match=KEY):
        archive_writer_of(store).load(TP, leader())


def test_load_refuses_a_watermark_whose_segment_is_not_stored(store: FakeStorage) -> None:
    store.put_object(KEY, BytesBody(b"%020d" % 30))
    with pytest.raises(MalformedObjectError, match="is not stored"):
        archive_writer_of(store).load(TP, leader())


def test_second_of_two_concurrent_commits_is_refused(store: FakeStorage) -> None:
    first, second = archive_writer_of(store), archive_writer_of(store)
    archives = [archive_writer.load(TP, leader()) for archive_writer in (first, second)]
    first.commit(TP, archives[0], [segment(0, 10)], leader(1, 1))
    with pytest.raises(ArchiveConflictError, match="moved to 10 by broker 1"):
        second.commit(TP, archives[1], [segment(0, 30)], leader(1, 2))
    assert stored_next(store, TP) == 10


def test_refused_writer_of_a_later_epoch_reloads_and_commits(store: FakeStorage) -> None:
    old, new = archive_writer_of(store), archive_writer_of(store)
    start = old.load(TP, leader(1))
    moved = new.commit(TP, new.load(TP, leader(2)), [segment(0, 10)], leader(2))
    with pytest.raises(StandDownError):
        old.commit(TP, start, [segment(0, 30)], leader(1))
    with pytest.raises(StandDownError):
        old.load(TP, leader(1))
    assert watermark_of(store, TP) == moved.watermark


def test_equal_commits_have_different_nonces(store: FakeStorage) -> None:
    """Without a nonce, equal bytes would have equal etags, and a conditional write would not
    protect.
    """
    one = archive_writer_of(store).commit(TP, ArchiveState(), [segment(0, 10)], leader())
    two = archive_writer_of(FakeStorage()).commit(TP, ArchiveState(), [segment(0, 10)], leader())
    assert one.watermark is not None
    assert two.watermark is not None
    assert one.watermark.nonce != two.watermark.nonce


def test_writer_recognises_its_own_retried_commit_by_the_nonce(store: FakeStorage) -> None:
    """The first answer is lost, and the store refuses the retry because the first try succeeded."""
    archive_writer = ArchiveWriter(_SendsPutsTwice(store), LAYOUT, MetadataCache(1 << 20))
    archive = archive_writer.load(TP, leader())
    for base in (0, 10):
        archive = archive_writer.commit(TP, archive, [segment(base, base + 10)], leader())
    assert stored_next(store, TP) == 20
    assert named(store) == [0, 10]


def test_failed_commit_does_not_move_the_watermark(store: FakeStorage) -> None:
    archive_writer = archive_writer_of(store)
    store.fail("put", StoreUnavailableError("away"), key=KEY)
    with pytest.raises(StoreUnavailableError):
        archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    assert stored_next(store, TP) is None
    assert archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader()).next_offset == 10


def test_lost_answer_to_a_commit_is_resolved_by_reloading(
    store: FakeStorage,
) -> None:
    archive_writer = archive_writer_of(store)
    store.fail("put", StoreTimeoutError("no answer"), key=KEY, after=True)
    with pytest.raises(StoreTimeoutError):
        archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    with pytest.raises(ArchiveConflictError):
        archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    assert archive_writer.load(TP, leader()).next_offset == 10


# -- _metadata ------------------------------------------------------------------------------------


def test_commit_keeps_metadata_entries_of_another_writer(store: FakeStorage) -> None:
    one, other = archive_writer_of(store), archive_writer_of(store)
    archive = one.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    other.prepare(TP, archive, leader())
    archive = one.commit(TP, archive, [segment(10, 20)], leader())
    other.commit(TP, archive, [segment(20, 30)], leader())
    assert named(store) == [0, 10, 20]


def test_missing_metadata_is_rebuilt_from_all_stored_segments(store: FakeStorage) -> None:
    put_segment(store, 0, 10)
    put_segment(store, 10, 20)
    store.put_object(key_of(TP, 20), BytesBody(b"x"))  # above the watermark, and not whole
    put_watermark(store, Watermark(BaseOffset(10), Offset(20), LeaderEpoch(1), nonce="n"))
    archive_writer = archive_writer_of(store)
    archive = archive_writer.prepare(TP, archive_writer.load(TP, leader()), leader())
    assert METADATA not in store.contents()
    archive_writer.commit(TP, archive, [segment(20, 30)], leader())
    assert named(store) == [0, 10, 20]


def test_missing_metadata_is_rebuilt_after_the_cache_evicted_it(store: FakeStorage) -> None:
    put_segment(store, 0, 10)
    put_watermark(store, Watermark(BaseOffset(0), Offset(10), LeaderEpoch(1), nonce="n"))
    archive_writer = archive_writer_of(store, cache_bytes=1)
    archive = archive_writer.prepare(TP, archive_writer.load(TP, leader()), leader())
    archive_writer.prepare(TopicPartition("other", 0), ArchiveState(), leader())
    archive_writer.commit(TP, archive, [segment(10, 20)], leader())
    assert named(store) == [0, 10]


def test_malformed_metadata_is_not_overwritten(store: FakeStorage) -> None:
    store.put_object(METADATA, BytesBody(b"{}"))
    archive_writer = archive_writer_of(store)
    with pytest.raises(MalformedObjectError, match="_metadata"):
        archive_writer.commit(
            TP, archive_writer.prepare(TP, ArchiveState(), leader()), [segment(0, 10)], leader()
        )
    assert store.contents() == {METADATA: b"{}"}


def test_commit_gives_up_with_a_conflict_after_five_lost_races() -> None:
    changed = _AlwaysChanged(FakeStorage())
    with pytest.raises(ArchiveConflictError, match="5 times"):
        archive_writer_of(changed).commit(TP, ArchiveState(), [segment(0, 10)], leader())
    assert stored_next(changed.store, TP) is None


# -- objects above the watermark ------------------------------------------------------------------


def test_prepare_returns_only_keys_above_the_watermark(store: FakeStorage) -> None:
    archive_writer = archive_writer_of(store)
    for base in (0, 10):
        put_segment(store, base, base + 10)
    put_segment(store, 20, None)
    archive = archive_writer.commit(TP, ArchiveState(), [segment(0, 10), segment(10, 20)], leader())
    present = archive_writer.prepare(TP, archive, leader()).present or frozenset()
    assert {key for key in present if key.endswith(".log")} == {key_of(TP, 20)}


def test_gap_is_recorded_once_and_skipped(store: FakeStorage) -> None:
    archive_writer = archive_writer_of(store)
    archive = archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    gap = OffsetRange(Offset(10), Offset(40))
    key = LAYOUT.gap_key(TP, gap.start, gap.end)
    store.fail("put", StoreUnavailableError("away"), key=KEY)
    with pytest.raises(StoreUnavailableError):
        archive_writer.record_gap(TP, archive, gap, leader())
    assert stored_next(store, TP) == 10, "killed between record and watermark"
    moved = archive_writer.record_gap(TP, archive, gap, leader())
    assert (moved.next_offset, stored_next(store, TP)) == (40, 40)
    assert moved.watermark is not None
    assert moved.watermark.base_offset == 0, "the last stored segment is still the last"
    record = json.loads(store.contents()[key])
    assert (record["start_offset"], record["end_offset"]) == (10, 40)


def test_gap_before_the_first_watermark_moves_the_start_in_memory_only(
    store: FakeStorage,
) -> None:
    archive = ArchiveState(next_offset=Offset(5), present=frozenset())
    moved = archive_writer_of(store).record_gap(
        TP, archive, OffsetRange(Offset(5), Offset(9)), leader()
    )
    assert moved == replace(archive, next_offset=Offset(9), present=None)
    assert stored_next(store, TP) is None


@pytest.mark.parametrize(
    ("stored", "base", "next_offset", "gaps"),
    [
        pytest.param([(10, 20), (20, 40)], 20, 40, [], id="all of it is stored"),
        pytest.param([(10, 20)], 10, 20, [], id="its beginning is stored"),
        pytest.param([(20, 30)], 0, 20, [(10, 20)], id="what comes first is gone"),
        pytest.param([(5, 25)], 5, 25, [], id="it overlaps what is below the watermark"),
        pytest.param([(10, 20), (30, 40)], 10, 20, [], id="a gap between"),
        pytest.param([(5, 10), (50, 60)], 0, 40, [(10, 40)], id="only others"),
    ],
)
def test_recording_a_gap_adopts_segments_stored_above_the_watermark(
    store: FakeStorage,
    stored: list[tuple[int, int]],
    base: int,
    next_offset: int,
    gaps: list[tuple[int, int]],
) -> None:
    archive_writer = archive_writer_of(store)
    put_segment(store, 0, 10)
    archive = archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    for first, end in stored:
        put_segment(store, first, end)
    moved = archive_writer.record_gap(TP, archive, OffsetRange(Offset(10), Offset(40)), leader())
    assert moved.watermark is not None
    assert (moved.watermark.base_offset, moved.next_offset) == (base, next_offset)
    records = {LAYOUT.gap_key(TP, Offset(a), Offset(b)) for a, b in gaps}
    assert {key for key in store.contents() if key.startswith("_sidetier")} == records
    assert named(store)[-1] == base


@pytest.mark.parametrize("epochs", [(2, 1, 1), (1, 2, 1), (2, 2, 1)])
def test_log_whose_indexes_a_later_leader_emptied_is_adopted(
    store: FakeStorage, epochs: tuple[int, int, int]
) -> None:
    """The sidecar that stored the log made sure that the indexes belong to it."""
    archive_writer = archive_writer_of(store)
    archive = archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    put_segment(store, 10, 20, epochs)
    moved = archive_writer.record_gap(TP, archive, OffsetRange(Offset(10), Offset(40)), leader())
    assert moved.next_offset == 20
    assert watermark_of(store, TP) == moved.watermark


@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
def test_pinterest_log_beside_a_sidecar_index_is_not_adopted(
    store: FakeStorage, kind: FileKind
) -> None:
    """Pinterest's uploader sends the three files in any order and compares none of them."""
    archive_writer = archive_writer_of(store)
    archive = archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    put_segment(store, 10, None)
    for each in (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX):
        notes = {WRITER_EPOCH_KEY: "1"} if each is kind else {}
        store.put_object(key_of(TP, 10, each), BytesBody(b"x"), PutOptions(metadata=notes))
    moved = archive_writer.record_gap(TP, archive, OffsetRange(Offset(10), Offset(40)), leader())
    assert moved.next_offset == 40


@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
def test_log_without_an_index_is_adopted_with_an_empty_one(
    store: FakeStorage, kind: FileKind
) -> None:
    """A late delete of `sidetier gc` can remove an index."""
    archive_writer = archive_writer_of(store)
    archive = archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    put_segment(store, 10, 20)
    store.delete_object(key_of(TP, 10, kind))
    moved = archive_writer.record_gap(TP, archive, OffsetRange(Offset(10), Offset(40)), leader())
    assert moved.next_offset == 20
    assert store.contents()[key_of(TP, 10, kind)] == b""


@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
def test_pinterest_log_without_an_index_is_not_adopted(store: FakeStorage, kind: FileKind) -> None:
    archive_writer = archive_writer_of(store)
    archive = archive_writer.commit(TP, ArchiveState(), [segment(0, 10)], leader())
    for each in {FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX} - {kind}:
        store.put_object(key_of(TP, 10, each), BytesBody(b"x"))
    moved = archive_writer.record_gap(TP, archive, OffsetRange(Offset(10), Offset(40)), leader())
    assert moved.next_offset == 40


# -- offset_reset: latest -------------------------------------------------------------------------


def test_start_of_an_archive_is_recorded_once(store: FakeStorage) -> None:
    assert archive_writer_of(store).start_of(TP, Offset(30), leader()) == 30
    assert archive_writer_of(store).start_of(TP, Offset(90), leader()) == 30


def test_start_record_of_a_deleted_topic_does_not_apply_to_its_successor(
    store: FakeStorage,
) -> None:
    ours, other = leader(topic_id="ours"), leader(topic_id="another")
    assert archive_writer_of(store).start_of(TP, Offset(30), ours) == 30
    assert archive_writer_of(store).start_of(TP, Offset(90), leader()) == 30, "of either"
    assert archive_writer_of(store).start_of(TP, Offset(10), other) == 10
    assert archive_writer_of(store).start_of(TP, Offset(20), other) == 10


def test_start_record_without_a_topic_id_applies(store: FakeStorage) -> None:
    """An earlier version wrote such records."""
    body = BytesBody(b'{"version": 1, "start_offset": 30}')
    store.put_object(LAYOUT.start_key(TP), body)
    assert archive_writer_of(store).start_of(TP, Offset(90), leader(topic_id="ours")) == 30


def test_earliest_start_record_of_the_topic_id_applies(store: FakeStorage) -> None:
    archive_writer, ours, other = (
        archive_writer_of(store),
        leader(topic_id="ours"),
        leader(topic_id="another"),
    )
    assert archive_writer.load(TP, ours).kept_start is None
    assert archive_writer.keep_start(TP, ArchiveState(), Offset(30), ours).next_offset == 30
    assert archive_writer.keep_start(TP, ArchiveState(), Offset(90), ours).next_offset == 30
    assert archive_writer.load(TP, ours).kept_start == 30
    assert archive_writer.keep_start(TP, ArchiveState(), Offset(10), ours).next_offset == 10
    assert archive_writer.load(TP, ours).beginning_with_log(Offset(50)).next_offset == 10
    assert archive_writer.load(TP, ours).beginning_with_log(Offset(5)).next_offset == 5
    assert archive_writer.load(TP, other).kept_start is None
    assert archive_writer.keep_start(TP, ArchiveState(), Offset(70), other).next_offset == 70
    assert archive_writer.load(TP, ours).kept_start is None


def test_metadata_of_a_deleted_topic_without_a_watermark_is_discarded(
    store: FakeStorage,
) -> None:
    """The deleted topic's sidecar was killed between `_metadata` and its first watermark."""
    put_segment(store, 20, 30)
    before = store.get_object(key_of(TP, 20))
    notes = {**before.head.metadata, TOPIC_ID_KEY: "deleted"}
    store.put_object(key_of(TP, 20), BytesBody(before.data), PutOptions(metadata=notes))
    metadata = PartitionMetadata(TP).with_segments([(BaseOffset(20), 1)])
    store.put_object(METADATA, BytesBody(encode_metadata(metadata)))
    archive_writer, ours = archive_writer_of(store), leader(topic_id="created again")
    archive = archive_writer.prepare(TP, ArchiveState().beginning_at(Offset(0)), ours)
    assert named(store) == []
    archive_writer.commit(TP, archive, [segment(0, 10)], ours)
    assert named(store) == [0]


def test_first_watermark_above_an_earlier_start_record_is_refused(
    store: FakeStorage,
) -> None:
    """Two sidecars begin the archive; the other one has records from offset 10 on."""
    archive_writer = archive_writer_of(store)
    ours = archive_writer.keep_start(TP, ArchiveState(), Offset(30), leader())
    archive_writer.keep_start(TP, ArchiveState(), Offset(10), leader())
    with pytest.raises(
        ArchiveConflictError, match=r"starts/t-0.json records .* begins at 10, .* at 30"
    ):
        archive_writer.commit(TP, ours, [segment(30, 40)], leader())
    assert LAYOUT.watermark_key(TP) not in store.contents()
    theirs = archive_writer.load(TP, leader()).beginning_with_log(Offset(10))
    assert archive_writer.commit(TP, theirs, [segment(10, 30)], leader()).next_offset == 30


def pending(store: FakeStorage) -> bool:
    return bool(json.loads(store.contents()[LAYOUT.start_key(TP)]).get("pending"))


def test_record_that_is_lowered_after_the_first_watermark_is_told(store: FakeStorage) -> None:
    """A follower's sidecar has read the record before the leader's began the archive above it."""
    ours, theirs = archive_writer_of(store), archive_writer_of(store)
    kept = ours.keep_start(TP, ours.load(TP, leader()), Offset(30), leader())
    begins = theirs.load(TP, leader()).beginning_with_log(Offset(10))
    ours.commit(TP, kept, [segment(30, 40)], leader())
    assert not recorded_gaps(store, TP)
    assert not pending(store)
    with pytest.raises(ArchiveConflictError, match=r"offset.wm was written .* begins at 10"):
        theirs.keep_start(TP, begins, Offset(10), leader())
    assert recorded_gaps(store, TP) == [(10, 30)]
    assert not pending(store)


class _ArrivesBeforeTheWatermark(InterceptedStore):
    """Lets another sidecar lower the record just before the first `offset.wm` arrives."""

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "put" and call.key == LAYOUT.watermark_key(TP):
            archive_writer_of(self.store).keep_start(TP, ArchiveState(), Offset(10), leader())
        return call.effect(self.store)


def test_record_that_is_lowered_just_before_the_first_watermark_is_told(
    store: FakeStorage,
) -> None:
    archive_writer = archive_writer_of(_ArrivesBeforeTheWatermark(store))
    kept = archive_writer.keep_start(TP, ArchiveState(), Offset(30), leader())
    archive_writer.commit(TP, kept, [segment(30, 40)], leader())
    assert recorded_gaps(store, TP) == [(10, 30)]
    assert not pending(store)


def test_kill_between_the_first_watermark_and_the_comparison_is_made_good(
    store: FakeStorage,
) -> None:
    archive_writer = archive_writer_of(_ArrivesBeforeTheWatermark(store))
    beginning = ArchiveState().beginning_at(Offset(30))
    store.fail("get", StoreUnavailableError("killed"), key=LAYOUT.start_key(TP), nth=2)
    with pytest.raises(StoreUnavailableError):
        archive_writer.commit(TP, beginning, [segment(30, 40)], leader())
    assert pending(store)
    assert not recorded_gaps(store, TP)
    after = archive_writer_of(store)
    for _ in range(2):
        after.compare_start(TP, after.load(TP, leader()), leader())
        assert recorded_gaps(store, TP) == [(10, 30)]
    assert not pending(store)
    moved = replace(after.load(TP, leader()), epoch_history=None)
    assert moved.watermark is not None
    assert moved.watermark.start_offset == 30, "nothing below belongs to the archive"


def test_record_of_a_sidecar_with_an_earlier_leader_epoch_is_told(store: FakeStorage) -> None:
    """A follower's checkpoint has the new epoch only with the first record of that epoch."""
    ours, theirs = archive_writer_of(store), archive_writer_of(store)
    begins = theirs.load(TP, leader(1)).beginning_with_log(Offset(10))
    kept = ours.keep_start(TP, ours.load(TP, leader(2)), Offset(30), leader(2))
    ours.commit(TP, kept, [segment(30, 40)], leader(2))
    with pytest.raises(ArchiveConflictError):
        theirs.keep_start(TP, begins, Offset(10), leader(1))
    assert recorded_gaps(store, TP) == [(10, 30)]


class _BeginsBeforeTheRecord(InterceptedStore):
    """Lets another sidecar begin the archive between the reading of the record and its writing."""

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "put" and isinstance(call.condition, IfMatch) and not self.begun:
            self.begun = True
            writer = archive_writer_of(self.store)
            above = writer.load(TP, leader()).beginning_with_log(Offset(30))
            writer.commit(TP, above, [segment(30, 40)], leader())
        return call.effect(self.store)

    begun = False


def test_record_that_was_settled_while_it_is_lowered_is_told(store: FakeStorage) -> None:
    archive_writer_of(store).keep_start(TP, ArchiveState(), Offset(30), leader())
    told: list[tuple[TopicPartition, OffsetRange]] = []
    theirs = ArchiveWriter(
        _BeginsBeforeTheRecord(store),
        LAYOUT,
        MetadataCache(1 << 20),
        report_gap=lambda tp, gap: told.append((tp, gap)),
    )
    with pytest.raises(ArchiveConflictError):
        theirs.keep_start(TP, ArchiveState(), Offset(10), leader())
    assert recorded_gaps(store, TP) == [(10, 30)]
    assert told == [(TP, OffsetRange(Offset(10), Offset(30)))]


def test_damaged_record_does_not_hold_an_archive_that_has_begun(store: FakeStorage) -> None:
    archive_writer = archive_writer_of(store)
    archive = ArchiveState().beginning_at(Offset(30))
    archive = archive_writer.commit(TP, archive, [segment(30, 40)], leader())
    store.put_object(LAYOUT.start_key(TP), BytesBody(b"{"))
    archive_writer.compare_start(TP, archive, leader())


def test_comparison_leaves_records_of_earlier_versions_and_other_topics_alone(
    store: FakeStorage,
) -> None:
    """`sidetier gc` may have moved the start of such an archive since."""
    ours = leader(topic_id="ours")
    archive = ArchiveState().beginning_at(Offset(30))
    for record in (
        {"start_offset": 10, "offset_reset": "earliest", "topic_id": "ours"},
        {"start_offset": 10, "offset_reset": "earliest", "topic_id": "other", "pending": True},
        {"start_offset": 10},
    ):
        archive_writer = archive_writer_of(store)
        archive = archive_writer.commit(TP, archive, [segment(30, 40)], ours)
        body = json.dumps({"version": 1, **record}).encode()
        store.put_object(LAYOUT.start_key(TP), BytesBody(body))
        archive_writer.compare_start(TP, archive, ours)
        assert store.contents()[LAYOUT.start_key(TP)] == body
        assert not recorded_gaps(store, TP)


def test_archive_that_begins_at_offset_0_costs_no_request_for_its_start(
    store: FakeStorage,
) -> None:
    archive_writer = archive_writer_of(store)
    beginning = archive_writer.load(TP, leader()).beginning_with_log(Offset(0))
    asked = store.count(key=LAYOUT.start_key(TP))
    archive_writer.commit(TP, beginning, [segment(0, 40)], leader())
    assert store.count(key=LAYOUT.start_key(TP)) == asked == 1, "asked when it was loaded"


def test_start_record_of_latest_is_ignored_with_earliest(store: FakeStorage) -> None:
    archive_writer = archive_writer_of(store)
    archive_writer.start_of(TP, Offset(30), leader())
    assert archive_writer.load(TP, leader()).kept_start is None
    assert archive_writer.keep_start(TP, ArchiveState(), Offset(40), leader()).start_is_kept


def test_malformed_start_record_is_an_error(store: FakeStorage) -> None:
    store.put_object(LAYOUT.start_key(TP), BytesBody(b"[]"))
    with pytest.raises(MalformedObjectError, match="starts/t-0"):
        archive_writer_of(store).load(TP, leader())
    with pytest.raises(MalformedObjectError, match="starts/t-0"):
        archive_writer_of(store).start_of(TP, Offset(30), leader())


class _SendsPutsTwice(InterceptedStore):
    """Writes each object twice, like a retry after a lost answer; returns the second answer."""

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "put":
            super().intercept(call)
        return super().intercept(call)


class _AlwaysChanged(InterceptedStore):
    """Another writer changes `_metadata` right before each of our writes."""

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "put" and call.key == METADATA:
            self.store.put_object(METADATA, BytesBody(encode_metadata(PartitionMetadata(TP))))
        return super().intercept(call)


def test_watermark_decodes_to_base_offset_and_next_offset(store: FakeStorage) -> None:
    archive_writer_of(store).commit(TP, ArchiveState(), [segment(0, 10)], leader())
    first_line = store.contents()[KEY].split(b"\n")[0]
    assert first_line == b"00000000000000000000"
    assert decode_watermark(store.contents()[KEY], KEY).next_offset == 10
