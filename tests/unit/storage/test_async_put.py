import logging
import threading

import pytest

from sidetier.segments.errors import InvalidRequestError, StoreUnavailableError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from tests.harness.waiting import wait_until

BODY = BytesBody(b"data")


def test_no_more_than_the_limit_are_under_way() -> None:
    fake = FakeStorage(async_puts=2)
    submitted: list[str] = []

    def submit_all() -> None:
        for number in range(4):
            fake.put_object_async(f"k{number}", BODY)
            submitted.append(f"k{number}")

    feeder = threading.Thread(target=submit_all)
    with fake.hold("put"):
        feeder.start()
        wait_until(lambda: fake.count("put") == 2, 10, "both threads at work")
        feeder.join(timeout=0.2)
        assert submitted == ["k0", "k1"], "the third submit must block"
        assert feeder.is_alive()
    feeder.join(timeout=10)
    fake.close()
    assert sorted(fake.contents()) == ["k0", "k1", "k2", "k3"]


def test_what_a_callback_raises_is_logged_and_hurts_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = FakeStorage()

    def callback(key: str, etag: str | None, error: BaseException | None) -> None:
        raise RuntimeError(f"callback of {key}, {etag}, {error}")

    with caplog.at_level(logging.ERROR):
        etag = fake.put_object_async("k", BODY, callback).result(timeout=10)
    (record,) = caplog.records
    assert record.message == "put_callback_failed"
    assert record.exc_info is not None
    assert fake.head_object("k").etag == etag


def test_an_error_reaches_callback_and_future() -> None:
    fake = FakeStorage()
    heard: list[BaseException | None] = []
    fake.fail("put", StoreUnavailableError("away"))
    future = fake.put_object_async("k", BODY, lambda _key, _etag, error: heard.append(error))
    assert isinstance(future.exception(timeout=10), StoreUnavailableError)
    assert isinstance(heard[0], StoreUnavailableError)
    assert len(heard) == 1


def test_after_close_a_put_is_refused_and_its_place_is_free_again() -> None:
    fake = FakeStorage(async_puts=1)
    fake.put_object_async("a", BODY).result(timeout=10)
    fake.close()
    for _ in range(3):
        with pytest.raises(InvalidRequestError, match="closed"):
            fake.put_object_async("late", BODY)
