import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sidetier.segments.errors import (
    AccessDeniedError,
    DamagedSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RefusedConditionError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import (
    IfAbsent,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
)
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.settings import RetryPolicy
from tests.harness.bodies import BreakingBody, ChangingBody

QUICK = RetryPolicy(attempts=4, first_delay=0.001, max_delay=0.002, max_elapsed=60)
BODY = BytesBody(b"data")


class Recorder:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.retries: list[tuple[str, str]] = []
        self.retried = threading.Event()

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        assert seconds >= 0
        self.requests.append((operation, outcome))

    def retry(self, operation: str, kind: str) -> None:
        self.retries.append((operation, kind))
        self.retried.set()


def _stepping_clock(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailableError("500"), "unavailable"),
        (StoreThrottledError("503"), "throttled"),
        (StoreTimeoutError("late"), "timeout"),
    ],
)
def test_transient_error_is_retried_and_reported(error: StoreUnavailableError, kind: str) -> None:
    fake, heard = FakeStorage(), Recorder()
    fake.fail("put", error, times=2)
    RetryingStorage(fake, QUICK, observer=heard).put_object("k", BODY)
    assert fake.contents() == {"k": b"data"}
    assert heard.requests == [("put", kind), ("put", kind), ("put", "ok")]
    assert heard.retries == [("put", kind), ("put", kind)]


@pytest.mark.parametrize("error", [AccessDeniedError("403"), ObjectNotFoundError("404")])
def test_refusal_is_never_retried(error: AccessDeniedError) -> None:
    fake, heard = FakeStorage(), Recorder()
    fake.fail("put", error)
    with pytest.raises(type(error)):
        RetryingStorage(fake, QUICK, observer=heard).put_object("k", BODY)
    assert fake.count("put") == 1
    assert heard.retries == []


def test_attempts_are_bounded_and_the_last_error_is_raised_unchanged() -> None:
    fake = FakeStorage()
    fake.fail("head", StoreUnavailableError("the fourth"), times=None)
    with pytest.raises(StoreUnavailableError, match="the fourth"):
        RetryingStorage(fake, QUICK).head_object("k")
    assert fake.count("head") == 4


def test_elapsed_time_is_bounded() -> None:
    fake = FakeStorage()
    fake.fail("head", StoreUnavailableError("away"), times=None)
    policy = RetryPolicy(attempts=1000, first_delay=0.001, max_delay=0.001, max_elapsed=10)
    ticks = _stepping_clock(1.0)
    with pytest.raises(StoreUnavailableError):
        RetryingStorage(fake, policy, clock=lambda: next(ticks)).head_object("k")
    assert 2 <= fake.count("head") <= 6


def test_body_is_opened_for_each_attempt() -> None:
    fake = FakeStorage()
    fake.fail("put", StoreUnavailableError("lost"), times=2, after=True)
    body = ChangingBody([b"1", b"2", b"3"])
    RetryingStorage(fake, QUICK).put_object("k", body)
    assert body.opened == 3
    assert fake.contents() == {"k": b"3"}


def test_failing_body_is_not_retried() -> None:
    fake, heard = FakeStorage(), Recorder()
    body = BreakingBody(b"data", 1, DamagedSegmentError("cut"))
    with pytest.raises(DamagedSegmentError):
        RetryingStorage(fake, QUICK, observer=heard).put_object("k", body)
    assert heard.requests == [("put", "body")]


def test_lost_answer_makes_a_refusal_ambiguous() -> None:
    fake = FakeStorage()
    fake.fail("put", StoreTimeoutError("lost"), after=True)
    store = RetryingStorage(fake, QUICK)
    with pytest.raises(PreconditionFailedError) as caught:
        store.put_object("k", BODY, PutOptions(condition=IfAbsent()))
    assert caught.value.ambiguous
    assert fake.contents() == {"k": b"data"}
    with pytest.raises(PreconditionFailedError) as caught:
        store.put_object("k", BODY, PutOptions(condition=IfAbsent()))
    assert not caught.value.ambiguous


def _replace(store: RetryingStorage, etag: str) -> object:
    return store.put_object("k", BytesBody(b"new"), PutOptions(condition=IfMatch(etag)))


def _create(store: RetryingStorage, _etag: str) -> object:
    return store.put_object("absent", BODY, PutOptions(condition=IfAbsent()))


def _delete(store: RetryingStorage, etag: str) -> None:
    store.delete_object("k", condition=IfMatch(etag))


def _copy(store: RetryingStorage, _etag: str) -> object:
    return store.copy_object("k", "copy")


def _read(store: RetryingStorage, etag: str) -> object:
    return store.get_object_input_stream("k", condition=IfMatch(etag))


@pytest.mark.parametrize(
    ("operation", "header", "call"),
    [
        ("put", "If-Match", _replace),
        ("put", "If-None-Match", _create),
        ("delete", "If-Match", _delete),
        ("copy", "x-amz-copy-source-if-match", _copy),
        ("stream", "If-Match", _read),
    ],
)
def test_refusal_of_a_condition_that_holds_is_no_conflict(
    operation: str, header: str, call: Callable[[RetryingStorage, str], object]
) -> None:
    fake, heard = FakeStorage(), Recorder()
    etag = fake.put_object("k", BODY)
    store = RetryingStorage(fake, QUICK, observer=heard, url="s3://archive")
    refusal = PreconditionFailedError("412 PreconditionFailed")
    fake.fail(operation, refusal)
    call(store, etag)  # asked once more: another writer may have restored the version
    etag = fake.put_object("k", BODY)
    fake.delete_object("absent")
    fake.fail(operation, refusal, times=None)
    with pytest.raises(RefusedConditionError) as caught:
        call(store, etag)
    assert f"s3://archive refuses a condition that holds: {operation}" in str(caught.value)
    assert f"with {header}" in str(caught.value)
    assert not isinstance(caught.value, PreconditionFailedError)


@pytest.mark.parametrize(("given", "stored"), [('W/"1"', 'W/"1"'), ("1", 'W/"1"'), ('W/"1"', "1")])
def test_weak_etags_are_named(given: str, stored: str) -> None:
    class Weak(FakeStorage):
        def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
            head = super().head_object(key, with_checksum=with_checksum)
            return replace(head, etag=stored)

    fake = Weak()
    fake.put_object("k", BODY)
    with pytest.raises(RefusedConditionError, match="weak"):
        RetryingStorage(fake).put_object("k", BODY, PutOptions(condition=IfMatch(given)))


def test_source_of_a_copy_that_changes_is_a_conflict() -> None:
    fake = FakeStorage()
    fake.put_object("k", BODY)
    fake.race("copy", lambda: fake.put_object("k", BODY), times=None)
    fake.fail("copy", PreconditionFailedError("k has changed"), times=None)
    with pytest.raises(PreconditionFailedError, match="k has changed"):
        RetryingStorage(fake, QUICK).copy_object("k", "copy")


def test_lost_answer_before_a_refusal_that_did_not_hold_keeps_the_next_one_ambiguous() -> None:
    """The write whose answer was lost may have taken effect at any time since."""
    fake = FakeStorage()
    etag = fake.put_object("k", BODY)
    # The lost write arrives after the request that asks for the etag.
    fake.race("head", lambda: fake.put_object("k", BytesBody(b"new")), times=None, after=True)
    fake.fail("put", StoreTimeoutError("lost"))
    fake.fail("put", PreconditionFailedError("412"), nth=2)
    with pytest.raises(PreconditionFailedError) as caught:
        RetryingStorage(fake, QUICK).put_object(
            "k", BytesBody(b"new"), PutOptions(condition=IfMatch(etag))
        )
    assert caught.value.ambiguous


def test_refusal_counts_where_the_store_does_not_tell_the_etag() -> None:
    fake = FakeStorage()
    etag = fake.put_object("k", BODY)
    fake.refuse("k", PreconditionFailedError("412"))
    fake.fail("head", AccessDeniedError("403"), times=None)
    with pytest.raises(PreconditionFailedError):
        RetryingStorage(fake).put_object("k", BODY, PutOptions(condition=IfMatch(etag)))
    assert fake.count("put") == 2


@pytest.mark.timeout(30)
def test_stop_ends_a_pause_without_another_attempt() -> None:
    fake, stop, heard = FakeStorage(), threading.Event(), Recorder()
    fake.fail("put", StoreUnavailableError("away"), times=None)
    policy = RetryPolicy(attempts=100, first_delay=3600, max_delay=3600, max_elapsed=10**6)
    store = RetryingStorage(fake, policy, observer=heard, stop=stop)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(store.put_object, "k", BODY)
        assert heard.retried.wait(10)
        stop.set()
        assert isinstance(future.exception(timeout=10), StoreUnavailableError)
    tries = fake.count("put")
    with pytest.raises(StoreUnavailableError):
        store.put_object("k", BODY)
    assert fake.count("put") == tries + 1, "after stop there is one try, and no other"


def test_listing_continues_where_it_broke() -> None:
    fake = FakeStorage()
    keys = [f"k{number:05d}" for number in range(2500)]
    for key in keys:
        fake.put_object(key, BytesBody(b""))
    fake.fail("list", StoreThrottledError("slow"), nth=2, times=2)
    rows = RetryingStorage(fake, QUICK).list_objects("k")
    assert [row.key for row in rows] == keys


def test_every_operation_is_retried() -> None:
    fake = FakeStorage()
    store = RetryingStorage(fake, QUICK)
    store.put_object("k", BODY)
    fake.fail(None, StoreUnavailableError("one"), nth=1)
    assert store.get_object("k").data == b"data"
    calls: list[Callable[[], object]] = [
        lambda: store.get_object_input_stream("k").read(),
        lambda: store.head_object("k").size,
        lambda: store.copy_object("k", "copy"),
        lambda: store.delete_object("copy"),
        lambda: [row.key for row in store.list_objects("")],
    ]
    for call in calls:
        before = fake.count()
        fake.fail(None, StoreUnavailableError("once"))
        call()
        assert fake.count() == before + 2


def test_listing_restarts_only_after_an_error_and_from_its_last_key() -> None:
    begun: list[str] = []

    class Counting(FakeStorage):  # no InterceptedStore: that lists all pages with one request
        def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
            begun.append(start_after)
            return super().list_objects(prefix, start_after=start_after)

    fake = Counting()
    keys = [f"k{number:05d}" for number in range(3500)]
    for key in keys:
        fake.put_object(key, BytesBody(b""))
    fake.fail("list", StoreThrottledError("slow"), nth=3)
    heard = Recorder()

    rows = list(RetryingStorage(fake, QUICK, observer=heard).list_objects("k"))

    assert [row.key for row in rows] == keys
    assert begun == ["", keys[1999]]
    assert [outcome for _, outcome in heard.requests] == ["ok", "ok", "throttled", "ok", "ok"]
