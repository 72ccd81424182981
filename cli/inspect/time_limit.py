"""HTTP requests with a time limit for the whole answer.

urllib's timeout is the longest silence: a server that sends a byte now and then would hold its
client for ever.
"""

import http.client
import socket
import ssl
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from threading import Lock, Timer
from types import TracebackType
from typing import Any, Self


class TimeLimit:
    """Cuts the connections of an opener after some seconds. A context manager, used once.

    Args:
        seconds: Time from the begin of the block.
        context: Trusted certificates; None for the system's.
        name_of_addresses: Name that a certificate must have if the URL has an address in place of a
            name; None for the address itself.

    Attributes:
        has_passed: Whether the connections were cut.
    """

    def __init__(
        self,
        seconds: float,
        context: ssl.SSLContext | None = None,
        name_of_addresses: str | None = None,
    ) -> None:
        self.has_passed = False
        self._seconds = seconds
        self._context = context
        self._name = name_of_addresses
        self._lock = Lock()
        self._sockets: list[socket.socket] = []
        self._timer = Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        """Begin to count."""
        self._timer.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Stop to count."""
        self._timer.cancel()
        with self._lock:
            for copy in self._sockets:
                copy.close()
            self._sockets.clear()

    def opener(self, *handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
        """Return an opener whose connections end with the limit."""
        own = _Handler(self._connection, self._secure_connection)
        return urllib.request.build_opener(own, *handlers)

    def _connection(self, host: str, **options: Any) -> http.client.HTTPConnection:  # noqa: ANN401 -- urllib's own
        connection = http.client.HTTPConnection(host, **options)
        connection._create_connection = self._connect  # type: ignore[attr-defined]  # noqa: SLF001 -- urllib3 sets it, too
        return connection

    def _secure_connection(self, host: str, **options: Any) -> http.client.HTTPConnection:  # noqa: ANN401 -- urllib's own
        context = self._context or ssl.create_default_context()
        connection = _NamedConnection(host, self._name, context=context, **options)
        connection._create_connection = self._connect  # type: ignore[attr-defined]  # noqa: SLF001 -- as above
        return connection

    def _connect(self, *arguments: Any, **options: Any) -> socket.socket:  # noqa: ANN401 -- those of the socket module
        made = socket.create_connection(*arguments, **options)
        # A copy: TLS takes the descriptor away from the socket, and urllib closes it before the
        # answer is read. A copy cuts the same connection.
        copy = made.dup()
        with self._lock:
            self._sockets.append(copy)
            if self.has_passed:
                _shut(copy)
        return made

    def _cut(self) -> None:
        with self._lock:
            self.has_passed = True
            for copy in self._sockets:
                _shut(copy)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the server has closed it
        connection.shutdown(socket.SHUT_RDWR)


class _NamedConnection(http.client.HTTPSConnection):
    """Checks that a certificate has the name of a service where the URL has an address of it."""

    def __init__(
        self,
        host: str,
        name: str | None,
        *,
        context: ssl.SSLContext,
        **options: Any,  # noqa: ANN401 -- urllib's own
    ) -> None:
        super().__init__(host, context=context, **options)
        self._trust = context
        self._name = name

    def connect(self) -> None:
        """Connect, and check the certificate."""
        http.client.HTTPConnection.connect(self)
        host = self._tunnel_host or self.host  # type: ignore[attr-defined]  # of a proxy
        name = self._name if self._name is not None and _is_address(host) else host
        self.sock = self._trust.wrap_socket(self.sock, server_hostname=name)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, plain: Callable[..., Any], secure: Callable[..., Any]) -> None:
        super().__init__()
        self._plain = plain
        self._secure = secure

    def http_open(self, request: urllib.request.Request) -> Any:  # noqa: ANN401 -- urllib's own
        return self.do_open(self._plain, request)

    def https_open(self, request: urllib.request.Request) -> Any:  # noqa: ANN401 -- urllib's own
        return self.do_open(self._secure, request)
