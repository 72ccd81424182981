"""Contract of listings for every store."""

from concurrent.futures import ThreadPoolExecutor

from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfMatch, PutOptions, RemoteStorage

TRICKY = ["a", "a-b/x", "a.b", "a0/x", "b/1", "b/1-1", "b/10/z", "b/2", "Z", "_x", "é", "😀"]
"""Keys whose order differs from the order of a directory walk."""


def _keys(store: RemoteStorage, prefix: str, start_after: str = "") -> list[str]:
    return [row.key for row in store.list_objects(prefix, start_after=start_after)]


def test_keys_are_in_byte_order(store: RemoteStorage) -> None:
    tricky = [*TRICKY, "c/x", "c-", "c0"]
    for key in tricky:
        store.put_object(key, BytesBody(b""))
    expected = sorted(tricky, key=str.encode)
    assert _keys(store, "") == expected
    for after in [*tricky, "b/", "a/zzz", "b/1/5", "\U0010ffff"]:
        assert _keys(store, "", after) == [k for k in expected if k.encode() > after.encode()]


def test_prefix_matches_characters_instead_of_components(store: RemoteStorage) -> None:
    for key in ("t-1/0.log", "t-1/1.log", "t-10/0.log", "t/0.log", "other"):
        store.put_object(key, BytesBody(b""))
    assert _keys(store, "t-1") == ["t-1/0.log", "t-1/1.log", "t-10/0.log"]
    assert _keys(store, "t-1/") == ["t-1/0.log", "t-1/1.log"]
    assert _keys(store, "t-1/1") == ["t-1/1.log"]
    assert _keys(store, "t-1/", "t-1/0.log") == ["t-1/1.log"]
    assert _keys(store, "t-1/", "t-2") == []
    assert _keys(store, "t-1/", "a") == ["t-1/0.log", "t-1/1.log"]
    assert _keys(store, "nothing/here") == []


def test_write_and_delete_are_visible_at_once(store: RemoteStorage) -> None:
    for number in range(5):
        store.put_object(f"d/{number}", BytesBody(b"x" * number))
        assert [row.size for row in store.list_objects("d/")] == list(range(number + 1))
    store.delete_object("d/2")
    assert _keys(store, "d/") == ["d/0", "d/1", "d/3", "d/4"]


def test_conditional_replacement_is_listed_at_once(store: RemoteStorage) -> None:
    """Local retention relies on it: a listing shows that `offset.wm` has not changed."""
    for key in ("d/1.log", "d/offset.wm", "d/z"):
        store.put_object(key, BytesBody(b"nonce 0"))
    etags = [store.head_object("d/offset.wm").etag]
    for number in range(1, 6):
        body = BytesBody(b"nonce %d" % number)
        etag = store.put_object("d/offset.wm", body, PutOptions(condition=IfMatch(etags[-1])))
        for after in ("", "d/1"):
            rows = {row.key: row.etag for row in store.list_objects("d/", start_after=after)}
            assert rows["d/offset.wm"] == etag
        etags.append(etag)
    assert len(set(etags)) == len(etags)


def test_more_than_one_page_of_keys_is_listed(store: RemoteStorage) -> None:
    keys = [f"many/{number:06d}.log" for number in range(1105)]
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda key: store.put_object(key, BytesBody(b"")), keys))
    store.put_object("other", BytesBody(b""))
    assert _keys(store, "many/") == keys
    assert _keys(store, "many/", keys[20]) == keys[21:]
    assert _keys(store, "many/", keys[1050]) == keys[1051:]
    assert _keys(store, "many/", keys[-1]) == []


def test_directories_are_common_prefixes_up_to_a_slash(store: RemoteStorage) -> None:
    for key in (*TRICKY, "c/t-1/0.log", "c/t-1/d/0.log", "c/t-10/0.log", "c/t-é/x", "c/other"):
        store.put_object(key, BytesBody(b""), PutOptions(metadata={"a": "1"}))
    assert store.list_directories("") == ["a-b/", "a0/", "b/", "c/"]
    assert store.list_directories("a") == ["a-b/", "a0/"]
    assert store.list_directories("c") == ["c/"]
    assert store.list_directories("c/") == ["c/t-1/", "c/t-10/", "c/t-é/"]
    assert store.list_directories("c/t-1") == ["c/t-1/", "c/t-10/"]
    assert store.list_directories("c/t-1/") == ["c/t-1/d/"]
    for nothing in ("c/other", "c/t-1/d/", "nothing/here", "../", ".sidetier/", "a/"):
        assert store.list_directories(nothing) == []
