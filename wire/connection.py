"""One TCP connection to one broker: TLS, SASL, version negotiation, requests in flight."""

import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

from kio.static.protocol import RequestPayload, ResponsePayload
from scramp import ScramClient, ScramException  # type: ignore[import-untyped]  # ships no types

from sidetier import __version__
from sidetier.segments.buffers import is_exported
from sidetier.segments.errors import (
    BrokerLoginError,
    BrokerUnavailableError,
    MalformedResponseError,
    UnsupportedVersionError,
)
from sidetier.wire.bounds import skip_tagged_fields
from sidetier.wire.protocol import (
    ApiKey,
    api_error,
    build_request,
    decode_response,
    encode,
    encode_header,
    known_versions,
    response_header_is_flexible,
)
from sidetier.wire.settings import Address, ClientSettings, SaslSettings

Exchange = Generator[bytes, bytes, None]
"""Yields the client's messages, receives the broker's responses, ends after the last response."""


def exchange(settings: SaslSettings) -> Exchange:
    """Return the messages of one login.

    Raises:
        BrokerLoginError: During the exchange: the broker's response shows that it does not know
            the password, or there is no token.
    """
    if settings.mechanism == "PLAIN":
        return _plain(settings)
    if settings.mechanism == "OAUTHBEARER":
        return _oauthbearer(settings)
    return _scram(settings)


def _plain(settings: SaslSettings) -> Exchange:
    yield f"\0{settings.username}\0{settings.password}".encode()


def _scram(settings: SaslSettings) -> Exchange:
    try:
        client = ScramClient([settings.mechanism], settings.username, settings.password)
        client.set_server_first((yield client.get_client_first().encode()).decode())
        client.set_server_final((yield client.get_client_final().encode()).decode())
    except (ScramException, UnicodeDecodeError) as error:
        raise BrokerLoginError(f"{settings.mechanism}: {error}") from error


def _oauthbearer(settings: SaslSettings) -> Exchange:
    assert settings.token is not None  # noqa: S101 - from_properties requires it for OAUTHBEARER
    try:
        token = settings.token()
    except Exception as error:
        raise BrokerLoginError(f"oauth_cb returned no token: {error}") from error
    refusal = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if refusal:  # RFC 7628 3.2.3: a JSON error; the client acknowledges it with one byte
        yield b"\x01"
        raise BrokerLoginError(f"OAUTHBEARER: {refusal.decode(errors='replace')}")


Buffer = bytes | bytearray | memoryview
Clock = Callable[[], float]

# Before each request and response: the number of bytes that follow.
_SIZE = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")
_UNSUPPORTED_VERSION: Final = 35
_FIRST_RESPONSE_BYTES: Final = 1024 * 1024
"""Maximum size of a response before the login is complete: the peer is not trusted yet."""
_BUFFERS_PER_CALL: Final = 512
"""Maximum buffers per system call, below IOV_MAX (1024 on Linux)."""
_JOINED_BELOW: Final = 16 * 1024
"""Smaller buffers are joined for TLS; otherwise each one would become its own TLS record."""
# The Java client picks a share from 0.85 to 0.95 at random.
_LIFETIME_SHARE: Final = 0.85
"""Part of a SASL session's lifetime after which the connection logs in again (KIP-368)."""
_AHEAD_BYTES: Final = 16 * 1024
"""Bytes to read ahead, so that one system call reads several small responses."""
_KEPT_FROM: Final = 1 << 20
"""Responses of at least this many bytes reuse buffers."""
# The first bytes of an alert: its content type (21) and TLS's major version.
_TLS_ALERT: Final = b"\x15\x03"
_WITH_SOFTWARE_NAME: Final = 3
"""First version of ApiVersions that contains the client's name (KIP-511)."""


class _InFlight(NamedTuple):
    api: ApiKey
    version: int
    correlation_id: int
    deadline: float


class Connection:
    """A connection to one broker, for one thread.

    `request` sends one request and waits for its response. With `send` and `receive`, up to
    `settings.max_in_flight` requests can be in flight; responses arrive in the order of the
    requests. Do not mix large requests and large responses on one connection: the broker stops
    reading requests while its responses are not received.

    The first `BrokerUnavailableError` or `MalformedResponseError` closes the connection, because
    the position of the next response in the stream is unknown. Every later call raises
    `BrokerUnavailableError`; the owner has to open another connection.
    """

    def __init__(
        self,
        address: Address,
        settings: ClientSettings,
        *,
        context: ssl.SSLContext | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Connect, negotiate versions and log in.

        Args:
            address: Address of the broker.
            settings: Settings of the client; `bootstrap_servers` has no effect here.
            context: Result of `settings.tls.context()`, to load certificates once for many
                connections.
            clock: Returns monotonic seconds.

        Raises:
            ConfigurationError: A certificate cannot be loaded.
            BrokerUnavailableError: No connection within `settings.connect_timeout`.
            BrokerLoginError: TLS or SASL failed.
            UnsupportedVersionError: The broker is older than Kafka 1.0.
            MalformedResponseError: The peer does not speak Kafka's protocol.
        """
        self.address = address
        self.client_id = settings.client_id
        """`client.id` of the requests from now on."""
        self._name = f"broker {address}"
        self._settings = settings
        self._clock = clock
        self._next_correlation_id = 0
        self._in_flight: deque[_InFlight] = deque()
        self._received: deque[tuple[_InFlight, memoryview]] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._login_again_at = float("inf")
        self._closed_because: str | None = None
        self._max_response_bytes = min(settings.max_response_bytes, _FIRST_RESPONSE_BYTES)
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._unread = self._ahead[:0]
        self._frames = _Frames()
        deadline = clock() + settings.connect_timeout
        self._socket = self._connect(deadline)
        try:
            if settings.tls is not None:
                self._start_tls(context or settings.tls.context(), deadline)
            # Non-blocking: a socket with a timeout makes two more system calls per operation.
            self._socket.setblocking(False)  # noqa: FBT003 -- the method's name explains the flag
            self._agree_on_versions(deadline)
            if settings.sasl is not None:
                self._log_in(deadline)
        # The caller has no object yet that it could close.
        except BaseException:
            self.close()
            raise
        self._max_response_bytes = settings.max_response_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return self._name

    @property
    def in_flight(self) -> int:
        """Number of sent requests whose response was not received yet."""
        return len(self._in_flight) + len(self._received)

    @property
    def is_closed(self) -> bool:
        """Whether a failure or `close` has ended the connection."""
        return self._closed_because is not None

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait with `select` for the only response in flight.

        With several in flight, responses may already have been read ahead.
        """
        return self._socket.fileno()

    def version(self, api: ApiKey, *, at_least: int = 0) -> int:
        """Return the highest version of a request that the broker and this client support.

        Raises:
            UnsupportedVersionError: There is none, or only versions below `at_least`.
        """
        lowest, highest = known_versions(api)
        offered = self._versions.get(api)
        if offered is None:
            raise UnsupportedVersionError(f"{self} does not support {api.title} requests")
        best = min(highest, offered[1])
        if best < max(lowest, offered[0], at_least):
            raise UnsupportedVersionError(
                f"{self} supports versions {offered[0]} to {offered[1]} of {api.title}, but this "
                f"client needs {max(lowest, at_least)} to {highest}"
            )
        return best

    def offered(self, api: ApiKey) -> tuple[int, int] | None:
        """Return the lowest and highest version of a request that the broker supports, if any."""
        return self._versions.get(api)

    def build(self, api: ApiKey, /, **values: object) -> RequestPayload:
        """Return a request in the version of `version`; see `protocol.build_request`."""
        version = self.version(api)
        try:
            return build_request(api, version, **values)
        except ValueError as error:
            raise UnsupportedVersionError(f"{self} is too old: {error}") from error

    def request(self, request: RequestPayload, *, timeout: float | None = None) -> ResponsePayload:
        """Send a request and wait for its response. No other request may be in flight.

        Error codes inside the response do not raise: see `protocol.errors_in`.
        """
        if self.in_flight:
            raise RuntimeError("other requests are in flight: take their responses first")
        self.send(request, timeout=timeout)
        return self.receive()

    def send(self, request: RequestPayload, *, timeout: float | None = None) -> None:
        """Send a request in exactly the version of its entity.

        Args:
            request: One of kio's request entities.
            timeout: Seconds until the response must have arrived; None for
                `settings.request_timeout`.

        Raises:
            BrokerUnavailableError: The connection is closed, or breaks.
            UnsupportedVersionError: The broker does not support this version.
        """
        api = ApiKey(request.__api_key__)
        self.send_buffers(api, request.__version__, [encode(request)], timeout=timeout)

    def send_buffers(
        self, api: ApiKey, version: int, body: Sequence[Buffer], *, timeout: float | None = None
    ) -> None:
        """Send a request whose body is already encoded, without copying its buffers.

        Otherwise the same as `send`. The buffers may be changed once this returns.
        """
        self._check_open()
        self._check_version(api, version)
        if self.in_flight >= self._settings.max_in_flight:
            raise RuntimeError(f"{self.in_flight} requests are in flight: take a response first")
        seconds = self._settings.request_timeout if timeout is None else timeout
        # Before the request: the broker closes a connection
        # whose login has expired at the next request.
        if self._clock() >= self._login_again_at:
            self._log_in_again()
        self._send(api, version, body, self._clock() + seconds)

    def receive(self) -> ResponsePayload:
        """Wait for the response to the oldest request in flight.

        Raises:
            BrokerUnavailableError: It does not arrive in time, or the connection breaks.
            MalformedResponseError: It is too large, belongs to another request or cannot be
                decoded.
        """
        sent, body = self._receive()
        try:
            return decode_response(sent.api, sent.version, body, str(self))
        except BaseException as error:
            # A response that cannot be decoded leaves doubt
            # about its length, and so about the next one.
            self._fail(error, sent.api.title)
            raise

    def receive_body(self) -> tuple[int, memoryview]:
        """Return version and undecoded body of the response to the oldest request in flight.

        The body is writable and belongs to the caller. Raises as `receive`.
        """
        sent, body = self._receive()
        return sent.version, body

    def close(self) -> None:
        """Close the connection; responses in flight are lost. May be called twice."""
        self._end("it was closed")

    def interrupt(self) -> None:
        """Make the request in flight fail soon, with BrokerUnavailableError. From any thread."""
        with suppress(OSError):
            # Not SSLSocket.shutdown: it would change the state that the other thread is using.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _connect(self, deadline: float) -> socket.socket:
        try:
            connected = socket.create_connection(self.address, self._left(deadline))
        except OSError as error:
            raise BrokerUnavailableError(f"{self} cannot be reached: {error}") from error
        # A request is one or two writes; Nagle's algorithm would delay the second by up to 40 ms.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = self._settings
        if settings.keepalive:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if settings.send_buffer_bytes:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
        if settings.receive_buffer_bytes:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        return connected

    def _start_tls(self, context: ssl.SSLContext, deadline: float) -> None:
        self._socket.settimeout(self._left(deadline))
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self.address.host)
        # Subclasses of SSLError, so they come first. The peer hung up, and a retry may help.
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise BrokerUnavailableError(f"{self} cut the TLS handshake: {error}") from error
        except ssl.SSLError as error:
            raise BrokerLoginError(f"{self}: the TLS handshake failed: {error}") from error
        except OSError as error:
            raise BrokerUnavailableError(f"{self} cut the TLS handshake: {error}") from error

    def _agree_on_versions(self, deadline: float) -> None:
        _, version = known_versions(ApiKey.API_VERSIONS)
        body = self._ask_versions(version, deadline)
        # The error code is the first field in every version,
        # so it can be read before the version is known.
        if _ERROR_CODE.unpack_from(body)[0] == _UNSUPPORTED_VERSION:
            # KIP-511: this response always has version 0, and lists the supported versions.
            response: Any = decode_response(ApiKey.API_VERSIONS, 0, body, str(self))
            _, highest = _offered(response).get(ApiKey.API_VERSIONS, (0, 0))
            # Lower in any case, so that a broker that repeats
            # the error does not cause an endless exchange.
            version = min(version - 1, highest)
            body = self._ask_versions(version, deadline)
        response = decode_response(ApiKey.API_VERSIONS, version, body, str(self))
        if response.error_code:
            raise api_error(f"{self}, ApiVersions v{version}", response.error_code)
        self._versions = _offered(response)

    def _ask_versions(self, version: int, deadline: float) -> memoryview:
        names: dict[str, object] = {}
        if version >= _WITH_SOFTWARE_NAME:
            names = {"client_software_name": "sidetier", "client_software_version": __version__}
        request = build_request(ApiKey.API_VERSIONS, version, **names)
        self._send(ApiKey.API_VERSIONS, version, [encode(request)], deadline)
        _, body = self._receive_next()
        if len(body) < _ERROR_CODE.size:
            raise MalformedResponseError(f"{self}: the response to ApiVersions is empty")
        return body

    def _log_in(self, deadline: float) -> None:
        settings = self._settings.sasl
        assert settings is not None  # noqa: S101 - the callers check it
        handshake = self._ask(ApiKey.SASL_HANDSHAKE, deadline, mechanism=settings.mechanism)
        if handshake.error_code:
            raise BrokerLoginError(
                f"{self} does not support SASL mechanism {settings.mechanism}, only "
                f"{', '.join(handshake.mechanisms) or 'none'}"
            )
        messages = exchange(settings)
        message: bytes | None = next(messages)
        while message is not None:
            answer = self._ask(ApiKey.SASL_AUTHENTICATE, deadline, auth_bytes=message)
            if answer.error_code:
                reason = answer.error_message or answer.error_code.name.upper()
                raise BrokerLoginError(f"{self} refuses the login: {reason}")
            try:
                message = messages.send(answer.auth_bytes)
            except StopIteration:
                message = None
            except BrokerLoginError as error:
                raise BrokerLoginError(f"{self}: {error}") from error
        lifetime = getattr(answer, "session_lifetime", timedelta(0)).total_seconds()
        # 0, like a response without the field, means that the login does not expire.
        if lifetime > 0:
            self._login_again_at = self._clock() + lifetime * _LIFETIME_SHARE

    def _log_in_again(self) -> None:
        """Log in again, after receiving everything in flight: the broker accepts only the login."""
        # Received here and kept for `receive`, which returns them first.
        while self._in_flight:
            self._received.append(self._receive_next())
        try:
            self._log_in(self._clock() + self._settings.connect_timeout)
        except BaseException as error:
            self._fail(error, "the login")
            raise

    def _ask(self, api: ApiKey, deadline: float, **values: object) -> Any:  # noqa: ANN401 - kio's
        request = self.build(api, **values)
        self._send(api, request.__version__, [encode(request)], deadline)
        sent, body = self._receive_next()
        return decode_response(api, sent.version, body, str(self))

    def _send(self, api: ApiKey, version: int, body: Sequence[Buffer], deadline: float) -> None:
        correlation_id = self._next_correlation_id
        # The field is a signed int32.
        self._next_correlation_id = (correlation_id + 1) % 2**31
        header = encode_header(api, version, correlation_id, self.client_id)
        size = len(header) + sum(map(len, body))
        try:
            self._write([_SIZE.pack(size) + header, *body], deadline)
        except BaseException as error:
            self._fail(error, api.title)
            raise
        # After the write: a request that was sent in part has closed the connection.
        self._in_flight.append(_InFlight(api, version, correlation_id, deadline))

    def _receive(self) -> tuple[_InFlight, memoryview]:
        if self._received:
            return self._received.popleft()
        self._check_open()
        if not self._in_flight:
            raise RuntimeError("no request is in flight")
        return self._receive_next()

    def _receive_next(self) -> tuple[_InFlight, memoryview]:
        sent = self._in_flight.popleft()
        try:
            return sent, self._read_body(sent)
        except BaseException as error:
            self._fail(error, sent.api.title)
            raise

    def _read_body(self, sent: _InFlight) -> memoryview:
        frame = self._frames.take(self._read_size(sent.deadline))
        self._read_into(frame, sent.deadline)
        # A broker answers in the order of the requests; anything else is a lost position.
        (correlation_id,) = _SIZE.unpack_from(frame)
        if correlation_id != sent.correlation_id:
            raise MalformedResponseError(
                f"{self} answers request {correlation_id}, but the response to request "
                f"{sent.correlation_id} ({sent.api.title}) is the next"
            )
        body = frame[_SIZE.size :]
        if response_header_is_flexible(sent.api, sent.version):
            return body[skip_tagged_fields(body, 0) :]
        return body

    def _read_size(self, deadline: float) -> int:
        head = bytearray(_SIZE.size)
        self._read_into(memoryview(head), deadline)
        size: int = _SIZE.unpack(head)[0]
        # Each response has at least its correlation id.
        if _SIZE.size <= size <= self._max_response_bytes:
            return size
        if head.startswith(_TLS_ALERT) and self._settings.tls is None:
            raise MalformedResponseError(
                f"{self} answers with TLS: set security.protocol to SSL or SASL_SSL"
            )
        raise MalformedResponseError(
            f"{self} announces a response of {size} bytes; at most {self._max_response_bytes} are "
            "taken (receive.message.max.bytes)"
        )

    def _write(self, buffers: Sequence[Buffer], deadline: float) -> None:
        is_tls = isinstance(self._socket, ssl.SSLSocket)  # has no sendmsg
        rest: Sequence[Buffer] = list(_join_small(buffers)) if is_tls else buffers
        while rest:
            self._left(deadline)
            try:
                if is_tls:
                    sent = self._socket.send(rest[0])
                else:
                    sent = self._socket.sendmsg(rest[:_BUFFERS_PER_CALL])
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT, deadline)
            # TLS may have to read before it can write, and the other way round (key updates).
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, deadline)
            else:
                rest = _behind(rest, sent)

    def _read_into(self, buffer: memoryview, deadline: float) -> None:
        while buffer:
            # A large part is read straight into its buffer. Reading ahead would copy it.
            if not self._unread and len(buffer) >= _AHEAD_BYTES:
                buffer = buffer[self._read_some(buffer, deadline) :]
                continue
            if not self._unread:
                # A view of `_ahead`, which may be overwritten because nothing is left unread.
                self._unread = self._ahead[: self._read_some(self._ahead, deadline)]
            size = min(len(buffer), len(self._unread))
            buffer[:size] = self._unread[:size]
            buffer, self._unread = buffer[size:], self._unread[size:]

    def _read_some(self, buffer: memoryview, deadline: float) -> int:
        """Read into the buffer; return the number of bytes, at least 1."""
        while True:
            # Also before a read that succeeds at once: a broker that
            # sends slowly must not extend the deadline forever.
            self._left(deadline)
            try:
                received = self._socket.recv_into(buffer)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN, deadline)
                continue
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, deadline)
                continue
            if not received:
                raise ConnectionResetError("the broker closed the connection")
            return received

    def _wait(self, event: int, deadline: float) -> None:
        """Wait until the socket is ready for `event`, a mask of `select.poll`."""
        # Not `select.select`, which fails for descriptors from 1024 on.
        poll = select.poll()
        poll.register(self._socket, event)
        if not poll.poll(self._left(deadline) * 1000):
            raise TimeoutError("timed out")

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def _check_open(self) -> None:
        if self._closed_because is not None:
            raise BrokerUnavailableError(
                f"the connection to {self} is closed: {self._closed_because}"
            )

    def _check_version(self, api: ApiKey, version: int) -> None:
        lowest, highest = self._versions.get(api, (0, -1))
        if not lowest <= version <= highest:
            supported = f"only {lowest} to {highest}" if highest >= 0 else "no such request"
            raise UnsupportedVersionError(
                f"{self} does not support {api.title} v{version}, {supported}"
            )

    def _fail(self, error: BaseException, what: str) -> None:
        """End the connection: the position of the next response in the stream is unknown.

        Raises:
            BrokerUnavailableError: `error` is a network error, a timeout or a TLS error.
        """
        if not isinstance(error, OSError):
            self._end(f"{what}: {error}")
            return
        reason = f"{what}: {error}"
        # The first request already failed: most often the listener expects TLS, or does not.
        if not self._versions:
            reason += "; does security.protocol fit this listener?"
        self._end(reason)
        raise BrokerUnavailableError(f"{self}: {reason}") from error

    def _end(self, reason: str) -> None:
        # The first reason is the cause, and later ones are its consequences.
        if self._closed_because is None:
            self._closed_because = reason
        self._in_flight.clear()
        self._received.clear()
        with suppress(OSError):
            self._socket.close()


class _Frames:
    """Buffers for large responses, reused once nothing refers to them.

    The first write to new memory costs more CPU time than copying the response itself. The next
    small response frees the buffers.
    """

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Return a writable buffer of `size` bytes with undefined content."""
        if size < _KEPT_FROM:
            self._kept.clear()
            return memoryview(bytearray(size))
        for frame in self._kept:
            if len(frame) >= size and not is_exported(frame):
                return memoryview(frame)[:size]
        self._kept = [frame for frame in self._kept if is_exported(frame)]
        # Round up, so that responses of slightly different sizes can reuse the buffer.
        frame = bytearray(-(-size // _KEPT_FROM) * _KEPT_FROM)
        self._kept.append(frame)
        return memoryview(frame)[:size]


def _offered(response: Any) -> dict[int, tuple[int, int]]:  # noqa: ANN401 - kio's
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def _behind(buffers: Sequence[Buffer], size: int) -> Sequence[Buffer]:
    """Return the buffers without their first `size` bytes."""
    for number, buffer in enumerate(buffers):
        if size < len(buffer):
            return [memoryview(buffer)[size:], *buffers[number + 1 :]]
        size -= len(buffer)
    return ()


def _join_small(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the same bytes with adjacent small buffers joined; large buffers are not copied."""
    small = bytearray()
    for buffer in buffers:
        if len(buffer) < _JOINED_BELOW:
            small += buffer
            continue
        if small:
            yield small
            small = bytearray()
        yield buffer
    if small:
        yield small
