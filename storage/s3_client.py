"""boto3 client with Sidetier's settings: no retries, no payload signature, no trailer."""

import errno
import os
import select
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from sidetier import __version__
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.attempt import AttemptStream, Clock, monotonic
from sidetier.storage.s3_chain import botocore_session
from sidetier.storage.settings import SEND_PIECE, SMALL_BODY, AttemptDeadline, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from sidetier.storage.bodies import Extent


# Connections that send a body without copying it through the Python interpreter.
#
# urllib3 reads a body in pieces into new `bytes` objects and passes each to the socket. Here a
# body that is in a file is sent with sendfile(2) to a plain socket, and through one reused buffer
# over TLS. All other behaviour of botocore and urllib3 stays (`Expect: 100-continue`, proxies,
# timeouts, early responses): only the transfer of the body differs, and only for an
# `AttemptStream`.

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""errno values of a file system or kernel that does not support sendfile."""


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
        """Send data as http.client does. Do not read a body that the store has already refused."""
        if not isinstance(data, AttemptStream):
            super().send(data)  # type: ignore[misc]
        # The store has answered before the body: a refusal after `Expect: 100-continue`.
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


install()


def make_client(settings: S3Settings, deadline: AttemptDeadline) -> "S3Client":
    """Return a thread-safe client; no request is made.

    Credentials come from the AWS chain unless the settings contain them. botocore reads proxies
    from the environment (`HTTPS_PROXY`, `NO_PROXY`).

    Raises:
        ConfigurationError: The profile does not exist, there is no region, or the endpoint or CA
            file is invalid.
    """
    if settings.ca_bundle is not None and not settings.ca_bundle.is_file():
        raise ConfigurationError(f"ca_bundle {settings.ca_bundle} is not a file")
    keys = settings.credentials
    try:
        session = boto3.session.Session(
            botocore_session=botocore_session(settings),
            region_name=settings.region,
            aws_access_key_id=keys.access_key_id if keys else None,
            aws_secret_access_key=keys.secret_access_key if keys else None,
            aws_session_token=keys.session_token if keys else None,
        )
        client = session.client(
            "s3",
            endpoint_url=settings.endpoint_url,
            verify=None if settings.ca_bundle is None else str(settings.ca_bundle),
            config=_config(settings, deadline),
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"storage.s3: {error}") from error
    client.meta.events.register_last("before-call.s3", _do_not_ask_for_little)
    return client


def _do_not_ask_for_little(params: dict[str, Any], **_: object) -> None:
    """Send a small body right away.

    botocore sends `Expect: 100-continue` with all bodies. That costs a round trip, and one second
    where a server does not respond to it.
    """
    headers = params["headers"]
    if int(headers.get("Content-Length", SMALL_BODY + 1)) <= SMALL_BODY:
        headers.pop("Expect", None)


def _config(settings: S3Settings, deadline: AttemptDeadline) -> Config:
    return Config(
        signature_version="s3v4",
        # A constant: botocore composes a value for each request, which takes a tenth of its CPU
        # time.
        user_agent=f"sidetier/{__version__}",
        # `RetryingStorage` is the only layer that retries.
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Each put has its checksum in a header; other settings would send it as a trailer.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=deadline.connect,
        read_timeout=settings.read_timeout,
        max_pool_connections=settings.max_connections,
        tcp_keepalive=True,
        s3={
            "addressing_style": "path" if settings.path_style else "auto",
            "payload_signing_enabled": settings.sign_payload,
        },
    )
