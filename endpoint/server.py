"""The listener, and one thread for each connection."""

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sidetier.endpoint.connection import Connection, DropError, ServerSettings, Service
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.segments.errors import ConfigurationError, MalformedRequestError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger

log = logger()

_BACKLOG: Final = 512


class Endpoint:
    """Serves clients until `stop`.

    Args:
        service: Answers the requests.
        metrics: Counts.
        settings: Bounds.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        service: Service,
        metrics: EndpointMetrics,
        settings: ServerSettings | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._service = service
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

    @property
    def is_full(self) -> bool:
        """Whether the next connection would be refused."""
        return self.open_connections >= self._settings.max_connections

    def _admit(self, connection: socket.socket, client: str) -> None:
        with self._guard:
            is_full = self.is_full
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

    def _run(self, client_socket: socket.socket, client: str) -> None:
        connection = Connection(
            client_socket, client, self._service, self._metrics, self._settings, self._clock
        )
        try:
            client_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._stopping.is_set() and connection.serve_one():
                pass
        except DropError as error:
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
            connection.close()
            self._forget(client_socket)

    def _dropped(self, reason: str, client: str, error: Exception) -> None:
        self._metrics.dropped.labels(reason).inc()
        log.info("endpoint.connection_dropped", client=client, reason=reason, detail=str(error))


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
