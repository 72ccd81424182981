"""What the HTTP servers of tests have in common: a thread that serves, and a handler's manners."""

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from sidetier.sandbox.ports import HOST


class _Server(ThreadingHTTPServer):
    """A thread per connection, and an end that closes connections too."""

    daemon_threads = True
    # With the default of 5, of forty clients that connect at once some wait a second and try again.
    request_queue_size = 128

    def __init__(self, handler: type["MisbehavingHandler"]) -> None:
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((HOST, 0), handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base's
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - the base's
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def disconnect(self) -> None:
        """End the connections that clients keep open: else threads go on serving them."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class MisbehavingServer:
    """Serves between `with` and its end; `released` is set at the end, and ends what hangs."""

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
        """The endpoint for a client."""
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
    """One way in for every method, bodies on demand, and no word on a broken connection."""

    protocol_version = "HTTP/1.1"
    command: str

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Nothing: tests look at `seen`."""

    def handle_expect_100(self) -> bool:
        """A fault strikes before the body is asked for; else it is asked for when it is wanted."""
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
        """The object's, without the bucket."""
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
