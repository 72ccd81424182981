"""One client's connection: frames, requests and answers in turn.

A thread reads one request at a time, and sends its answer before it reads the next one: Kafka's
clients expect answers in the order of their requests. What a client can make the endpoint keep is
bounded: the size of a frame, the time for a frame, and the time without progress while an answer
is sent.
"""

import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from sidetier.endpoint.blocks import FilePiece, Piece, size_of
from sidetier.endpoint.fetch import MOST_BYTES, Fetcher
from sidetier.endpoint.groups.none import Groups
from sidetier.endpoint.handlers import RequestHandlers
from sidetier.endpoint.logins import (
    BEFORE_LOGIN,
    SASL_REQUESTS,
    Login,
    Logins,
)
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.protocol import OFFERED, Offered, api_versions_response, offered_api
from sidetier.endpoint.session import Request, Session
from sidetier.endpoint.tls import HANDSHAKE
from sidetier.segments.errors import MalformedRequestError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.token_bucket import TokenBucket
from sidetier.wire.protocol import (
    ApiKey,
    RequestHeader,
    decode_request,
    encode,
    encode_response_header,
    parse_request_header,
)

# Before each request and response: the number of bytes that follow.
_SIZE = struct.Struct(">i")
_PIECE: Final = 1 << 20
_BUFFERS_PER_CALL: Final = 64
# C's `struct timeval`: seconds, microseconds.
_TIMEVAL = struct.Struct("@ll")
SMALL_REQUEST: Final = 64 << 10
REQUEST_MEMORY: Final = 64 << 20
"""Memory for all requests above `SMALL_REQUEST` together. Without it, 1000 connections could hold
2 GB.
"""
LEAST_TIMEOUT: Final = 0.001
"""A timeout of 0 would make a socket non-blocking."""
_TLS_RECORD: Final = bytes((HANDSHAKE, 3))
"""First bytes of a TLS connection. As the size of a request they would be 369 MB."""
_TLS_PIECE: Final = 1 << 18
"""Bytes that are encrypted in one call. A slow client must take them within `stall`."""
_SHORT_FILE: Final = "a stored file is shorter than it was listed"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Bounds on what clients can ask of the endpoint. Times are in seconds.

    Attributes:
        max_connections: Further connections are closed at once.
        max_connections_per_host: The same for the connections from one address.
        max_frame_bytes: Largest request. A Produce request is read to be refused, so this is above
            the default of `max.request.size`.
        idle: A connection without a request for this long is closed, as brokers do
            (`connections.max.idle.ms`).
        login: Time for the TLS handshake and the login together.
        failed_login_delay: Time before the answer to a failed login.
        frame: Time in which a request that has begun must arrive.
        stall: Time in which a client must take some bytes of an answer.
        drain: At a stop, time for the answers that are being sent.
    """

    max_connections: int = 1000
    max_connections_per_host: int = 800
    max_frame_bytes: int = 2 << 20
    idle: float = 600.0
    login: float = 10.0
    failed_login_delay: float = 1.0
    frame: float = 30.0
    stall: float = 60.0
    drain: float = 5.0


class DropError(Exception):
    """The connection must be closed. `reason` is a label of the metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class RequestMemory:
    """A budget of bytes that connections share. Thread-safe.

    Args:
        size: The budget, in bytes; at least the largest request.
    """

    def __init__(self, size: int) -> None:
        self.left = size
        self._changed = threading.Condition()

    def acquire(self, size: int, timeout: float) -> bool:
        """Take bytes; return False if there are too few for `timeout` seconds."""
        with self._changed:
            has_room = self._changed.wait_for(lambda: self.left >= size, timeout)
            if has_room:
                self.left -= size
            return has_room

    def release(self, size: int) -> None:
        """Return bytes."""
        with self._changed:
            self.left += size
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Service:
    """What answers the requests of all connections.

    Attributes:
        handlers: Answers all requests but Fetch and those of groups.
        fetcher: Answers Fetch.
        groups: Answers the requests of groups.
        logins: The users that may log in; None if no login is needed.
        bucket: The cap of all clients together, in bytes per second; None for no cap.
        request_memory: For requests above 64 KiB, while they are received and answered.
    """

    handlers: RequestHandlers
    fetcher: Fetcher
    groups: Groups
    logins: Logins | None = None
    bucket: TokenBucket | None = None
    request_memory: RequestMemory = field(default_factory=lambda: RequestMemory(REQUEST_MEMORY))

    @property
    def offered(self) -> Offered:
        """Lowest and highest version of each request that is answered, inclusive."""
        of_logins = {} if self.logins is None else SASL_REQUESTS
        return {**OFFERED, **self.groups.offered, **of_logins}


class Connection:
    """Serves one client; for one thread.

    Args:
        client_socket: The client's socket; the owner closes it.
        session: The client's session; the owner closes it.
        service: Answers the requests.
        metrics: Counts.
        settings: Bounds.
        login_by: Monotonic second until which the client must have logged in, if it must.
        wait: Waits for a number of seconds, and returns early when the endpoint stops.
        clock: Returns monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - what a connection shares with the others, and its own socket
        self,
        client_socket: socket.socket,
        session: Session,
        service: Service,
        metrics: EndpointMetrics,
        settings: ServerSettings,
        *,
        login_by: float,
        wait: Callable[[float], object],
        clock: Clock = monotonic,
    ) -> None:
        self._socket = client_socket
        self._session = session
        self._service = service
        self._offered = service.offered
        self._metrics = metrics
        self._settings = settings
        self._login_by = login_by
        self._wait = wait
        self._clock = clock
        self._login = None if service.logins is None else Login(service.logins, session)

    def serve_one(self) -> bool:
        """Answer one request; return False if the client has closed the connection.

        Raises:
            DropError, MalformedRequestError: The connection must be closed.
            OSError: The connection is lost.
        """
        with ExitStack() as held:
            frame = self._read_frame(held)
            if frame is not None:
                self._answer(frame)
        return frame is not None

    def _answer(self, frame: memoryview) -> None:
        began = self._clock()
        header, position = parse_request_header(frame)
        if self._login is not None:
            self._require_login(self._login, header.api_key)
        if header.api_key == ApiKey.API_VERSIONS:
            self._answer_api_versions(header, frame, position, began)
            return
        api = offered_api(self._offered, header.api_key, header.version)
        if api is None:
            # As brokers do: there is no answer that a client of another version could read.
            raise DropError("unsupported", f"request {header.api_key} of version {header.version}")
        request = Request(
            api, header.version, header.correlation_id, header.client_id, frame, position
        )
        prefix = encode_response_header(api, header.version, header.correlation_id)
        if api is ApiKey.FETCH:
            self._answer_fetch(request, prefix, began)
        elif api in SASL_REQUESTS and self._login is not None:
            self._answer_login(self._login, request, prefix, began)
        else:
            handlers = self._service.handlers if api in OFFERED else self._service.groups
            answer = handlers.answer(request, self._session)
            pieces = [] if answer.body is None else [prefix, answer.body]
            self._send(api, pieces, began, answer.error)

    def _answer_api_versions(
        self, header: RequestHeader, frame: memoryview, position: int, began: float
    ) -> None:
        api = offered_api(self._offered, header.api_key, header.version)
        version, response = api_versions_response(self._offered, header.version)
        if api is not None:
            # Only to refuse malformed bytes: the answer does not depend on the body.
            decode_request(api, version, frame, position)
        pieces = [
            # Always version 0 of the header: the client does not know our versions yet (KIP-511).
            encode_response_header(ApiKey.API_VERSIONS, 0, header.correlation_id),
            encode(response),
        ]
        error = ErrorCode.none if api is not None else ErrorCode.unsupported_version
        self._send(ApiKey.API_VERSIONS, pieces, began, error)

    def _answer_fetch(self, request: Request, prefix: bytes, began: float) -> None:
        caps = (self._service.bucket, self._session.bucket)
        buckets = [bucket for bucket in caps if bucket is not None]
        # With a cap, answers are small, and clients that share it are served in turn: each waits a
        # quarter of a second for each of the others, and not for their whole answers.
        most = min((MOST_BYTES, *(bucket.burst for bucket in buckets)))
        asked, access, fetch = request.decode(), self._session.access, self._service.fetcher.fetch
        fetched = fetch(asked, request.version, access, most)
        try:
            size = fetched.record_bytes
            delay = max((bucket.reserve(size) for bucket in buckets), default=0.0)
            if delay:
                # Clients that wait for their turn must not keep the memory of their answers from
                # the others: the same bytes are fetched again afterwards.
                fetched.release()
                self._wait_for_turn(delay)
                fetched = fetch(asked, request.version, access, size)
            pieces = [prefix, *fetched.pieces]
            self._send(ApiKey.FETCH, pieces, began, fetched.first_error, fetched.record_bytes)
        finally:
            fetched.release()

    def _wait_for_turn(self, delay: float) -> None:
        """Wait until the caps allow to send the answer, or the endpoint stops.

        Brokers send the answer at once, with a `throttle_time_ms`, and then do not read from the
        connection. A client that connects anew for each answer escapes that. Here the answer itself
        is delayed, and its `throttle_time_ms` is 0: the client has waited already.
        """
        self._metrics.throttled.inc(delay)
        self._wait(delay)

    # Logins

    def _require_login(self, login: Login, api_key: int) -> None:
        if not login.is_complete:
            if api_key not in BEFORE_LOGIN:
                name = self._session.principal
                raise DropError("login", f"{name} sent request {api_key} before a login")
        elif not login.refresh():
            raise DropError("login", f"user {self._session.principal} was removed")

    def _answer_login(self, login: Login, request: Request, prefix: bytes, began: float) -> None:
        answer = login.answer(request)
        assert answer.body is not None  # noqa: S101 - for mypy: each of these requests has one
        if login.failure is not None:
            # As brokers do (`connection.failed.authentication.delay.ms`): a client that tries again
            # at once, or one that guesses passwords, costs less.
            self._wait(self._settings.failed_login_delay)
        self._send(request.api, [prefix, answer.body], began, answer.error)
        if login.failure is not None:
            raise DropError("login", login.failure)

    # Frames

    def _send(
        self,
        api: ApiKey,
        pieces: Sequence[Piece],
        began: float,
        error: ErrorCode,
        record_bytes: int = 0,
    ) -> None:
        size = sum(map(size_of, pieces))
        stall = self._settings.stall
        if self._login is not None and not self._login.is_complete:
            stall = min(stall, self._settings.login)
        if pieces:
            try:
                send_pieces(self._socket, [_SIZE.pack(size), *pieces], stall)
            except TimeoutError:
                raise DropError("slow", f"took no bytes for {stall:.0f} s") from None
        self._metrics.answered(api, error, self._clock() - began, size, record_bytes)

    def _read_frame(self, held: ExitStack) -> memoryview | None:
        """Return the next request without its size; None if the client has closed.

        Args:
            held: Gets what must be released after the request is answered.
        """
        settings = self._settings
        if self._login is not None and not self._login.is_complete:
            most, reason, deadline = SMALL_REQUEST, "login", self._login_by
            first = self._receive(_SIZE.size, self._left(deadline), reason)
        else:
            most, reason = settings.max_frame_bytes, "slow"
            first = self._receive(_SIZE.size, settings.idle, "idle")
            deadline = self._clock() + settings.frame
        if not first:
            return None
        start = first + self._receive_all(_SIZE.size - len(first), deadline, reason)
        if start.startswith(_TLS_RECORD):
            raise DropError("tls", "sent a TLS handshake, but the listener has no TLS certificate")
        (size,) = _SIZE.unpack(start)
        if not 0 < size <= most:
            raise MalformedRequestError(f"a request of {size} bytes; at most {most} are accepted")
        if size > SMALL_REQUEST:
            memory = self._service.request_memory
            if not memory.acquire(size, self._left(deadline)):
                raise DropError("busy", f"no memory for a request of {size} bytes in time")
            held.callback(memory.release, size)
        return memoryview(self._receive_all(size, deadline, reason))

    def _left(self, deadline: float) -> float:
        return max(deadline - self._clock(), LEAST_TIMEOUT)

    def _receive_all(self, size: int, deadline: float, reason: str) -> bytes:
        # The buffer grows with the bytes that arrive: a size alone reserves no memory.
        received = bytearray()
        while len(received) < size:
            part = self._receive(min(size - len(received), _PIECE), self._left(deadline), reason)
            if not part:
                raise ConnectionResetError(f"closed within a request, {len(received)} of {size}")
            received += part
        return bytes(received)

    def _receive(self, size: int, timeout: float, reason: str) -> bytes:
        self._socket.settimeout(timeout)
        try:
            return self._socket.recv(size)
        except TimeoutError:
            detail = f"sent no request within {timeout:.0f} s"
            if reason == "login":
                detail = f"did not log in within {self._settings.login:.0f} s"
            raise DropError(reason, detail) from None


def send_pieces(connection: socket.socket, pieces: Sequence[Piece], stall: float) -> None:
    """Send all pieces, in order.

    Ranges of files go from the page cache to the socket by `sendfile`. On a TLS socket they are
    read and encrypted: `sendfile` on its descriptor would send plain text.

    Args:
        connection: The client's socket.
        pieces: What to send.
        stall: Seconds within which the client must take some bytes.

    Raises:
        TimeoutError: It did not.
        ConnectionError: The connection is lost, or a file is shorter than it was listed. Part of
            the answer may have been sent, so the connection is of no more use.
        OSError: A file cannot be read.
    """
    is_tls = isinstance(connection, ssl.SSLSocket)
    if is_tls:
        connection.settimeout(stall)
    else:
        # A socket that blocks, with the kernel's own timeout: one call of `sendfile` then sends the
        # whole range, where a socket with Python's timeout returns for each filled buffer.
        connection.settimeout(None)
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(stall), int(stall % 1 * 1e6))
        )
    buffers: list[memoryview] = []
    try:
        for piece in pieces:
            if not isinstance(piece, FilePiece):
                if len(piece):
                    buffers.append(memoryview(piece))
                continue
            # More follows at once: the kernel does not send the framing in a packet of its own.
            _send_buffers(connection, buffers, 0 if is_tls else socket.MSG_MORE)
            buffers = []
            send_range = _encrypt_file if is_tls else _send_file
            send_range(connection, piece)
        _send_buffers(connection, buffers, 0)
    except BlockingIOError:  # the kernel's timeout
        raise TimeoutError(f"no bytes were taken for {stall:.0f} s") from None


def _send_buffers(connection: socket.socket, buffers: list[memoryview], flags: int) -> None:
    if isinstance(connection, ssl.SSLSocket):  # it has no sendmsg
        if sum(map(len, buffers)) <= _TLS_PIECE:
            buffers = [memoryview(b"".join(buffers))]  # else each one becomes its own TLS record
        for buffer in buffers:
            for start in range(0, len(buffer), _TLS_PIECE):
                connection.sendall(buffer[start : start + _TLS_PIECE])
        return
    rest = list(buffers)
    while rest:
        sent = connection.sendmsg(rest[:_BUFFERS_PER_CALL], (), flags)
        while rest and sent >= len(rest[0]):
            sent -= len(rest.pop(0))
        if sent:
            rest[0] = rest[0][sent:]


def _send_file(connection: socket.socket, piece: FilePiece) -> None:
    at, end = piece.start, piece.start + piece.size
    while at < end:
        sent = os.sendfile(connection.fileno(), piece.file.descriptor, at, end - at)
        # `sendfile` returns 0 at the end of the file.
        if not sent:
            raise ConnectionAbortedError(_SHORT_FILE)
        at += sent


def _encrypt_file(connection: socket.socket, piece: FilePiece) -> None:
    for start in range(0, piece.size, _TLS_PIECE):
        data = piece.read(start, _TLS_PIECE)
        if len(data) < min(_TLS_PIECE, piece.size - start):
            raise ConnectionAbortedError(_SHORT_FILE)
        connection.sendall(data)
