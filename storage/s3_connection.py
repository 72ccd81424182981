"""Connections that send a body without copying it through the Python interpreter.

urllib3 reads a body in pieces into new `bytes` objects and passes each to the socket. Here a body
that is in a file is sent with sendfile(2) to a plain socket, and through one reused buffer over
TLS. All other behaviour of botocore and urllib3 stays (`Expect: 100-continue`, proxies, timeouts,
early responses): only the transfer of the body differs, and only for an `AttemptStream`.
"""

import errno
import os
import select
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

from sidetier.storage.attempt import AttemptStream, Clock, monotonic
from sidetier.storage.settings import SEND_PIECE

if TYPE_CHECKING:
    from sidetier.storage.bodies import Extent

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""errno values of a file system or kernel that does not support sendfile."""


def send_body(sock: socket.socket, body: AttemptStream, clock: Clock = monotonic) -> None:
    """Send the rest of the body. Each piece may take as long as the socket's timeout.

    Raises:
        DeadlinePassedError: As `AttemptStream.read`.
        BodyFailedError: As `AttemptStream.read`.
        OSError: The connection failed; TimeoutError if it accepts no more bytes.
    """
    if body.in_file and type(sock) is socket.socket:
        _send_file(sock, body, clock)
    else:
        _send_copied(sock, body)


def _send_copied(sock: socket.socket, body: AttemptStream) -> None:
    if not body.in_file:
        while data := body.read(SEND_PIECE):
            sock.sendall(data)
        return
    buffer = memoryview(bytearray(min(SEND_PIECE, len(body))))
    while count := body.readinto(buffer):
        sock.sendall(buffer[:count])


def _send_file(sock: socket.socket, body: AttemptStream, clock: Clock) -> None:
    writable = select.poll()
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


class _SendsBodies:
    """Mixin for botocore's connection classes."""

    sock: socket.socket
    _response_received: bool

    def request(
        self,
        method: str,
        url: str,
        body: Any = None,  # noqa: ANN401 - urllib3's own types
        headers: Any = None,  # noqa: ANN401
        **more: Any,  # noqa: ANN401
    ) -> None:
        """Send a request like urllib3, which passes the items of a sequence to `send` unchanged."""
        if isinstance(body, AttemptStream):
            body = (body,)
        super().request(method, url, body, headers, **more)  # type: ignore[misc]

    def send(self, data: Any) -> None:  # noqa: ANN401
        """Send data like http.client. Do not read a body that the store has already refused."""
        if not isinstance(data, AttemptStream):
            super().send(data)  # type: ignore[misc]
        elif not self._response_received:
            try:
                send_body(self.sock, data)
            except ssl.SSLEOFError as error:
                # Same as over plain TCP: the store may have responded before it closed the
                # connection. urllib3 reads that response after a BrokenPipeError.
                raise BrokenPipeError(errno.EPIPE, str(error)) from error


class _Connection(_SendsBodies, AWSHTTPConnection):  # type: ignore[misc]  # its bases are Any
    """Connection over plain TCP."""


class _TlsConnection(_SendsBodies, AWSHTTPSConnection):  # type: ignore[misc]
    """Connection over TLS."""


def install() -> None:
    """Make the connection pools of all botocore clients create these connections."""
    AWSHTTPConnectionPool.ConnectionCls = _Connection
    AWSHTTPSConnectionPool.ConnectionCls = _TlsConnection
