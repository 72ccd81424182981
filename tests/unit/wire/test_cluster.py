"""Requests are sent to the right broker and retried under one deadline."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from threading import Event

import pytest
from kio.schema.errors import ErrorCode

from sidetier.segments.batches import Producer
from sidetier.segments.errors import BrokerUnavailableError, KafkaApiError
from sidetier.segments.offsets import BrokerId, TopicPartition
from sidetier.wire import requests
from sidetier.wire.cluster import Broker, Cluster, Controller
from sidetier.wire.protocol import ApiKey
from sidetier.wire.settings import Address, ClientSettings
from tests.harness.fake_broker import HANG_UP, FakeBroker, Received, fake_broker

TP = TopicPartition("topic", 0)
PRODUCER = Producer(9, 1)


class World:
    """Two brokers and their metadata; broker 1 is contacted first."""

    def __init__(self, stack: ExitStack) -> None:
        self.brokers = {BrokerId(n): stack.enter_context(fake_broker()) for n in (1, 2)}
        self.leader = 1
        self.coordinator = 1
        self.metadata_requests = 0
        self.unknown: dict[str, ErrorCode] = {}
        for broker in self.brokers.values():
            broker.answers[ApiKey.METADATA] = self.metadata
            broker.answers[ApiKey.FIND_COORDINATOR] = self.find
        settings = ClientSettings((self.brokers[BrokerId(1)].address,), request_timeout=20)
        self.cluster = stack.enter_context(Cluster(settings))

    def metadata(self, request: Received) -> bytes:
        self.metadata_requests += 1
        asked = [topic.name for topic in request.entity.topics or ()]
        return request.response(
            throttle_time=0,
            cluster_id="cluster",
            controller_id=2,
            error_code=ErrorCode.none,
            brokers=[
                {"node_id": number, "host": host, "port": port, "rack": None}
                for number, (host, port) in self.addresses().items()
            ],
            topics=[self.topic(name) for name in asked],
        )

    def addresses(self) -> Mapping[BrokerId, Address]:
        return {number: broker.address for number, broker in self.brokers.items()}

    def topic(self, name: str) -> dict[str, object]:
        partition = {
            "error_code": ErrorCode.none,
            "partition_index": 0,
            "leader_id": self.leader,
            "leader_epoch": 5,
            "replica_nodes": (1, 2),
            "isr_nodes": (1, 2),
            "offline_replicas": (),
        }
        return {
            "error_code": self.unknown.get(name, ErrorCode.none),
            "name": name,
            "topic_id": None,
            "is_internal": False,
            "partitions": () if name in self.unknown else (partition,),
        }

    def find(self, request: Received) -> bytes:
        host, port = self.brokers[BrokerId(self.coordinator)].address
        return request.response(
            throttle_time=0,
            error_code=ErrorCode.none,
            error_message=None,
            node_id=self.coordinator,
            host=host,
            port=port,
        )

    def on_end_txn(self, *codes: ErrorCode) -> None:
        """Make both brokers answer EndTxn with these error codes in order, and then without an
        error.
        """
        left = list(codes)
        for broker in self.brokers.values():
            broker.answers[ApiKey.END_TXN] = lambda request: request.response(
                throttle_time=0, error_code=left.pop(0) if left else ErrorCode.none
            )

    def end_txn(self, timeout: float = 20) -> None:
        requests.end_txn(self.cluster, "id", PRODUCER, commit=True, timeout=timeout)

    def asked(self, number: int, api: ApiKey) -> int:
        return self.brokers[BrokerId(number)].apis().count(api)


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


def offsets(broker: FakeBroker, offset: int, code: ErrorCode = ErrorCode.none) -> None:
    def answer(request: Received) -> bytes:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": part.partition_index,
                        "error_code": code,
                        "timestamp": -1,
                        "offset": offset,
                        "leader_epoch": 5,
                    }
                    for part in topic.partitions
                ],
            }
            for topic in request.entity.topics
        ]
        return request.response(throttle_time=0, topics=topics)

    broker.answers[ApiKey.LIST_OFFSETS] = answer


def test_leader_is_looked_up_once_and_cached(world: World) -> None:
    world.leader = 2
    offsets(world.brokers[BrokerId(2)], 77)
    for _ in range(2):
        assert requests.list_offsets(world.cluster, {TP: requests.LATEST})[TP].offset == 77
    assert world.metadata_requests == 1
    assert world.asked(1, ApiKey.LIST_OFFSETS) == 0


def test_new_leader_is_used_after_an_election(world: World) -> None:
    world.leader = 2
    offsets(world.brokers[BrokerId(2)], 77)
    requests.list_offsets(world.cluster, {TP: requests.LATEST})
    offsets(world.brokers[BrokerId(2)], -1, ErrorCode.not_leader_or_follower)
    offsets(world.brokers[BrokerId(1)], 78)
    world.leader = 1
    assert requests.list_offsets(world.cluster, {TP: requests.LATEST})[TP].offset == 78


def test_moved_coordinator_is_looked_up_again(world: World) -> None:
    world.on_end_txn(ErrorCode.not_coordinator)
    world.end_txn()
    assert world.asked(1, ApiKey.FIND_COORDINATOR) == 2
    world.end_txn()
    assert world.asked(1, ApiKey.FIND_COORDINATOR) == 2


def test_pending_markers_are_waited_for_at_the_same_coordinator(
    world: World,
) -> None:
    world.on_end_txn(ErrorCode.concurrent_transactions, ErrorCode.concurrent_transactions)
    world.end_txn()
    assert world.asked(1, ApiKey.END_TXN) == 3
    assert world.asked(1, ApiKey.FIND_COORDINATOR) == 1


def test_refusal_names_broker_request_and_code(world: World) -> None:
    world.on_end_txn(ErrorCode.producer_fenced)
    text = rf"broker {world.brokers[BrokerId(1)].address} refuses EndTxn v4: PRODUCER_FENCED \(90\)"
    with pytest.raises(KafkaApiError, match=text) as raised:
        world.end_txn()
    assert (raised.value.code, raised.value.retry) == (90, False)
    assert world.asked(1, ApiKey.END_TXN) == 1


def test_cause_is_reported_instead_of_operations_not_attempted(world: World) -> None:
    results = [(0, ErrorCode.operation_not_attempted), (1, ErrorCode.topic_authorization_failed)]
    world.brokers[BrokerId(1)].answers[ApiKey.ADD_PARTITIONS_TO_TXN] = lambda request: (
        request.response(
            throttle_time=0,
            results_by_topic_v3_and_below=[
                {
                    "name": "topic",
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": code}
                        for index, code in results
                    ],
                }
            ],
        )
    )
    with pytest.raises(KafkaApiError, match="for topic-1: TOPIC_AUTHORIZATION_FAILED"):
        requests.add_partitions_to_txn(
            world.cluster, "id", PRODUCER, [TP, TopicPartition("topic", 1)]
        )


def test_last_error_is_raised_at_the_deadline(world: World) -> None:
    world.on_end_txn(*[ErrorCode.coordinator_load_in_progress] * 1000)
    with pytest.raises(KafkaApiError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        world.end_txn(timeout=0.3)
    assert world.asked(1, ApiKey.END_TXN) > 1


def test_silent_broker_takes_no_longer_than_the_deadline(world: World) -> None:
    world.brokers[BrokerId(1)].answers[ApiKey.END_TXN] = lambda _: None
    with pytest.raises(BrokerUnavailableError, match="EndTxn: timed out"):
        world.end_txn(timeout=0.3)


def test_broken_connection_is_reopened(world: World) -> None:
    broker, calls = world.brokers[BrokerId(1)], []

    def answer(request: Received) -> bytes:
        calls.append(request)
        if len(calls) == 1:
            return HANG_UP
        return request.response(throttle_time=0, error_code=ErrorCode.none)

    broker.answers[ApiKey.END_TXN] = answer
    world.end_txn()
    assert (len(calls), broker.connections) == (2, 2)


def test_nothing_is_retried_after_stop() -> None:
    stop = Event()
    stop.set()
    attempts = []

    def attempt() -> None:
        attempts.append(1)
        raise BrokerUnavailableError("away")

    with pytest.raises(BrokerUnavailableError, match="away"):
        Cluster(ClientSettings(()), stop=stop).retrying(attempt)
    assert attempts == [1]


def test_any_bootstrap_server_suffices_and_all_are_named_if_none_answers() -> None:
    with fake_broker() as broker:
        gone = broker.address
    with ExitStack() as stack:
        world = World(stack)
        alive = world.brokers[BrokerId(2)].address
        with Cluster(ClientSettings((gone, alive))) as cluster:
            metadata = cluster.metadata()
        assert (metadata.cluster_id, metadata.brokers) == ("cluster", world.addresses())
    with (
        Cluster(ClientSettings((gone, alive))) as cluster,
        pytest.raises(BrokerUnavailableError, match="no broker can be reached") as raised,
    ):
        cluster.metadata(timeout=0.01)
    assert str(gone) in str(raised.value)
    assert str(alive) in str(raised.value)


def test_a_broker_that_hangs_is_asked_for_metadata_once_while_others_answer() -> None:
    """As when it is stopped with SIGSTOP: the kernel still accepts connections."""
    with ExitStack() as stack:
        world = World(stack)
        hanging = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        hanging.settimeout(0)
        addresses = (Address(*hanging.getsockname()), *world.addresses().values())
        settings = ClientSettings(addresses, request_timeout=20, connect_timeout=0.2)
        attempts = 0
        with Cluster(settings) as cluster:
            for _ in range(40):
                cluster.close()  # so that the next request chooses a broker again
                cluster.metadata()
                with suppress(BlockingIOError):
                    hanging.accept()[0].close()
                    attempts += 1
        assert attempts == 1


def test_unauthorized_topic_is_a_separate_result(world: World) -> None:
    world.unknown["secret"] = ErrorCode.topic_authorization_failed
    metadata = world.cluster.metadata(["secret", "topic"])
    assert metadata.topics.keys() == {"topic"}
    assert metadata.refused["secret"].name == "TOPIC_AUTHORIZATION_FAILED"
    with pytest.raises(KafkaApiError, match="for secret: TOPIC_AUTHORIZATION_FAILED"):
        world.cluster.leaders([TopicPartition("secret", 0)])


def test_error_for_a_missing_partition_names_it(world: World) -> None:
    with pytest.raises(KafkaApiError, match="the brokers do not know partition topic-7"):
        world.cluster.leaders([TopicPartition("topic", 7)])


def test_partition_without_a_leader_is_a_retryable_error(world: World) -> None:
    world.leader = -1
    with pytest.raises(KafkaApiError, match="topic-0 has no leader now") as raised:
        world.cluster.leaders([TP])
    assert raised.value.retry
    world.leader = 2
    assert world.cluster.leaders([TP]) == {BrokerId(2): [TP]}


def test_controller_and_brokers_are_found_in_metadata(world: World) -> None:
    assert world.cluster.connection(Controller()).address == world.addresses()[BrokerId(2)]
    with pytest.raises(KafkaApiError, match="the cluster has no broker 8 now"):
        world.cluster.connection(Broker(BrokerId(8)))


def test_dedicated_connections_are_not_shared(world: World) -> None:
    with world.cluster.connect(BrokerId(1)) as own:
        assert own is not world.cluster.connection(Broker(BrokerId(1)))
