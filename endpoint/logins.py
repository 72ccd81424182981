"""Logins by SASL: PLAIN over TLS, SCRAM-SHA-256 and SCRAM-SHA-512.

Source: Kafka's `SaslServerAuthenticator`, KIP-43 (SaslHandshake), KIP-152 (SaslAuthenticate),
RFC 4616 (PLAIN), RFC 5802 (SCRAM). The SCRAM exchange is scramp's.
"""

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kio.schema.errors import ErrorCode
from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]  # ships no types

from sidetier.endpoint.log_limits import FewPerSubject
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.reloading import Reloaded
from sidetier.endpoint.session import ANONYMOUS, Answer, Request, Session
from sidetier.endpoint.users import SCRAM_MECHANISMS, Access, Credential, User, Users
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.token_bucket import TokenBucket
from sidetier.telemetry.logs import logger
from sidetier.wire.protocol import ApiKey, build_response, encode

log = logger()

PLAIN: Final = "PLAIN"
SASL_REQUESTS: Final[Mapping[ApiKey, tuple[int, int]]] = MappingProxyType(
    {ApiKey.SASL_HANDSHAKE: (1, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
)
"""SaslHandshake v0 is for clients older than Kafka 1.0: tokens follow it without requests around
them. Java's clients, librdkafka, kafka-python and aiokafka work without it.
"""
BEFORE_LOGIN: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
"""The requests that are answered before a login."""
_MAX_LOGGED: Final = 100
_MAX_TOKEN: Final = 4096
"""Largest token of a login, in bytes. SASLprep takes seconds for a user name of 64 KiB."""


class Logins:
    """The users, and the mechanisms of their logins. Thread-safe.

    Args:
        users: The users file.
        encrypted: Whether connections use TLS; PLAIN sends the password, and needs it.
        metrics: Counts logins.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        users: Reloaded[Users],
        metrics: EndpointMetrics,
        *,
        encrypted: bool,
        clock: Clock = monotonic,
    ) -> None:
        self.mechanisms = (PLAIN, *SCRAM_MECHANISMS) if encrypted else SCRAM_MECHANISMS
        self.users = users
        self.metrics = metrics
        self.failures = FewPerSubject(clock)
        """Of which hosts failures are logged."""
        self._clock = clock
        self._guard = threading.Lock()
        self._buckets: dict[str, TokenBucket] = {}

    def bucket(self, user: User) -> TokenBucket | None:
        """Return the bucket that all connections of a user share; None without a cap."""
        if user.bytes_per_second is None:
            return None
        with self._guard:
            bucket = self._buckets.get(user.name)
            if bucket is None or bucket.bytes_per_second != user.bytes_per_second:
                bucket = TokenBucket(user.bytes_per_second, self._clock)
                self._buckets[user.name] = bucket
            return bucket


class _RefusedError(Exception):
    """The token proves nothing. The text is for the client, as Kafka words it."""


class Login:
    """The login of one connection; for its thread.

    Args:
        logins: The users.
        session: The client's session. Its principal, access and cap are set at a login, and again
            when the users file changes.

    Attributes:
        is_complete: Whether the client has logged in.
        failure: Why the connection must be closed, after the answer is sent; None if it need not.
    """

    def __init__(self, logins: Logins, session: Session) -> None:
        self._logins = logins
        self._session = session
        self._users: Users | None = None
        self._mechanism: str | None = None
        self._exchange: _Exchange | None = None
        self._has_sasl_login = False
        session.access = Access()  # nothing before the login
        self.is_complete = False
        self.failure: str | None = None
        if session.principal != ANONYMOUS:
            user = logins.users.current().get(session.principal)
            # A user with a credential must not be impersonated by a certificate of that name.
            if user is not None and not user.credentials:
                self.is_complete = True
                self.refresh()

    def refresh(self) -> bool:
        """Apply a changed users file; return False if the user is not in it any more."""
        users = self._logins.users.current()
        if users is not self._users:
            user = users.get(self._session.principal)
            if user is None:
                return False
            self._users = users
            self._session.access = user.access
            self._session.bucket = self._logins.bucket(user)
        return True

    def answer(self, request: Request) -> Answer:
        """Answer SaslHandshake or SaslAuthenticate; see `failure`."""
        if request.api is ApiKey.SASL_HANDSHAKE:
            return self._answer_handshake(request)
        return self._answer_authenticate(request)

    def _answer_handshake(self, request: Request) -> Answer:
        asked: Any = request.decode()
        error = ErrorCode.none
        if asked.mechanism in self._logins.mechanisms:
            self._mechanism = asked.mechanism
            self._exchange = _Exchange(asked.mechanism)
        else:
            error = ErrorCode.unsupported_sasl_mechanism
            self._fail(f"mechanism {_shown(asked.mechanism)} is not offered")
        mechanisms = self._logins.mechanisms
        response = build_response(
            ApiKey.SASL_HANDSHAKE, request.version, error_code=error, mechanisms=mechanisms
        )
        return Answer(encode(response), error)

    def _answer_authenticate(self, request: Request) -> Answer:
        asked: Any = request.decode()
        token, error, message = b"", ErrorCode.none, None
        if self._exchange is None:
            error, message = ErrorCode.illegal_sasl_state, "SaslHandshake must come first"
        else:
            try:
                token = self._step(bytes(asked.auth_bytes))
            except _RefusedError as refused:
                error, message = ErrorCode.sasl_authentication_failed, str(refused)
        if message is not None:
            self._fail(message)
        response = build_response(
            ApiKey.SASL_AUTHENTICATE,
            request.version,
            error_code=error,
            error_message=message,
            auth_bytes=token,
            session_lifetime=0,  # no limit: the client need not log in again
        )
        return Answer(encode(response), error)

    def _step(self, token: bytes) -> bytes:
        exchange = self._exchange
        assert exchange is not None  # noqa: S101 - set by each accepted SaslHandshake
        users = self._logins.users.current()
        answer = exchange.step(token, users)
        if exchange.is_complete:
            self._complete(exchange.name)
        return answer

    def _complete(self, name: str) -> None:
        session = self._session
        if self._has_sasl_login and name != session.principal:
            raise _RefusedError(
                f"Cannot change principals during re-authentication from User:{session.principal} "
                f"to User:{name}"
            )
        session.principal = name
        self._users = None
        if not self.refresh():
            raise _RefusedError(_REFUSED)  # removed from the file since the first message
        self._exchange = None
        self.is_complete = self._has_sasl_login = True
        self._logins.metrics.logins.labels(self._mechanism, "success").inc()

    def _fail(self, reason: str) -> None:
        mechanism = self._mechanism or "none"
        self._logins.metrics.logins.labels(mechanism, "failure").inc()
        if logins := self._logins.failures.count(self._session.client.rpartition(":")[0]):
            log.warning(
                "endpoint.login_failed",
                client=self._session.client,
                user="" if self._exchange is None else _shown(self._exchange.name),
                mechanism=mechanism,
                error=reason,
                logins=logins,
            )
        self.failure = reason


_REFUSED: Final = "Authentication failed: Invalid username or password"


class _Exchange:
    """The messages of one login.

    Attributes:
        name: The user name that the client gave; empty before.
        is_complete: Whether the client has proved that it knows the password.
    """

    def __init__(self, mechanism: str) -> None:
        self.name = ""
        self.is_complete = False
        self._mechanism = mechanism
        self._scram: Any = None

    def step(self, token: bytes, users: Users) -> bytes:
        """Take the client's next message and return the answer.

        Raises:
            _RefusedError: The message is malformed, or the password is wrong.
        """
        if len(token) > _MAX_TOKEN:
            raise _RefusedError(f"Authentication failed: a token has at most {_MAX_TOKEN} bytes")
        if self._mechanism == PLAIN:
            self._plain(token, users)
            return b""
        try:
            return self._next_scram(token.decode(), users).encode()
        except (ScramException, UnicodeError):
            raise _RefusedError(
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {self._mechanism}"
            ) from None

    def _plain(self, token: bytes, users: Users) -> None:
        try:
            authorization_id, self.name, password = token.decode().split("\0")
        except ValueError:  # also UnicodeDecodeError
            raise _RefusedError(
                "Authentication failed: Invalid SASL/PLAIN response: expected 3 tokens"
            ) from None
        is_right = users.has_password(self.name, password)
        if not is_right:
            raise _RefusedError(_REFUSED)
        if authorization_id not in {"", self.name}:
            raise _RefusedError(
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            )
        self.is_complete = True

    def _next_scram(self, message: str, users: Users) -> str:
        if self._scram is None:

            def credential(name: str) -> Credential:
                self.name = name
                return users.credential(name, self._mechanism)

            self._scram = ScramMechanism(self._mechanism).make_server(credential)
            self._scram.set_client_first(message)
            return str(self._scram.get_server_first())
        self._scram.set_client_final(message)
        final = str(self._scram.get_server_final())
        self.is_complete = True
        return final


def _shown(name: str) -> str:
    """Return a name that a client sent, for a log: short, and without control characters."""
    return "".join(
        character if character.isprintable() else "?" for character in name[:_MAX_LOGGED]
    )
