"""Connections that send a body without copying it through the Python interpreter.

urllib3 reads a body in pieces into new `bytes` objects and passes each to the socket. Here a body
that is in a file is sent with sendfile(2) to a plain socket, and through one reused buffer over
TLS. With `Expect: 100-continue` the body is sent after the store's `100 Continue` (RFC 9110,
10.1.1), so that a refused body is not even read. All other behaviour of urllib3 stays.
"""

import errno
import os
import select
import socket
import ssl
from functools import partial
from http.client import HTTPResponse
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any, Final

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from sidetier.storage.attempt import AttemptStream, Clock, monotonic
from sidetier.storage.settings import SEND_PIECE

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from sidetier.storage.bodies import Extent

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""errno values of a file system or kernel that does not support sendfile."""
_CONTINUE_SECONDS: Final = 1.0
"""Maximum wait for `100 Continue`. A store that does not know `Expect` does not send it."""
_CONTINUE: Final = b"100"
_STATUS: Final = slice(9, 12)
"""Place of the status in an answer: "HTTP/1.1 100 Continue"."""
_END_OF_HEADERS: Final = b"\r\n\r\n"
_MAX_HEADER_BYTES: Final = 64 * 1024


def send_body(sock: socket.socket, body: AttemptStream, clock: Clock = monotonic) -> None:
    """Send the rest of the body. Each piece may take as long as the socket's timeout.

    Raises:
        DeadlinePassedError: As `AttemptStream.read`.
        BodyFailedError: As `AttemptStream.read`.
        OSError: The connection failed; TimeoutError if it accepts no more bytes.
    """
    # Not `isinstance`: sendfile on the descriptor of a TLS socket would send plain text.
    if body.in_file and type(sock) is socket.socket:
        _send_file(sock, body, clock)
    else:
        _send_copied(sock, body)


def _send_copied(sock: socket.socket, body: AttemptStream) -> None:
    if not body.fills:
        while data := body.read(SEND_PIECE):
            sock.sendall(data)
        return
    buffer = memoryview(bytearray(min(SEND_PIECE, len(body))))
    while count := body.readinto(buffer):
        sock.sendall(buffer[:count])


def _send_file(sock: socket.socket, body: AttemptStream, clock: Clock) -> None:
    writable = select.poll()
    # A socket with a timeout is non-blocking, so sendfile reports a full buffer instead of waiting.
    writable.register(sock, select.POLLOUT)
    while (extent := body.take(SEND_PIECE)).size:
        limit = sock.gettimeout()
        end = None if limit is None else clock() + limit
        sent = 0
        while sent < extent.size:
            count = _send_some(sock, body, extent, sent)
            sent += count
            if not count:
                writable.poll(_milliseconds_left(end, clock))


def _send_some(sock: socket.socket, body: AttemptStream, extent: "Extent", sent: int) -> int:
    """Return how many bytes the socket accepted; 0 if its buffer is full."""
    at, left = extent.position + sent, extent.size - sent
    try:
        count = os.sendfile(sock.fileno(), extent.descriptor, at, left)
    except BlockingIOError:
        return 0
    except OSError as error:
        if error.errno == errno.EIO:
            body.fail(error)  # EIO comes from the disk: a socket never raises it
        if error.errno not in _NO_SENDFILE:
            raise
        data = os.pread(extent.descriptor, left, at)
        sock.sendall(data)
        count = len(data)
    # sendfile returns 0 at the end of the file: it was truncated.
    if not count:
        body.fail(OSError(f"the body's file ends at byte {at}"))
    return count


def _milliseconds_left(end: float | None, clock: Clock) -> float | None:
    if end is None:
        return None
    left = end - clock()
    if left <= 0:
        raise TimeoutError("timed out")
    return left * 1000


def await_continue(sock: socket.socket) -> bytes | None:
    """Wait for `100 Continue`, at most a second.

    Returns None to send the body, else the first bytes of the store's final answer.

    Raises:
        OSError: The connection failed.
    """
    limit = sock.gettimeout()
    sock.settimeout(_CONTINUE_SECONDS)
    try:
        answer = sock.recv(_MAX_HEADER_BYTES)
    except TimeoutError:
        return None
    finally:
        sock.settimeout(limit)
    while True:
        if len(answer) >= _STATUS.stop and answer[_STATUS] != _CONTINUE:
            return answer  # a refusal, or a success that did not wait for the body
        if (end := answer.find(_END_OF_HEADERS)) >= 0:
            answer = answer[end + len(_END_OF_HEADERS) :]
            if not answer:
                return None
            continue  # some servers send it twice
        more = sock.recv(_MAX_HEADER_BYTES)
        if not more or len(answer) > _MAX_HEADER_BYTES:
            return answer  # http.client reports what it is
        answer += more


class _Received:
    """Takes the place of a socket of which an answer's first bytes have been read."""

    def __init__(self, first: bytes, sock: socket.socket) -> None:
        self._first = first
        self._sock = sock

    def makefile(self, *_: object, **__: object) -> BufferedReader:
        """Return a stream of the first bytes and of what the socket receives."""
        return BufferedReader(_Replay(self._first, self._sock.makefile("rb", 0)))


class _Replay(RawIOBase):
    def __init__(self, first: bytes, rest: Any) -> None:  # noqa: ANN401 - typeshed has SocketIO
        super().__init__()
        self._first = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int | None:
        if not self._first:
            count: int | None = self._rest.readinto(buffer)
            return count
        view = memoryview(buffer)
        count = min(len(view), len(self._first))
        view[:count] = self._first[:count]
        self._first = self._first[count:]
        return count

    def close(self) -> None:
        self._rest.close()
        super().close()


class _Refusal(HTTPResponse):
    """An answer that came before the body, which is then not sent."""

    def __init__(self, first: bytes, sock: socket.socket, **options: Any) -> None:  # noqa: ANN401
        super().__init__(_Received(first, sock), **options)  # type: ignore[arg-type]

    def begin(self) -> None:
        super().begin()
        # The store may still expect the body: the connection serves no other request.
        self.will_close = True


class _SendsBodies:
    """Mixin for urllib3's connections. A body is a tuple of one `AttemptStream`."""

    sock: socket.socket
    _waits = False

    def putrequest(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - urllib3's own
        """Begin a request, as http.client."""
        self._waits = False
        self.response_class: Any = HTTPResponse
        super().putrequest(*arguments, **options)  # type: ignore[misc]

    def putheader(self, header: str, *values: str) -> None:
        """Add a header, as http.client."""
        self._waits = self._waits or header.lower() == "expect"
        super().putheader(header, *values)  # type: ignore[misc]

    def send(self, data: Any) -> None:  # noqa: ANN401 - urllib3's own types
        """Send data as http.client does. Do not read a body that the store has already refused."""
        if not isinstance(data, AttemptStream):
            super().send(data)  # type: ignore[misc]
            return
        answer = await_continue(self.sock) if self._waits else None
        if answer is not None:
            self.response_class = partial(_Refusal, answer)
            return
        try:
            send_body(self.sock, data)
        except ssl.SSLEOFError as error:
            # Same as over plain TCP: the store may have responded before it closed the
            # connection. urllib3 reads that response after a BrokenPipeError.
            raise BrokenPipeError(errno.EPIPE, str(error)) from error


class _Connection(_SendsBodies, HTTPConnection):  # type: ignore[misc]  # `sock` is optional there
    """Connection over plain TCP."""


class _TlsConnection(_SendsBodies, HTTPSConnection):  # type: ignore[misc]
    """Connection over TLS."""


class PlainPool(HTTPConnectionPool):
    """Connections over plain TCP."""

    ConnectionCls = _Connection


class TlsPool(HTTPSConnectionPool):
    """Connections over TLS."""

    ConnectionCls = _TlsConnection
