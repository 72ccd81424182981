"""The HTTP side: `/metrics`, `/healthz`, `/readyz`, `/api/partitions`."""

import socket
import threading
from socketserver import ThreadingMixIn
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry

from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry.pages import Application
from sidetier.telemetry.status import StatusSource

_POLL_SECONDS: Final = 0.1
_REQUEST_TIMEOUT: Final = 10.0


class _Handler(WSGIRequestHandler):
    """Silent, since every probe and scrape would be a line; a stalled client is let go."""

    timeout = _REQUEST_TIMEOUT

    def log_message(self, *_arguments: object) -> None:
        """Nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """Without the reverse look-up of the host's name, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no event of ours."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class HttpServer:
    """Serves the status on threads of its own; nothing that a client does holds up the daemon."""

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, source: StatusSource
    ) -> None:
        """`port` 0 lets the system choose; `port` tells which after `start`."""
        self._host = host.strip("[]")
        self._port = port
        self._application = Application(registry, source)
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is served, or is to be."""
        return self._server.server_port if self._server is not None else self._port

    @property
    def url(self) -> str:
        """The address for a client on this host."""
        any_address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 -- mapped
        host = any_address.get(self._host, self._host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def start(self) -> None:
        """Serve until `stop`; returns once connections are accepted.

        Raises:
            ConfigurationError: the port is taken or the host is none of this machine's.
        """
        server_class = _Server6 if ":" in self._host else _Server
        try:
            self._server = make_server(
                self._host, self._port, self._application, server_class, _Handler
            )
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            text = (
                f"http.host, http.port: cannot listen on {self._host} port {self._port}: {reason}"
            )
            raise ConfigurationError(text) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="http", daemon=True
        )
        self._thread.start()

    def alive(self) -> bool:
        """Whether it is started and its thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Close the port; may be called twice, also before `start`."""
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is not None and thread is not None:
            self._port = server.server_port if self._port else 0
            server.shutdown()
            server.server_close()
            thread.join()
