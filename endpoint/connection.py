"""One client's connection: frames, requests and answers in turn.

A thread reads one request at a time, and sends its answer before it reads the next one: Kafka's
clients expect answers in the order of their requests. What a client can make the endpoint keep is
bounded: the size of a frame, the time for a frame, and the time in which it must take an answer.
"""

import math
import os
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from kio.schema.errors import ErrorCode

from sidetier.endpoint.blocks import FilePiece, Piece, size_of
from sidetier.endpoint.fetch import FetchAnswer, Fetcher, encode_fetch, wait_of
from sidetier.endpoint.groups.none import Groups
from sidetier.endpoint.groups.requests import without_repeats
from sidetier.endpoint.handlers import RequestHandlers
from sidetier.endpoint.idle_polls import MAX_FRAME, IdleAnswers, IdlePoll, IdlePolls
from sidetier.endpoint.logins import (
    BEFORE_LOGIN,
    SASL_REQUESTS,
    Login,
    Logins,
)
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.protocol import OFFERED, Offered, api_versions_response, offered_api
from sidetier.endpoint.session import UNBOUNDED, Budget, Request, Session
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
_PIECE: Final = 64 << 10
"""Most bytes that are received in one call."""
_READ_AHEAD: Final = 4 << 10
"""Bytes that are received in one call before the size of a request is known."""
_BUFFERS_PER_CALL: Final = 64
# C's `struct timeval`: seconds, microseconds.
_TIMEVAL = struct.Struct("@ll")
SMALL_REQUEST: Final = 64 << 10
"""Bytes of a request that need no memory of the budget."""
REQUEST_MEMORY: Final = 64 << 20
"""Memory for what all requests have beyond `SMALL_REQUEST`. Without it, 1000 connections could hold
2 GB.
"""
ENTRY_BYTES: Final = 1 << 10
"""Memory for an entry of a request, decoded, and for its row in the answer."""
_FREE_ENTRIES: Final = 128
"""Entries of a request that need no memory of the budget."""
ENTRY_MEMORY: Final = 128 << 20
"""Memory for the entries of all requests that have more than `_FREE_ENTRIES`."""
ANSWER_MEMORY: Final = 64 << 20
"""Memory for all answers beyond 64 KiB that do not follow from the size of their requests: those of
groups and Metadata.
"""
_LARGE_FETCH_WAIT: Final = 0.5
"""Seconds that a Fetch may wait for records if its partitions need memory of the budget; the
default of `fetch.max.wait.ms`.
"""
_MAX_BEFORE_LOGIN: Final = 20
"""Requests before the login. Clients send four or five."""
_MAX_TAGGED_FIELDS: Final = 100
"""Most tagged fields of ApiVersions, which is answered before the login."""
MIN_TIMEOUT: Final = 0.001
"""A timeout of 0 would make a socket non-blocking."""
_TLS_RECORD: Final = bytes((HANDSHAKE, 3))
"""First bytes of a TLS connection. As the size of a request they would be 369 MB."""
_TLS_PIECE: Final = 1 << 18
"""Bytes that are encrypted in one call."""
SLOW_READER: Final = "slow_reader"
"""Reason for which a connection is dropped: the client has not taken an answer in time."""
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
        send: Time in which a client must take a whole answer. Progress does not extend it: a client
            that takes a byte per second would otherwise hold the memory of the answer for ever. The
            default is the longest request timeout of clients (librdkafka's `socket.timeout.ms`).
        contended: Time for the rest of a large request, and time in which the client must take its
            answer, while other large requests wait for the memory that it holds.
        drain: At a stop, time for the answers that are being sent.
    """

    max_connections: int = 1000
    max_connections_per_host: int = 800
    max_frame_bytes: int = 2 << 20
    idle: float = 600.0
    login: float = 10.0
    failed_login_delay: float = 1.0
    frame: float = 30.0
    send: float = 60.0
    contended: float = 2.0
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
        self.size = self.left = size
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        """Those that have asked, in their order: smaller requests do not overtake larger ones."""

    @property
    def is_contended(self) -> bool:
        """Whether a request waits for bytes."""
        with self._changed:
            return bool(self._waiting)

    def acquire(self, size: int, timeout: float) -> bool:
        """Take bytes; return False if there are too few for `timeout` seconds."""
        own = object()
        with self._changed:
            self._waiting.append(own)
            has_room = self._changed.wait_for(
                lambda: self._waiting[0] is own and self.left >= size, timeout
            )
            if has_room:
                self.left -= size
            self._waiting.remove(own)
            self._changed.notify_all()  # another one is the first now
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
        idle_polls: Repeats empty answers to Fetch.
        groups: Answers the requests of groups.
        logins: The users that may log in; None if no login is needed.
        bucket: The cap of all clients together, in bytes per second; None for no cap.
        request_memory: For what requests have beyond 64 KiB, while they are received and answered;
            those of Fetch while they are received and decoded.
        entry_memory: For the entries of requests. Taken after `request_memory`, and before
            `answer_memory`: no request waits for one that waits for it.
        answer_memory: For answers that do not follow from the size of the request.
    """

    handlers: RequestHandlers
    fetcher: Fetcher
    idle_polls: IdlePolls
    groups: Groups
    logins: Logins | None = None
    bucket: TokenBucket | None = None
    request_memory: RequestMemory = field(default_factory=lambda: RequestMemory(REQUEST_MEMORY))
    entry_memory: RequestMemory = field(default_factory=lambda: RequestMemory(ENTRY_MEMORY))
    answer_memory: RequestMemory = field(default_factory=lambda: RequestMemory(ANSWER_MEMORY))

    @property
    def is_contended(self) -> bool:
        """Whether a request waits for memory."""
        budgets = (self.request_memory, self.entry_memory, self.answer_memory)
        return any(memory.is_contended for memory in budgets)

    @property
    def offered(self) -> Offered:
        """Lowest and highest version of each request that is answered, inclusive."""
        of_logins = {} if self.logins is None else SASL_REQUESTS
        return {**OFFERED, **self.groups.offered, **of_logins}


class _Held(Budget):
    """The memory of the budgets that one request holds, until it is answered.

    Args:
        service: Has the budgets.
        connection: Waits for the memory.
    """

    __slots__ = ("_connection", "_of_frame", "_of_work", "_service", "has_entries")

    def __init__(self, service: Service, connection: "Connection") -> None:
        self._service = service
        self._connection = connection
        # Bytes of budgets. Most requests take none, and an ExitStack for each would take 1 µs.
        self._of_frame: list[tuple[RequestMemory, int]] = []
        self._of_work: list[tuple[RequestMemory, int]] = []
        self.has_entries = False
        """Whether it holds memory for the entries of the request."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def is_empty(self) -> bool:
        """Whether it holds no memory."""
        return not self._of_frame and not self._of_work

    def take_frame(self, size: int, deadline: float) -> None:
        """Take memory for the bytes of the request, which holds none yet: see `_receive_all`."""
        memory = self._service.request_memory
        self._of_frame.append((memory, self._connection.take(memory, size, deadline)))

    def release_frame(self) -> None:
        """Return the memory for the bytes of the request."""
        _give_back(self._of_frame)

    def take_entries(self, count: int) -> None:
        if count > _FREE_ENTRIES:
            self._take_work(self._service.entry_memory, count * ENTRY_BYTES)
            self.has_entries = True

    def take_answer(self, size: int) -> None:
        if size > SMALL_REQUEST:
            self._take_work(self._service.answer_memory, size)

    def release(self) -> None:
        _give_back(self._of_frame)
        _give_back(self._of_work)
        self.has_entries = False

    def _take_work(self, memory: RequestMemory, size: int) -> None:
        self._of_work.append((memory, self._connection.take(memory, size)))


def _give_back(taken: list[tuple[RequestMemory, int]]) -> None:
    while taken:
        memory, size = taken.pop()
        memory.release(size)


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
        self.answer_by = math.inf
        """Monotonic second until which the client must take the answer that is being sent."""
        self._held = _Held(service, self)
        """The memory of the request that is being answered."""
        self._left_before_login = _MAX_BEFORE_LOGIN
        self._contended_by = math.inf
        """Monotonic second from which on the client is late if others wait for that memory."""
        self._is_ended = False
        """Whether `end_if_late` has ended the connection."""
        self._receive_timeout = 0.0
        """Seconds that the kernel waits in `recv`; 0 before the first one. Not for TLS."""
        self._behind = b""
        """Bytes that have arrived behind the last request."""
        self._idle_answers: IdleAnswers | None = None
        self._resumed: tuple[float, float] | None = None
        """When the first request of `_behind` was received, and the deadline of its answer, if
        `IdlePolls` has received it.
        """
        self._last_fetch: tuple[int, bytes, Any] | None = None
        """Version, body and decoded body of the last Fetch, if it is small."""

    def end_if_late(self, now: float) -> None:
        """End the connection if its client is late; for another thread.

        Late is a client that has not taken an answer in time, or keeps memory for a large request
        from others. A socket timeout would not do: each byte restarts it, and others may come
        later.
        """
        is_late = now >= self.answer_by or (
            now >= self._contended_by and self._service.is_contended
        )
        if is_late:
            self._is_ended = True
            shut_down(self._socket, socket.SHUT_RDWR)

    def serve_one(self) -> bool:
        """Answer one request; return False if the client has closed the connection.

        Raises:
            DropError, MalformedRequestError: The connection must be closed.
            OSError: The connection is lost.
        """
        is_open = self._serve_frame()
        while self._resumed is not None:  # a long poll that must be answered, also at a stop
            is_open = self._serve_frame()
        return is_open

    def _serve_frame(self) -> bool:
        with _Held(self._service, self) as held:
            self._held = held
            frame = self._read_frame(held)
            if frame is not None:
                self._answer(frame, held)
        return frame is not None

    def _answer(self, frame: memoryview, held: "_Held") -> None:
        began = self._clock()
        header, position = parse_request_header(frame)
        if self._login is not None:
            self._require_login(self._login, header.api_key)
        if header.api_key == ApiKey.API_VERSIONS:
            self._answer_api_versions(header, frame, position, began)
            return
        api = offered_api(self._offered, header.api_key, header.version)
        if api is None:
            # As brokers do: a client of another version could not read any answer.
            raise DropError("unsupported", f"request {header.api_key} of version {header.version}")
        request = Request(
            api, header.version, header.correlation_id, header.client_id, frame, position, held
        )
        prefix = encode_response_header(api, header.version, header.correlation_id)
        if api is ApiKey.FETCH:
            self._answer_fetch(request, prefix, began, held)
        elif api in SASL_REQUESTS and self._login is not None:
            self._answer_login(self._login, request, prefix, began)
        else:
            if api in OFFERED:
                answer = self._service.handlers.answer(request, self._session)
            else:
                answer = self._service.groups.answer(without_repeats(request), self._session)
            pieces = [] if answer.body is None else [prefix, answer.body]
            self._send(api, pieces, began, answer.error)

    def _answer_api_versions(
        self, header: RequestHeader, frame: memoryview, position: int, began: float
    ) -> None:
        api = offered_api(self._offered, header.api_key, header.version)
        version, response = api_versions_response(self._offered, header.version)
        if api is not None:
            # Only to refuse malformed bytes: the answer does not depend on the body.
            decode_request(api, version, frame, position, most_entries=_MAX_TAGGED_FIELDS)
        pieces = [
            # Always version 0 of the header: the client does not know our versions yet (KIP-511).
            encode_response_header(ApiKey.API_VERSIONS, 0, header.correlation_id),
            encode(response),
        ]
        error = ErrorCode.none if api is not None else ErrorCode.unsupported_version
        self._send(ApiKey.API_VERSIONS, pieces, began, error)

    def _answer_fetch(self, request: Request, prefix: bytes, began: float, held: "_Held") -> None:
        is_small = len(request.frame) <= MAX_FRAME - _SIZE.size
        if is_small:
            request.budget = UNBOUNDED  # its partitions are few, and it may wait for long
        asked, version, access = self._decoded(request), request.version, self._session.access
        if not is_small:
            # A long poll must not keep the memory for requests from other clients.
            request.frame.release()
            held.release_frame()
        wait = min(wait_of(asked), _LARGE_FETCH_WAIT) if held.has_entries else wait_of(asked)
        deadline = began + wait
        if self._resumed is not None:
            (began, deadline), self._resumed = self._resumed, None
        buckets = (self._service.bucket, self._session.bucket)
        caps = [bucket for bucket in buckets if bucket is not None]
        is_repeatable = is_small and not isinstance(self._socket, ssl.SSLSocket)
        fetch = partial(
            self._service.fetcher.fetch,
            asked,
            version,
            access,
            caps,
            client_id=request.client_id,
            progress=self._session.progress,
            deadline=deadline,
        )
        fetched = fetch(may_wait=not is_repeatable)
        if is_repeatable and fetched.awaited is not None:
            if self._wait_idle(request, fetched, prefix, began, deadline):
                return
            fetched = fetch()
        if fetched.throttle:
            self._throttle(version, prefix, began, fetched.throttle)
            return
        try:
            pieces = [prefix, *fetched.pieces]
            self._send(ApiKey.FETCH, pieces, began, fetched.first_error, fetched.record_bytes)
        finally:
            fetched.release()

    def _throttle(self, version: int, prefix: bytes, began: float, delay: float) -> None:
        """Answer without records, and do not read from the connection for `delay` seconds.

        Brokers do the same. Nothing is reserved for the client: whether it waits or connects anew,
        its next Fetch gets records only if the caps allow it then.
        """
        pieces = [prefix, *encode_fetch(version, (), throttle_ms=math.ceil(delay * 1000))]
        self._send(ApiKey.FETCH, pieces, began, ErrorCode.none)
        self._metrics.throttled.inc(delay)
        self._wait(delay)

    def _wait_idle(
        self, request: Request, fetched: FetchAnswer, prefix: bytes, began: float, deadline: float
    ) -> bool:
        """Let `IdlePolls` answer this request and those that are equal to it.

        Returns:
            False if it does not, and the request must be answered here.
        """
        if self._behind:
            return False
        polls, access = self._service.idle_polls, self._session.access
        assert fetched.awaited is not None  # noqa: S101 - for mypy
        answers = self._idle_answers
        if answers is None or not answers.are_valid(fetched.awaited, access, began):
            answers = self._idle_answers = polls.new_answers(fetched.awaited, access)
        frame = _SIZE.pack(len(request.frame)) + request.frame
        # Without records, there are no pieces of files.
        body = prefix + b"".join(piece for piece in fetched.pieces if isinstance(piece, bytes))
        max_wait = wait_of(self._decoded(request))
        answer = answers.add(frame, _SIZE.pack(len(body)) + body, max_wait)
        poll = IdlePoll(self._socket, answers, answer, frame, began, deadline)
        if not polls.wait(poll):
            return False
        if poll.unsent:
            self._send_all([poll.unsent])
        self._behind = poll.frame
        if poll.deadline != math.inf:
            self._resumed = poll.began, poll.deadline
        return True

    def _decoded(self, request: Request) -> Any:  # noqa: ANN401 - kio's
        """Return the body of a Fetch. A client that waits at the end sends the same each time."""
        if len(request.frame) > _READ_AHEAD:
            return request.decode()
        body = bytes(request.frame[request.position :])
        if self._last_fetch is None or self._last_fetch[:2] != (request.version, body):
            self._last_fetch = request.version, body, request.decode()
        return self._last_fetch[2]

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
        if pieces:
            self._send_all([_SIZE.pack(size), *pieces])
        self._metrics.answered(api, error, self._clock() - began, size, record_bytes)

    def _send_all(self, pieces: Sequence[Piece]) -> None:
        seconds = self._settings.send
        if self._login is not None and not self._login.is_complete:
            seconds = min(seconds, self._settings.login)
        began = self._clock()
        self.answer_by = began + seconds
        if not self._held.is_empty:
            self._contended_by = began + self._settings.contended
        try:
            send_pieces(self._socket, pieces)
        except OSError:
            # Other errors are not the client's: a slow disk, or a file that became shorter.
            if not self._is_ended:
                raise
            size, seconds = sum(map(size_of, pieces)), self._clock() - began
            detail = f"did not take an answer of {size} bytes within {seconds:.0f} s"
            raise DropError(SLOW_READER, detail) from None
        finally:
            self.answer_by = self._contended_by = math.inf

    def _read_frame(self, held: "_Held") -> memoryview | None:
        """Return the next request without its size; None if the client has closed.

        Args:
            held: Gets what must be released after the request is answered.
        """
        settings = self._settings
        data, self._behind = self._behind, b""
        if self._login is not None and not self._login.is_complete:
            most, reason, deadline = SMALL_REQUEST, "login", self._login_by
            self._check_before_login()
            data = data or self._receive(_READ_AHEAD, self._left(deadline), reason)
        else:
            most, reason = settings.max_frame_bytes, "slow"
            data = data or self._receive(_READ_AHEAD, settings.idle, "idle")
            deadline = self._clock() + settings.frame
        if not data:
            return None
        if len(data) < _SIZE.size:
            data += self._receive_all(_SIZE.size - len(data), deadline, reason, held)
        if data.startswith(_TLS_RECORD):
            raise DropError("tls", "sent a TLS handshake, but the listener has no TLS certificate")
        (size,) = _SIZE.unpack_from(data)
        if not 0 < size <= most:
            raise MalformedRequestError(f"a request of {size} bytes; at most {most} are accepted")
        return self._rest_of_frame(data, size, deadline, reason, held)

    def _check_before_login(self) -> None:
        """Check time and number of requests; requests that came together wait for no byte."""
        if self._clock() >= self._login_by:
            raise self._late_login()
        if not self._left_before_login:
            raise DropError("login", f"sent more than {_MAX_BEFORE_LOGIN} requests before a login")
        self._left_before_login -= 1

    def _late_login(self) -> DropError:
        return DropError("login", f"did not log in within {self._settings.login:.0f} s")

    def _rest_of_frame(
        self, data: bytes, size: int, deadline: float, reason: str, held: "_Held"
    ) -> memoryview:
        """Return a request of `size` bytes; `data` begins with its size."""
        end = _SIZE.size + size
        if len(data) >= end:
            self._behind = data[end:]
            return memoryview(data)[_SIZE.size : end]
        lacking = end - len(data)
        first = data[_SIZE.size :]
        return memoryview(self._receive_all(lacking, deadline, reason, held, first))

    def _left(self, deadline: float) -> float:
        return max(deadline - self._clock(), MIN_TIMEOUT)

    def _receive_all(
        self, size: int, deadline: float, reason: str, held: "_Held", first: bytes = b""
    ) -> bytearray:
        """Return `first`, of at most `SMALL_REQUEST` bytes, and the next `size` bytes."""
        received, size = bytearray(first), len(first) + size
        # No memory before the first bytes have arrived: 32 clients that announce 2 MiB and send
        # nothing would otherwise take all of it. Then the whole rest at once: if connections took
        # it in pieces, all of them could hold some and wait for more, and none could finish.
        allowed = min(size, SMALL_REQUEST)
        while len(received) < size:
            if len(received) == allowed:
                held.take_frame(size - allowed, deadline)
                self._contended_by = self._clock() + self._settings.contended
                allowed = size
            wanted = min(allowed - len(received), _PIECE)
            part = self._receive(wanted, self._left(deadline), reason)
            if not part and self._is_ended:
                detail = f"sent {len(received)} of {size} bytes while others waited for memory"
                raise DropError(reason, detail)
            if not part:
                raise ConnectionResetError(f"closed within a request, {len(received)} of {size}")
            received += part
        self._contended_by = math.inf
        return received

    def take(self, memory: RequestMemory, size: int, deadline: float | None = None) -> int:
        """Take memory of a budget for the request, and return how much.

        Args:
            memory: The budget.
            size: Bytes; a request that needs more than all gets all.
            deadline: Monotonic second until which to wait; None for the time of a frame from now.

        Raises:
            DropError: Too little is free until the deadline.
        """
        size = min(size, memory.size)
        if deadline is None:
            deadline = self._clock() + self._settings.frame
        if not memory.acquire(size, self._left(deadline)):
            raise DropError("busy", f"no memory for {size} more bytes of a request in time")
        return size

    def _receive(self, size: int, timeout: float, reason: str) -> bytes:
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.settimeout(timeout)
            elif timeout != self._receive_timeout:
                _set_receive_timeout(self._socket, timeout)
                self._receive_timeout = timeout
            return self._socket.recv(size)
        except (TimeoutError, BlockingIOError):  # of Python's timeout, or the kernel's
            detail = f"sent no request within {timeout:.0f} s"
            if reason == "login":
                raise self._late_login() from None
            raise DropError(reason, detail) from None


def send_pieces(connection: socket.socket, pieces: Sequence[Piece]) -> None:
    """Send all pieces, in order.

    Ranges of files go from the page cache to the socket by `sendfile`. On a TLS socket they are
    read and encrypted: `sendfile` on its descriptor would send plain text.

    Args:
        connection: The client's socket.
        pieces: What to send.

    Raises:
        ConnectionError: The connection is lost, or a file is shorter than it was listed. Part of
            the answer may have been sent, so the connection is of no more use.
        OSError: A file cannot be read.
    """
    is_tls = isinstance(connection, ssl.SSLSocket)
    if connection.gettimeout() is not None:
        # One call of `sendfile` then sends the whole range, where a socket with Python's timeout
        # returns for each filled buffer.
        connection.settimeout(None)
    buffers: list[memoryview] = []
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


def shut_down(connection: socket.socket, how: int) -> None:
    """Shut down one or both directions of a socket that another thread uses."""
    with suppress(OSError):
        # `SSLSocket.shutdown` also drops the encryption: the thread that sends an answer would send
        # the rest of it as plain text.
        socket.socket.shutdown(connection, how)


def _set_receive_timeout(connection: socket.socket, seconds: float) -> None:
    """Make `recv` block with the kernel's own timeout, after which it raises BlockingIOError.

    Python's timeout makes each call several system calls, between which other threads may run. With
    500 connections that costs more than the call itself.
    """
    if connection.gettimeout() is not None:
        connection.settimeout(None)
    whole, part = divmod(seconds, 1)
    timeout = _TIMEVAL.pack(int(whole), int(part * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)


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
