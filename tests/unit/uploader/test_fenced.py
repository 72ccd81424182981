"""Two sidecars that both believe they lead, at the objects of one segment."""

import pytest

from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    ArchiveConflictError,
    ChecksumMismatchError,
    StoreUnavailableError,
)
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfMatch, ObjectHead, StorageCapabilities
from sidetier.uploader.archive.keeper import Archive, ArchiveKeeper, Leader, StandDownError
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.sending.fenced import (
    CHECKSUM_KEY,
    WRITER_EPOCH_KEY,
    Existing,
    FileToStore,
    UnclaimedError,
    compare,
    store_file,
)
from sidetier.uploader.sending.upload import StoredSegment
from tests.harness.daemons import LAYOUT, key_of, stored_logs, stored_next

TP = TopicPartition("t", 0)
KEY = key_of(TP, 10)


def file(data: bytes, epoch: int = 1, key: str = KEY) -> FileToStore:
    return FileToStore(key, BytesBody(data), crc64nvme(data), {"note": "x"}, LeaderEpoch(epoch))


def send(store: FakeStorage, what: FileToStore, *, may_replace: bool = True) -> int:
    return store_file(store, what, may_exist=False, may_replace=may_replace)


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
    assert send(store, file(b"abc", epoch), may_replace=False) == 0
    assert store.head_object(KEY).etag == etag


def test_what_is_known_to_be_there_is_looked_at_before_it_is_sent(store: FakeStorage) -> None:
    send(store, file(b"abc"))
    puts = store.count("put")
    assert store_file(store, file(b"abc"), may_exist=True, may_replace=False) == 0
    assert store.count("put") == puts


@pytest.mark.parametrize(
    ("theirs", "ours", "may_replace", "error"),
    [
        (1, 2, True, None),
        (1, 1, True, None),
        (1, 2, False, UnclaimedError),
        (1, 1, False, UnclaimedError),
        (3, 2, True, ArchiveConflictError),
        (3, 2, False, ArchiveConflictError),
    ],
)
def test_other_bytes_of_another_writer(
    store: FakeStorage,
    theirs: int,
    ours: int,
    error: type[ArchiveConflictError] | None,
    *,
    may_replace: bool,
) -> None:
    send(store, file(b"theirs", theirs))
    if error is None:
        assert send(store, file(b"ours", ours), may_replace=may_replace) == 4
        assert store.contents()[KEY] == b"ours"
        return
    with pytest.raises(error, match=KEY) as caught:
        send(store, file(b"ours", ours), may_replace=may_replace)
    assert type(caught.value) is error
    assert store.contents()[KEY] == b"theirs"


def test_an_object_without_notes_is_compared_by_the_stores_checksum(store: FakeStorage) -> None:
    store.put_object(KEY, BytesBody(b"abc"))
    assert send(store, file(b"abc"), may_replace=False) == 0


@pytest.mark.parametrize("noted", ["", "zz", "-"])
def test_notes_that_do_not_parse_prove_nothing(noted: str) -> None:
    head = ObjectHead(KEY, 3, "e", 0, {CHECKSUM_KEY: noted, WRITER_EPOCH_KEY: noted})
    assert compare(head, file(b"abc")) is Existing.REPLACE


def test_another_length_with_the_same_checksum_is_not_the_same() -> None:
    ours = file(b"abc")
    head = ObjectHead(KEY, 4, "e", 0, ours.all_metadata())
    assert compare(head, ours) is Existing.REPLACE


def test_one_who_writes_between_our_look_and_our_replacement_wins(store: FakeStorage) -> None:
    send(store, file(b"first"))

    class Meanwhile(FakeStorage):
        def head_object(self, key: str) -> ObjectHead:
            found = store.head_object(key)
            store.put_object(key, BytesBody(b"another"), condition=IfMatch(found.etag))
            return found

    racing = Meanwhile()
    racing._objects = store._objects
    with pytest.raises(ArchiveConflictError, match="at the same time"):
        send(racing, file(b"ours", 2))
    assert store.contents()[KEY] == b"another"


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
def base(store: FakeStorage) -> Archive:
    """An archive up to 10, by the leader of epoch 1."""
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
        send(store, file(b"0 to 10", 1, key_of(TP, 0, kind)))
    return keeper(store).commit(TP, Archive(), [stored(0, 10)], led(1))


def keeper(store: FakeStorage) -> ArchiveKeeper:
    return ArchiveKeeper(store, LAYOUT, MetadataCache(1 << 20))


def led(epoch: int) -> Leader:
    return Leader(BrokerId(epoch), LeaderEpoch(epoch), None)


def stored(first: int, end: int) -> StoredSegment:
    return StoredSegment(BaseOffset(first), Offset(end), 0, 7, 7)


def test_an_earlier_leader_cannot_commit_what_we_replace(store: FakeStorage, base: Archive) -> None:
    """He has stored 10 to 30 as one segment, ours ends at 20. Were his watermark to move to 30
    while we replace it, 20 to 29 would be nowhere.
    """
    send(store, file(b"10 to 30", 1))
    ours = keeper(store)
    archive = ours.prepare(TP, ours.load(TP, led(2)), led(2))
    assert archive.may_replace
    send(store, file(b"10 to 20", 2), may_replace=archive.may_replace)
    with pytest.raises(StandDownError):
        keeper(store).commit(TP, base, [stored(10, 30)], led(1))
    ours.commit(TP, archive, [stored(10, 20)], led(2))
    assert stored_next(store, TP) == 20
    assert stored_logs(store, TP)[10] == b"10 to 20"


def test_what_he_stores_after_our_look_is_not_replaced_before_the_watermark_is_ours(
    store: FakeStorage, base: Archive
) -> None:
    ours = keeper(store)
    archive = ours.prepare(TP, ours.load(TP, led(2)), led(2))
    send(store, file(b"10 to 30", 1))
    with pytest.raises(UnclaimedError):
        send(store, file(b"10 to 20", 2), may_replace=archive.may_replace)
    keeper(store).commit(TP, base, [stored(10, 30)], led(1))
    assert ours.load(TP, led(2)).next_offset == 30


def test_a_look_that_finds_nothing_costs_no_write(store: FakeStorage, base: Archive) -> None:
    assert base.watermark is not None
    puts = store.count("put")
    archive = keeper(store).prepare(TP, keeper(store).load(TP, led(2)), led(2))
    assert store.count("put") == puts
    assert not archive.may_replace


def test_claiming_moves_nothing(store: FakeStorage, base: Archive) -> None:
    send(store, file(b"10 to 30", 1))
    archive = keeper(store).prepare(TP, keeper(store).load(TP, led(2)), led(2))
    assert archive.watermark is not None
    assert base.watermark is not None
    assert (archive.watermark.base_offset, archive.next_offset) == (0, 10)
    assert archive.watermark.leader_epoch == 2
    assert keeper(store).load(TP, led(2)).next_offset == 10
