"""Two `serve --live` behind one address, while brokers, the store or the endpoints are away.

With KRaft, the brokers have the ids 0 to 2: 0 is the endpoint's own node id, too. `make test-long`
runs this with all releases.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from devtools.sandbox.kafka import KafkaCluster
from sidetier.segments.batches import split_batches
from sidetier.wire.protocol import ApiKey
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import file_store
from tests.harness.endpoint import RawClient, fetch_of
from tests.harness.live_log import NEWEST, Release, releases
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.plain_reading import Reading
from tests.harness.serve_process import LAYOUT, ServeProcess, serve_process
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.topics import admin_of, create_topic, delete_records, leader_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SENT, TRIMMED = 300, 150


@dataclass(slots=True)
class Log:
    """A topic of three brokers, trimmed, and two endpoints over both halves, behind a proxy."""

    topic: str
    cluster: KafkaCluster
    endpoints: list[ServeProcess]
    proxy: TcpProxy
    store: Path
    end: int = 0

    def produce(self, count: int) -> int:
        """Append records; return the end of the log."""
        producer = Producer(
            {"bootstrap.servers": self.cluster.bootstrap_servers, "acks": "all", "linger.ms": 0}
        )
        for number in range(self.end, self.end + count):
            producer.produce(self.topic, str(number).encode() * 40, partition=0)
            if number % 10 == 9:
                producer.flush(60)
        assert producer.flush(60) == 0
        self.end += count
        return self.end

    def leader(self) -> int:
        leader = leader_of(self.cluster.bootstrap_servers, self.topic, 0)
        assert leader is not None
        return leader

    @contextmanager
    def clients(self) -> Iterator[list[RawClient]]:
        """A client of each endpoint, without the proxy."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(RawClient(address_of(each.bootstrap), 30))
                for each in self.endpoints
            ]


def address_of(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


@pytest.fixture(scope="module", params=releases(NEWEST), ids=str)
def log(
    request: pytest.FixtureRequest,
    java: object,  # noqa: ARG001 - servers need it
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Log]:
    release: Release = request.param
    topic, root = f"live-{uuid4().hex[:6]}", tmp_path_factory.mktemp("live")
    store = file_store(root / "store")
    (root / "store").mkdir()
    with (
        release.cluster(
            tmp_path_factory.mktemp("kafka"),
            brokers=3,
            first_id=0,
            properties={"offsets.topic.replication.factor": 3},
        ) as cluster,
        TcpProxy() as proxy,
        ExitStack() as stack,
    ):
        configs = {**small_segments(release.version), "min.insync.replicas": "1"}
        create_topic(cluster.bootstrap_servers, topic, partitions=1, replicas=3, configs=configs)
        live = ("--live", cluster.bootstrap_servers, "--prefer", "broker")
        endpoints = []
        for name in ("first", "second"):
            (root / name).mkdir()
            serving = serve_process(root / name, *live, "--advertise", proxy.address, store=store)
            endpoints.append(stack.enter_context(serving))
        proxy.use(*(address_of(each.bootstrap) for each in endpoints))
        log = Log(topic, cluster, endpoints, proxy, root / "store")
        leader = log.leader()
        bits = {"storage": {"prefix_entropy_bits": LAYOUT.bits}}
        settings = merged(beside(cluster, store, broker_id=leader, topics=[topic]), bits)
        with Sidecar(tmp_path_factory.mktemp("sidecar"), settings, store):
            log.produce(SENT)
            end = closed_end(cluster.log_dirs(leader)[0] / f"{topic}-0")
            wait_until_stored(store.objects, topic, 0, end)
            delete_records(cluster.bootstrap_servers, topic, 0, TRIMMED)
        yield log


def test_nothing_is_skipped_or_repeated_while_brokers_endpoints_and_store_go_and_come(
    log: Log,
) -> None:
    """A consumer with `assign`, and a member of a group, whose positions are in the cluster."""
    group = f"g-{uuid4().hex[:6]}"
    readings = [Reading(log.proxy.address, log.topic, group=each) for each in (None, group)]

    def go_on() -> None:
        end = log.produce(30)
        for reading in readings:
            reading.wait_for(end)

    go_on()
    for stops in (log.cluster.kill_broker, log.cluster.stop_broker):
        leader = log.leader()
        stops(leader)
        go_on()
        log.cluster.start_broker(leader)
    addresses = [address_of(each.bootstrap) for each in log.endpoints]
    for number, endpoint in enumerate(log.endpoints):
        log.proxy.use(addresses[number])  # so that it has all clients
        go_on()
        log.proxy.add(addresses[1 - number])
        endpoint.kill()
        go_on()
        endpoint.start()
    for endpoint in log.endpoints:
        endpoint.kill()
    log.produce(30)
    log.endpoints[0].start()
    go_on()
    log.endpoints[1].start()
    away = log.store.with_name("away")
    log.store.rename(away)
    try:
        go_on()
    finally:
        away.rename(log.store)
    for reading in readings:
        reading.end()
        assert not reading.errors
    direct = Consumer({"bootstrap.servers": log.cluster.bootstrap_servers, "group.id": group})
    (kept,) = direct.committed([TopicPartition(log.topic, 0)], 30)
    direct.close()
    assert kept.offset == log.end
    first, end = log.end, log.produce(10)
    after = Reading(log.proxy.address, log.topic, group=group)
    after.wait_for(end, first=first)
    after.end()


def test_both_endpoints_show_the_same_cluster(log: Log) -> None:
    """The answers are the same, byte for byte, and have no address of a broker."""
    everything = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    questions: list[tuple[ApiKey, int, dict[str, Any]]] = [
        (ApiKey.METADATA, 12, everything),
        (ApiKey.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False}),
        (ApiKey.FIND_COORDINATOR, 3, {"key": "group", "key_type": 0}),
    ]
    for time in (-1, -2, -3, -4, -5, 0, 1 << 45):
        row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": time}
        topics = [{"name": log.topic, "partitions": [row]}]
        listed = {"replica_id": -1, "isolation_level": 1, "topics": topics, "timeout": 30000}
        questions.append((ApiKey.LIST_OFFSETS, 10, listed))
    for epoch in range(9):
        row = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        topics = [{"topic": log.topic, "partitions": [row]}]
        questions.append((ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": topics}))
    ports = {int(each.rpartition(":")[2]) for each in log.cluster.bootstrap_servers.split(",")}
    with log.clients() as clients:
        for api, version, fields in questions:
            first, second = (client.exchange(api, version, **fields) for client in clients)
            assert first == second, (api, fields)
            assert not [port for port in ports if port.to_bytes(4) in first], (api, fields)
        metadata: Any = clients[0].request(ApiKey.METADATA, 12, **everything)
        shown_by_brokers = admin_of(log.cluster.bootstrap_servers).list_topics(timeout=30)
        assert metadata.cluster_id == shown_by_brokers.cluster_id
        (node,) = metadata.brokers
        assert (node.node_id, f"{node.host}:{node.port}") == (0, log.proxy.address)
        (shown,) = (topic for topic in metadata.topics if topic.name == log.topic)
        assert [row.leader_id for row in shown.partitions] == [0]


def test_a_client_that_changes_the_endpoint_with_each_request_reads_one_log(log: Log) -> None:
    """It begins in the archive, and reads on while records come."""
    until, offset = log.end + 200, 0

    def produce() -> None:
        while log.end < until:
            log.produce(10)

    producing = threading.Thread(target=produce)
    producing.start()
    with log.clients() as clients:
        for client in cycle(clients):
            asked = fetch_of(log.topic, offset, max_wait=200, partition_max_bytes=4000)
            answer: Any = client.request(ApiKey.FETCH, 11, **asked)
            (data,) = answer.responses[0].partitions
            assert data.error_code is ErrorCode.none
            assert data.log_start_offset == 0
            for _, header in split_batches(memoryview(bytearray(data.records or b""))):
                assert header.base_offset <= offset < header.next_offset
                offset = header.next_offset
            assert data.high_watermark >= offset, "no client is beyond it"
            if offset >= until:
                break
    producing.join()


def test_archived_records_are_served_while_all_brokers_are_away(log: Log) -> None:
    """The end of the archive is no end of the log then, and not out of range."""
    for number in log.cluster.brokers:
        log.cluster.kill_broker(number)
    reading = Reading(log.proxy.address, log.topic)
    reading.wait_for(TRIMMED)
    threading.Event().wait(3)
    assert len(reading.offsets[0]) < log.end, "the active segment is on brokers alone"
    for number in log.cluster.brokers:
        log.cluster.start_broker(number, wait=False)  # none is ready before there is a quorum
    reading.wait_for(log.end)
    reading.end()
