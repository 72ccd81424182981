import threading

import pytest

from sidetier.segments.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage, Request
from tests.harness.waiting import wait_until

BODY = BytesBody(b"data")


def test_nth_request_fails_and_the_next_does_not() -> None:
    fake = FakeStorage()
    fake.fail("put", StoreThrottledError("slow"), nth=2, times=2)
    fake.put_object("a", BODY)
    for _ in range(2):
        with pytest.raises(StoreThrottledError, match="slow"):
            fake.put_object("b", BODY)
    fake.put_object("b", BODY)
    assert sorted(fake.contents()) == ["a", "b"]


def test_fault_of_one_key_does_not_affect_others() -> None:
    fake = FakeStorage()
    fake.refuse("bad")
    fake.put_object("good", BODY)
    for _ in range(3):
        with pytest.raises(AccessDeniedError, match="bad"):
            fake.put_object("bad", BODY)
    with pytest.raises(ObjectNotFoundError):
        fake.head_object("bad")
    fake.heal()
    fake.put_object("bad", BODY)


def test_request_with_a_lost_answer_takes_effect() -> None:
    fake = FakeStorage()
    fake.fail("put", StoreTimeoutError("lost"), after=True)
    with pytest.raises(StoreTimeoutError):
        fake.put_object("k", BODY)
    assert fake.contents() == {"k": b"data"}
    fake.fail("delete", StoreTimeoutError("lost"), after=True)
    with pytest.raises(StoreTimeoutError):
        fake.delete_object("k")
    assert fake.contents() == {}


def test_another_process_acts_before_or_after_a_request() -> None:
    fake, seen = FakeStorage(), list[bytes | None]()
    for after in (False, True):
        fake.race("put", lambda: seen.append(fake.contents().get("k")), key="k", after=after)
    fake.put_object("other", BODY)
    fake.put_object("k", BODY)
    fake.put_object("k", BytesBody(b"more"))
    assert seen == [None, b"data"]


def test_an_object_that_is_cut_keeps_its_head() -> None:
    fake = FakeStorage()
    fake.put_object("k", BODY)
    head = fake.head_object("k")
    fake.cut("k", 3)
    assert fake.get_object_input_stream("k", 1).read() == b"at"
    assert fake.head_object("k") == head


def test_away_fails_every_operation() -> None:
    fake = FakeStorage()
    with fake.away():
        with pytest.raises(StoreUnavailableError):
            fake.put_object("k", BODY)
        with pytest.raises(StoreUnavailableError):
            list(fake.list_objects(""))
        with pytest.raises(StoreUnavailableError):
            fake.head_object("k")
    fake.put_object("k", BODY)


def test_held_requests_wait_and_then_continue() -> None:
    fake = FakeStorage()
    writer = threading.Thread(target=fake.put_object, args=("k", BODY))
    with fake.hold("put", "k"):
        writer.start()
        wait_until(lambda: fake.count("put") == 1, 10, "the put")
        assert fake.contents() == {}
        fake.put_object("other", BODY)
    writer.join(timeout=10)
    assert sorted(fake.contents()) == ["k", "other"]


def test_requests_are_recorded_in_order() -> None:
    fake = FakeStorage()
    fake.put_object("k", BODY)
    fake.copy_object("k", "copy")
    list(fake.list_objects("pre"))
    assert fake.requests == [Request("put", "k"), Request("copy", "copy"), Request("list", "pre")]
    assert fake.count("put", "k") == 1
    assert fake.count() == 3


def test_equal_bytes_get_another_etag() -> None:
    fake = FakeStorage()
    assert fake.put_object("k", BODY) != fake.put_object("k", BODY)
