"""Two sidecars that both believe they lead, at the objects of one segment."""

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
from sidetier.segments.notes import LEADER_EPOCH_KEY, NEXT_OFFSET_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfMatch, ObjectHead, RemoteStorage, StorageCapabilities
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
    CHECKSUM_KEY,
    WRITER_EPOCH_KEY,
    Existing,
    FileToStore,
    compare,
    store_file,
)
from sidetier.uploader.state.segment import StoredSegment
from tests.harness.daemons import LAYOUT, key_of, stored_logs, stored_next
from tests.harness.intercepted_store import InterceptedStore, StoreCall

TP = TopicPartition("t", 0)
KEY = key_of(TP, 10)
INDEX = key_of(TP, 10, FileKind.INDEX)


def file(data: bytes, epoch: int = 1, key: str = KEY) -> FileToStore:
    return FileToStore(key, BytesBody(data), crc64nvme(data), {"note": "x"}, LeaderEpoch(epoch))


def send(store: RemoteStorage, what: FileToStore) -> int:
    return store_file(store, what, may_exist=False)


def test_what_is_not_there_is_written_with_its_notes(store: FakeStorage) -> None:
    assert send(store, file(b"abc", 4)) == 3
    head = store.head_object(KEY)
    assert head.metadata == {
        "note": "x",
        CHECKSUM_KEY: f"{crc64nvme(b'abc'):016x}",
        WRITER_EPOCH_KEY: "4",
    }


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_the_same_bytes_are_not_replaced_whoever_wrote_them(store: FakeStorage, epoch: int) -> None:
    send(store, file(b"abc", 2))
    etag = store.head_object(KEY).etag
    assert send(store, file(b"abc", epoch)) == 0
    assert store.head_object(KEY).etag == etag


def test_what_is_known_to_be_there_is_looked_at_before_it_is_sent(store: FakeStorage) -> None:
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
def test_another_sidecars_log_is_never_replaced(
    store: FakeStorage, theirs: int, ours: int, error: type[ArchiveConflictError]
) -> None:
    send(store, file(b"theirs", theirs))
    with pytest.raises(error, match=KEY) as caught:
        send(store, file(b"ours", ours))
    assert type(caught.value) is error
    assert store.contents()[KEY] == b"theirs"


@pytest.mark.parametrize("theirs", [1, 2])
@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
def test_another_sidecars_index_is_emptied(store: FakeStorage, kind: FileKind, theirs: int) -> None:
    """Empty, it belongs to his log as well as to ours, whichever will be there."""
    key = key_of(TP, 10, kind)
    send(store, file(b"theirs", theirs, key))
    assert send(store, file(b"ours", 2, key)) == 0
    assert store.contents()[key] == b""
    assert send(store, file(b"theirs", 2, key)) == 0, "who finds it empty leaves it so"
    assert store.contents()[key] == b""


def test_a_later_leaders_index_is_left_alone(store: FakeStorage) -> None:
    send(store, file(b"theirs", 3, INDEX))
    with pytest.raises(ArchiveConflictError, match="another broker leads now"):
        send(store, file(b"ours", 2, INDEX))
    assert store.contents()[INDEX] == b"theirs"


@pytest.mark.parametrize(("kind", "left"), [(FileKind.INDEX, b""), (FileKind.SNAPSHOT, b"ours")])
def test_what_a_deleted_topics_sidecar_wrote_late_is_no_later_leaders(
    store: FakeStorage, kind: FileKind, left: bytes
) -> None:
    """Each topic of the name has leader epochs of its own."""
    key = key_of(TP, 10, kind)
    old, new = ({TOPIC_ID_KEY: topic_id} for topic_id in ("old", "new"))
    send(store, replace(file(b"theirs", 3, key), metadata=old))
    send(store, replace(file(b"ours", 0, key), metadata=new))
    assert store.contents()[key] == left


def test_the_log_of_a_deleted_topic_stays_for_whoever_sets_it_aside(store: FakeStorage) -> None:
    send(store, replace(file(b"theirs", 3), metadata={TOPIC_ID_KEY: "old"}))
    with pytest.raises(StoredByAnotherError, match=KEY):
        send(store, replace(file(b"ours", 0), metadata={TOPIC_ID_KEY: "new"}))
    assert store.contents()[KEY] == b"theirs"


@pytest.mark.parametrize("kind", [FileKind.TXNINDEX, FileKind.SNAPSHOT])
def test_no_other_file_is_emptied_or_holds_a_segment(store: FakeStorage, kind: FileKind) -> None:
    """An empty list of aborted transactions would say that there are none; the `.log` notes the
    checksum of the right one.
    """
    key = key_of(TP, 10, kind)
    send(store, file(b"theirs", 1, key))
    assert send(store, file(b"ours", 2, key)) == 4
    assert store.contents()[key] == b"ours"


@pytest.mark.parametrize(
    "kind", [FileKind.INDEX, FileKind.TIMEINDEX, FileKind.TXNINDEX, FileKind.SNAPSHOT]
)
@pytest.mark.parametrize("theirs", [1, 2])
def test_nothing_changes_beside_another_sidecars_log(
    store: FakeStorage, kind: FileKind, theirs: int
) -> None:
    """It may be committed by now, and lie below the watermark."""
    key = key_of(TP, 10, kind)
    send(store, file(b"theirs", theirs, key))
    send(store, file(b"a log", theirs))
    with pytest.raises(StoredByAnotherError, match=KEY):
        send(store, file(b"ours", 2, key))
    assert store.contents()[key] == b"theirs"


@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
def test_a_log_of_the_peers_decides_nothing(store: FakeStorage, kind: FileKind) -> None:
    """Its `.log` is replaced: what lies beside it belongs to nobody's segment yet."""
    key = key_of(TP, 10, kind)
    send(store, file(b"theirs", 1, key))
    store.put_object(KEY, BytesBody(b"the peer's"))
    assert send(store, file(b"ours", 2, key)) == 0
    assert store.contents()[key] == b"", "another sidecar's index is emptied"


@pytest.mark.parametrize("key", [KEY, INDEX])
def test_what_has_been_set_aside_is_replaced(store: FakeStorage, key: str) -> None:
    send(store, file(b"theirs", 1, key))
    ours = file(b"ours", 2, key)
    assert store_file(store, ours, may_exist=True, may_replace=True) == 4
    assert store.contents()[key] == b"ours"
    with pytest.raises(ArchiveConflictError, match="another broker leads now"):
        store_file(store, file(b"x", 1, key), may_exist=True, may_replace=True)


@pytest.mark.parametrize("key", [KEY, INDEX])
def test_what_no_sidecar_wrote_is_replaced(store: FakeStorage, key: str) -> None:
    """Pinterest's, from before the partition was taken over."""
    store.put_object(key, BytesBody(b"the peer's"))
    assert send(store, file(b"ours", 2, key)) == 4
    assert store.contents()[key] == b"ours"


def test_an_object_without_notes_is_compared_by_the_stores_checksum(store: FakeStorage) -> None:
    store.put_object(KEY, BytesBody(b"abc"))
    assert send(store, file(b"abc")) == 0


@pytest.mark.parametrize("noted", ["", "zz", "-"])
def test_notes_that_do_not_parse_prove_nothing(noted: str) -> None:
    head = ObjectHead(KEY, 3, "e", 0, {CHECKSUM_KEY: noted, WRITER_EPOCH_KEY: noted})
    assert compare(head, file(b"abc")) is Existing.TO_FOLLOW


def test_another_length_with_the_same_checksum_is_not_the_same() -> None:
    ours = file(b"abc")
    head = ObjectHead(KEY, 4, "e", 0, ours.all_metadata())
    assert compare(head, ours) is Existing.TO_FOLLOW


def test_a_sidecar_that_writes_between_our_head_and_our_put_wins(store: FakeStorage) -> None:
    """It has replaced an object of Pinterest's uploader; a sidecar's object is never replaced."""
    store.put_object(KEY, BytesBody(b"Pinterest's"))

    class WrittenAfterFirstHead(InterceptedStore):
        def intercept(self, call: StoreCall) -> object:
            answer = super().intercept(call)
            if isinstance(answer, ObjectHead) and self.store.count("head") == 1:
                notes = file(b"another").all_metadata()
                self.store.put_object(
                    call.key, BytesBody(b"another"), metadata=notes, condition=IfMatch(answer.etag)
                )
            return answer

    with pytest.raises(StoredByAnotherError):
        store_file(WrittenAfterFirstHead(store), file(b"ours", 2), may_exist=True)
    assert store.contents()[KEY] == b"another"


def test_an_object_that_changes_after_every_head_is_a_conflict(store: FakeStorage) -> None:
    store.put_object(KEY, BytesBody(b"Pinterest's"))

    class WrittenAfterEachHead(InterceptedStore):
        def intercept(self, call: StoreCall) -> object:
            answer = super().intercept(call)
            if call.operation == "head":
                self.store.put_object(call.key, BytesBody(b"Pinterest's, again"))
            return answer

    with pytest.raises(ArchiveConflictError, match="at the same time"):
        send(WrittenAfterEachHead(store), file(b"ours", 2))


def test_other_bytes_than_those_that_were_verified_are_refused_by_the_store(
    store: FakeStorage,
) -> None:
    changed = FileToStore(KEY, BytesBody(b"changed"), crc64nvme(b"verified"), {}, LeaderEpoch(1))
    with pytest.raises(ChecksumMismatchError):
        send(store, changed)
    assert store.contents() == {}


def test_a_transient_error_is_handed_on(store: FakeStorage) -> None:
    store.fail("put", StoreUnavailableError("away"), key=KEY)
    with pytest.raises(StoreUnavailableError):
        send(store, file(b"abc"))


def test_a_store_without_conditional_writes_is_looked_at_all_the_same() -> None:
    store = FakeStorage(capabilities=StorageCapabilities(conditional_writes=False, checksum=None))
    send(store, file(b"theirs", 9))
    with pytest.raises(ArchiveConflictError, match="leader epoch 9"):
        send(store, file(b"ours", 1))
    assert send(store, file(b"theirs", 9)) == 0, "what is there is not sent again"
    assert store.contents()[KEY] == b"theirs"


# -- replacing, and the watermark ----------------------------------------------------------------


@pytest.fixture
def base(store: FakeStorage) -> ArchiveState:
    """An archive up to 10, by the leader of epoch 1."""
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
    """Index, time index and log, with the notes of a log."""
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
        data = b"%d to %d" % (first, end)
        notes = {NEXT_OFFSET_KEY: str(end), LEADER_EPOCH_KEY: str(epoch)}
        what = FileToStore(
            key_of(TP, first, kind), BytesBody(data), crc64nvme(data), notes, LeaderEpoch(epoch)
        )
        send(store, what)


def test_what_an_earlier_leader_has_stored_is_followed(
    store: FakeStorage, base: ArchiveState
) -> None:
    """He has stored 10 to 30 as one segment, ours ends at 20: his stays, and we go on at 30."""
    sidecar_stores(store, 10, 30, 1)
    ours = archive_writer(store)
    archive = ours.prepare(TP, ours.load(TP, led(2)), led(2))
    assert archive.next_offset == 30
    assert stored_next(store, TP) == 30
    with pytest.raises(StandDownError):
        archive_writer(store).commit(TP, base, [stored(10, 30)], led(1))
    assert stored_logs(store, TP)[10] == b"10 to 30"


def test_what_he_stores_after_our_look_is_followed_at_the_next(
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


def test_what_a_later_leader_has_stored_is_left_to_him(
    store: FakeStorage, base: ArchiveState
) -> None:
    sidecar_stores(store, 10, 30, 2)
    archive = archive_writer(store).prepare(TP, base, led(1))
    assert archive.next_offset == 10
    assert stored_next(store, TP) == 10


def test_what_the_log_has_lost_is_not_followed(store: FakeStorage, base: ArchiveState) -> None:
    """The leader of epoch 1 stored it; after an unclean election epoch 2 began at 20."""
    sidecar_stores(store, 10, 30, 1)
    epoch_history = EpochHistory(((LeaderEpoch(1), Offset(0)), (LeaderEpoch(2), Offset(20))))
    with pytest.raises(DivergedError, match=r"00010\.log"):
        archive_writer(store).prepare(TP, base, led(2), lambda: epoch_history)
    assert stored_next(store, TP) == 10


def test_a_gap_ends_what_is_followed(store: FakeStorage, base: ArchiveState) -> None:
    sidecar_stores(store, 10, 20, 1)
    sidecar_stores(store, 30, 40, 1)
    archive = archive_writer(store).prepare(TP, base, led(2))
    assert archive.next_offset == 20
    assert key_of(TP, 30) in (archive.present or ())


def test_a_look_that_finds_nothing_costs_no_write(store: FakeStorage, base: ArchiveState) -> None:
    assert base.watermark is not None
    puts = store.count("put")
    archive_writer(store).prepare(TP, archive_writer(store).load(TP, led(2)), led(2))
    assert store.count("put") == puts


# -- where an archive begins ----------------------------------------------------------------------


def test_an_archive_begins_with_what_an_earlier_leader_has_stored(store: FakeStorage) -> None:
    """He stored 0 to 20 and was gone before the first watermark; our log begins at 20 by now."""
    sidecar_stores(store, 0, 20, 1)
    archive = archive_writer(store).prepare(TP, ArchiveState().beginning_at(Offset(20)), led(2))
    assert archive.next_offset == 20
    watermark = archive_writer(store).load(TP, led(2)).watermark
    assert watermark is not None
    assert (watermark.base_offset, watermark.next_offset, watermark.start_offset) == (0, 20, 0)


def test_what_lies_between_it_and_our_log_shows_as_a_gap(store: FakeStorage) -> None:
    sidecar_stores(store, 0, 10, 1)
    archive = archive_writer(store).prepare(TP, ArchiveState().beginning_at(Offset(20)), led(2))
    assert archive.next_offset == 10


@pytest.mark.parametrize("recorded", [True, False])
def test_a_start_that_is_recorded_stands(store: FakeStorage, *, recorded: bool) -> None:
    """`offset_reset: latest` leaves out what comes before, whatever lies there."""
    sidecar_stores(store, 0, 20, 1)
    archive = ArchiveState().beginning_at(Offset(20), recorded=recorded)
    archive = archive_writer(store).prepare(TP, archive, led(2))
    assert (archive.watermark is None) is recorded
    assert archive.next_offset == 20


def test_the_peers_segments_are_no_beginning(store: FakeStorage) -> None:
    """They are taken over before; what then is left of them is none of ours."""
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
        store.put_object(key_of(TP, 0, kind), BytesBody(b"x"))
    begun = ArchiveState().beginning_at(Offset(20))
    with pytest.raises(UnmarkedPinterestError, match="there is no watermark"):
        archive_writer(store).prepare(TP, begun, led(2))
    archive = archive_writer(store).prepare(TP, begun, led(2), unmarked=True)
    assert archive.watermark is None
    assert archive.next_offset == 20


def test_the_start_is_kept_by_every_later_watermark(store: FakeStorage) -> None:
    ours = archive_writer(store)
    archive = ours.commit(TP, ArchiveState().beginning_at(Offset(5)), [stored(5, 9)], led(1))
    archive = ours.commit(TP, ours.load(TP, led(1)), [stored(9, 12)], led(1))
    assert archive.watermark is not None
    assert archive.watermark.start_offset == 5
