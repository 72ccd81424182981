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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from sidetier.endpoint.blocks import FilePiece, Piece, size_of
from sidetier.endpoint.fetch import Fetcher
from sidetier.endpoint.groups.none import Groups
from sidetier.endpoint.handlers import RequestHandlers
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.protocol import OFFERED, Offered, api_versions_response, offered_api
from sidetier.endpoint.session import Request, Session
from sidetier.segments.errors import MalformedRequestError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.wire.protocol import (
    ApiKey,
    decode_request,
    encode,
    encode_response_header,
    parse_request_header,
)

_SIZE = struct.Struct(">i")
_PIECE: Final = 1 << 20
_BUFFERS_PER_CALL: Final = 64
_TIMEVAL = struct.Struct("@ll")
_SHORT_FILE: Final = "a stored file is shorter than it was listed"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Bounds on what clients can ask of the endpoint. Times are in seconds.

    Attributes:
        max_connections: Further connections are closed at once.
        max_frame_bytes: Largest request. A Produce request is read to be refused, so this is above
            the default of `max.request.size`.
        idle: A connection without a request for this long is closed, as brokers do
            (`connections.max.idle.ms`).
        frame: Time in which a request that has begun must arrive.
        stall: Time in which a client must take some bytes of an answer.
        drain: At a stop, time for the answers that are being sent.
    """

    max_connections: int = 1000
    max_frame_bytes: int = 2 << 20
    idle: float = 600.0
    frame: float = 30.0
    stall: float = 60.0
    drain: float = 5.0


class DropError(Exception):
    """The connection must be closed. `reason` is a label of the metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Service:
    """What answers the requests of all connections.

    Attributes:
        handlers: Answers all requests but Fetch and those of groups.
        fetcher: Answers Fetch.
        groups: Answers the requests of groups.
    """

    handlers: RequestHandlers
    fetcher: Fetcher
    groups: Groups

    @property
    def offered(self) -> Offered:
        """Lowest and highest version of each request that is answered, inclusive."""
        return {**OFFERED, **self.groups.offered}


class Connection:
    """Serves one client; for one thread.

    Args:
        client_socket: The client's socket; the owner closes it.
        client: Address of the client, as `host:port`.
        service: Answers the requests.
        metrics: Counts.
        settings: Bounds.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        client_socket: socket.socket,
        client: str,
        service: Service,
        metrics: EndpointMetrics,
        settings: ServerSettings,
        clock: Clock = monotonic,
    ) -> None:
        self._socket = client_socket
        self._service = service
        self._offered = service.offered
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._session = Session(client)

    def close(self) -> None:
        """Release what the session holds; not the socket."""
        self._session.closing.close()

    def serve_one(self) -> bool:
        """Answer one request; return False if the client has closed the connection.

        Raises:
            DropError, MalformedRequestError: The connection must be closed.
            OSError: The connection is lost.
        """
        frame = self._read_frame()
        if frame is None:
            return False
        began = self._clock()
        header, position = parse_request_header(frame)
        api = offered_api(self._offered, header.api_key, header.version)
        if header.api_key == ApiKey.API_VERSIONS:
            version, response = api_versions_response(self._offered, header.version)
            if api is not None:
                decode_request(api, version, frame, position)
            pieces: list[Piece] = [
                encode_response_header(ApiKey.API_VERSIONS, 0, header.correlation_id),
                encode(response),
            ]
            error = ErrorCode.none if api is not None else ErrorCode.unsupported_version
            self._send(ApiKey.API_VERSIONS, pieces, began, error)
            return True
        if api is None:
            # As brokers do: there is no answer that a client of another version could read.
            raise DropError("unsupported", f"request {header.api_key} of version {header.version}")
        request = Request(
            api, header.version, header.correlation_id, header.client_id, frame, position
        )
        prefix = encode_response_header(api, header.version, header.correlation_id)
        if api is ApiKey.FETCH:
            fetched = self._service.fetcher.fetch(request.decode(), header.version)
            try:
                pieces = [prefix, *fetched.pieces]
                self._send(api, pieces, began, fetched.first_error, fetched.record_bytes)
            finally:
                fetched.release()
            return True
        handlers = self._service.handlers if api in OFFERED else self._service.groups
        answer = handlers.answer(request, self._session)
        pieces = [] if answer.body is None else [prefix, answer.body]
        self._send(api, pieces, began, answer.error)
        return True

    def _send(
        self,
        api: ApiKey,
        pieces: Sequence[Piece],
        began: float,
        error: ErrorCode,
        record_bytes: int = 0,
    ) -> None:
        size = sum(map(size_of, pieces))
        if pieces:
            try:
                send_pieces(self._socket, [_SIZE.pack(size), *pieces], self._settings.stall)
            except TimeoutError:
                raise DropError("slow", f"took no bytes for {self._settings.stall:.0f} s") from None
        self._metrics.answered(api, error, self._clock() - began, size, record_bytes)

    def _read_frame(self) -> memoryview | None:
        """Return the next request without its size; None if the client has closed."""
        first = self._receive(_SIZE.size, self._settings.idle, "idle")
        if not first:
            return None
        deadline = self._clock() + self._settings.frame
        start = first + self._receive_all(_SIZE.size - len(first), deadline)
        (size,) = _SIZE.unpack(start)
        if not 0 < size <= self._settings.max_frame_bytes:
            raise MalformedRequestError(
                f"a request of {size} bytes; at most {self._settings.max_frame_bytes} are accepted"
            )
        return memoryview(self._receive_all(size, deadline))

    def _receive_all(self, size: int, deadline: float) -> bytes:
        # The buffer grows with the bytes that arrive: a size alone reserves no memory.
        received = bytearray()
        while len(received) < size:
            left = max(deadline - self._clock(), 0.001)
            part = self._receive(min(size - len(received), _PIECE), left, "slow")
            if not part:
                raise ConnectionResetError(f"closed within a request, {len(received)} of {size}")
            received += part
        return bytes(received)

    def _receive(self, size: int, timeout: float, reason: str) -> bytes:
        self._socket.settimeout(timeout)
        try:
            return self._socket.recv(size)
        except TimeoutError:
            raise DropError(reason, f"sent no request within {timeout:.0f} s") from None


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
        for buffer in buffers:
            connection.sendall(buffer)
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
        if not sent:
            raise ConnectionAbortedError(_SHORT_FILE)
        at += sent


def _encrypt_file(connection: socket.socket, piece: FilePiece) -> None:
    for start in range(0, piece.size, _PIECE):
        data = piece.read(start, _PIECE)
        if len(data) < min(_PIECE, piece.size - start):
            raise ConnectionAbortedError(_SHORT_FILE)
        connection.sendall(data)
