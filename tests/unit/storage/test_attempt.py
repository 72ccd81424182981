import io

import pytest

from sidetier.storage.attempt import AttemptStream, BodyFailedError, DeadlinePassedError
from sidetier.storage.settings import MIB, AttemptDeadline


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SlowStream(io.BytesIO):
    """A slow stream, like one under a bandwidth limit."""

    def __init__(self, data: bytes, clock: Clock, seconds: float) -> None:
        super().__init__(data)
        self._clock = clock
        self._seconds = seconds

    def read(self, size: int | None = -1, /) -> bytes:
        self._clock.now += self._seconds
        return super().read(size)


def test_time_of_the_store_counts() -> None:
    clock = Clock()
    stream = AttemptStream(io.BytesIO(b"0123456789"), 10, 5.0, clock=clock)
    assert stream.read(4) == b"0123"
    clock.now += 4.9
    assert stream.read(4) == b"4567"
    clock.now += 0.2
    with pytest.raises(DeadlinePassedError):
        stream.read(4)
    assert isinstance(stream.failure, DeadlinePassedError)


def test_time_of_the_body_does_not_count() -> None:
    clock = Clock()
    stream = AttemptStream(SlowStream(b"x" * 100, clock, 60.0), 100, 5.0, clock=clock)
    pieces = [stream.read(10) for _ in range(10)]
    assert b"".join(pieces) == b"x" * 100
    assert clock.now == 700.0


def test_only_the_window_is_readable() -> None:
    inner = io.BytesIO(b"0123456789")
    inner.seek(3)
    stream = AttemptStream(inner, 4, 60.0, start=3)
    assert len(stream) == 4
    assert stream.readall() == b"3456"
    assert stream.read() == b""
    assert stream.seek(0) == 0
    assert stream.read(2) == b"34"
    assert stream.seek(-1, io.SEEK_END) == 3
    assert stream.read(5) == b"6"
    stream.seek(1)
    buffer = bytearray(2)
    assert stream.readinto(buffer) == 2
    assert bytes(buffer) == b"45"


def test_error_of_the_body_is_kept() -> None:
    inner = io.BytesIO(b"x")
    inner.close()
    stream = AttemptStream(inner, 1, 60.0)
    with pytest.raises(BodyFailedError):
        stream.read(1)
    assert isinstance(stream.failure, ValueError)


def test_deadline_grows_with_the_size() -> None:
    deadline = AttemptDeadline(base=30.0, min_bytes_per_second=MIB)
    assert deadline.seconds(0) == 30.0
    assert deadline.seconds(1024 * MIB) == 1054.0
