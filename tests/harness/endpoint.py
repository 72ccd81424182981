"""Parts of a Kafka endpoint over handmade archives, and a client that sends raw requests."""

import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, Self

import yaml
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload
from prometheus_client import CollectorRegistry
from scramp import ScramClient  # type: ignore[import-untyped]  # ships no types

from sidetier.archive.access import ArchiveAccess
from sidetier.endpoint.blocks import BlockCache, FilePiece, Piece, SegmentBytes
from sidetier.endpoint.catalog import Catalog, CatalogSettings
from sidetier.endpoint.fetch import Fetcher
from sidetier.endpoint.groups.classic_group import GroupLimits
from sidetier.endpoint.groups.coordinator import CoordinatorSettings, GroupCoordinator
from sidetier.endpoint.groups.local import LocalGroups
from sidetier.endpoint.groups.stored_offsets import GroupObjects
from sidetier.endpoint.handlers import RequestHandlers
from sidetier.endpoint.live.logs import LiveLogs
from sidetier.endpoint.metrics import GroupMetrics
from sidetier.endpoint.offsets import SEARCH_BYTES, OffsetAnswers
from sidetier.endpoint.positions import Positions
from sidetier.endpoint.session import Answer, Progress, Request, Session
from sidetier.endpoint.users import EVERYTHING, SCRAM_MECHANISMS, Access, derive, entry_of
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.port import RemoteStorage
from sidetier.wire.protocol import (
    ApiKey,
    build_request,
    decode_response,
    encode,
    encode_header,
    encode_response_header,
    parse_request_header,
)
from tests.harness.made_archive import LAYOUT, access_to

EAGER = CatalogSettings(
    poll_interval=0.02, max_age=0.0, discovery_interval=0.2, shortest_discovery=0.0
)
"""Asks the store before each answer."""


class AnswersRequests(Protocol):
    """The handlers of an endpoint, or its groups."""

    def answer(self, request: Request, session: Session) -> Answer:
        """Answer one request."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an endpoint without a listener."""

    catalog: Catalog
    blocks: BlockCache
    fetcher: Fetcher
    offsets: OffsetAnswers
    handlers: RequestHandlers

    def fetch(self, version: int = 11, **values: Any) -> Any:  # noqa: ANN401 - kio's
        """Return the decoded answer to a Fetch of all given topics."""
        return self.fetch_as(EVERYTHING, version, **values)

    def fetch_as(
        self,
        access: Access,
        version: int,
        progress: Progress | None = None,
        **values: Any,  # noqa: ANN401 - kio's
    ) -> Any:  # noqa: ANN401 - kio's
        """Return the decoded answer to a Fetch of a client with these permissions."""
        request = build_request(ApiKey.FETCH, version, **values)
        answer = self.fetcher.fetch(request, version, access, progress=progress)
        try:
            body = joined(answer.pieces)
        finally:
            answer.release()
        return decode_response(ApiKey.FETCH, version, memoryview(body), "endpoint")

    def read(self, offset: int, **options: Any) -> Any:  # noqa: ANN401 - kio's
        """Return the answer for orders-0 from an offset on."""
        return self.fetch(**fetch_of("orders", offset, **options)).responses[0].partitions[0]


def ask(
    answering: AnswersRequests,
    api: ApiKey,
    version: int,
    **values: Any,  # noqa: ANN401 - kio's
) -> Any:  # noqa: ANN401 - kio's
    """Return the decoded answer to a request other than Fetch."""
    return ask_as(Session("test:1"), answering, api, version, **values)


def ask_as(
    session: Session,
    answering: AnswersRequests,
    api: ApiKey,
    version: int,
    **values: Any,  # noqa: ANN401 - kio's
) -> Any:  # noqa: ANN401 - kio's
    """Return the decoded answer to a request of one client."""
    answer = answering.answer(request_of(api, version, **values), session)
    assert answer.body is not None
    return decode_response(api, version, memoryview(answer.body), "endpoint")


def earliest(session: Session, answering: AnswersRequests, topic: str) -> int:
    """Return the earliest offset of a topic's partition 0, as one client is told."""
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -2}]}]
    values = {"replica_id": -1, "isolation_level": 0, "topics": asked}
    answer = ask_as(session, answering, ApiKey.LIST_OFFSETS, 5, **values)
    (row,) = answer.topics[0].partitions
    assert row.error_code is ErrorCode.none
    offset: int = row.offset
    return offset


def request_of(api: ApiKey, version: int, **values: Any) -> Request:  # noqa: ANN401 - kio's
    """Return a request as a connection passes it on."""
    header = encode_header(api, version, 1, "test")
    frame = memoryview(header + encode(build_request(api, version, **values)))
    return Request(api, version, 1, "test", frame, parse_request_header(frame)[1])


def fetch_of(  # noqa: PLR0913 - the fields of a Fetch
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    isolation: int = 0,
    max_wait: int = 0,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
) -> dict[str, Any]:
    """Return the fields of a Fetch of one partition, by topic name."""
    asked = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": partition_max_bytes,
    }
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "topics": [{"topic": topic, "partitions": [asked]}],
        "forgotten_topics_data": (),
    }


def joined(pieces: Sequence[Piece]) -> bytes:
    """Return the bytes of all pieces."""
    return b"".join(
        piece.read(0, piece.size) if isinstance(piece, FilePiece) else piece for piece in pieces
    )


@contextmanager
def endpoint_over(  # noqa: PLR0913 - one argument for each part that tests replace
    store: RemoteStorage,
    *,
    layout: ArchiveLayout = LAYOUT,
    archive: ArchiveAccess | None = None,
    settings: CatalogSettings = EAGER,
    memory: int = 64 << 20,
    search_bytes: int = SEARCH_BYTES,
    clock: Callable[[], float] = monotonic,
    live: LiveLogs | None = None,
) -> Iterator[Parts]:
    """Yield an endpoint's parts over a store, or over an archive with several stores."""
    archive = archive or access_to(store, layout)
    blocks = BlockCache(memory, clock=clock)
    segment_bytes = SegmentBytes(archive, blocks)
    catalog = Catalog(archive, segment_bytes, settings, clock, live)
    catalog.start()
    offsets = OffsetAnswers(catalog, segment_bytes, search_bytes)
    fetcher = Fetcher(catalog, segment_bytes, Positions(archive, segment_bytes), clock)
    handlers = RequestHandlers(catalog, offsets, ("kafka.example", 9092))
    try:
        yield Parts(catalog, blocks, fetcher, offsets, handlers)
    finally:
        catalog.close()
        blocks.close()


def write_users(path: Path, users: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a users file. In each entry, `password` is replaced by credentials."""
    entries = {}
    for name, given in users.items():
        entry = dict(given)
        if "password" in entry:
            password = entry.pop("password")
            credentials = {each: derive(each, password) for each in SCRAM_MECHANISMS}
            entry = {**entry_of(credentials), **entry}
        entries[name] = entry
    path.write_text(yaml.safe_dump({"users": entries}))


class RawClient:
    """Sends requests one by one, or any bytes."""

    def __init__(
        self,
        address: tuple[str, int],
        timeout: float = 20.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = socket.create_connection(address, timeout)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def request(self, api: ApiKey, version: int, **values: Any) -> ResponsePayload:  # noqa: ANN401
        """Return the decoded answer."""
        body = self.exchange(api, version, **values)
        return decode_response(api, version, memoryview(body), "endpoint")

    def exchange(self, api: ApiKey, version: int, **values: Any) -> bytes:  # noqa: ANN401
        """Return the body of the answer as it was received; its header must be as expected."""
        self._correlation_id += 1
        body = encode(build_request(api, version, **values))
        frame = encode_header(api, version, self._correlation_id, "raw") + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = self.receive()
        header = encode_response_header(api, version, self._correlation_id)
        assert answer.startswith(header), answer[:8]
        return answer[len(header) :]

    def log_in(self, mechanism: str, user: str, password: str, version: int = 2) -> Any:  # noqa: ANN401
        """Log in; return the last answer of the endpoint."""
        handshake: Any = self.request(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
        if handshake.error_code is not ErrorCode.none:
            return handshake
        if mechanism == "PLAIN":
            return self.authenticate(f"\0{user}\0{password}".encode(), version)
        scram = ScramClient([mechanism], user, password)
        first = self.authenticate(scram.get_client_first().encode(), version)
        if first.error_code is not ErrorCode.none:
            return first
        scram.set_server_first(first.auth_bytes.decode())
        last = self.authenticate(scram.get_client_final().encode(), version)
        if last.error_code is ErrorCode.none:
            scram.set_server_final(last.auth_bytes.decode())
        return last

    def authenticate(self, token: bytes, version: int = 2) -> Any:  # noqa: ANN401 - kio's
        """Return the answer to SaslAuthenticate."""
        return self.request(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=token)

    def receive(self) -> bytes:
        """Return the next frame without its size; empty if the endpoint has closed."""
        size = self._exactly(4)
        return self._exactly(*struct.unpack(">i", size)) if size else b""

    def is_closed(self) -> bool:
        """Wait until the endpoint closes the connection, and drop what it sends before."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except (ConnectionError, ssl.SSLError):
            return True
        return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                return b""
            data += part
        return data


def local_groups(  # noqa: PLR0913 - what tests vary
    store: RemoteStorage,
    owner: str = "one",
    *,
    settings: CoordinatorSettings | None = None,
    partitions: int = 3,
    metrics: GroupMetrics | None = None,
    clock: Callable[[], float] = monotonic,
    topic_id: Callable[[str], str | None] = lambda _: None,
) -> LocalGroups:
    """Return a coordinator over a store, for an archive with the topic `orders`."""
    metrics = metrics or GroupMetrics(CollectorRegistry())
    executor = ThreadPoolExecutor(4)
    written = metrics.writes.inc
    objects = GroupObjects(store, LAYOUT, owner, f"host-{owner}", executor, written, clock)
    return LocalGroups(
        GroupCoordinator(
            objects,
            metrics,
            settings or CoordinatorSettings(group=GroupLimits(initial_delay=0.05)),
            clock,
        ),
        lambda tp: tp.topic == "orders" and 0 <= tp.partition < partitions,
        topic_id,
        ("kafka.example", 9092),
    )
