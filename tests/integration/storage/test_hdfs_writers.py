"""Concurrent writers of one object on HDFS: one slow, one killed, at each of their steps."""

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from hdfs_native import Client

from devtools.sandbox.hdfs import HdfsCluster
from sidetier.segments.errors import PreconditionFailedError, StoreUnavailableError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.hdfs import HdfsStorage
from sidetier.storage.hdfs_client import HdfsClient
from sidetier.storage.port import Condition, IfAbsent, IfMatch, PutOptions
from tests.harness.intercepted_store import KilledError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KEY = "t-0/offset.wm"
STEPS = (
    "identity",
    "exists",
    "make_directory",
    "rename",
    "delete",
    "set_modified",
    "send",
    "close_and_write",
    "write_small",
)
"""The calls of the client that a writer makes."""

CHILD = """
import os, signal, sys
from sidetier.storage.bodies import BytesBody
from sidetier.storage.hdfs import HdfsStorage
from sidetier.storage.hdfs_client import HdfsClient
from sidetier.storage.port import IfAbsent, IfMatch, PutOptions

url, action, etag, last, names = *sys.argv[1:4], int(sys.argv[4]), sys.argv[5].split(",")
steps = 0

def counted(function):
    def step(*args, **kwargs):
        global steps
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        return function(*args, **kwargs)
    return step

for name in names:
    setattr(HdfsClient, name, counted(getattr(HdfsClient, name)))
store = HdfsStorage(url)
condition = IfMatch(etag) if etag else IfAbsent()
if action == "put":
    options = PutOptions(metadata={"v": "new"}, condition=condition)
    store.put_object("t-0/offset.wm", BytesBody(b"new"), options)
else:
    store.delete_object("t-0/offset.wm", condition=condition)
"""


@pytest.fixture
def url(hdfs_cluster: HdfsCluster) -> str:
    return f"{hdfs_cluster.url}/{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str) -> Iterator[HdfsStorage]:
    store = HdfsStorage(url)
    yield store
    store.close()


@contextmanager
def paused(
    patch: pytest.MonkeyPatch,
    step: int,
    meanwhile: Callable[[], None],
    killed_at: int | None = None,
) -> Iterator[list[str]]:
    """Run another action before the client call with this number.

    The action dies at its call `killed_at` and makes no further call.

    Yields:
        The names of the calls so far.
    """
    made: list[str] = []
    others = 0
    busy = False

    def wrapped(name: str) -> Callable[..., Any]:
        plain = getattr(HdfsClient, name)

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as the method has them
            nonlocal busy, others
            if busy:
                others += 1
                if killed_at is not None and others >= killed_at:
                    raise KilledError
                return plain(*args, **kwargs)
            made.append(name)
            if len(made) == step:
                busy = True
                try:
                    meanwhile()
                finally:
                    busy = False
            return plain(*args, **kwargs)

        return call

    with patch.context() as patched:
        for name in STEPS:
            patched.setattr(HdfsClient, name, wrapped(name))
        yield made


def put(store: HdfsStorage, value: str, condition: Condition | None = None) -> str:
    body = BytesBody(value.encode())
    return store.put_object(KEY, body, PutOptions(metadata={"v": value}, condition=condition))


def stored(store: HdfsStorage) -> str | None:
    """The value of the object, which its metadata repeats; None if it does not exist."""
    rows = list(store.list_objects(""))
    if not rows:
        return None
    assert [row.key for row in rows] == [KEY]
    found = store.get_object(KEY)
    assert found.head.metadata == {"v": found.data.decode()}
    assert found.head.checksum is not None
    assert found.head.etag == rows[0].etag
    return found.data.decode()


def test_slow_conditional_put_is_refused_at_whichever_step_it_stopped(
    store: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for step in range(1, 100):
        etag = put(store, "old")

        def swap_twice(old: str = etag) -> None:
            try:
                second = put(store, "second", IfMatch(old))
            except PreconditionFailedError:
                return  # the slow one has claimed the version, and is helped
            put(store, "third", IfMatch(second))

        with paused(monkeypatch, step, swap_twice) as made:
            try:
                put(store, "slow", IfMatch(etag))
                won = True
            except PreconditionFailedError:
                won = False
        if len(made) < step:
            break
        outcomes.append(won)
        assert stored(store) == ("slow" if won else "third")
        assert left(store) == []
    turn = outcomes.index(True)
    assert outcomes == [False] * turn + [True] * (len(outcomes) - turn)
    assert turn > 5, "the steps before the claim were not reached one by one"
    assert len(outcomes) > turn + 1


def test_at_most_one_of_a_slow_and_a_dead_conditional_put_takes_effect(
    store: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = set()
    for step in range(1, 100):
        for killed_at in range(1, 100):
            died, seen, won, made = race_with_dead(store, monkeypatch, step, killed_at)
            assert stored(store) == ("slow" if won else "dead"), (step, killed_at, made)
            assert not (won and seen == b"dead"), (step, killed_at, made)
            outcomes.add((won, died, seen))
            if not died:
                break
        if len(made) < step:
            break
    assert {(won, died) for won, died, _ in outcomes} == {
        (True, True),
        (True, False),
        (False, True),
        (False, False),
    }
    assert (False, True, b"dead") in outcomes


def race_with_dead(
    store: HdfsStorage, patch: pytest.MonkeyPatch, step: int, killed_at: int
) -> tuple[bool, bytes, bool, list[str]]:
    """A conditional put pauses before a step, while another one runs until it dies.

    Returns:
        Whether the other one has died, what a reader sees then, whether the slow one has succeeded,
        and the calls that the slow one has made.
    """
    etag = put(store, "old")
    died, seen = False, b""

    def swap() -> None:
        nonlocal died, seen
        try:
            put(store, "dead", IfMatch(etag))
        except PreconditionFailedError:
            pass
        except KilledError:
            died = True
        with Client(store.url).read(f"{directory(store)}/{KEY}") as file:
            seen = file.read()

    with paused(patch, step, swap, killed_at) as made:
        try:
            put(store, "slow", IfMatch(etag))
        except PreconditionFailedError:
            return died, seen, False, made
    return died, seen, True, made


def test_slow_delete_keeps_a_later_version(
    store: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, reached = 0, True
    while reached:
        step += 1
        etag = put(store, "old")

        def replace() -> None:
            put(store, "second")
            put(store, "third")

        with paused(monkeypatch, step, replace) as made:
            try:
                store.delete_object(KEY, condition=IfMatch(etag))
                deleted = True
            except PreconditionFailedError:
                deleted = False
        reached = len(made) >= step
        # A delete that was decided before the other writes takes effect before them.
        assert stored(store) == ("third" if reached else None)
        assert reached or deleted
        assert left(store) == []
    assert step > 5


def test_slow_create_does_not_replace_an_object(
    store: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 100):
        store.delete_object(KEY)
        with paused(monkeypatch, step, lambda: void(put(store, "second"))) as made:
            try:
                put(store, "slow", IfAbsent())
                won = True
            except PreconditionFailedError:
                won = False
        if len(made) < step:
            break
        assert stored(store) == "second"
        assert not won
        assert left(store) == []
    assert step > 3


def test_slow_unconditional_put_is_the_last_one_or_is_retried(
    store: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = set()
    for step in range(1, 100):
        put(store, "old")
        with paused(monkeypatch, step, lambda: void(put(store, "second"))) as made:
            try:
                put(store, "slow")
            except StoreUnavailableError:
                put(store, "slow")  # as the layer does that tries again
        if len(made) < step:
            break
        value = stored(store)
        values.add(value)
        assert value in {"slow", "second"}
        assert left(store) == []
    assert values == {"slow", "second"}


@pytest.mark.parametrize("action", ["create", "put", "delete"])
def test_killed_writer_leaves_one_complete_version(url: str, action: str) -> None:
    seen: list[str | None] = []
    last, killed = 0, True
    while killed:
        place = f"{url}/{last}"
        store = HdfsStorage(place)
        etag = "" if action == "create" else put(store, "old")
        killed = run(place, "put" if action == "create" else action, etag, last)
        seen.append(stored(store))
        recover(store)
        assert stored(store) == "next"
        store.delete_object(KEY)
        assert stored(store) is None
        store.close()
        last += 1
    before = None if action == "create" else "old"
    after = None if action == "delete" else "new"
    turn = seen.index(after)
    assert seen == [before] * turn + [after] * (len(seen) - turn)
    assert turn > 3


def recover(store: HdfsStorage) -> None:
    """Write as the next writer does. If a dead writer has claimed the version, its claim is
    completed first, and the first try is refused.
    """
    rows = list(store.list_objects(""))
    try:
        put(store, "next", IfMatch(rows[0].etag) if rows else IfAbsent())
    except PreconditionFailedError:
        put(store, "next")


def void(_: object) -> None:
    """Discard a result."""


def left(store: HdfsStorage) -> list[str]:
    """Files that writers have left below the store's internal directory, except records."""
    client = Client(store.url)
    root = directory(store)
    found = []
    for own in ("new", "swaps"):
        try:
            rows = list(client.list_status(f"{root}/_sidetier-store/{own}", recursive=True))
        except FileNotFoundError:
            continue
        found += [row.path for row in rows]
    return found


def directory(store: HdfsStorage) -> str:
    """Directory of the store's keys in HDFS."""
    return urlsplit(store.url).path


def run(url: str, action: str, etag: str, last: int) -> bool:
    """Return whether the child was killed before that step; False if it finished before."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, url, action, etag, str(last), ",".join(STEPS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode != 0
