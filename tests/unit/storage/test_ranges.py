"""Reading a range, including answers that break off in the middle."""

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from sidetier.segments.errors import (
    ObjectNotFoundError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from sidetier.storage.ranges import read_into, read_range
from sidetier.storage.settings import AttemptDeadline
from tests.harness.intercepted_store import InterceptedStore, StoreCall

DATA = bytes(range(256)) * 40


class Breaking(io.BytesIO):
    """A stream that breaks off after `after` bytes."""

    def __init__(self, data: bytes, after: int) -> None:
        super().__init__(data)
        self._after = after

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= self._after:
            raise StoreUnavailableError("cut")
        return super().read(min(size or 0, self._after - self.tell()))


class OtherStreams(InterceptedStore):
    """Answers ranged reads with streams of another kind.

    Args:
        stream: Creates the stream of these bytes.
    """

    def __init__(self, stream: Callable[[bytes], io.BytesIO]) -> None:
        super().__init__(FakeStorage())
        self._stream = stream
        self.store.put_object("key", BytesBody(DATA))

    def intercept(self, call: StoreCall) -> object:
        answer = super().intercept(call)
        if call.operation == "stream":
            return self._stream(cast("BinaryIO", answer).read())
        return answer


def test_broken_answer_is_continued_from_where_it_broke() -> None:
    store = OtherStreams(lambda data: Breaking(data, after=1000))

    assert read_range(store, "key", 100, 5000) == DATA[100:5000]
    assert store.store.count("stream") == 5


def test_error_without_progress_is_raised() -> None:
    store = OtherStreams(lambda data: Breaking(data, after=0))

    with pytest.raises(StoreUnavailableError):
        read_range(store, "key", 100, 5000)
    assert store.store.count("stream") == 1


@pytest.mark.parametrize(
    ("start", "end"), [(0, 10), (0, 99_999), (10_000, 20_000), (50_000, 50_001)]
)
def test_range_is_limited_to_the_object(start: int, end: int) -> None:
    store = FakeStorage()
    store.put_object("key", BytesBody(DATA))

    assert read_range(store, "key", start, end) == DATA[start:end]


def test_missing_object_is_an_error() -> None:
    with pytest.raises(ObjectNotFoundError):
        read_range(FakeStorage(), "key", 0, 10)


class Trickle(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 10))


def test_slow_answer_is_given_up() -> None:
    store = OtherStreams(Trickle)
    ticks = iter(range(1000))

    with pytest.raises(StoreTimeoutError, match="key: bytes 0 to 5000 did not arrive within 20 s"):
        read_range(
            store, "key", 0, 5000, deadline=AttemptDeadline(base=20), clock=lambda: next(ticks)
        )


def test_answers_that_break_off_have_one_deadline_together() -> None:
    """Each of them brings bytes within its own deadline, so that it alone would go on for ever."""
    ticks = iter(range(0, 100_000, 5))
    store = OtherStreams(lambda data: Breaking(data, after=10))

    with pytest.raises(StoreTimeoutError, match="key: bytes 0 to 5000 did not arrive within 40 s"):
        read_range(
            store, "key", 0, 5000, deadline=AttemptDeadline(base=20), clock=lambda: next(ticks)
        )
    assert 1 < store.store.count("stream") < 10


class Busy(OtherStreams):
    """Begins each answer after 75 s, as with the retries of a store that is busy."""

    def __init__(self, stream: Callable[[bytes], io.BytesIO], now: list[float]) -> None:
        super().__init__(stream)
        self._now = now

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "stream":
            self._now[0] += 75
        return super().intercept(call)


@pytest.mark.parametrize("pieces", [1, 2])
def test_time_until_an_answer_begins_is_not_that_of_its_bytes(pieces: int) -> None:
    """Neither for the first one nor for one that resumes it."""
    now = [0.0]
    after = -(-4900 // pieces)
    store = Busy(lambda data: Breaking(data, after), now)

    deadline = AttemptDeadline(base=20)
    read = read_range(store, "key", 100, 5000, deadline=deadline, clock=lambda: now[0])
    assert read == DATA[100:5000]
    assert store.store.count("stream") == pieces


def test_no_request_begins_after_the_deadline_of_all_answers() -> None:
    now = [0.0]
    store = Busy(lambda data: Breaking(data, 10), now)

    with pytest.raises(StoreTimeoutError, match="within 40 s, in several responses"):
        read_range(store, "key", 0, 5000, deadline=AttemptDeadline(base=20), clock=lambda: now[0])
    assert store.store.count("stream") == 2


def test_a_resumed_answer_has_the_deadline_of_its_own_bytes() -> None:
    streams: Iterator[Callable[[bytes], io.BytesIO]]
    streams = iter([partial(Breaking, after=1000), Trickle])

    def stream(data: bytes) -> io.BytesIO:
        return next(streams)(data)

    store = OtherStreams(stream)
    ticks = iter([0, 10, 10, *range(32, 100)])

    with pytest.raises(
        StoreTimeoutError, match="key: bytes 1000 to 5000 did not arrive within 20 s"
    ):
        read_range(
            store, "key", 0, 5000, deadline=AttemptDeadline(base=20), clock=lambda: next(ticks)
        )


def test_buffer_is_filled_up_to_the_end_of_the_object() -> None:
    store = FakeStorage()
    store.put_object("key", BytesBody(DATA))
    room = bytearray(b"-" * 300)

    assert read_into(store, "key", len(DATA) - 200, memoryview(room)) == 200
    assert room == DATA[-200:] + b"-" * 100
    assert store.count("stream") == 1


@pytest.mark.parametrize("size", [10, 256 * 1024, 3 * 1024**2 + 7])
def test_local_store_fills_the_buffer_too(tmp_path: Path, size: int) -> None:
    store = LocalStorage(tmp_path)
    data = DATA * (4 * 1024**2 // len(DATA))
    store.put_object("key", BytesBody(data))
    room = bytearray(size)

    assert read_into(store, "key", 11, memoryview(room)) == size
    assert room == data[11 : 11 + size]
