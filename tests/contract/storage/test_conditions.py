"""Contract of conditional writes for every store."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from sidetier.segments.errors import PreconditionFailedError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, IfMatch, PutOptions, RemoteStorage
from tests.harness.stores import Subject

LARGE = 7 * 1024**2
"""Sent in parts by the S3 stores of this suite."""


def test_if_absent_writes_once(store: RemoteStorage) -> None:
    etag = store.put_object("k", BytesBody(b"first"), PutOptions(condition=IfAbsent()))
    with pytest.raises(PreconditionFailedError, match="k"):
        store.put_object("k", BytesBody(b"second"), PutOptions(condition=IfAbsent()))
    assert store.get_object("k").data == b"first"
    assert store.head_object("k").etag == etag
    store.delete_object("k")
    store.put_object("k", BytesBody(b"third"), PutOptions(condition=IfAbsent()))


def test_if_match_loses_no_update(store: RemoteStorage) -> None:
    first = store.put_object("k", BytesBody(b"1 nonce-a"))
    second = store.put_object("k", BytesBody(b"2 nonce-b"), PutOptions(condition=IfMatch(first)))
    with pytest.raises(PreconditionFailedError, match="k"):
        store.put_object("k", BytesBody(b"3 nonce-c"), PutOptions(condition=IfMatch(first)))
    assert store.get_object("k").data == b"2 nonce-b"
    store.put_object("k", BytesBody(b"3 nonce-d"), PutOptions(condition=IfMatch(second)))
    assert store.get_object("k").data == b"3 nonce-d"


def test_if_match_on_a_missing_object_is_refused(store: RemoteStorage) -> None:
    with pytest.raises(PreconditionFailedError):
        store.put_object("k", BytesBody(b"x"), PutOptions(condition=IfMatch("0123456789abcdef")))
    assert list(store.list_objects("")) == []


def test_etag_of_a_listing_and_of_a_head_can_be_matched(store: RemoteStorage) -> None:
    store.put_object("k", BytesBody(b"1"))
    (row,) = store.list_objects("k")
    store.put_object("k", BytesBody(b"2"), PutOptions(condition=IfMatch(row.etag)))
    store.put_object(
        "k", BytesBody(b"3"), PutOptions(condition=IfMatch(store.head_object("k").etag))
    )
    etag = store.get_object("k").head.etag
    store.put_object("k", BytesBody(b"4"), PutOptions(condition=IfMatch(etag)))
    assert store.get_object("k").data == b"4"


def _race(store: RemoteStorage, condition: IfAbsent | IfMatch, size: int) -> list[int]:
    """Run eight writers at once; return the numbers of the successful ones."""
    start = Barrier(8)

    def put(number: int) -> bool:
        start.wait()
        try:
            body = BytesBody(bytes([number]) * size)
            store.put_object("contested", body, PutOptions(condition=condition))
        except PreconditionFailedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(put, range(8)))
    return [number for number, won in enumerate(outcomes) if won]


@pytest.mark.parametrize("size", [100, 100_000])
def test_one_of_eight_concurrent_creates_succeeds(store: RemoteStorage, size: int) -> None:
    (winner,) = _race(store, IfAbsent(), size)
    assert store.get_object("contested").data == bytes([winner]) * size


def test_one_of_eight_concurrent_updates_succeeds(subject: Subject) -> None:
    store = subject.storage
    etag = store.put_object("contested", BytesBody(b"start"))
    winners = _race(store, IfMatch(etag), 200)
    assert len(winners) == 1 or (winners and not subject.fences)
    assert store.get_object("contested").data in [bytes([winner]) * 200 for winner in winners]


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_copy_obeys_a_condition(store: RemoteStorage, size: int) -> None:
    etag = store.put_object("source", BytesBody(b"s" * size), PutOptions(metadata={"m": "1"}))
    store.copy_object("source", "target", condition=IfAbsent())
    with pytest.raises(PreconditionFailedError):
        store.copy_object("source", "target", condition=IfAbsent())
    with pytest.raises(PreconditionFailedError):
        store.copy_object("source", "target", condition=IfMatch(f"{etag}-not"))
    target = store.head_object("target")
    store.copy_object("source", "target", condition=IfMatch(target.etag))
    copied = store.get_object("target")
    assert copied.data == b"s" * size
    assert copied.head.metadata == {"m": "1"}


def test_large_body_obeys_conditions(subject: Subject) -> None:
    store = subject.storage
    store.put_object("big", BytesBody(b"1" * LARGE), PutOptions(condition=IfAbsent()))
    with pytest.raises(PreconditionFailedError):
        store.put_object("big", BytesBody(b"2" * LARGE), PutOptions(condition=IfAbsent()))
    etag = store.head_object("big").etag
    store.put_object("big", BytesBody(b"3" * LARGE), PutOptions(condition=IfMatch(etag)))
    with pytest.raises(PreconditionFailedError):
        store.put_object("big", BytesBody(b"4" * LARGE), PutOptions(condition=IfMatch(etag)))
    assert store.get_object("big").data == b"3" * LARGE
    assert subject.left_over() == []


def test_conditional_delete_keeps_another_version(store: RemoteStorage) -> None:
    first = store.put_object("k", BytesBody(b"1 nonce-a"))
    second = store.put_object("k", BytesBody(b"2 nonce-b"))
    with pytest.raises(PreconditionFailedError, match="k"):
        store.delete_object("k", condition=IfMatch(first))
    assert store.get_object("k").data == b"2 nonce-b"
    (row,) = store.list_objects("")
    store.delete_object("k", condition=IfMatch(row.etag))
    assert list(store.list_objects("")) == []
    store.delete_object("k", condition=IfMatch(second))
