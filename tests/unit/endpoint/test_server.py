"""Connections: framing, bounds, and what malformed or slow clients can do."""

import json
import os
import random
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import pytest
import trustme
from confluent_kafka import Consumer, TopicPartition
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sidetier.endpoint.blocks import FilePiece, OpenFile
from sidetier.endpoint.connection import (
    ENTRY_MEMORY,
    REQUEST_MEMORY,
    SMALL_REQUEST,
    Connection,
    RequestMemory,
    ServerSettings,
    send_pieces,
)
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.server import Endpoint, open_listener
from sidetier.endpoint.service import EndpointSettings, RunningEndpoint, serving
from sidetier.endpoint.session import Session
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import RemoteStorage
from sidetier.wire.protocol import ApiKey, build_request, encode, encode_header
from tests.harness.endpoint import EAGER, RawClient, fetch_of
from tests.harness.made_archive import MadeArchive, access_to, batches, encoded
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.waiting import wait_until


@contextmanager
def running(
    store: RemoteStorage | None = None,
    registry: CollectorRegistry | None = None,
    groups: Literal["none", "local"] = "none",
    **bounds: Any,  # noqa: ANN401 - of ServerSettings
) -> Iterator[RunningEndpoint]:
    made = store or FakeStorage()
    MadeArchive(made).segments(0, 20, 40)
    settings = EndpointSettings(
        ("127.0.0.1", 0), server=ServerSettings(**bounds), groups=groups, catalog=EAGER
    )
    with serving(access_to(made), settings, registry) as endpoint:
        yield endpoint


def frame(api: ApiKey, version: int, **values: Any) -> bytes:  # noqa: ANN401 - kio's
    body = encode_header(api, version, 1, "raw") + encode(build_request(api, version, **values))
    return struct.pack(">i", len(body)) + body


def test_requests_in_turn_and_at_once() -> None:
    registry = CollectorRegistry()
    with running(registry=registry) as endpoint, RawClient(endpoint.address) as client:
        versions: Any = client.request(
            ApiKey.API_VERSIONS, 4, client_software_name="raw", client_software_version="1"
        )
        assert versions.error_code is ErrorCode.none
        fetched: Any = client.request(ApiKey.FETCH, 12, **fetch_of("orders", 20))
        assert bytes(fetched.responses[0].partitions[0].records) == encoded(batches(20, 40))
        client.socket.sendall(frame(ApiKey.FETCH, 12, **fetch_of("orders", 0)) * 3)
        answers = [client.receive() for _ in range(3)]
        assert answers[0] == answers[1] == answers[2] != b""
        size = len(encoded(batches(20, 40))) + 3 * len(encoded(batches(0, 20)))
        labels = {"api": "Fetch", "error": "none"}
        value = registry.get_sample_value
        wait_until(lambda: value("sidetier_endpoint_requests_total", labels) == 4, 5, "the count")
        assert value("sidetier_endpoint_connections") == 1
        assert value("sidetier_endpoint_record_bytes_total") == size
    assert registry.get_sample_value("sidetier_endpoint_connections") == 0


def test_a_consumer_that_begins_at_the_earliest_record_reads_past_a_gap() -> None:
    """It would read the first segment again and again."""
    store = FakeStorage()
    with running(store, groups="local") as endpoint:
        archive = MadeArchive(store)
        archive.segment(60, batches(60, 80))
        archive.mark(60, 80)
        properties: dict[str, Any] = {
            "bootstrap.servers": "{}:{}".format(*endpoint.address),
            "group.id": "not-used",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        consumer, read = Consumer(properties), list[int | None]()
        consumer.assign([TopicPartition("orders", 0)])
        try:
            while (message := consumer.poll(20)) is not None and message.error() is None:
                read.append(message.offset())
                assert len(read) <= 60
        finally:
            consumer.close()
        assert message is not None
        assert read == [*range(40), *range(60, 80)], str(message.error())


def test_versions_above_ours_are_answered_and_the_connection_goes_on() -> None:
    with running() as endpoint, RawClient(endpoint.address) as client:
        unknown = struct.pack(">hhih", 18, 99, 7, -1) + b"anything"
        client.socket.sendall(struct.pack(">i", len(unknown)) + unknown)
        assert struct.unpack_from(">ih", client.receive()) == (7, 35)
        client.request(ApiKey.API_VERSIONS, 0)


def test_bytes_behind_a_request_are_ignored() -> None:
    """Librdkafka 2.16 sends three of them in a Metadata request for all topics."""
    with running() as endpoint, RawClient(endpoint.address) as client:
        sent = frame(ApiKey.METADATA, 1, topics=None)[4:] + b"\1\0\0"
        client.socket.sendall(struct.pack(">i", len(sent)) + sent)
        assert b"orders" in client.receive()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 0x7FFFFFFF),
        struct.pack(">i", 0),
        struct.pack(">i", -5),
        struct.pack(">i", 5) + b"short",
        struct.pack(">ihhih", 12, 3, 1, 1, 30000) + b"xx",
        struct.pack(">ihhih", 10, 11, 5, 1, -1),  # JoinGroup
        struct.pack(">ihhih", 10, 1, 18, 1, -1),  # a Fetch of an unknown version
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0x7FFFFFFF),  # two billion topics
        struct.pack(">ihhihB", 11, 3, 9, 1, -1, 0xFF),  # a tagged field without an end
        frame(ApiKey.METADATA, 1, topics=[{"name": "orders"}])[:-3] + b"\xff\xff\xff",
    ],
    ids=str,
)
def test_malformed_frames_end_the_connection(data: bytes) -> None:
    with running() as endpoint:
        with RawClient(endpoint.address) as client:
            client.socket.sendall(data)
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_closed()
        with RawClient(endpoint.address) as other:
            other.request(ApiKey.API_VERSIONS, 0)


def test_one_client_fills_no_log() -> None:
    with running() as endpoint, capture_logs() as logs:
        for _ in range(30):
            with RawClient(endpoint.address) as client:
                client.socket.sendall(struct.pack(">i", 0))
                assert client.is_closed()
    assert sum(row["event"] == "endpoint.connection_dropped" for row in logs) == 10


def test_random_frames_harm_nobody() -> None:
    """Random bytes, and sound requests with some bytes changed or cut off."""
    source = random.Random(17)
    sound = [
        frame(ApiKey.FETCH, version, **fetch_of("orders", 0))[4:] for version in (4, 7, 11, 12)
    ]
    sound.append(frame(ApiKey.METADATA, 1, topics=[{"name": "orders"}])[4:])
    with running(frame=2.0) as endpoint, capture_logs() as logs:
        for turn in range(300):
            body = bytearray(source.choice(sound))
            if turn % 3 == 0:
                header = struct.pack(">hhi", source.randrange(70), source.randrange(19), 1)
                body = bytearray(header + source.randbytes(source.randrange(60)))
            elif turn % 3 == 1:
                for _ in range(source.randrange(1, 6)):
                    body[source.randrange(len(body))] = source.randrange(256)
            else:
                del body[source.randrange(len(body)) :]
            with RawClient(endpoint.address, timeout=10) as client:
                client.socket.sendall(struct.pack(">i", len(body)) + body)
                client.socket.shutdown(socket.SHUT_WR)
                client.is_closed()
        wait_until(lambda: endpoint.server.open_connections == 0, 10, "all threads to end")
        with RawClient(endpoint.address) as client:
            fetched: Any = client.request(ApiKey.FETCH, 12, **fetch_of("orders", 0))
            assert bytes(fetched.responses[0].partitions[0].records) == encoded(batches(0, 20))
    assert not [row for row in logs if row["event"] == "endpoint.request_failed"]


def test_further_connections_are_closed_at_once() -> None:
    registry = CollectorRegistry()
    with (
        running(registry=registry, max_connections=1) as endpoint,
        RawClient(endpoint.address) as first,
    ):
        first.request(ApiKey.API_VERSIONS, 0)
        with RawClient(endpoint.address) as second:
            assert second.is_closed()
        first.request(ApiKey.API_VERSIONS, 0)
        assert registry.get_sample_value("sidetier_endpoint_refused_connections_total") == 1


def many_questions() -> bytes:
    """Return a ListOffsets request of 108 kB."""
    asked = [{"partition_index": number, "timestamp": -1} for number in range(9000)]
    topics = [{"name": "orders", "partitions": asked}]
    return frame(ApiKey.LIST_OFFSETS, 1, replica_id=-1, topics=topics)


@pytest.mark.parametrize("sent", [0, 1000, SMALL_REQUEST - 1])
def test_requests_that_are_announced_and_not_sent_block_no_others(sent: int) -> None:
    with running() as endpoint, ExitStack() as clients:
        memory = endpoint.server._service.request_memory
        for _ in range(64):
            client = clients.enter_context(RawClient(endpoint.address))
            client.socket.sendall(struct.pack(">i", 2 << 20) + bytes(sent))
        wait_until(lambda: endpoint.server.open_connections == 64, 5, "the connections")
        further = clients.enter_context(RawClient(endpoint.address))
        further.socket.sendall(many_questions())
        assert len(further.receive()) > 9000 * 22
        wait_until(lambda: memory.left == REQUEST_MEMORY, 5, "its memory")


def test_large_requests_that_arrive_slowly_do_not_block_each_other() -> None:
    """If each connection took memory as its bytes arrive, all would hold some and wait for more."""
    body = encode_header(ApiKey.API_VERSIONS, 0, 1, "raw")
    sent = struct.pack(">i", 2 << 20) + body + bytes((2 << 20) - len(body))
    pause = threading.Event()

    def answered(address: tuple[str, int]) -> bool:
        with RawClient(address) as client, suppress(ConnectionError):
            for start in range(0, len(sent), 32 << 10):
                client.socket.sendall(sent[start : start + (32 << 10)])
                pause.wait(0.002)
            return bool(client.receive())
        return False

    with running(frame=20.0, contended=20.0) as endpoint, ThreadPoolExecutor(12) as clients:
        memory = endpoint.server._service.request_memory
        assert memory.acquire(60 << 20, 0.0)  # what is left is enough for two of them
        assert list(clients.map(answered, [endpoint.address] * 12)) == [True] * 12
        wait_until(lambda: memory.left == 4 << 20, 5, "the release")


def test_memory_for_large_requests_is_bounded() -> None:
    """Without a login, each connection could otherwise hold 2 MiB of a request."""
    with running(contended=20.0) as endpoint, ExitStack() as clients:
        memory = endpoint.server._service.request_memory
        whole = (2 << 20) - SMALL_REQUEST
        assert memory.acquire(REQUEST_MEMORY - 2 * whole, 0.0)
        large = [clients.enter_context(RawClient(endpoint.address)) for _ in range(3)]
        for client in large:
            client.socket.sendall(struct.pack(">i", 2 << 20) + bytes((2 << 20) - 1))
        # Two of them hold it; the first 64 KiB need none.
        wait_until(lambda: memory.left == 0, 10, "all memory to be taken")
        further = clients.enter_context(RawClient(endpoint.address))
        further.socket.sendall(many_questions())
        small = clients.enter_context(RawClient(endpoint.address))
        small.request(ApiKey.API_VERSIONS, 0)  # is answered all the same
        further.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            further.socket.recv(1)
        further.socket.settimeout(30)
        for client in large:
            client.socket.close()
        assert len(further.receive()) > 9000 * 22  # an answer for each of them
        wait_until(lambda: memory.left == 2 * whole, 10, "the release")


def test_large_requests_that_stop_midway_hold_their_memory_for_a_short_time_only() -> None:
    """The memory is enough for 33 of them, which have 30 s to send the rest."""
    registry = CollectorRegistry()
    with running(registry=registry, contended=0.2) as endpoint, ExitStack() as clients:
        memory = endpoint.server._service.request_memory
        for _ in range(34):
            client = clients.enter_context(RawClient(endpoint.address))
            client.socket.sendall(struct.pack(">i", 2 << 20) + bytes(SMALL_REQUEST))
        wait_until(lambda: memory.is_contended, 10, "all memory to be taken")
        further = clients.enter_context(RawClient(endpoint.address, timeout=10))
        further.socket.sendall(many_questions())
        assert len(further.receive()) > 9000 * 22
        name = "sidetier_endpoint_dropped_connections_total"
        assert registry.get_sample_value(name, {"reason": "slow"})
        assert not memory.is_contended


def test_memory_goes_to_large_requests_in_their_order() -> None:
    memory = RequestMemory(100)
    assert memory.acquire(60, 0.0)
    with ThreadPoolExecutor(2) as others:
        first = others.submit(memory.acquire, 80, 10.0)
        wait_until(lambda: memory.is_contended, 5, "a request that waits")
        assert not memory.acquire(40, 0.0)  # there is room, but the larger one has asked before
        memory.release(60)
        assert first.result(5)
    assert not memory.is_contended
    assert memory.acquire(20, 0.0)


def test_an_answer_that_is_not_taken_holds_memory_for_a_short_time_only() -> None:
    registry = CollectorRegistry()
    with (
        running(registry=registry, contended=0.2) as endpoint,
        open_listener("127.0.0.1", 0) as listener,
        RawClient(listener.getsockname()) as client,
    ):
        memory = endpoint.server._service.request_memory
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        accepted, address = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        endpoint.server._admit(accepted, *address)
        client.socket.sendall(many_questions())
        wait_until(lambda: memory.left < REQUEST_MEMORY, 5, "the request")
        assert memory.acquire(REQUEST_MEMORY, 10.0)
        name = "sidetier_endpoint_dropped_connections_total"
        wait_until(
            lambda: registry.get_sample_value(name, {"reason": "slow_reader"}) == 1, 5, "the count"
        )
        memory.release(REQUEST_MEMORY)


def test_a_long_poll_keeps_no_memory_for_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidetier.endpoint.connection._LARGE_FETCH_WAIT", 60.0)
    with running() as endpoint, RawClient(endpoint.address) as client:
        wanted = fetch_of("orders", 40, max_wait=60_000)
        (topic,) = wanted["topics"]
        topic["partitions"] *= 3000  # 84 kB
        client.socket.sendall(frame(ApiKey.FETCH, 11, **wanted))
        wait_until(lambda: bool(endpoint.catalog._watchers), 10, "the long poll")
        assert endpoint.server._service.request_memory.left == REQUEST_MEMORY


def test_a_request_that_gets_no_memory_in_time_is_dropped() -> None:
    registry = CollectorRegistry()
    with running(registry=registry, frame=0.2) as endpoint, RawClient(endpoint.address) as client:
        assert endpoint.server._service.request_memory.acquire(REQUEST_MEMORY, 0.0)
        client.socket.sendall(struct.pack(">i", 1 << 20) + bytes(SMALL_REQUEST))
        assert client.is_closed()
        name = "sidetier_endpoint_dropped_connections_total"
        wait_until(lambda: registry.get_sample_value(name, {"reason": "busy"}) == 1, 5, "the count")


def test_a_group_that_is_named_often_is_answered_once() -> None:
    topics = [{"name": "orders", "partition_indexes": (0,) * 9}] * 9
    asked = {"group_id": "g", "topics": topics}
    with running(groups="local") as endpoint, RawClient(endpoint.address) as client:
        described: Any = client.request(ApiKey.DESCRIBE_GROUPS, 2, groups=["g", "h"] * 1000)
        assert [row.group_id for row in described.groups] == ["g", "h"]
        found: Any = client.request(
            ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g", "h"] * 1000
        )
        assert [row.key for row in found.coordinators] == ["g", "h"]
        fetched: Any = client.request(
            ApiKey.OFFSET_FETCH, 8, groups=[asked] * 9, require_stable=False
        )
        (of_group,) = fetched.groups
        (of_topic,) = of_group.topics
        assert [row.partition_index for row in of_topic.partitions] == [0]
        old: Any = client.request(ApiKey.OFFSET_FETCH, 5, **asked)
        assert [len(topic.partitions) for topic in old.topics] == [1]


def test_topics_that_are_named_twice_keep_all_their_partitions() -> None:
    """Some clients send a topic once for each partition."""
    topics = [{"name": "orders", "partition_indexes": (number,)} for number in (2, 0, 2)]
    with running(groups="local") as endpoint, RawClient(endpoint.address) as client:
        answer: Any = client.request(ApiKey.OFFSET_FETCH, 5, group_id="g", topics=topics)
        assert [row.partition_index for row in answer.topics[0].partitions] == [2, 0]


def test_requests_with_many_entries_share_memory() -> None:
    """Those of Kafka's usual clients need none of it."""
    registry = CollectorRegistry()
    dropped = "sidetier_endpoint_dropped_connections_total"
    with running(registry=registry, frame=0.2) as endpoint:
        memory = endpoint.server._service.entry_memory
        assert memory.acquire(ENTRY_MEMORY, 0.0)
        with RawClient(endpoint.address) as client:
            client.request(ApiKey.METADATA, 1, topics=[{"name": "orders"}] * 128)
            client.socket.sendall(frame(ApiKey.METADATA, 1, topics=[{"name": "orders"}] * 129))
            assert client.is_closed()
        wait_until(lambda: registry.get_sample_value(dropped, {"reason": "busy"}), 5, "the count")
        memory.release(ENTRY_MEMORY)
        with RawClient(endpoint.address) as client:
            client.request(ApiKey.METADATA, 1, topics=[{"name": "orders"}] * 60_000)
        wait_until(lambda: memory.left == ENTRY_MEMORY, 5, "its memory")


def test_a_request_with_too_many_entries_is_refused_before_it_is_decoded() -> None:
    keys = ("",) * 100_001
    with running() as endpoint, RawClient(endpoint.address) as client, capture_logs() as logs:
        client.socket.sendall(frame(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys))
        assert client.is_closed()
        wait_until(lambda: logs, 5, "the event")
    assert "100001 entries so far; at most 100000" in logs[0]["detail"]


def test_a_fetch_of_many_partitions_holds_its_memory_for_a_short_time_only() -> None:
    values = fetch_of("orders", 40, max_wait=20_000)
    values["topics"][0]["partitions"] *= 200
    with running() as endpoint, RawClient(endpoint.address) as client:
        memory = endpoint.server._service.entry_memory
        began = monotonic()
        client.request(ApiKey.FETCH, 11, **values)
        assert monotonic() - began < 10
        wait_until(lambda: memory.left == ENTRY_MEMORY, 5, "its memory")


def test_refused_connections_are_logged_once_per_period_with_their_number() -> None:
    now = [100.0]
    registry = CollectorRegistry()
    bounds = ServerSettings(max_connections=1, max_connections_per_host=1)
    with running() as service, open_listener("127.0.0.1", 0) as listener:
        endpoint = Endpoint(
            service.server._service,
            EndpointMetrics(registry, lambda: 0),
            bounds,
            clock=lambda: now[0],
        )

        def refuse() -> None:
            with socket.create_connection(listener.getsockname()) as client:
                accepted, address = listener.accept()
                endpoint._admit(accepted, *address)
                assert client.recv(1) == b""

        with socket.create_connection(listener.getsockname()) as kept:
            accepted, address = listener.accept()
            endpoint._admit(accepted, *address)
            with capture_logs() as logs:
                for at in (100.0, 101.0, 109.9, 110.0, 130.0):
                    now[0] = at
                    refuse()
            assert [
                row["refused"] for row in logs if row["event"] == "endpoint.connections_full"
            ] == [1, 3, 1]
            kept.close()
            wait_until(lambda: endpoint.open_connections == 0, 5, "the end")
    assert registry.get_sample_value("sidetier_endpoint_refused_connections_total") == 5


def test_connections_of_one_host_are_bounded() -> None:
    registry = CollectorRegistry()
    with (
        running(registry=registry, max_connections=9, max_connections_per_host=2) as endpoint,
        ExitStack() as clients,
    ):
        kept = [clients.enter_context(RawClient(endpoint.address)) for _ in range(2)]
        for client in kept:
            client.request(ApiKey.API_VERSIONS, 0)
        with capture_logs() as logs, RawClient(endpoint.address) as third:
            assert third.is_closed()
            wait_until(lambda: logs, 5, "the event")
        assert [row["bound"] for row in logs if row["event"] == "endpoint.connections_full"] == [
            "--max-connections-per-host 2"
        ]
        with socket.create_connection(endpoint.address, 5, ("127.0.0.2", 0)) as elsewhere:
            elsewhere.sendall(frame(ApiKey.API_VERSIONS, 0))
            assert elsewhere.recv(4)
        kept[0].socket.close()
        wait_until(lambda: endpoint.server.open_connections == 1, 5, "the end of two")
        with RawClient(endpoint.address) as again:
            again.request(ApiKey.API_VERSIONS, 0)
        assert registry.get_sample_value("sidetier_endpoint_refused_connections_total") == 1


@pytest.mark.parametrize(
    ("bounds", "data", "reason"),
    [({"idle": 0.05}, b"", "idle"), ({"frame": 0.05}, b"\0\0\0\x20abc", "slow")],
)
def test_silent_clients_are_dropped(bounds: dict[str, Any], data: bytes, reason: str) -> None:
    registry = CollectorRegistry()
    with running(registry=registry, **bounds) as endpoint, RawClient(endpoint.address) as client:
        client.socket.sendall(data)
        assert client.is_closed()
        name = "sidetier_endpoint_dropped_connections_total"
        wait_until(lambda: registry.get_sample_value(name, {"reason": reason}) == 1, 5, "the count")


@pytest.mark.parametrize("kind", ["objects", "files"])
@pytest.mark.parametrize("takes", [0, 16 << 10])
def test_a_reader_that_is_too_slow_is_dropped_and_its_memory_returned(
    kind: str, takes: int, tmp_path: Path
) -> None:
    """Also one that takes 16 KiB every 10 ms, so that it never stops for long."""
    store = FakeStorage() if kind == "objects" else LocalStorage(tmp_path)
    large = MadeArchive(store)
    megabyte = bytes(1 << 20)
    large.segment(40, [MadeBatch((MadeRecord(at, at, value=megabyte),)) for at in range(40, 48)])
    registry = CollectorRegistry()
    pause = threading.Event()
    with (
        running(store, registry, send=1.0 if takes else 0.2) as endpoint,
        RawClient(endpoint.address) as client,
        capture_logs() as logs,
    ):
        large.mark(40, 48)  # after `running`, which has marked its own end
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes or 4096)
        asked = fetch_of("orders", 40, max_bytes=60 << 20, partition_max_bytes=60 << 20)
        client.socket.sendall(frame(ApiKey.FETCH, 12, **asked))
        name = "sidetier_endpoint_dropped_connections_total"

        def is_dropped() -> bool:
            if takes:
                client.socket.recv(takes)
                pause.wait(0.01)
            return registry.get_sample_value(name, {"reason": "slow_reader"}) == 1

        deadline = monotonic() + 20
        while not is_dropped():
            assert monotonic() < deadline
        assert not any(block.pins for block in endpoint.blocks._blocks.values())
        with RawClient(endpoint.address) as other:
            other.request(ApiKey.FETCH, 12, **fetch_of("orders", 40))
    (dropped,) = [row for row in logs if row["event"] == "endpoint.connection_dropped"]
    assert (dropped["reason"], dropped["connections"]) == ("slow_reader", 1)
    assert "did not take an answer of" in dropped["detail"]


def test_a_late_error_that_is_not_the_clients_names_no_slow_reader(tmp_path: Path) -> None:
    """The deadline has passed when a slow disk fails, but it has not ended the connection."""
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    times = count(0.0, 100.0)
    one, other = socket.socketpair()
    with running() as endpoint, one, other:
        connection = Connection(
            one,
            Session("test:1"),
            endpoint.server._service,
            EndpointMetrics(CollectorRegistry(), lambda: 0),
            ServerSettings(send=60.0),
            login_by=0.0,
            wait=lambda _seconds: None,
            clock=lambda: next(times),
        )
        file = OpenFile(os.open(path, os.O_RDONLY))
        with pytest.raises(ConnectionError, match="shorter than it was listed"):
            connection._send_all([FilePiece(file, 0, 100)])


def test_a_stop_ends_long_polls_and_idle_connections() -> None:
    with ExitStack() as clients, running() as endpoint:
        idle, waiting = (clients.enter_context(RawClient(endpoint.address)) for _ in range(2))
        waiting.socket.sendall(frame(ApiKey.FETCH, 12, **fetch_of("orders", 40, max_wait=60_000)))
        wait_until(lambda: endpoint.server.open_connections == 2, 5, "two connections")
        # A request that was not read when its connection is closed gets no answer.
        wait_until(lambda: endpoint.server._service.idle_polls._polls, 5, "the long poll")
        stopping = threading.Thread(target=endpoint.stop, daemon=True)
        stopping.start()
        assert waiting.receive()[:4] == struct.pack(">i", 1)
        assert waiting.is_closed()
        assert idle.is_closed()
        stopping.join(10)
        assert not stopping.is_alive()


def test_an_address_in_use_is_a_clear_error() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen at 127.0.0.1:{port}"):
            open_listener("127.0.0.1", port)


def test_files_are_encrypted_on_a_tls_socket(tmp_path: Path) -> None:
    """`sendfile` on the descriptor of a TLS socket would send plain text."""
    data = b"plain text " * 300_000
    path = tmp_path / "segment"
    path.write_bytes(data)
    authority = trustme.CA()
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(client)
    received = bytearray()
    with open_listener("127.0.0.1", 0) as listener:

        def read() -> None:
            raw = socket.create_connection(listener.getsockname())
            with client.wrap_socket(raw, server_hostname="localhost") as connection:
                while part := connection.recv(1 << 16):
                    received.extend(part)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        accepted, _ = listener.accept()
        with server.wrap_socket(accepted, server_side=True) as connection:
            file = OpenFile(os.open(path, os.O_RDONLY))
            send_pieces(connection, [b"head", FilePiece(file, 0, len(data)), b"tail"])
        reader.join(20)
    assert bytes(received) == b"head" + data + b"tail"


def test_a_file_that_became_shorter_ends_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    one, other = socket.socketpair()
    file = OpenFile(os.open(path, os.O_RDONLY))
    with one, other, pytest.raises(ConnectionError, match="shorter than it was listed"):
        send_pieces(one, [FilePiece(file, 0, 100)])


def test_status_for_probes() -> None:
    """A full endpoint is alive and not ready: a Service sends new clients to another one."""
    with running(max_connections=1) as endpoint:
        assert endpoint.snapshot().ready
        status = json.loads(json.dumps(endpoint.status()))
        assert (status["connections"], status["topics"], status["partitions"]) == (0, 1, 1)
        assert [store["problem"] for store in status["stores"]] == [None]
        assert status["live"] is None
        assert (status["max_connections"], status["refused_connections"]) == (1, 0)
        with RawClient(endpoint.address):
            wait_until(lambda: not endpoint.snapshot().ready, 5, "the only connection")
            assert endpoint.snapshot().alive
            assert endpoint.status()["connections"] == 1
            with RawClient(endpoint.address) as refused:
                assert refused.is_closed()
            wait_until(lambda: endpoint.status()["refused_connections"] == 1, 5, "the count")
        wait_until(lambda: endpoint.snapshot().ready, 5, "the connection's end")
    after = endpoint.snapshot()
    assert not after.alive
    assert after.death is not None
    assert "endpoint-accept" in after.death
    assert "endpoint-refresh" in after.death


def test_all_addresses_are_those_of_both_ip_versions() -> None:
    with open_listener("::", 0) as listener:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, listener.getsockname()[1]), timeout=5):
                listener.accept()[0].close()


def test_all_addresses_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with open_listener("::", 0) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"  # noqa: S104 - compared only


def test_ipv4_clients_of_a_dual_stack_listener_have_their_own_address() -> None:
    store = FakeStorage()
    MadeArchive(store).segments(0, 20)
    settings = EndpointSettings(("::", 0), advertised=("::1", 9092), catalog=EAGER)
    with serving(access_to(store), settings) as endpoint:
        with RawClient(("127.0.0.1", endpoint.address[1])) as client:
            metadata: Any = client.request(ApiKey.METADATA, 1, topics=None)
            assert [(broker.host, broker.port) for broker in metadata.brokers] == [("::1", 9092)]
            assert [*endpoint.server._hosts] == ["127.0.0.1"]
        with RawClient(("::1", endpoint.address[1])) as client:
            client.request(ApiKey.API_VERSIONS, 0)
            assert "::1" in endpoint.server._hosts
