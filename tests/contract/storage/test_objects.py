"""Contract of single objects for every store."""

import time

import pytest

from sidetier.segments.errors import (
    ChecksumMismatchError,
    DamagedSegmentError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checksums import checksum_of_bytes
from sidetier.storage.hdfs import HdfsStorage
from sidetier.storage.object_store import ObjectStorage
from sidetier.storage.port import Checksum, ChecksumAlgorithm, IfMatch, PutOptions, RemoteStorage
from tests.harness.bodies import BreakingBody, ShortBody
from tests.harness.encryption import AllLogs
from tests.harness.stores import Subject

CRC64 = ChecksumAlgorithm.CRC64NVME
ODD_KEYS = [
    "topic-0/00000000000000000000.log",
    "with space and  two",
    "a+b&c=d?e#f%20g;h,i:j@k",
    "quotes'\"`$(x)",
    "ümläut/日本語/😀",
    "tilde~^[]{}|<>!*",
    "back\\slash",
    ".hidden/.file",
    "..two-dots/a..b",
    "trailing.",
    "percent%2Fencoded",
]


def _shows(store: RemoteStorage) -> bool:
    """Return whether the store reports the checksum of an object: some keep ours in the
    metadata.
    """
    driver = store.inner.inner if isinstance(store, AllLogs) else store
    is_kept = isinstance(driver, HdfsStorage | ObjectStorage)
    return is_kept or store.capabilities.checksum is not None


def test_stored_bytes_are_read_back(store: RemoteStorage) -> None:
    data = bytes(range(256)) * 1000
    etag = store.put_object("a/b.log", BytesBody(data))
    stored = store.get_object("a/b.log")
    assert stored.data == data
    assert (stored.head.key, stored.head.size, stored.head.etag) == ("a/b.log", len(data), etag)


def test_empty_object_is_an_object(store: RemoteStorage) -> None:
    etag = store.put_object(
        "empty.index", BytesBody(b""), PutOptions(metadata={"next-offset": "0"})
    )
    stored = store.get_object("empty.index")
    assert (stored.data, stored.head.size, stored.head.etag) == (b"", 0, etag)
    assert stored.head.metadata == {"next-offset": "0"}
    with store.get_object_input_stream("empty.index") as stream:
        assert stream.read() == b""


@pytest.mark.parametrize("key", ODD_KEYS)
def test_keys_with_unusual_characters_are_stored(subject: Subject, key: str) -> None:
    store = subject.storage
    if any(character in key for character in subject.refused):
        with pytest.raises(InvalidRequestError, match=r"backslash|colon"):
            store.put_object(key, BytesBody(b"x"))
        return
    store.put_object(key, BytesBody(key.encode()))
    assert store.get_object(key).data == key.encode()
    assert store.head_object(key).size == len(key.encode())
    assert [row.key for row in store.list_objects("")] == [key]
    store.copy_object(key, f"{key}-copy")
    assert store.get_object(f"{key}-copy").data == key.encode()
    store.delete_object(key)
    assert [row.key for row in store.list_objects(key)] == [f"{key}-copy"]


@pytest.mark.parametrize(
    "key", ["", "/abs", "a//b", "a/", "../up", "a/../b", "a/./b", ".", "a\0b", "a\nb", "x" * 1025]
)
def test_keys_that_some_store_cannot_hold_are_refused(store: RemoteStorage, key: str) -> None:
    with pytest.raises(InvalidRequestError, match="key"):
        store.put_object(key, BytesBody(b"x"))
    with pytest.raises(InvalidRequestError, match="key"):
        store.get_object(key)
    assert list(store.list_objects("")) == []


def test_missing_object_is_not_found(store: RemoteStorage) -> None:
    for look in (store.get_object, store.head_object, store.get_object_input_stream):
        with pytest.raises(ObjectNotFoundError, match="absent"):
            look("dir/absent")
    with pytest.raises(ObjectNotFoundError, match="absent"):
        store.copy_object("dir/absent", "target")
    with pytest.raises(ObjectNotFoundError):
        store.get_object_input_stream("dir/absent", 3, 3)
    assert list(store.list_objects("")) == []


def test_directory_is_no_object(subject: Subject) -> None:
    store = subject.storage
    store.put_object("dir/file", BytesBody(b"x"))
    with pytest.raises(ObjectNotFoundError):
        store.head_object("dir")
    with pytest.raises(ObjectNotFoundError):
        store.head_object("dir/file/below")
    store.delete_object("dir")
    assert store.get_object("dir/file").data == b"x"


def test_delete_of_a_missing_object_is_no_error(store: RemoteStorage) -> None:
    store.put_object("a", BytesBody(b"x"))
    store.delete_object("a")
    store.delete_object("a")
    store.delete_object("never/was")
    with pytest.raises(ObjectNotFoundError):
        store.head_object("a")


def test_overwriting_replaces_bytes_and_metadata(store: RemoteStorage) -> None:
    first = store.put_object("k", BytesBody(b"one"), PutOptions(metadata={"a": "1", "b": "2"}))
    second = store.put_object("k", BytesBody(b"two"), PutOptions(metadata={"b": "3"}))
    head = store.head_object("k")
    assert first != second == head.etag
    assert head.metadata == {"b": "3"}
    assert store.get_object("k").data == b"two"


def test_metadata_is_returned_unchanged(store: RemoteStorage) -> None:
    metadata = {"next-offset": "12345678901234567890", "leader-epoch": "7", "odd": "a=b; c,d %20"}
    store.put_object("k", BytesBody(b"x"), PutOptions(metadata=metadata))
    assert store.head_object("k").metadata == metadata
    assert store.get_object("k").head.metadata == metadata
    store.put_object("plain", BytesBody(b"x"))
    assert store.head_object("plain").metadata == {}


@pytest.mark.parametrize(
    "metadata", [{"Upper": "x"}, {"under_score": "x"}, {"a": "ü"}, {"a": "x\n"}, {"a": "y" * 3000}]
)
def test_metadata_that_would_not_survive_is_refused(
    store: RemoteStorage, metadata: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequestError, match="metadata"):
        store.put_object("k", BytesBody(b"x"), PutOptions(metadata=metadata))
    assert list(store.list_objects("")) == []


@pytest.mark.parametrize("algorithm", list(ChecksumAlgorithm))
def test_correct_checksum_is_accepted_and_reported(
    store: RemoteStorage, algorithm: ChecksumAlgorithm
) -> None:
    checksum = checksum_of_bytes(b"data", algorithm)
    store.put_object("k", BytesBody(b"data"), PutOptions(checksum=checksum))
    assert store.head_object("k").checksum == (checksum if _shows(store) else None)


def test_checksum_is_computed_if_none_is_given(store: RemoteStorage) -> None:
    store.put_object("k", BytesBody(b"data"))
    expected = checksum_of_bytes(b"data", CRC64)
    assert store.head_object("k").checksum == (expected if _shows(store) else None)


def test_wrong_checksum_is_refused_and_leaves_nothing(subject: Subject) -> None:
    store = subject.storage
    wrong = Checksum(CRC64, bytes(8))
    verified = store.capabilities.checksum is not None
    for size in (10, 100_000):
        try:
            store.put_object(f"k-{size}", BytesBody(b"x" * size), PutOptions(checksum=wrong))
        except ChecksumMismatchError:
            assert list(store.list_objects("")) == []
        else:
            assert not verified, "the store says that it verifies, and accepted wrong bytes"
    assert subject.left_over() == []


def test_failing_body_leaves_nothing_and_its_error_is_raised(subject: Subject) -> None:
    store = subject.storage
    data = b"z" * 300_000
    for error in (OSError("disk"), DamagedSegmentError("segment"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            store.put_object(
                "k",
                BreakingBody(data, 200_000, error),
                PutOptions(checksum=checksum_of_bytes(data, CRC64)),
            )
        assert caught.value is error
    assert list(store.list_objects("")) == []
    assert subject.left_over() == []
    store.put_object("k", BytesBody(data))
    assert store.get_object("k").data == data


def test_failing_body_keeps_the_existing_object(store: RemoteStorage) -> None:
    etag = store.put_object("k", BytesBody(b"old"), PutOptions(metadata={"v": "1"}))
    with pytest.raises(OSError, match="disk"):
        store.put_object("k", BreakingBody(b"n" * 200_000, 100_000, OSError("disk")))
    assert store.get_object("k").data == b"old"
    assert (store.head_object("k").etag, store.head_object("k").metadata) == (etag, {"v": "1"})


def test_body_shorter_than_its_size_is_an_error(store: RemoteStorage) -> None:
    for size in (10, 200_000):
        with pytest.raises(OSError, match="body ended"):
            store.put_object("k", ShortBody(b"12345", size))
    assert list(store.list_objects("")) == []


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, None), (0, 10), (10, 20), (990, None), (990, 5000), (1000, None), (2000, 3000), (5, 5)],
)
def test_ranges_are_half_open_slices(store: RemoteStorage, start: int, end: int | None) -> None:
    data = bytes(i % 251 for i in range(1000))
    store.put_object("k", BytesBody(data))
    with store.get_object_input_stream("k", start, end) as stream:
        assert stream.read() == data[start:end]


def test_stream_can_be_read_in_pieces_and_closed_early(store: RemoteStorage) -> None:
    data = bytes(i % 251 for i in range(1_000_000))
    store.put_object("k", BytesBody(data))
    with store.get_object_input_stream("k", 100) as stream:
        assert stream.read(10) == data[100:110]
        assert stream.read(300_000) == data[110:300_110]
    with store.get_object_input_stream("k") as stream:
        assert stream.read(1) == data[:1]


@pytest.mark.parametrize(("start", "end"), [(-1, None), (10, 5), (-5, -1)])
def test_invalid_range_is_refused(store: RemoteStorage, start: int, end: int) -> None:
    store.put_object("k", BytesBody(b"0123456789"))
    with pytest.raises(InvalidRequestError, match="range"):
        store.get_object_input_stream("k", start, end)


def test_copy_has_the_same_bytes_metadata_and_checksum(subject: Subject) -> None:
    store = subject.storage
    data = b"q" * 200_000
    store.put_object("a", BytesBody(data), PutOptions(metadata={"next-offset": "5"}))
    etag = store.copy_object("a", "b/c")
    copied = store.get_object("b/c")
    assert copied.data == data
    assert copied.head.etag == etag
    assert copied.head.metadata == {"next-offset": "5"}
    if _shows(store):
        assert copied.head.checksum == checksum_of_bytes(data, CRC64)
    assert store.get_object("a").data == data


def test_modification_time_is_reported_in_milliseconds(store: RemoteStorage) -> None:
    store.put_object("k", BytesBody(b"x"))
    now = time.time_ns() // 1_000_000
    head = store.head_object("k")
    (row,) = store.list_objects("k")
    assert abs(head.modified_ms - now) < 60_000
    assert (row.key, row.size, row.etag) == ("k", 1, head.etag)
    assert abs(row.modified_ms - now) < 60_000


def test_stream_returns_the_opened_version(store: RemoteStorage) -> None:
    first = store.put_object("k", BytesBody(b"first"))
    with store.get_object_input_stream("k", 1, 3, condition=IfMatch(first)) as stream:
        assert stream.read() == b"ir"
    second = store.put_object("k", BytesBody(b"second"))

    for start, end in ((1, 3), (0, None), (2, 2)):
        with pytest.raises(PreconditionFailedError):
            store.get_object_input_stream("k", start, end, condition=IfMatch(first))
    with store.get_object_input_stream("k", condition=IfMatch(second)) as stream:
        assert stream.read() == b"second"
    with pytest.raises(ObjectNotFoundError):
        store.get_object_input_stream("absent", condition=IfMatch(first))


def test_several_objects_are_deleted_and_missing_ones_are_no_error(store: RemoteStorage) -> None:
    for key in ("a", "b/1", "b/2", "c"):
        store.put_object(key, BytesBody(b"x"))
    store.delete_objects(["b/1", "never/was", "a", "b/2"])
    assert [row.key for row in store.list_objects("")] == ["c"]
    store.delete_objects([])
    assert [row.key for row in store.list_objects("")] == ["c"]
