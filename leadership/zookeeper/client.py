"""The client interface of the ZooKeeper source, and its implementation with kazoo."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent, ZnodeStat

from sidetier.leadership.settings import ZookeeperSettings, ZookeeperTls
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:  # kazoo's own class takes no parameters
    from kazoo.interfaces import IAsyncResult

_CONNECTION_RETRY = {"max_tries": -1, "delay": 0.1, "max_delay": 2.0}


class Session(Enum):
    """State of the ZooKeeper session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The connection is lost; the session may still exist. All watches are gone."""
    LOST = "lost"
    """The session expired; the client opens a new one."""
    REFUSED = "refused"
    """ZooKeeper rejected the credentials. The client does not try again."""


@dataclass(frozen=True, slots=True)
class Data:
    """Content of a node."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Children:
    """Names of a node's children."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """The node does not exist."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The node could not be read."""

    error: Exception


Outcome = Data | Children | Missing | Failed
OnOutcome = Callable[[Outcome], None]
OnFired = Callable[[str], None]


class TreeClient(Protocol):
    """Reads and watches nodes. Callbacks run on the client's threads and must return quickly."""

    def start(self, on_session: Callable[[Session], None], on_fired: OnFired) -> None:
        """Start to connect, and retry without a time limit.

        Args:
            on_session: Called with each change of the session's state.
            on_fired: Called with the path whose watch fired.

        Raises:
            ConfigurationError: The client can never connect with its configuration.
        """
        ...

    def read(self, path: str, on_outcome: OnOutcome) -> None:
        """Read a node's data and set a one-time watch; also on the creation of a missing node."""
        ...

    def read_children(self, path: str, on_outcome: OnOutcome) -> None:
        """Read a node's children and set a one-time watch, as `read` does."""
        ...

    def stop(self) -> None:
        """End the session. No further callback runs afterwards. May be called twice."""
        ...


class KazooTreeClient:
    """`TreeClient` on kazoo. A watch is a hint to read again; it may fire without a change."""

    def __init__(self, settings: ZookeeperSettings) -> None:
        self._settings = settings
        self._client: KazooClient | None = None
        self._on_fired: OnFired = lambda _: None

    def start(self, on_session: Callable[[Session], None], on_fired: OnFired) -> None:
        """Start to connect."""
        client = self._client = _kazoo(self._settings)
        self._on_fired = on_fired

        def listener(state: str) -> None:
            if state == KazooState.CONNECTED:
                on_session(Session.CONNECTED)
            elif state == KazooState.SUSPENDED:
                on_session(Session.SUSPENDED)
            # kazoo reports refused credentials as LOST.
            # Only the client's own state distinguishes them.
            elif client.client_state == KeeperState.AUTH_FAILED:
                on_session(Session.REFUSED)
            else:
                on_session(Session.LOST)

        client.add_listener(listener)
        client.start_async()

    def read(self, path: str, on_outcome: OnOutcome) -> None:
        """Read a node's data and watch it."""

        def take(result: "IAsyncResult[tuple[bytes, ZnodeStat]]") -> None:
            if isinstance(result.exception, NoNodeError):
                # A read of a missing node sets no watch; only `exists` does.
                self._await_creation(path, on_outcome, self.read)
            elif isinstance(result.exception, Exception):
                on_outcome(Failed(result.exception))
            else:
                on_outcome(Data(result.get_nowait()[0]))

        if (client := self._client) is not None:  # after `stop` no caller waits for an outcome
            # The watch is set with the read, so no change in between is missed.
            client.get_async(path, watch=self._fired).rawlink(take)

    def read_children(self, path: str, on_outcome: OnOutcome) -> None:
        """Read a node's children and watch them."""

        def take(result: "IAsyncResult[list[str]]") -> None:
            if isinstance(result.exception, NoNodeError):
                self._await_creation(path, on_outcome, self.read_children)
            elif isinstance(result.exception, Exception):
                on_outcome(Failed(result.exception))
            else:
                on_outcome(Children(tuple(result.get_nowait())))

        if (client := self._client) is not None:
            client.get_children_async(path, watch=self._fired).rawlink(take)

    def stop(self) -> None:
        """End the session."""
        # First, so that a callback of the ending session sends no further read.
        client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    def _await_creation(
        self, path: str, on_outcome: OnOutcome, again: Callable[[str, OnOutcome], None]
    ) -> None:
        """Watch a node that was just missing; call `again` if it exists by now."""

        def take(result: "IAsyncResult[ZnodeStat | None]") -> None:
            if isinstance(result.exception, Exception):
                on_outcome(Failed(result.exception))
            elif result.get_nowait() is None:
                on_outcome(Missing())
            else:
                again(path, on_outcome)

        if (client := self._client) is not None:
            client.exists_async(path, watch=self._fired).rawlink(take)

    def _fired(self, event: WatchedEvent) -> None:
        if event.path is not None:  # None: the connection was lost, and with it all watches
            self._on_fired(event.path)


def _kazoo(settings: ZookeeperSettings) -> KazooClient:
    if settings.sasl is not None and importlib.util.find_spec("puresasl") is None:
        raise ConfigurationError(
            "SASL authentication to ZooKeeper needs the package pure-sasl; install it"
        )
    tls = settings.tls or ZookeeperTls()
    try:
        return KazooClient(
            settings.connect,
            settings.session_timeout,
            auth_data=settings.auth,
            sasl_options=settings.sasl,
            connection_retry=_CONNECTION_RETRY,
            use_ssl=settings.tls is not None,
            ca=_text(tls.ca),
            certfile=_text(tls.certificate),
            keyfile=_text(tls.key),
            keyfile_password=tls.key_password,
            verify_certs=tls.verify,
            # Python refuses a check of the host name without a check of the certificate.
            check_hostname=tls.check_hostname and tls.verify,
        )
    except (KazooException, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"zookeeper.connect {settings.connect!r} is not valid: {error}"
        ) from error


def _text(path: object | None) -> str | None:
    return None if path is None else str(path)
