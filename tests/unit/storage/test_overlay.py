"""A store under an overlay: it never changes, and the overlay shows what a single store would."""

from collections.abc import Callable

import pytest

from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.overlay import OverlayStorage
from sidetier.storage.port import IfAbsent, IfMatch, PutOptions, RemoteStorage

KEYS = ["a", "a-b/x", "a.b", "a0/x", "b/1", "b/2", "é", "😀"]
Change = Callable[[RemoteStorage], object]


def filled() -> FakeStorage:
    store = FakeStorage()
    for key in KEYS:
        store.put_object(key, BytesBody(key.encode()), PutOptions(metadata={"m": "1"}))
    return store


def contents(store: RemoteStorage) -> dict[str, tuple[bytes, object]]:
    rows = list(store.list_objects(""))
    found = {row.key: store.get_object(row.key) for row in rows}
    assert [row.key for row in rows] == sorted(found, key=str.encode)
    for row in rows:
        with store.get_object_input_stream(row.key, 1, condition=IfMatch(row.etag)) as stream:
            assert stream.read() == found[row.key].data[1:]
        assert (row.etag, row.size) == (found[row.key].head.etag, len(found[row.key].data))
    return {key: (each.data, dict(each.head.metadata)) for key, each in found.items()}


def replace(key: str, data: bytes) -> Change:
    def change(store: RemoteStorage) -> None:
        options = PutOptions(condition=IfMatch(store.head_object(key).etag))
        store.put_object(key, BytesBody(data), options)
        with pytest.raises(PreconditionFailedError):
            store.put_object(key, BytesBody(b"?"), options)

    return change


def create(key: str) -> Change:
    return lambda store: store.put_object(key, BytesBody(b"n"), PutOptions(condition=IfAbsent()))


def refused(key: str) -> Change:
    def change(store: RemoteStorage) -> None:
        with pytest.raises(PreconditionFailedError):
            create(key)(store)
        with pytest.raises(PreconditionFailedError):
            store.delete_object(key, condition=IfMatch("another"))

    return change


CHANGES: list[Change] = [
    lambda store: store.put_object("a", BytesBody(b"other")),
    refused("b/1"),
    replace("b/1", b"one"),
    create("b/10/z"),
    lambda store: store.delete_object("a.b", condition=IfMatch(store.head_object("a.b").etag)),
    lambda store: store.delete_object("a"),
    lambda store: store.delete_object("nothing"),
    create("a"),
    refused("a"),
    lambda store: store.delete_objects(["a0/x", "nothing"]),
    lambda store: store.copy_object("b/2", "copied", condition=IfAbsent()),
    lambda store: store.copy_object("copied", "é", condition=IfMatch(store.head_object("é").etag)),
]


def test_changes_are_seen_and_the_store_below_stays_as_it_is() -> None:
    single, below = filled(), filled()
    overlay = OverlayStorage(below, FakeStorage())
    before = contents(below)
    for change in CHANGES:
        change(single)
        change(overlay)
        assert contents(overlay) == contents(single)
        for after in KEYS:
            rows = overlay.list_objects("", start_after=after)
            assert [row.key for row in rows] == [
                row.key for row in single.list_objects("", start_after=after)
            ]
    assert contents(below) == before
    assert overlay.list_directories("b/") == ["b/10/"]
    for gone in ("a.b", "a0/x", "nothing"):
        with pytest.raises(ObjectNotFoundError):
            overlay.get_object(gone)
        with pytest.raises(ObjectNotFoundError):
            overlay.head_object(gone)
