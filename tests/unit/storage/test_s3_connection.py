"""Sending a request body to a socket."""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidetier.storage import s3_connection
from sidetier.storage.attempt import AttemptStream, BodyFailedError, DeadlinePassedError
from sidetier.storage.bodies import BytesBody, Extent, FileBody
from sidetier.storage.port import Body
from sidetier.storage.s3_connection import await_continue, send_body
from sidetier.storage.settings import SEND_PIECE

DATA = bytes(range(256)) * 6000
"""Three pieces, and more than a socket's buffers hold."""


@pytest.fixture
def in_file(tmp_path: Path) -> FileBody:
    path = tmp_path / "body"
    path.write_bytes(DATA)
    return FileBody.of(path)


@contextmanager
def _receiver(expected: int) -> Iterator[tuple[socket.socket, list[bytes]]]:
    """A socket to send on, and the bytes received at the other end once the block is left."""
    here, there = socket.socketpair()
    received: list[bytes] = []

    def receive() -> None:
        left = expected
        while left and (data := there.recv(left)):
            received.append(data)
            left -= len(data)

    thread = threading.Thread(target=receive)
    thread.start()
    here.settimeout(20)
    try:
        yield here, received
    finally:
        here.shutdown(socket.SHUT_WR)
        thread.join()
        here.close()
        there.close()


def _sent(body: Body, start: int, size: int) -> bytes:
    with _receiver(size) as (sock, received), body.open() as raw:
        raw.seek(start)
        send_body(sock, AttemptStream(raw, size, 60.0, start=start))
    return b"".join(received)


@pytest.mark.parametrize("start", [0, 100_001])
@pytest.mark.parametrize("size", [1, SEND_PIECE, SEND_PIECE + 1, len(DATA) - 100_001])
def test_window_of_a_file_is_sent(in_file: FileBody, start: int, size: int) -> None:
    assert _sent(in_file, start, size) == DATA[start : start + size]


def test_kernel_sends_a_file(in_file: FileBody, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(AttemptStream, "read", lambda *_: read.append(1))
    monkeypatch.setattr(AttemptStream, "readinto", lambda *_: read.append(1))
    assert _sent(in_file, 0, len(DATA)) == DATA
    assert read == []


def test_bytes_in_memory_are_sent() -> None:
    assert _sent(BytesBody(DATA), 7, len(DATA) - 7) == DATA[7:]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_that_the_kernel_cannot_send_is_read(
    in_file: FileBody, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "sendfile", refuse)
    assert _sent(in_file, 3, len(DATA) - 3) == DATA[3:]


def test_body_can_be_sent_again_from_the_start(in_file: FileBody) -> None:
    with _receiver(2 * len(DATA)) as (sock, received), in_file.open() as raw:
        stream = AttemptStream(raw, len(DATA), 60.0)
        send_body(sock, stream)
        stream.seek(0)
        send_body(sock, stream)
    assert b"".join(received) == DATA + DATA


def test_file_that_ends_early_is_a_body_error(in_file: FileBody) -> None:
    with _receiver(len(DATA)) as (sock, received), in_file.open() as raw:
        stream = AttemptStream(raw, len(DATA) + 1, 60.0)
        with pytest.raises(BodyFailedError):
            send_body(sock, stream)
    assert isinstance(stream.failure, OSError)
    assert "ended" in str(stream.failure)
    assert b"".join(received) == DATA


class _Shrinking:
    """A stream that announces bytes which are gone when they are sent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def take(self, size: int) -> Extent:
        return Extent(self._descriptor, len(DATA), size)


def test_file_truncated_during_the_send_is_a_body_error(in_file: FileBody) -> None:
    with _receiver(1) as (sock, _), in_file.open() as raw:
        stream = AttemptStream(_Shrinking(raw.fileno()), 10, 60.0)  # type: ignore[arg-type]
        with pytest.raises(BodyFailedError):
            send_body(sock, stream)
    assert f"ends at byte {len(DATA)}" in str(stream.failure)


@pytest.mark.parametrize("number", [errno.EIO, errno.EPIPE, errno.ECONNRESET])
def test_disk_error_is_distinguished_from_a_connection_error(
    in_file: FileBody, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    disk = number == errno.EIO

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "sendfile", fail)
    with _receiver(1) as (sock, _), in_file.open() as raw:
        stream = AttemptStream(raw, len(DATA), 60.0)
        with pytest.raises(BodyFailedError if disk else OSError):
            send_body(sock, stream)
    assert (stream.failure is not None) == disk


def test_send_to_a_stalled_receiver_is_given_up(in_file: FileBody) -> None:
    here, there = socket.socketpair()
    with here, there, in_file.open() as raw:
        here.settimeout(0.05)
        with pytest.raises(TimeoutError):
            send_body(here, AttemptStream(raw, len(DATA), 60.0))


def test_send_to_a_slow_receiver_is_given_up(
    in_file: FileBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to a piece, not to each of its bytes."""
    now = [0.0]

    def trickle(*_: object) -> int:
        now[0] += 1.0
        if now[0] % 2:
            return 1
        raise BlockingIOError

    monkeypatch.setattr(os, "sendfile", trickle)
    with _receiver(1) as (sock, _), in_file.open() as raw, pytest.raises(TimeoutError):
        send_body(sock, AttemptStream(raw, len(DATA), 60.0), clock=lambda: now[0])
    assert now[0] <= 22.0


def test_deadline_of_an_attempt_applies(in_file: FileBody) -> None:
    now = [0.0]
    with _receiver(SEND_PIECE) as (sock, received), in_file.open() as raw:
        stream = AttemptStream(raw, len(DATA), 5.0, clock=lambda: now[0])

        def late(*arguments: int) -> int:
            now[0] += 10.0
            return original(*arguments)

        original = os.sendfile
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "sendfile", late)
            with pytest.raises(DeadlinePassedError):
                send_body(sock, stream)
    assert 0 < len(b"".join(received)) <= SEND_PIECE
    assert isinstance(stream.failure, DeadlinePassedError)


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
REFUSAL = b"HTTP/1.1 412\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ([CONTINUE], None),
        ([CONTINUE[:10], CONTINUE[10:]], None),
        ([b"HTTP/1.1 100\r\nServer: x\r\n", b"\r\n"], None),
        ([CONTINUE, CONTINUE], None),
        ([CONTINUE + CONTINUE], None),
        ([REFUSAL], REFUSAL),
        ([REFUSAL[:11], REFUSAL[11:]], REFUSAL),
        ([CONTINUE + REFUSAL], REFUSAL),
        ([], None),
    ],
)
def test_body_is_sent_after_100_continue_or_without_an_answer(
    sent: list[bytes], answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_connection, "_CONTINUE_SECONDS", 0.2)
    here, there = socket.socketpair()

    def respond() -> None:
        for part in sent:
            there.sendall(part)
            threading.Event().wait(0.02)

    with here, there:
        here.settimeout(20)
        thread = threading.Thread(target=respond)
        thread.start()
        assert await_continue(here) == answer
        thread.join()
        assert here.gettimeout() == 20


def test_connection_that_ends_before_100_continue_is_an_empty_answer() -> None:
    here, there = socket.socketpair()
    there.close()
    with here:
        assert await_continue(here) == b""
