"""A broker on a real socket that answers and fails as a test sets it."""

import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Final
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from sidetier.segments.offsets import TopicPartition
from sidetier.wire.protocol import ApiKey, build_entity, encode, known_versions
from sidetier.wire.settings import Address

HOST: Final = "127.0.0.1"
HANG_UP: Final = b""
"""Returned instead of a response: close the connection."""
_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")


@dataclass(frozen=True, slots=True)
class Received:
    """A request: its header, and its body as an entity of kio."""

    api: ApiKey
    version: int
    correlation_id: int
    client_id: str
    entity: Any

    def response(self, **values: object) -> bytes:
        """Return the body of a response of the same version."""
        return response_body(self.api, self.version, **values)


Answer = Callable[[Received], bytes | None]
"""Returns the body of a response, HANG_UP, or None to send no answer."""
Rewrite = Callable[[Received, bytes], bytes]
"""Changes the bytes of a whole frame. A frame that becomes shorter ends the connection."""


def response_body(api: ApiKey, version: int, **values: object) -> bytes:
    """Return the bytes that kio writes for a response."""
    return encode(build_entity(load_response_schema(api, version), values))


def led_by(
    broker: "FakeBroker",
    request: Received,
    *partitions: TopicPartition,
    topic_id: UUID | None = None,
    cluster_id: str | None = "cluster",
    leader: int = 1,
) -> bytes:
    """Answer Metadata for a cluster with one broker and at most one topic."""
    rows = tuple(
        {
            "error_code": ErrorCode.none,
            "partition_index": tp.partition,
            "leader_id": leader,
            "leader_epoch": 5,
            "replica_nodes": (1,),
            "isr_nodes": (1,),
            "offline_replicas": (),
        }
        for tp in partitions
    )
    topic = {
        "error_code": ErrorCode.none if partitions else ErrorCode.unknown_topic_or_partition,
        "name": next((named.name for named in request.entity.topics or ()), None),
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": rows,
        "topic_authorized_operations": 0,
    }
    host, port = broker.address
    return request.response(
        throttle_time=0,
        cluster_id=cluster_id,
        controller_id=1,
        error_code=ErrorCode.none,
        brokers=[{"node_id": 1, "host": host, "port": port, "rack": None}],
        topics=[topic] if request.entity.topics else [],
    )


def coordinated_by(broker: "FakeBroker", request: Received) -> bytes:
    """Answer FindCoordinator for a cluster with one broker."""
    host, port = broker.address
    return request.response(
        throttle_time=0,
        error_code=ErrorCode.none,
        error_message=None,
        node_id=1,
        host=host,
        port=port,
    )


def committed_by(
    request: Received, offsets: Mapping[int, int], error: ErrorCode = ErrorCode.none
) -> bytes:
    """Answer OffsetFetch for partitions of one topic, by their numbers."""
    (topic,) = request.entity.topics
    rows = [
        {
            "partition_index": number,
            "committed_offset": offsets.get(number, -1) if error is ErrorCode.none else -1,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": error,
        }
        for number in topic.partition_indexes
    ]
    return request.response(
        throttle_time=0,
        topics=[{"name": topic.name, "partitions": rows}],
        error_code=ErrorCode.none,
    )


@dataclass(slots=True)
class FakeBroker:
    """A broker that answers ApiVersions from `versions`, and other requests from `answers`.

    Each connection has a thread of its own. `received` has all requests in order of arrival.
    """

    address: Address
    versions: dict[ApiKey, tuple[int, int]]
    answers: dict[ApiKey, Answer] = field(default_factory=dict)
    rewrite: Rewrite = lambda _, frame: frame
    received: list[Received] = field(default_factory=list)
    piece_bytes: int = 1 << 20
    """Size of the pieces in which responses are sent, in bytes."""
    connections: int = 0

    def apis(self) -> list[ApiKey]:
        """Return the received requests, without ApiVersions."""
        return [each.api for each in self.received if each.api is not ApiKey.API_VERSIONS]

    def answer(self, request: Received) -> bytes | None:
        """Return the body of the response."""
        if request.api in self.answers:
            return self.answers[request.api](request)
        assert request.api is ApiKey.API_VERSIONS, f"no answer to {request.api.title}"
        return self.offer(request.version)

    def offer(self, version: int, error: ErrorCode = ErrorCode.none) -> bytes:
        """Return a response to ApiVersions."""
        api_keys = [
            {"api_key": api, "min_version": lowest, "max_version": highest}
            for api, (lowest, highest) in self.versions.items()
        ]
        values: dict[str, object] = {"error_code": error, "api_keys": api_keys}
        if version >= 1:
            values["throttle_time"] = 0
        return response_body(ApiKey.API_VERSIONS, version, **values)


@contextmanager
def fake_broker(
    versions: Mapping[ApiKey, tuple[int, int]] | None = None,
    *,
    context: ssl.SSLContext | None = None,
) -> Iterator[FakeBroker]:
    """Yield a listening broker. By default it supports the versions that `wire` knows."""
    with socket.create_server((HOST, 0)) as server:
        broker = FakeBroker(
            Address(HOST, server.getsockname()[1]),
            dict(versions or {api: known_versions(api) for api in ApiKey}),
        )
        threads: list[Thread] = []
        failures: list[BaseException] = []
        acceptor = Thread(target=_accept, args=(server, broker, context, threads, failures))
        acceptor.start()
        try:
            yield broker
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for thread in (acceptor, *threads):
                thread.join()
    assert not failures, failures


def _accept(
    server: socket.socket,
    broker: FakeBroker,
    context: ssl.SSLContext | None,
    threads: list[Thread],
    failures: list[BaseException],
) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        broker.connections += 1
        thread = Thread(target=_serve, args=(connection, broker, context, failures))
        threads.append(thread)
        thread.start()


def _serve(
    connection: socket.socket,
    broker: FakeBroker,
    context: ssl.SSLContext | None,
    failures: list[BaseException],
) -> None:
    try:
        with suppress(OSError), connection:
            secured = context.wrap_socket(connection, server_side=True) if context else connection
            with secured, secured.makefile("rb") as stream:
                while (request := _read(stream)) is not None:
                    broker.received.append(request)
                    if not _reply(secured, broker, request):
                        return
    except BaseException as error:  # noqa: BLE001 - the test's own thread reports it
        failures.append(error)


def _reply(connection: socket.socket, broker: FakeBroker, request: Received) -> bool:
    body = broker.answer(request)
    if body is None:
        return True
    if body == HANG_UP:
        return False
    head = _SIZE.pack(request.correlation_id)
    response_type: Any = load_response_schema(request.api, request.version)
    if response_type.__header_schema__.__flexible__:
        head += b"\0"
    frame = _SIZE.pack(len(head) + len(body)) + head + body
    sent = broker.rewrite(request, frame)
    for at in range(0, len(sent), broker.piece_bytes):
        connection.sendall(sent[at : at + broker.piece_bytes])
    return len(sent) >= len(frame)


def _read(stream: Any) -> Received | None:  # noqa: ANN401 - a stream over a socket
    head = stream.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return None
    frame = stream.read(_SIZE.unpack(head)[0])
    key, version, correlation_id, name_size = _HEADER.unpack_from(frame)
    name = frame[_HEADER.size : _HEADER.size + name_size].decode()
    request_type = load_request_schema(key, version)
    at = _HEADER.size + name_size + request_type.__header_schema__.__flexible__
    entity, size = entity_reader(request_type)(frame, at)
    assert at + size == len(frame), "a request with bytes behind it"
    return Received(ApiKey(key), version, correlation_id, name, entity)
