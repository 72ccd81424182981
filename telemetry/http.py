"""HTTP server of `sidetier run` and `sidetier serve`: bounds on connections, threads, memory, time.

Waitress reads requests on one thread, so a slow or half-open connection costs a file descriptor
and no thread. This module enforces time limits: waitress' own timeout restarts with each byte, and
never closes a connection whose client has stopped reading (ADR 40).
"""

import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from sidetier.config.model import local_url
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

MAX_CONNECTIONS: Final = 64
"""Beyond this number, the server closes the connection that has waited longest."""
WORKER_THREADS: Final = 4
CONNECTION_SECONDS: Final = 20.0
"""Time limit of a connection between requests. Longer than a probe or a scrape takes; the next
scrape opens a new connection.
"""
MAX_BUFFERED_BYTES: Final = 64 * 1024**2
"""Limit on response bytes that clients have not read yet, over all connections."""
_MAX_HEADER_BYTES: Final = 16 * 1024
_MAX_BODY_BYTES: Final = 1024  # no path takes a body
_NEVER: Final = 2**40  # answers never go to temporary files, and never block a worker
_LOOP_SECONDS: Final = 0.25
_UNDISTURBED_SECONDS: Final = 0.25
"""Time in which a new connection can send its request before it may be closed for another one."""
_LISTEN_BACKLOG: Final = 1024
_PAUSE_SECONDS: Final = 1.0


class _Channel(HTTPChannel):
    """One connection. It is closed at `deadline`, which a complete request extends."""

    server: "_Server"
    requests: list[Any]
    requests_lock: threading.Lock

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401 -- waitress' own
        super().__init__(*arguments, **keywords)
        self.deadline = time.monotonic() + self.server.connection_seconds

    def readable(self) -> bool:
        """Whether to wait for data. False once closed: the next connection may get its file
        descriptor.
        """
        return self.connected and super().readable()

    def writable(self) -> bool:
        """Whether to wait until data can be sent. False once closed, as in `readable`."""
        return self.connected and bool(super().writable())

    def received(self, data: bytes) -> bool:
        """Take data from the client. Only a complete request extends the deadline, not each byte.

        Pipelined requests are dropped: 370 of them fit into one read, and their responses would
        stay in memory while the client reads none of them.
        """
        taken = super().received(data)
        with self.requests_lock:
            if self.requests:
                self.deadline = time.monotonic() + self.server.connection_seconds
            del self.requests[1:]
        return taken


class _Server(TcpWSGIServer):
    channel_class = _Channel
    connection_seconds = CONNECTION_SECONDS
    _accept_again = 0.0

    def readable(self) -> bool:
        """Whether a connection may be accepted. Called before each poll; also closes overdue
        connections.
        """
        now = time.monotonic()
        # A worker writes to a connection while `requests` is not empty: do not close it.
        idle: list[_Channel] = sorted(
            (channel for channel in self._channels() if not channel.requests),
            key=lambda channel: channel.deadline,
        )
        buffered = sum(channel.total_outbufs_len for channel in idle)
        open_connections = len(self._channels())
        for channel in idle:
            over = buffered > MAX_BUFFERED_BYTES and channel.total_outbufs_len
            waited = channel.deadline - self.connection_seconds + _UNDISTURBED_SECONDS <= now
            in_the_way = waited and open_connections >= MAX_CONNECTIONS
            if channel.deadline <= now or in_the_way or over:
                buffered -= channel.total_outbufs_len
                open_connections -= 1
                # Not `will_close`, which waits until the client has read everything.
                channel.handle_close()
        may_accept = open_connections < MAX_CONNECTIONS and now >= self._accept_again
        return may_accept and super().readable()

    def _channels(self) -> list[_Channel]:
        return list(self.active_channels.values())  # type: ignore[attr-defined]  # wrong stub

    def handle_accept(self) -> None:
        """Accept a connection. Without a free file descriptor, wait: the event stays pending."""
        before = len(self._channels())
        super().handle_accept()
        if len(self._channels()) == before:
            # For a pending event, poll returns at once: without a pause the loop would use a core.
            self._accept_again = time.monotonic() + _PAUSE_SECONDS

    def maintenance(self, now: float) -> None:
        """Ignore the call: `readable` closes overdue connections."""


class HttpServer:
    """Serves a WSGI application on its own threads.

    Args:
        host: address to listen on; `::` accepts IPv4, too.
        port: 0 to let the system choose; after `start` the property `port` has the number.
        application: handles requests, on the worker threads.
        connection_seconds: maximum time between two requests of a connection, and for a client to
            read a response.
        settings: names of the settings of host and port, for errors.
    """

    def __init__(
        self,
        host: str,
        port: int,
        application: "WSGIApplication",
        connection_seconds: float = CONNECTION_SECONDS,
        settings: str = "http.host, http.port",
    ) -> None:
        self._host = host.strip("[]")
        self._wanted_port = self._port = port
        self._application = application
        self._connection_seconds = connection_seconds
        self._settings = settings
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def port(self) -> int:
        """The port; before `start`, the configured one."""
        return self._port

    @property
    def url(self) -> str:
        """The address for a client on this host."""
        return local_url(self._host, self.port)

    def start(self) -> None:
        """Serve until `stop`. Returns once connections are accepted.

        Raises:
            ConfigurationError: the port is taken, or the host is not an address of this machine.
        """
        try:
            listener = self._listen()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            text = (
                f"{self._settings}: cannot listen on {self._host} port "
                f"{self._wanted_port}: {reason}"
            )
            raise ConfigurationError(text) from error
        self._port = listener.getsockname()[1]
        self._stopping.clear()
        connections: dict[int, Any] = {}
        self._server = _Server(
            self._application,
            connections,
            True,  # noqa: FBT003 -- waitress' own order of arguments
            listener,
            ThreadedTaskDispatcher(),
            _adjustments(),
            (listener.family, listener.type, listener.proto, listener.getsockname()),
            bind_socket=False,
        )
        self._server.connection_seconds = self._connection_seconds
        self._server.task_dispatcher.set_thread_count(WORKER_THREADS)
        self._thread = threading.Thread(
            target=self._serve, args=(self._server, connections), name="http", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        """Start, as `start` does."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, as `stop` does."""
        self.stop()

    def alive(self) -> bool:
        """Whether the server was started and its thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Close the port. May be called twice, and before `start`."""
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is None or thread is None:
            return
        self._stopping.set()
        with contextlib.suppress(OSError):  # the thread has ended already
            server.pull_trigger()
        thread.join()
        self._port = self._wanted_port

    def _listen(self) -> socket.socket:
        """Return the listening socket. `::` accepts IPv4, too, if the system supports it."""
        if ":" not in self._host:
            return socket.create_server((self._host, self._wanted_port), backlog=_LISTEN_BACKLOG)
        return socket.create_server(
            (self._host, self._wanted_port),
            family=socket.AF_INET6,
            backlog=_LISTEN_BACKLOG,
            dualstack_ipv6=self._host == "::" and socket.has_dualstack_ipv6(),
        )

    def _serve(self, server: _Server, connections: dict[int, Any]) -> None:
        try:
            while not self._stopping.is_set():
                # poll, because select refuses file descriptors of 1024 and above
                wasyncore.loop(_LOOP_SECONDS, use_poll=True, map=connections, count=1)
        finally:
            wasyncore.close_all(connections, ignore_all=True)
            server.task_dispatcher.shutdown()


def _adjustments() -> Adjustments:
    logging.getLogger("waitress.queue").setLevel(
        logging.ERROR
    )  # waitress logs a warning for each request that waits for a worker
    return Adjustments(
        connection_limit=2 * MAX_CONNECTIONS,  # never reached: `_Server.readable` has the limit
        backlog=_LISTEN_BACKLOG,
        max_request_header_size=_MAX_HEADER_BYTES,
        max_request_body_size=_MAX_BODY_BYTES,
        outbuf_overflow=_NEVER,
        outbuf_high_watermark=_NEVER,
        log_socket_errors=False,
        ident=None,
    )
