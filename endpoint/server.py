"""The listener, and one thread for each connection."""

import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from sidetier.endpoint.connection import (
    MIN_TIMEOUT,
    SLOW_READER,
    Connection,
    DropError,
    ServerSettings,
    Service,
    shut_down,
)
from sidetier.endpoint.log_limits import AtMostEvery, FewPerSubject
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.reloading import Reloaded
from sidetier.endpoint.session import ANONYMOUS, Session
from sidetier.endpoint.tls import TlsHandshakeError, begins_with_tls, shake_hands
from sidetier.segments.errors import ConfigurationError, MalformedRequestError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger

log = logger()

_BACKLOG: Final = 512
_LOG_SECONDS: Final = 10.0
"""Least time between two events for refused connections, and between two for slow readers; each has
the number since the last.
"""
_CHECK_SECONDS: Final = 0.5
"""Time between two searches for late clients, and most time of a wait for a new connection."""


class Endpoint:
    """Serves clients until `stop`.

    Args:
        service: Answers the requests.
        metrics: Counts.
        settings: Bounds.
        tls: The certificates of the listener; None for connections without TLS.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        service: Service,
        metrics: EndpointMetrics,
        settings: ServerSettings | None = None,
        tls: Reloaded[ssl.SSLContext] | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._settings = settings or ServerSettings()
        self._tls = tls
        self._clock = clock
        self._guard = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._serving: dict[threading.Thread, Connection] = {}
        """Those of `_connections` that are past their TLS handshake."""
        self._hosts: Counter[str] = Counter()
        self._stopping = threading.Event()
        # A client that is refused connects again at once.
        self._refusals = AtMostEvery(_LOG_SECONDS, clock)
        self._slow_readers = AtMostEvery(_LOG_SECONDS, clock)
        self._events = FewPerSubject(clock)
        self._next_check = clock()

    def serve(self, listener: socket.socket) -> None:
        """Accept connections, and end those of late clients, until `stop`.

        The listener is closed at the end.
        """
        # `close` in another thread does not wake `accept`.
        listener.settimeout(_CHECK_SECONDS)
        with listener:
            while not self._stopping.is_set():
                self._end_late_clients()
                try:
                    connection, address = listener.accept()
                except TimeoutError:
                    continue
                except OSError as error:
                    # Such as EMFILE: wait for connections to end, do not spin.
                    log.warning("endpoint.accept_failed", error=str(error))
                    self._stopping.wait(0.5)
                    continue
                # On a dual-stack listener, the address of an IPv4 client begins like this.
                self._admit(connection, address[0].removeprefix("::ffff:"), address[1])

    def stop(self, wake: Callable[[], object] = lambda: None) -> None:
        """Stop: accept nothing more, finish the answers that are being sent, close all.

        Args:
            wake: Ends the waits of long polls.
        """
        self._stopping.set()
        wake()
        with self._guard:
            # A thread that has not started yet ends by itself, and cannot be joined.
            connections = {
                thread: connection
                for thread, connection in self._connections.items()
                if thread.ident is not None
            }
        for connection in connections.values():
            shut_down(connection, socket.SHUT_RD)  # a thread that waits for a request ends
        self._join(connections, self._settings.drain)
        for connection in connections.values():
            shut_down(connection, socket.SHUT_RDWR)
        self._join(connections, 1.0)

    def _join(self, threads: Iterable[threading.Thread], timeout: float) -> None:
        """Wait for all threads, for up to `timeout` seconds together."""
        deadline = self._clock() + timeout
        for thread in threads:
            thread.join(max(deadline - self._clock(), 0.0))

    @property
    def open_connections(self) -> int:
        """Number of connections that are open now."""
        return len(self._connections)

    @property
    def max_connections(self) -> int:
        """Number of connections that may be open."""
        return self._settings.max_connections

    @property
    def is_full(self) -> bool:
        """Whether the next connection would be refused."""
        return self.open_connections >= self.max_connections

    def _end_late_clients(self) -> None:
        """End the connections of clients that are late: see `Connection.end_if_late`."""
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_SECONDS
        with self._guard:
            serving = list(self._serving.values())
        for connection in serving:
            connection.end_if_late(now)

    def _admit(self, connection: socket.socket, host: str, port: int) -> None:
        client = shown(host, port)
        with self._guard:
            bound = self._bound_reached(host)
            if bound is None:
                thread = threading.Thread(
                    target=self._run,
                    args=(connection, host, client),
                    name="endpoint-client",
                    daemon=True,
                )
                # Before the thread starts: `stop` must find it, and the thread's end removes it.
                self._connections[thread] = connection
                self._hosts[host] += 1
        if bound is not None:
            connection.close()
            self._metrics.refused.inc()
            if refused := self._refusals.count():
                log.warning(
                    "endpoint.connections_full", client=client, bound=bound, refused=refused
                )
            return
        self._metrics.accepted.inc()
        self._metrics.connections.inc()
        try:
            thread.start()
        except RuntimeError as error:  # the system allows no more threads
            log.warning("endpoint.accept_failed", client=client, error=str(error))
            self._forget(thread, host)

    def _bound_reached(self, host: str) -> str | None:
        settings = self._settings
        if self.is_full:
            return f"--max-connections {settings.max_connections}"
        if self._hosts[host] >= settings.max_connections_per_host:
            return f"--max-connections-per-host {settings.max_connections_per_host}"
        return None

    def _forget(self, thread: threading.Thread, host: str) -> None:
        with self._guard:
            connection = self._connections.pop(thread)
            self._serving.pop(thread, None)
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
        self._metrics.connections.dec()
        connection.close()

    def _run(self, client_socket: socket.socket, host: str, client: str) -> None:
        session = Session(client)
        try:
            self._serve(client_socket, session)
        except DropError as error:
            self._dropped(error.reason, client, error)
        except MalformedRequestError as error:
            self._dropped("malformed", client, error)
        except TlsHandshakeError as error:
            self._dropped("tls", client, error)
        except (ConnectionError, ssl.SSLError) as error:
            log.debug("endpoint.connection_lost", client=client, error=str(error))
        except OSError as error:
            self._dropped("failed", client, error)
        except Exception:
            # One request must not end the process, nor the service for other clients.
            self._metrics.dropped.labels("failed").inc()
            if requests := self._events.count((host, "request_failed")):
                log.exception("endpoint.request_failed", client=client, requests=requests)
        finally:
            session.closing.close()
            self._forget(threading.current_thread(), host)

    def _serve(self, client_socket: socket.socket, session: Session) -> None:
        login_by = self._clock() + self._settings.login
        client_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            if not begins_with_tls(client_socket, self._settings.login):
                return
            client_socket = self._encrypted(client_socket, self._tls.current())
            left = max(login_by - self._clock(), MIN_TIMEOUT)
            session.principal = shake_hands(client_socket, left) or ANONYMOUS
        connection = Connection(
            client_socket,
            session,
            self._service,
            self._metrics,
            self._settings,
            login_by=login_by,
            wait=self._stopping.wait,
            clock=self._clock,
        )
        with self._guard:
            self._serving[threading.current_thread()] = connection
        while not self._stopping.is_set() and connection.serve_one():
            pass

    def _encrypted(self, plain: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Return the socket that takes the place of `plain`, before its handshake."""
        with self._guard:
            # `stop` either finds the new socket, or has set the event before.
            encrypted = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            self._connections[threading.current_thread()] = encrypted
        if self._stopping.is_set():
            raise ConnectionAbortedError("the endpoint stops")
        return encrypted

    def _dropped(self, reason: str, client: str, error: Exception) -> None:
        self._metrics.dropped.labels(reason).inc()
        host = client.rpartition(":")[0]
        is_slow = reason == SLOW_READER
        connections = self._slow_readers.count() if is_slow else self._events.count((host, reason))
        if connections:
            log.info(
                "endpoint.connection_dropped",
                client=client,
                reason=reason,
                detail=str(error),
                connections=connections,
            )


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address; port 0 lets the system choose.

    `::` is all addresses of this host, IPv4 and IPv6; without IPv6, all its IPv4 addresses.

    Raises:
        ConfigurationError: The address cannot be listened at.
    """
    is_dual_stack = host == "::" and socket.has_dualstack_ipv6()
    if host == "::" and not is_dual_stack:
        host = "0.0.0.0"  # noqa: S104 -- the caller asks for all addresses
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual_stack
        )
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {shown(host, port)}: {error}") from error
    return listener


def shown(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
