"""A relay in front of a Kafka server that searches everything that clients get for addresses."""

import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from sidetier.brokers.ports import HOST, free_port
from sidetier.wire.protocol import ApiKey
from sidetier.wire.settings import Address

_CHUNK: Final = 1 << 16
_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">h")
_PORT: Final = struct.Struct(">i")
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: a close is a reset, as when a process is killed."""
_WITH_NUMBERS: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
    }
)
"""Answers with offsets, sizes and records, in which the four bytes of a port occur by chance."""


@dataclass(frozen=True, slots=True)
class Found:
    """An address that a client got: the request, the address, and the bytes around it."""

    request: str
    address: str
    around: bytes


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses that no client may get. Their hosts must be those of nothing else."""

    known: Collection[Address]

    def find(self, api: int, answer: bytes) -> list[Found]:
        """Return the addresses that the bytes of an answer contain.

        The host in any answer; the port as text in any answer, and as a number where numbers that
        are not ports are rare.
        """
        found = []
        for host, port in self.known:
            wanted = [host.encode(), f":{port}".encode()]
            if api not in _WITH_NUMBERS:
                wanted.append(_PORT.pack(port))
            for each in wanted:
                at = answer.find(each)
                if at >= 0:
                    around = answer[max(at - 40, 0) : at + 40]
                    found.append(Found(name_of(api), f"{host}:{port}", around))
        return found


def name_of(api: int) -> str:
    """Return the name of a request."""
    return ApiKey(api).title if api in set(ApiKey) else f"request {api}"


@dataclass(slots=True)
class _Way:
    """One direction of a connection, cut into frames."""

    buffer: bytearray = field(default_factory=bytearray)

    def frames(self, data: bytes) -> list[bytes]:
        """Take bytes, and return the frames that are complete now, without their sizes."""
        self.buffer += data
        whole = []
        while len(self.buffer) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(self.buffer)[0]
            if len(self.buffer) < end:
                break
            whole.append(bytes(self.buffer[_SIZE.size : end]))
            del self.buffer[:end]
        return whole


class RecordingRelay:
    """Passes all bytes on, in both directions, and searches each answer. Leaving the context ends
    it.

    Args:
        addresses: What no answer may contain.

    Attributes:
        server: Address of the server, set before the start.
        answers: Number of answers by request.
        found: What was found.
    """

    def __init__(self, addresses: Addresses) -> None:
        self.server = Address(HOST, 0)
        self.port = free_port()
        self.answers: Counter[str] = Counter()
        self.found: list[Found] = []
        self._addresses = addresses
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Accept connections, again at the same address."""
        self._listener = socket.create_server((HOST, self.port), backlog=128)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and reset those that are open: as if the server was killed."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._guard:
            ended = list(self._open)
        for each in ended:
            _reset(each)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.server, timeout=10)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._guard:
            self._open |= {client, server}
        asked: deque[int] = deque()
        for run in (self._pass_requests, self._pass_answers):
            threading.Thread(target=run, args=(client, server, asked), daemon=True).start()

    def _pass_requests(
        self, client: socket.socket, server: socket.socket, asked: deque[int]
    ) -> None:
        way = _Way()
        with suppress(OSError):
            while data := client.recv(_CHUNK):
                # First, because the answer may be here before this thread goes on.
                asked += [_HEADER.unpack_from(frame)[0] for frame in way.frames(data)]
                server.sendall(data)
        self._end(client, server)

    def _pass_answers(
        self, client: socket.socket, server: socket.socket, asked: deque[int]
    ) -> None:
        way = _Way()
        with suppress(OSError):
            while data := server.recv(_CHUNK):
                client.sendall(data)
                for frame in way.frames(data):
                    self._search(asked.popleft(), frame)
        if way.buffer:  # of an answer that was cut off
            self._search(asked.popleft() if asked else -1, bytes(way.buffer))
        self._end(client, server)

    def _end(self, client: socket.socket, server: socket.socket) -> None:
        with self._guard:
            self._open -= {client, server}
        _reset(client)
        _reset(server)

    def _search(self, api: int, answer: bytes) -> None:
        found = self._addresses.find(api, answer)
        with self._guard:
            self.answers[name_of(api)] += 1
            self.found += found


def _reset(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
