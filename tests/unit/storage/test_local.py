import errno
import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.file_records import Identity, Record, decode, encode, etag_in, pick
from sidetier.storage.local import LocalStorage, file_stream, translated
from sidetier.storage.port import (
    Checksum,
    ChecksumAlgorithm,
    IfAbsent,
    IfMatch,
    ObjectSummary,
    PutOptions,
)
from sidetier.storage.settings import LocalSettings

HOUR_NS = 3600 * 10**9


def _temporary(root: Path) -> list[Path]:
    return list((root / ".sidetier" / "tmp").iterdir())


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EFBIG, StoreFullError),
        (errno.EROFS, AccessDeniedError),
        (errno.EACCES, AccessDeniedError),
        (errno.ENOENT, ObjectNotFoundError),
        (errno.ENAMETOOLONG, InvalidRequestError),
        (errno.EIO, StoreUnavailableError),
        (errno.ESTALE, StoreUnavailableError),
        (errno.EMFILE, StoreUnavailableError),
    ],
)
def test_errno_is_translated(number: int, expected: type[StorageError]) -> None:
    with pytest.raises(expected, match="put the/key"), translated("put", "the/key"):
        raise OSError(number, os.strerror(number))


def test_object_is_a_plain_file(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    store.put_object("t-0/0.log", BytesBody(b"bytes"), PutOptions(metadata={"a": "1"}))
    assert (tmp_path / "t-0" / "0.log").read_bytes() == b"bytes"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".sidetier", "t-0"]
    assert [path.name for path in (tmp_path / "t-0").iterdir()] == ["0.log"]
    assert _temporary(tmp_path) == []


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from sidetier.segments.errors import StoreFullError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import PutOptions

root = Path(sys.argv[1])
store = LocalStorage(root)
old = store.put_object("k", BytesBody(b"old"), PutOptions(metadata={"v": "1"}))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    store.put_object("k", BytesBody(b"x" * 3_000_000))
except StoreFullError as error:
    assert "put k" in str(error), error
else:
    raise SystemExit("no error")
assert list((root / ".sidetier" / "tmp").iterdir()) == []
head = store.head_object("k")
assert (head.etag, head.metadata) == (old, {"v": "1"})
"""


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_umask_determines_the_permissions_of_the_archive(
    tmp_path: Path, umask: int, mode: int
) -> None:
    """As for the broker's own files: the sidecar requests 0644, and the umask removes bits."""
    before = os.umask(umask)
    try:
        LocalStorage(tmp_path / "store").put_object("a/b.log", BytesBody(b"records"))
    finally:
        os.umask(before)
    found = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert found
    assert {stat.S_IMODE(path.stat().st_mode) & ~mode for path in found} == {0}
    (log,) = (path for path in found if path.name == "b.log")
    assert stat.S_IMODE(log.stat().st_mode) == mode


def test_failed_write_for_lack_of_space_is_store_full(tmp_path: Path) -> None:
    line = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_full_file_system_is_store_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStorage(tmp_path)
    store.put_object("k", BytesBody(b"old"))
    full = os.open("/dev/full", os.O_WRONLY)
    real = os.write
    monkeypatch.setattr(os, "write", lambda _handle, data: real(full, data))
    with pytest.raises(StoreFullError, match="No space left"):
        store.put_object("k", BytesBody(b"new"))
    monkeypatch.undo()
    os.close(full)
    assert store.get_object("k").data == b"old"
    assert _temporary(tmp_path) == []


def test_key_cannot_leave_the_root_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"x")
    store = LocalStorage(tmp_path / "root")
    (tmp_path / "root" / "link").symlink_to(outside)
    with pytest.raises(InvalidRequestError, match="symbolic link"):
        store.put_object("link/k", BytesBody(b"x"))
    with pytest.raises(InvalidRequestError, match="symbolic link"):
        store.get_object("link/secret")
    assert [path.name for path in outside.iterdir()] == ["secret"]


@pytest.mark.parametrize("key", [".sidetier/tmp/x", "a/.sidetier/b", ".sidetier"])
def test_internal_directory_of_the_store_holds_no_objects(tmp_path: Path, key: str) -> None:
    store = LocalStorage(tmp_path)
    with pytest.raises(InvalidRequestError, match="reserved for the store"):
        store.put_object(key, BytesBody(b"x"))


def test_file_in_place_of_a_directory_is_reported(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    store.put_object("a", BytesBody(b"x"))
    store.put_object("d/e", BytesBody(b"x"))
    for key in ("a/b", "d", "n" * 300):
        with pytest.raises(InvalidRequestError, match=key[:20]):
            store.put_object(key, BytesBody(b"y"))
    assert store.get_object("a").data == b"x"
    assert store.get_object("d/e").data == b"x"


def test_foreign_file_is_an_object_without_metadata(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    store.put_object("k", BytesBody(b"ours"), PutOptions(metadata={"a": "1"}))
    (tmp_path / "k").write_bytes(b"theirs")
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "0.log").write_bytes(b"peer")
    for key, size in (("k", 6), ("t-0/0.log", 4)):
        head = store.head_object(key)
        assert (head.size, head.metadata, head.checksum) == (size, {}, None)
    etag = store.head_object("t-0/0.log").etag
    new = store.put_object("t-0/0.log", BytesBody(b"ours"), PutOptions(condition=IfMatch(etag)))
    with pytest.raises(PreconditionFailedError):
        store.put_object("t-0/0.log", BytesBody(b"ours"), PutOptions(condition=IfMatch(etag)))
    assert store.head_object("t-0/0.log").etag == new


def test_directory_without_a_file_is_not_listed(tmp_path: Path) -> None:
    """A kill between the creation of a directory and its first object leaves one."""
    store = LocalStorage(tmp_path)
    store.put_object("c/t-1/log", BytesBody(b"x"))
    store.put_object("d/below/it/log", BytesBody(b"x"))
    (tmp_path / "c/t-0").mkdir()
    (tmp_path / "e/below/it").mkdir(parents=True)
    (tmp_path / "c/t-2/.sidetier").mkdir(parents=True)
    (tmp_path / "c/t-2/.sidetier/file").touch()
    assert store.list_directories("c/") == ["c/t-1/"]
    assert store.list_directories("") == ["c/", "d/"]


def test_unreadable_directory_does_not_hide_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example `lost+found` in the root of a file system: it may not be empty."""
    store, real = LocalStorage(tmp_path), os.scandir
    store.put_object("c/t-1/log", BytesBody(b"x"))
    (tmp_path / "lost+found").mkdir()

    def scandir(path: bytes) -> object:
        if path.endswith(b"lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr("sidetier.storage.local_files.os.scandir", scandir)
    assert store.list_directories("") == ["c/", "lost+found/"]


def test_copied_archive_keeps_its_metadata(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path / "one")
    etag = store.put_object("t-0/0.log", BytesBody(b"x"), PutOptions(metadata={"next-offset": "9"}))
    subprocess.run(["cp", "-a", tmp_path / "one", tmp_path / "two"], check=True)
    head = LocalStorage(tmp_path / "two").head_object("t-0/0.log")
    assert (head.etag, head.metadata) == (etag, {"next-offset": "9"})


def test_versions_with_equal_time_and_size_have_different_etags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a frozen clock, all files have the same modification time and the same size."""
    store = LocalStorage(tmp_path)
    real = os.fsync

    def frozen(handle: int) -> None:
        if os.fstat(handle).st_size == 3:
            os.utime(handle, ns=(10**18, 10**18))
            monkeypatch.setattr(os, "fsync", real)
        real(handle)

    for number in range(5):
        monkeypatch.setattr(os, "fsync", frozen)
        etag = store.put_object(
            "k", BytesBody(b"%03d" % number), PutOptions(metadata={"n": str(number)})
        )
        head = store.head_object("k")
        assert (head.etag, head.metadata) == (etag, {"n": str(number)})


def test_old_temporary_files_are_removed_unless_they_are_open_or_recent(tmp_path: Path) -> None:
    LocalStorage(tmp_path)
    own = tmp_path / ".sidetier" / "tmp"
    (own / "old").write_bytes(b"x")
    now = (own / "old").stat().st_mtime_ns
    LocalStorage(tmp_path, now_ns=now + HOUR_NS - 10**9)
    assert [path.name for path in _temporary(tmp_path)] == ["old"]
    LocalStorage(tmp_path, now_ns=now + HOUR_NS + 10**9)
    assert _temporary(tmp_path) == []


def test_temporary_file_of_a_running_put_is_not_removed(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    kept: list[int] = []

    class Reader(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            LocalStorage(tmp_path, now_ns=2**62)
            kept.append(len(_temporary(tmp_path)))
            return super().read(size)

    class Body:
        size = 4

        def open(self) -> BinaryIO:
            return Reader(b"data")

    store.put_object("k", Body())
    assert kept == [1]
    assert store.get_object("k").data == b"data"


def test_delete_removes_empty_directories(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    store.put_object("a/b/c", BytesBody(b"x"))
    store.put_object("a/d", BytesBody(b"x"))
    store.delete_object("a/b/c")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["d"]
    store.delete_object("a/d")
    assert [path.name for path in tmp_path.iterdir()] == [".sidetier"]


RACER = """
import sys
from pathlib import Path
from sidetier.segments.errors import PreconditionFailedError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import IfMatch, PutOptions

store = LocalStorage(Path(sys.argv[1]))
done = 0
while done < 30:
    stored = store.get_object("counter")
    try:
        value = str(int(stored.data) + 1).encode()
        condition = IfMatch(stored.head.etag)
        store.put_object("counter", BytesBody(value), PutOptions(condition=condition))
        done += 1
    except PreconditionFailedError:
        pass
"""


def test_no_update_is_lost_between_processes(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    store.put_object("counter", BytesBody(b"0"))
    line = [sys.executable, "-c", RACER, str(tmp_path)]
    racers = [subprocess.Popen(line) for _ in range(4)]
    assert [racer.wait(timeout=60) for racer in racers] == [0] * 4
    assert store.get_object("counter").data == b"120"


def test_reader_sees_complete_versions_while_others_write(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    store.put_object("k", BytesBody(b"0" * 1000), PutOptions(metadata={"n": "0"}))

    def write(n: int) -> str:
        body = BytesBody(str(n % 10).encode() * 1000)
        return store.put_object("k", body, PutOptions(metadata={"n": str(n)}))

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(write, n) for n in range(50)]
        while not all(future.done() for future in futures):
            stored = store.get_object("k")
            n = int(stored.head.metadata["n"])
            assert stored.data == str(n % 10).encode() * 1000
        assert all(future.result() for future in futures)


def test_roots_may_be_nested(tmp_path: Path) -> None:
    outer = LocalStorage(tmp_path)
    inner = LocalStorage(tmp_path / "special")
    inner.put_object("t/0.log", BytesBody(b"x"), PutOptions(metadata={"a": "1"}))
    assert [row.key for row in outer.list_objects("")] == ["special/t/0.log"]


def test_records_round_trip_and_damaged_records_are_ignored() -> None:
    checksum = Checksum(ChecksumAlgorithm.CRC32C, b"\x01\x02\x03\x04")
    one = Record(Identity(5, 10**18 + 1), "etag-1", {"a": "b"}, checksum)
    two = Record(Identity(5, 10**18 + 2), "etag-2", {}, None)
    assert decode(encode("k", (one, two))) == (one, two)
    assert pick((one, two), Identity(5, 10**18 + 2)) is two
    assert pick((one, two), Identity(6, 10**18 + 2)) is None
    for damaged in (b"", b"{", b"[]", b'{"format": 99}', encode("k", (one,))[:-5], b"\xff"):
        assert decode(damaged) == ()


def test_damaged_record_file_makes_no_object_unreadable(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path, LocalSettings())
    store.put_object("k", BytesBody(b"x"), PutOptions(metadata={"a": "1"}))
    (record,) = (tmp_path / ".sidetier" / "meta").rglob("*.json")
    record.write_bytes(b"{")
    assert store.get_object("k").data == b"x"
    assert store.head_object("k").metadata == {}


def test_listing_and_head_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStorage(tmp_path)
    for number in range(3):
        store.put_object(
            f"d/{number}", BytesBody(b"x" * number), PutOptions(metadata={"n": str(number)})
        )
    (tmp_path / "d" / "1").write_bytes(b"theirs")  # what its record says is of another version
    (tmp_path / "d" / "foreign").write_bytes(b"peer")
    (tmp_path / "d" / os.fsdecode(b"no-\xfftext")).write_bytes(b"")
    (tmp_path / "d" / "dangling").symlink_to(tmp_path / "nowhere")
    heads = [store.head_object(key) for key in ("d/0", "d/1", "d/2", "d/foreign")]

    rows = list(store.list_objects("d/"))

    assert rows == [ObjectSummary(h.key, h.size, h.etag, h.modified_ms) for h in heads]

    real, looks = os.stat, 0

    def gone_at_the_second_look(path: str) -> os.stat_result:
        nonlocal looks
        looks += path.endswith("foreign")
        if looks == 2:
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os, "stat", gone_at_the_second_look)
    assert [row.key for row in store.list_objects("d/")] == ["d/0", "d/1", "d/2"]


def test_etag_in_a_record_file_belongs_to_its_version() -> None:
    one = Record(Identity(5, 10**18 + 1), "etag-1", {"a": "b"}, None)
    two = Record(Identity(5, 10**18 + 2), "etag-2", {}, None)
    data = encode("k", (one, two))
    assert etag_in(data, two.identity) == "etag-2"
    assert etag_in(data, Identity(6, 10**18 + 2)) is None
    for damaged in (b"", b"{", b"[]", b'{"format": 99, "versions": [{}]}', data[:-5], b"\xff"):
        assert etag_in(damaged, one.identity) is None


@pytest.mark.parametrize("size", [100, 100_000])
def test_range_of_a_truncated_file_ends_with_the_file(tmp_path: Path, size: int) -> None:
    store = LocalStorage(tmp_path)
    store.put_object("k", BytesBody(bytes(size)))
    before = _open_files()
    with store.get_object_input_stream("k", 1, size) as stream:
        assert stream.read() == bytes(size - 1)
    with store.get_object_input_stream("k", size - 10, size + 10) as stream:
        assert stream.read() == bytes(10)
    handle = os.open(tmp_path / "k", os.O_RDONLY)
    os.truncate(tmp_path / "k", 60)
    with file_stream(handle, "k", 10, size) as stream:
        assert stream.read() == bytes(50)
    assert _open_files() == before


@pytest.mark.parametrize("size", [100, 100_000])
def test_disk_read_error_is_store_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    store = LocalStorage(tmp_path)
    store.put_object("k", BytesBody(bytes(size)))
    for call in ("pread", "preadv"):
        monkeypatch.setattr(os, call, fails)
    before = _open_files()
    with pytest.raises(StoreUnavailableError, match=r"get k: .*Input/output"):
        store.get_object("k")
    assert _open_files() == before


@pytest.mark.parametrize("has_mount_point", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get_object("t-0/0.log"),
        lambda store: store.get_object_input_stream("t-0/0.log"),
        lambda store: store.head_object("t-0/0.log"),
        lambda store: list(store.list_objects("")),
        lambda store: store.list_directories(""),
        lambda store: store.put_object("t-0/1.log", BytesBody(b"more")),
        lambda store: store.put_object("k", BytesBody(b"more"), PutOptions(condition=IfAbsent())),
        lambda store: store.copy_object("t-0/0.log", "t-0/2.log"),
        lambda store: store.delete_object("t-0/0.log"),
    ],
)
def test_store_that_is_not_mounted_is_unavailable_and_not_empty(
    tmp_path: Path, call: Callable[[LocalStorage], object], *, has_mount_point: bool
) -> None:
    """A reader would take an empty store for an archive that was retired."""
    root, away = tmp_path / "store", tmp_path / "away"
    store = LocalStorage(root)
    store.put_object("t-0/0.log", BytesBody(b"bytes"))
    root.rename(away)
    if has_mount_point:
        root.mkdir()
    with pytest.raises(StoreUnavailableError, match="mounted"):
        call(store)
    assert not list(root.glob("*"))
    away.rename(root)
    assert store.get_object("t-0/0.log").data == b"bytes"
