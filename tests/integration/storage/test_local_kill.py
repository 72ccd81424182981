"""The file-system store, killed with SIGKILL before each of its steps."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidetier.storage.bodies import BytesBody
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import PutOptions

OLD, NEW = b"old bytes", b"new bytes"
"""Equal in length, so that the size alone does not distinguish them."""

CHILD = """
import fcntl, os, signal, sys
from pathlib import Path

import sidetier.storage.local_files
from sidetier.storage.bodies import BytesBody
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import PutOptions

root, action, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = LocalStorage(root)
steps = 0

def counted(function):
    def step(*args, **kwargs):
        global steps
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        return function(*args, **kwargs)
    return step

for module, name in [
    (os, "open"), (os, "write"), (os, "fsync"), (os, "utime"), (os, "close"), (fcntl, "flock"),
    (os, "replace"), (os, "unlink"), (os, "rmdir"), (os, "mkdir"),
]:
    setattr(module, name, counted(getattr(module, name)))
if action == "put":
    options = PutOptions(metadata={"version": "new"})
    store.put_object("t/offset.wm", BytesBody(b"new bytes"), options)
else:
    store.delete_object("t/offset.wm")
"""


def _run(root: Path, action: str, last: int) -> bool:
    """Return whether the child was killed before that step; False if it finished before."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root), action, str(last)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode != 0


def _versions(store: LocalStorage) -> set[tuple[bytes, str | None]]:
    found = [store.get_object(row.key) for row in store.list_objects("")]
    assert all(stored.head.checksum for stored in found), "an object lost its record"
    return {(stored.data, stored.head.metadata.get("version")) for stored in found}


@pytest.mark.parametrize("present", [False, True], ids=["create", "overwrite"])
@pytest.mark.slow
def test_killed_put_leaves_the_old_version_or_the_new_one(tmp_path: Path, present: bool) -> None:  # noqa: FBT001
    seen: list[set[tuple[bytes, str | None]]] = []
    last = 0
    while True:
        root = tmp_path / str(last)
        before = LocalStorage(root)
        if present:
            before.put_object(
                "t/offset.wm", BytesBody(OLD), PutOptions(metadata={"version": "old"})
            )
        killed = _run(root, "put", last)
        seen.append(_versions(LocalStorage(root)))
        _assert_usable(root)
        if not killed:
            break
        last += 1
    old = {(OLD, "old")} if present else set()
    new: set[tuple[bytes, str | None]] = {(NEW, "new")}
    turn = seen.index(new)
    assert all(found == old for found in seen[:turn])
    assert all(found == new for found in seen[turn:])
    assert turn > 5, "the steps before the commit were not reached one by one"
    assert last > turn


@pytest.mark.slow
def test_killed_delete_leaves_the_object_complete_or_none(tmp_path: Path) -> None:
    seen: list[set[tuple[bytes, str | None]]] = []
    last = 0
    while True:
        root = tmp_path / str(last)
        LocalStorage(root).put_object(
            "t/offset.wm", BytesBody(OLD), PutOptions(metadata={"version": "old"})
        )
        killed = _run(root, "delete", last)
        seen.append(_versions(LocalStorage(root)))
        _assert_usable(root)
        if not killed:
            break
        last += 1
    turn = seen.index(set())
    assert seen == [{(OLD, "old")}] * turn + [set()] * (len(seen) - turn)
    assert 0 < turn < last


def _assert_usable(root: Path) -> None:
    """Assert that nothing is locked, and that leftovers are removed once they are old."""
    store = LocalStorage(root, now_ns=2**62)
    assert list((root / ".sidetier" / "tmp").iterdir()) == []
    store.put_object("t/offset.wm", BytesBody(b"later"), PutOptions(metadata={"version": "later"}))
    assert _versions(store) == {(b"later", "later")}
