"""Base of the HTTP servers with faults: a serving thread, and a handler."""

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from sidetier.brokers.ports import HOST


class _Server(ThreadingHTTPServer):
    """A server with a thread per connection, which closes its connections when it ends."""

    daemon_threads = True
    # With the default backlog of 5, some of forty simultaneous clients wait a second and retry.
    request_queue_size = 128

    def __init__(self, handler: type["MisbehavingHandler"]) -> None:
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((HOST, 0), handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - signature of the base class
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - signature of the base class
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def disconnect(self) -> None:
        """Close clients' idle connections, because threads would continue to serve them."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class MisbehavingServer:
    """Serves while its context is entered.

    `released` is set at the end, and frees hanging requests.
    """

    def __init__(
        self, handler: type["MisbehavingHandler"], context: ssl.SSLContext | None = None
    ) -> None:
        self._server = _Server(handler)
        self._scheme = "http"
        if context is not None:
            self._scheme = "https"
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.owner = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.released = threading.Event()

    @property
    def port(self) -> int:
        """The port, which the system chose."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """URL for a client."""
        return f"{self._scheme}://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.disconnect()
        self._server.server_close()


class MisbehavingHandler(BaseHTTPRequestHandler):
    """Handles every method in `serve`, reads bodies on demand, and ignores broken connections."""

    protocol_version = "HTTP/1.1"
    command: str

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - name in the base class
        """Log nothing: tests read `seen`."""

    def handle_expect_100(self) -> bool:
        """Apply a fault before the body is requested; otherwise leave that to `read_body`."""
        return True

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, http.client.HTTPException, ValueError):
            self.close_connection = True

    def serve(self) -> None:
        """Answer a request of any method."""
        raise NotImplementedError

    def do_PUT(self) -> None:
        self.serve()

    def do_GET(self) -> None:
        self.serve()

    def do_HEAD(self) -> None:
        self.serve()

    def do_DELETE(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    @property
    def key(self) -> str:
        """Key of the object, without the bucket."""
        return unquote(urlsplit(self.path).path).partition("/")[2].partition("/")[2]

    def read_body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def cut(self) -> None:
        """Close the connection with a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()
        self.close_connection = True
