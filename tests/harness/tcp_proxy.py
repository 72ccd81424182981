"""A TCP proxy in front of one or several servers, as a load balancer that forwards TCP."""

import socket
from contextlib import suppress
from itertools import cycle
from threading import Thread
from typing import Self


class TcpProxy:
    """Forwards each connection to the next of its servers that accepts it.

    Args:
        targets: Addresses of the servers.
    """

    def __init__(self, *targets: tuple[str, int]) -> None:
        self._targets = targets
        self._turns = cycle(targets)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._stopped = False
        self.address = "{}:{}".format(*self._listener.getsockname())
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        """Close all connections, and accept no new ones."""
        self._is_cut = True
        self.end_connections()

    def mend(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def use(self, *targets: tuple[str, int]) -> None:
        """Forward to these servers from now on, and close all connections."""
        self._targets = ()
        self.add(*targets)
        self.end_connections()

    def add(self, *targets: tuple[str, int]) -> None:
        """Forward new connections to these servers, too."""
        self._targets += targets
        self._turns = cycle(self._targets)

    def end_connections(self) -> None:
        """Close all connections: their clients connect again."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections and the listener."""
        self._stopped = True
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = None if self._is_cut else self._connect()
            if far is None:
                near.close()
                continue
            self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _connect(self) -> socket.socket | None:
        for _ in self._targets:
            with suppress(OSError):
                return socket.create_connection(next(self._turns))
        return None

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for connection in (source, sink):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
