"""The listener, and one thread for each connection.

A thread reads one request at a time, and sends its answer before it reads the next one: Kafka's
clients expect answers in the order of their requests. Everything that a client can make the
endpoint keep is bounded: connections, the size of a frame, the time for a frame, and the time
without progress while an answer is sent.
"""

import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from sidetier.endpoint.blocks import FilePiece, Piece, size_of
from sidetier.endpoint.fetch import Fetcher
from sidetier.endpoint.handlers import RequestHandlers
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.protocol import api_versions_response, offered_api
from sidetier.segments.errors import ConfigurationError, MalformedRequestError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger
from sidetier.wire.protocol import (
    ApiKey,
    decode_request,
    encode,
    encode_response_header,
    parse_request_header,
)

log = logger()

_SIZE = struct.Struct(">i")
_BACKLOG: Final = 512
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


class _DropError(Exception):
    """The connection must be closed. `reason` is a label of the metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Endpoint:
    """Serves clients until `stop`.

    Args:
        handlers: Answers all requests but Fetch.
        fetcher: Answers Fetch.
        metrics: Counts.
        settings: Bounds.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        handlers: RequestHandlers,
        fetcher: Fetcher,
        metrics: EndpointMetrics,
        settings: ServerSettings | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._handlers = handlers
        self._fetcher = fetcher
        self._metrics = metrics
        self._settings = settings or ServerSettings()
        self._clock = clock
        self._guard = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._stopping = threading.Event()
        self._refused_since_log = 0

    def serve(self, listener: socket.socket) -> None:
        """Accept connections until `stop`. The listener is closed at the end."""
        listener.settimeout(0.5)  # `close` in another thread does not wake `accept`
        with listener:
            while not self._stopping.is_set():
                try:
                    connection, address = listener.accept()
                except TimeoutError:
                    continue
                except OSError as error:
                    # Such as EMFILE: wait for connections to end, do not spin.
                    log.warning("endpoint.accept_failed", error=str(error))
                    self._stopping.wait(0.5)
                    continue
                self._admit(connection, f"{address[0]}:{address[1]}")

    def stop(self, wake: Callable[[], object] = lambda: None) -> None:
        """Stop: accept nothing more, finish the answers that are being sent, close all.

        Args:
            wake: Ends the waits of long polls.
        """
        self._stopping.set()
        wake()
        with self._guard:
            connections = dict(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # a thread that waits for a request ends
        deadline = self._clock() + self._settings.drain
        for thread in connections.values():
            thread.join(max(deadline - self._clock(), 0.0))
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in connections.values():
            thread.join(1.0)

    @property
    def open_connections(self) -> int:
        """Number of connections that are open now."""
        return len(self._connections)

    def _admit(self, connection: socket.socket, client: str) -> None:
        with self._guard:
            is_full = len(self._connections) >= self._settings.max_connections
            if not is_full:
                thread = threading.Thread(
                    target=self._run, args=(connection, client), name="endpoint-client", daemon=True
                )
                self._connections[connection] = thread
        if is_full:
            connection.close()
            self._metrics.refused.inc()
            if not self._refused_since_log:
                log.warning(
                    "endpoint.connections_full", client=client, most=self._settings.max_connections
                )
            self._refused_since_log += 1
            return
        self._refused_since_log = 0
        self._metrics.accepted.inc()
        self._metrics.connections.inc()
        try:
            thread.start()
        except RuntimeError as error:  # the system allows no more threads
            log.warning("endpoint.accept_failed", client=client, error=str(error))
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._guard:
            del self._connections[connection]
        self._metrics.connections.dec()
        connection.close()

    def _run(self, connection: socket.socket, client: str) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._stopping.is_set() and self._serve_one(connection):
                pass
        except _DropError as error:
            self._dropped(error.reason, client, error)
        except MalformedRequestError as error:
            self._dropped("malformed", client, error)
        except (ConnectionError, ssl.SSLError) as error:
            log.debug("endpoint.connection_lost", client=client, error=str(error))
        except OSError as error:
            self._dropped("failed", client, error)
        except Exception:
            # One request must not end the process, nor the service for other clients.
            self._metrics.dropped.labels("failed").inc()
            log.exception("endpoint.request_failed", client=client)
        finally:
            self._forget(connection)

    def _dropped(self, reason: str, client: str, error: Exception) -> None:
        self._metrics.dropped.labels(reason).inc()
        log.info("endpoint.connection_dropped", client=client, reason=reason, detail=str(error))

    def _serve_one(self, connection: socket.socket) -> bool:
        """Answer one request; return False if the client has closed the connection."""
        frame = self._read_frame(connection)
        if frame is None:
            return False
        began = self._clock()
        header, position = parse_request_header(frame)
        api = offered_api(header.api_key, header.version)
        if header.api_key == ApiKey.API_VERSIONS:
            version, response = api_versions_response(header.version)
            if api is not None:
                decode_request(api, version, frame, position)
            self._send(
                connection,
                ApiKey.API_VERSIONS,
                [
                    encode_response_header(ApiKey.API_VERSIONS, 0, header.correlation_id),
                    encode(response),
                ],
                began,
                ErrorCode.none if api is not None else ErrorCode.unsupported_version,
            )
            return True
        if api is None:
            # As brokers do: there is no answer that a client of another version could read.
            raise _DropError("unsupported", f"request {header.api_key} of version {header.version}")
        request = decode_request(api, header.version, frame, position)
        prefix = encode_response_header(api, header.version, header.correlation_id)
        if api is ApiKey.FETCH:
            fetched = self._fetcher.fetch(request, header.version)
            try:
                pieces = [prefix, *fetched.pieces]
                self._send(
                    connection, api, pieces, began, fetched.first_error, fetched.record_bytes
                )
            finally:
                fetched.release()
            return True
        answer = self._handlers.answer(api, header.version, request)
        pieces = [] if answer.body is None else [prefix, answer.body]
        self._send(connection, api, pieces, began, answer.error)
        return True

    def _send(
        self,
        connection: socket.socket,
        api: ApiKey,
        pieces: Sequence[Piece],
        began: float,
        error: ErrorCode,
        record_bytes: int = 0,
    ) -> None:
        size = sum(map(size_of, pieces))
        if pieces:
            try:
                send_pieces(connection, [_SIZE.pack(size), *pieces], self._settings.stall)
            except TimeoutError:
                raise _DropError(
                    "slow", f"took no bytes for {self._settings.stall:.0f} s"
                ) from None
        self._metrics.answered(api, error, self._clock() - began, size, record_bytes)

    def _read_frame(self, connection: socket.socket) -> memoryview | None:
        """Return the next request without its size; None if the client has closed."""
        first = self._receive(connection, _SIZE.size, self._settings.idle, "idle")
        if not first:
            return None
        deadline = self._clock() + self._settings.frame
        start = first + self._receive_all(connection, _SIZE.size - len(first), deadline)
        (size,) = _SIZE.unpack(start)
        if not 0 < size <= self._settings.max_frame_bytes:
            raise MalformedRequestError(
                f"a request of {size} bytes; at most {self._settings.max_frame_bytes} are accepted"
            )
        return memoryview(self._receive_all(connection, size, deadline))

    def _receive_all(self, connection: socket.socket, size: int, deadline: float) -> bytes:
        # The buffer grows with the bytes that arrive: a size alone reserves no memory.
        received = bytearray()
        while len(received) < size:
            left = max(deadline - self._clock(), 0.001)
            part = self._receive(connection, min(size - len(received), _PIECE), left, "slow")
            if not part:
                raise ConnectionResetError(f"closed within a request, {len(received)} of {size}")
            received += part
        return bytes(received)

    def _receive(self, connection: socket.socket, size: int, timeout: float, reason: str) -> bytes:
        connection.settimeout(timeout)
        try:
            return connection.recv(size)
        except TimeoutError:
            raise _DropError(reason, f"sent no request within {timeout:.0f} s") from None


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


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address; port 0 lets the system choose.

    Raises:
        ConfigurationError: The address cannot be listened at.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {host}:{port}: {error}") from error
    return listener
