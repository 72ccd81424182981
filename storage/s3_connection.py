"""Connections that send a body without carrying it through the interpreter.

urllib3 reads a body piece by piece into fresh `bytes` and hands each to the socket. Here a body
that lies in a file goes to a plain socket by sendfile(2), and through one buffer over TLS. Whatever
botocore and urllib3 add (`Expect: 100-continue`, proxies, time limits, early answers) stays theirs:
only the body's own way differs, and only for an `AttemptStream`.
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
"""This file system, or this kernel, cannot send by itself."""


def send_body(sock: socket.socket, body: AttemptStream, clock: Clock = monotonic) -> None:
    """All that is left of the body; a piece may take as long as the socket's time limit.

    Raises:
        DeadlinePassedError, BodyFailedError: as `AttemptStream.read`.
        OSError: the connection failed; TimeoutError where it takes nothing any more.
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
    """How many bytes the socket took: 0 while it is full."""
    at, left = extent.position + sent, extent.size - sent
    try:
        count = os.sendfile(sock.fileno(), extent.descriptor, at, left)
    except BlockingIOError:
        return 0
    except OSError as error:
        if error.errno == errno.EIO:
            body.fail(error)  # the disk's: a socket has no such error
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
    """For connections of botocore's."""

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
        """As urllib3's, which passes the pieces of a sequence on to `send` as they are."""
        if isinstance(body, AttemptStream):
            body = (body,)
        super().request(method, url, body, headers, **more)  # type: ignore[misc]

    def send(self, data: Any) -> None:  # noqa: ANN401
        """As http.client's. A body that was refused before it was asked for is not even read."""
        if not isinstance(data, AttemptStream):
            super().send(data)  # type: ignore[misc]
        elif not self._response_received:
            try:
                send_body(self.sock, data)
            except ssl.SSLEOFError as error:
                # As over plain TCP: the store may have answered before it ended the connection,
                # and urllib3 looks for that.
                raise BrokenPipeError(errno.EPIPE, str(error)) from error


class _Connection(_SendsBodies, AWSHTTPConnection):  # type: ignore[misc]  # so are its bases
    """Over plain TCP."""


class _TlsConnection(_SendsBodies, AWSHTTPSConnection):  # type: ignore[misc]
    """Over TLS."""


def install() -> None:
    """Have the connection pools of all of botocore's clients make these."""
    AWSHTTPConnectionPool.ConnectionCls = _Connection
    AWSHTTPSConnectionPool.ConnectionCls = _TlsConnection
