"""Two sidecars that both believe they lead write the objects of one segment."""

from dataclasses import replace

import pytest

from sidetier.segments.crc import crc64nvme
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import (
    ArchiveConflictError,
    ChecksumMismatchError,
    StoreUnavailableError,
)
from sidetier.segments.names import FileKind
from sidetier.segments.notes import CHECKSUM_KEY, LEADER_EPOCH_KEY, NEXT_OFFSET_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import (
    ObjectHead,
    PutOptions,
    RemoteStorage,
    StorageCapabilities,
)
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.errors import (
    DivergedError,
    StandDownError,
    StoredByAnotherError,
    UnmarkedPinterestError,
)
from sidetier.uploader.sending.conditional_put import (
    WRITER_EPOCH_KEY,
    Existing,
    FileToStore,
    compare,
    store_file,
)
from sidetier.uploader.state.segment import StoredSegment
from tests.harness.daemons import LAYOUT, key_of, stored_logs, stored_next

TP = TopicPartition("t", 0)
KEY = key_of(TP, 10)
INDEX = key_of(TP, 10, FileKind.INDEX)


def file(data: bytes, epoch: int = 1, key: str = KEY) -> FileToStore:
    return FileToStore(key, BytesBody(data), crc64nvme(data), {"note": "x"}, LeaderEpoch(epoch))


def send(store: RemoteStorage, what: FileToStore) -> int:
    return store_file(store, what, may_exist=False)


def test_missing_object_is_written_with_its_metadata(store: FakeStorage) -> None:
    assert send(store, file(b"abc", 4)) == 3
    head = store.head_object(KEY)
    assert head.metadata == {
        "note": "x",
        CHECKSUM_KEY: f"{crc64nvme(b'abc'):016x}",
        WRITER_EPOCH_KEY: "4",
    }


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_equal_bytes_are_not_replaced_regardless_of_the_writer(
    store: FakeStorage, epoch: int
) -> None:
    send(store, file(b"abc", 2))
    etag = store.head_object(KEY).etag
    assert send(store, file(b"abc", epoch)) == 0
    assert store.head_object(KEY).etag == etag


@pytest.mark.parametrize("may_exist", [True, False])
@pytest.mark.parametrize("key", [KEY, INDEX])
def test_object_whose_bytes_another_program_has_replaced_gets_them_back(
    store: FakeStorage, key: str, *, may_exist: bool
) -> None:
    """Size and metadata are those of the upload; only the store's own checksum tells."""
    send(store, file(b"abc", key=key))
    store.overwrite(key, b"xyz")
    assert store_file(store, file(b"abc", key=key), may_exist=may_exist) == 3
    assert store.contents()[key] == b"abc"


def test_object_that_may_exist_is_compared_before_the_upload(store: FakeStorage) -> None:
    send(store, file(b"abc"))
    puts = store.count("put")
    assert store_file(store, file(b"abc"), may_exist=True) == 0
    assert store.count("put") == puts


@pytest.mark.parametrize(
    ("theirs", "ours", "error"),
    [
        (1, 2, StoredByAnotherError),
        (1, 1, StoredByAnotherError),
        (3, 2, ArchiveConflictError),
    ],
)
def test_log_of_another_sidecar_is_never_replaced(
    store: FakeStorage, theirs: int, ours: int, error: type[ArchiveConflictError]
) -> None:
    send(store, file(b"theirs", theirs))
    with pytest.raises(error, match=KEY) as caught:
        send(store, file(b"ours", ours))
    assert type(caught.value) is error
    assert store.contents()[KEY] == b"theirs"


@pytest.mark.parametrize("theirs", [1, 2])
@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
def test_index_of_another_sidecar_is_replaced_by_an_empty_one(
    store: FakeStorage, kind: FileKind, theirs: int
) -> None:
    """An empty index is valid for either log, whichever of the two is stored."""
    key = key_of(TP, 10, kind)
    send(store, file(b"theirs", theirs, key))
    assert send(store, file(b"ours", 2, key)) == 0
    assert store.contents()[key] == b""
    assert send(store, file(b"theirs", 2, key)) == 0, "who finds it empty leaves it so"
    assert store.contents()[key] == b""


def test_index_of_a_later_leader_is_left_alone(store: FakeStorage) -> None:
    send(store, file(b"theirs", 3, INDEX))
    with pytest.raises(ArchiveConflictError, match="another broker leads now"):
        send(store, file(b"ours", 2, INDEX))
    assert store.contents()[INDEX] == b"theirs"


@pytest.mark.parametrize(("kind", "left"), [(FileKind.INDEX, b""), (FileKind.SNAPSHOT, b"ours")])
def test_object_of_a_deleted_topic_is_not_taken_for_a_later_leaders(
    store: FakeStorage, kind: FileKind, left: bytes
) -> None:
    """Each topic ID has its own leader epochs."""
    key = key_of(TP, 10, kind)
    old, new = ({TOPIC_ID_KEY: topic_id} for topic_id in ("old", "new"))
    send(store, replace(file(b"theirs", 3, key), metadata=old))
    send(store, replace(file(b"ours", 0, key), metadata=new))
    assert store.contents()[key] == left


def test_log_of_a_deleted_topic_stays_until_quarantined(store: FakeStorage) -> None:
    send(store, replace(file(b"theirs", 3), metadata={TOPIC_ID_KEY: "old"}))
    with pytest.raises(StoredByAnotherError, match=KEY):
        send(store, replace(file(b"ours", 0), metadata={TOPIC_ID_KEY: "new"}))
    assert store.contents()[KEY] == b"theirs"


@pytest.mark.parametrize("kind", [FileKind.TXNINDEX, FileKind.SNAPSHOT])
def test_other_file_kinds_are_replaced_and_do_not_block_a_segment(
    store: FakeStorage, kind: FileKind
) -> None:
    """An empty transaction index would say that no transaction was aborted. The metadata of the
    `.log` holds the checksum of the right file.
    """
    key = key_of(TP, 10, kind)
    send(store, file(b"theirs", 1, key))
    assert send(store, file(b"ours", 2, key)) == 4
    assert store.contents()[key] == b"ours"


@pytest.mark.parametrize(
    "kind", [FileKind.INDEX, FileKind.TIMEINDEX, FileKind.TXNINDEX, FileKind.SNAPSHOT]
)
@pytest.mark.parametrize("theirs", [1, 2])
def test_no_file_is_changed_beside_the_log_of_another_sidecar(
    store: FakeStorage, kind: FileKind, theirs: int
) -> None:
    """That log may be committed by now and lie below the watermark."""
    key = key_of(TP, 10, kind)
    send(store, file(b"theirs", theirs, key))
    send(store, file(b"a log", theirs))
    with pytest.raises(StoredByAnotherError, match=KEY):
        send(store, file(b"ours", 2, key))
    assert store.contents()[key] == b"theirs"


@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
def test_pinterest_log_does_not_protect_the_index_beside_it(
    store: FakeStorage, kind: FileKind
) -> None:
    """The `.log` will be replaced, so the files beside it do not belong to a stored segment yet."""
    key = key_of(TP, 10, kind)
    send(store, file(b"theirs", 1, key))
    store.put_object(KEY, BytesBody(b"the peer's"))
    assert send(store, file(b"ours", 2, key)) == 0
    assert store.contents()[key] == b"", "another sidecar's index is emptied"


@pytest.mark.parametrize("key", [KEY, INDEX])
def test_quarantined_object_may_be_replaced(store: FakeStorage, key: str) -> None:
    send(store, file(b"theirs", 1, key))
    ours = file(b"ours", 2, key)
    assert store_file(store, ours, may_exist=True, may_replace=True) == 4
    assert store.contents()[key] == b"ours"
    with pytest.raises(ArchiveConflictError, match="another broker leads now"):
        store_file(store, file(b"x", 1, key), may_exist=True, may_replace=True)


@pytest.mark.parametrize("key", [KEY, INDEX])
def test_object_without_sidecar_metadata_is_replaced(store: FakeStorage, key: str) -> None:
    """Pinterest's uploader stored it before the sidecar took the partition over."""
    store.put_object(key, BytesBody(b"the peer's"))
    assert send(store, file(b"ours", 2, key)) == 4
    assert store.contents()[key] == b"ours"


def test_object_without_metadata_is_compared_by_the_stores_checksum(store: FakeStorage) -> None:
    store.put_object(KEY, BytesBody(b"abc"))
    assert send(store, file(b"abc")) == 0


@pytest.mark.parametrize("noted", ["", "zz", "-"])
def test_malformed_metadata_does_not_prove_equality(noted: str) -> None:
    head = ObjectHead(KEY, 3, "e", 0, {CHECKSUM_KEY: noted, WRITER_EPOCH_KEY: noted})
    assert compare(head, file(b"abc")) is Existing.TO_FOLLOW


def test_equal_checksum_with_another_length_is_not_equal() -> None:
    ours = file(b"abc")
    head = ObjectHead(KEY, 4, "e", 0, ours.all_metadata())
    assert compare(head, ours) is Existing.TO_FOLLOW


def test_write_between_head_and_put_wins(store: FakeStorage) -> None:
    """The write replaces an object of Pinterest's uploader; an object of a sidecar is never
    replaced.
    """
    store.put_object(KEY, BytesBody(b"Pinterest's"))
    options = PutOptions(metadata=file(b"another").all_metadata())
    store.race("head", lambda: store.put_object(KEY, BytesBody(b"another"), options), after=True)
    with pytest.raises(StoredByAnotherError):
        store_file(store, file(b"ours", 2), may_exist=True)
    assert store.contents()[KEY] == b"another"


def test_object_that_changes_after_every_head_is_a_conflict(store: FakeStorage) -> None:
    store.put_object(KEY, BytesBody(b"Pinterest's"))
    again = BytesBody(b"Pinterest's, again")
    store.race("head", lambda: store.put_object(KEY, again), times=None, after=True)
    with pytest.raises(ArchiveConflictError, match="at the same time"):
        send(store, file(b"ours", 2))


def test_store_refuses_bytes_that_differ_from_the_verified_ones(
    store: FakeStorage,
) -> None:
    changed = FileToStore(KEY, BytesBody(b"changed"), crc64nvme(b"verified"), {}, LeaderEpoch(1))
    with pytest.raises(ChecksumMismatchError):
        send(store, changed)
    assert store.contents() == {}


def test_transient_error_is_passed_on(store: FakeStorage) -> None:
    store.fail("put", StoreUnavailableError("away"), key=KEY)
    with pytest.raises(StoreUnavailableError):
        send(store, file(b"abc"))


def test_store_without_conditional_writes_is_checked_by_head_requests() -> None:
    store = FakeStorage(capabilities=StorageCapabilities(conditional_writes=False, checksum=None))
    send(store, file(b"theirs", 9))
    with pytest.raises(ArchiveConflictError, match="leader epoch 9"):
        send(store, file(b"ours", 1))
    assert send(store, file(b"theirs", 9)) == 0, "what is there is not sent again"
    assert store.contents()[KEY] == b"theirs"


# -- archives with segments of an earlier leader -------------------------------------------------


@pytest.fixture
def base(store: FakeStorage) -> ArchiveState:
    """An archive up to offset 10, written by the leader of epoch 1."""
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
        send(store, file(b"0 to 10", 1, key_of(TP, 0, kind)))
    return archive_writer(store).commit(TP, ArchiveState(), [stored(0, 10)], led(1))


def archive_writer(store: FakeStorage) -> ArchiveWriter:
    return ArchiveWriter(store, LAYOUT, MetadataCache(1 << 20))


def led(epoch: int) -> Leader:
    return Leader(BrokerId(epoch), LeaderEpoch(epoch), None)


def stored(first: int, end: int) -> StoredSegment:
    return StoredSegment(BaseOffset(first), Offset(end), 0, 7, 7)


def sidecar_stores(store: FakeStorage, first: int, end: int, epoch: int) -> None:
    """Store index, time index and log with the metadata of a log."""
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
        data = b"%d to %d" % (first, end)
        notes = {NEXT_OFFSET_KEY: str(end), LEADER_EPOCH_KEY: str(epoch)}
        what = FileToStore(
            key_of(TP, first, kind), BytesBody(data), crc64nvme(data), notes, LeaderEpoch(epoch)
        )
        send(store, what)


def test_segment_of_an_earlier_leader_is_adopted(store: FakeStorage, base: ArchiveState) -> None:
    """The earlier leader stored [10, 30), our segment ends at 20: the stored one stays and we go on
    at 30.
    """
    sidecar_stores(store, 10, 30, 1)
    ours = archive_writer(store)
    archive = ours.prepare(TP, ours.load(TP, led(2)), led(2))
    assert archive.next_offset == 30
    assert stored_next(store, TP) == 30
    with pytest.raises(StandDownError):
        archive_writer(store).commit(TP, base, [stored(10, 30)], led(1))
    assert stored_logs(store, TP)[10] == b"10 to 30"


def test_segment_stored_after_the_first_prepare_is_adopted_by_the_next(
    store: FakeStorage, base: ArchiveState
) -> None:
    assert base.next_offset == 10
    ours = archive_writer(store)
    archive = ours.prepare(TP, ours.load(TP, led(2)), led(2))
    assert archive.next_offset == 10
    sidecar_stores(store, 10, 30, 1)
    with pytest.raises(StoredByAnotherError):
        send(store, file(b"10 to 20", 2))
    assert ours.prepare(TP, ours.load(TP, led(2)), led(2)).next_offset == 30


def test_segment_of_a_later_leader_is_not_adopted(store: FakeStorage, base: ArchiveState) -> None:
    sidecar_stores(store, 10, 30, 2)
    archive = archive_writer(store).prepare(TP, base, led(1))
    assert archive.next_offset == 10
    assert stored_next(store, TP) == 10


def test_segment_of_a_lost_epoch_is_not_adopted(store: FakeStorage, base: ArchiveState) -> None:
    """The leader of epoch 1 stored it; after an unclean election epoch 2 began at offset 20."""
    sidecar_stores(store, 10, 30, 1)
    epoch_history = EpochHistory(((LeaderEpoch(1), Offset(0)), (LeaderEpoch(2), Offset(20))))
    with pytest.raises(DivergedError, match=r"00010\.log"):
        archive_writer(store).prepare(TP, base, led(2), lambda: epoch_history)
    assert stored_next(store, TP) == 10


def test_adoption_stops_at_a_gap(store: FakeStorage, base: ArchiveState) -> None:
    sidecar_stores(store, 10, 20, 1)
    sidecar_stores(store, 30, 40, 1)
    archive = archive_writer(store).prepare(TP, base, led(2))
    assert archive.next_offset == 20
    assert key_of(TP, 30) in (archive.present or ())


def test_prepare_without_new_segments_writes_nothing(
    store: FakeStorage, base: ArchiveState
) -> None:
    assert base.watermark is not None
    puts = store.count("put")
    archive_writer(store).prepare(TP, archive_writer(store).load(TP, led(2)), led(2))
    assert store.count("put") == puts


# -- the start of an archive ----------------------------------------------------------------------


def test_archive_starts_with_the_segments_of_an_earlier_leader(store: FakeStorage) -> None:
    """The earlier leader stored [0, 20) and lost the lead before its first watermark; our log
    begins at 20.
    """
    sidecar_stores(store, 0, 20, 1)
    archive = archive_writer(store).prepare(TP, ArchiveState().beginning_at(Offset(20)), led(2))
    assert archive.next_offset == 20
    watermark = archive_writer(store).load(TP, led(2)).watermark
    assert watermark is not None
    assert (watermark.base_offset, watermark.next_offset, watermark.start_offset) == (0, 20, 0)


def test_offsets_between_adopted_segments_and_the_log_are_a_gap(store: FakeStorage) -> None:
    sidecar_stores(store, 0, 10, 1)
    archive = archive_writer(store).prepare(TP, ArchiveState().beginning_at(Offset(20)), led(2))
    assert archive.next_offset == 10


@pytest.mark.parametrize("recorded", [True, False])
def test_recorded_start_leaves_out_earlier_segments(store: FakeStorage, *, recorded: bool) -> None:
    """`offset_reset: latest` excludes earlier offsets, even if segments of them are stored."""
    sidecar_stores(store, 0, 20, 1)
    archive = ArchiveState().beginning_at(Offset(20), recorded=recorded)
    archive = archive_writer(store).prepare(TP, archive, led(2))
    assert (archive.watermark is None) is recorded
    assert archive.next_offset == 20


def test_archive_does_not_start_with_segments_of_pinterest(store: FakeStorage) -> None:
    """The takeover of the partition ran before; the Pinterest segments it left are not part of the
    archive.
    """
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
        store.put_object(key_of(TP, 0, kind), BytesBody(b"x"))
    begun = ArchiveState().beginning_at(Offset(20))
    with pytest.raises(UnmarkedPinterestError, match="there is no watermark"):
        archive_writer(store).prepare(TP, begun, led(2))
    archive = archive_writer(store).prepare(TP, begun, led(2), unmarked=True)
    assert archive.watermark is None
    assert archive.next_offset == 20


def test_later_watermarks_keep_the_start_offset(store: FakeStorage) -> None:
    ours = archive_writer(store)
    archive = ours.commit(TP, ArchiveState().beginning_at(Offset(5)), [stored(5, 9)], led(1))
    archive = ours.commit(TP, ours.load(TP, led(1)), [stored(9, 12)], led(1))
    assert archive.watermark is not None
    assert archive.watermark.start_offset == 5
