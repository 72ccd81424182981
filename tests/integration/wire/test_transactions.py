"""Raw record batches, transactions and fetch sessions on a real broker."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from devtools.sandbox.kafka import KafkaCluster
from sidetier.endpoint.live.brokers import fetch_from
from sidetier.endpoint.live.topics import LiveTopics
from sidetier.segments import batches
from sidetier.segments.errors import KafkaApiError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.wire import requests
from sidetier.wire.cluster import Cluster
from sidetier.wire.connection import Connection
from sidetier.wire.fetch_session import FetchPosition, FetchSession
from sidetier.wire.record_requests import (
    FetchedPartition,
    receive_fetched,
    receive_produced,
    send_fetch,
    send_produce,
)
from sidetier.wire.requests import CommittedOffset
from sidetier.wire.settings import ClientSettings
from tests.harness.topics import create_topic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

RECORDS = 300
Shown = tuple[object, ...]
"""Key, value, timestamp and headers."""


@pytest.fixture(params=["kraft43", "zk39"])
def kafka(request: pytest.FixtureRequest) -> KafkaCluster:
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture
def cluster(kafka: KafkaCluster) -> Iterator[Cluster]:
    settings = ClientSettings.from_properties({"bootstrap.servers": kafka.bootstrap_servers})
    with Cluster(settings) as cluster:
        yield cluster


def test_raw_batches_are_committed_and_aborted(
    kafka: KafkaCluster, cluster: Cluster, topic: str
) -> None:
    source, target = TopicPartition(f"{topic}-source", 0), TopicPartition(f"{topic}-target", 0)
    for tp in (source, target):
        create_topic(kafka.bootstrap_servers, tp.topic, configs={"retention.ms": -1})
    produce(kafka.bootstrap_servers, source)
    everything = read(kafka.bootstrap_servers, source)
    assert len(everything) == RECORDS
    group, transactional_id = f"{topic}-group", f"{topic}-id"
    producer = requests.init_producer_id(cluster, transactional_id)

    sequence = send_copies(cluster, source, target, transactional_id, producer, sequence=0)
    requests.add_offsets_to_txn(cluster, transactional_id, producer, group)
    progress = {source: CommittedOffset(Offset(RECORDS), metadata="next")}
    requests.commit_offsets_in_txn(cluster, transactional_id, producer, group, progress)
    assert read(kafka.bootstrap_servers, target) == []
    (hanging,) = requests.active_producers(cluster, [target])[target]
    assert (hanging.producer, hanging.transaction_start) == (producer, 0)
    state = requests.describe_transaction(cluster, transactional_id)
    assert (state.state, state.producer) == ("Ongoing", producer)
    assert target in state.partitions
    requests.end_txn(cluster, transactional_id, producer, commit=True)
    assert requests.describe_transaction(cluster, transactional_id).state.endswith("Commit")
    assert requests.committed_offsets(cluster, group, [source, target]) == progress
    assert requests.committed_offsets(cluster, group) == progress
    assert read(kafka.bootstrap_servers, target) == everything

    send_copies(cluster, source, target, transactional_id, producer, sequence)
    requests.add_offsets_to_txn(cluster, transactional_id, producer, group)
    further = {source: CommittedOffset(Offset(2 * RECORDS))}
    requests.commit_offsets_in_txn(cluster, transactional_id, producer, group, further)
    requests.end_txn(cluster, transactional_id, producer, commit=False)
    assert requests.committed_offsets(cluster, group, [source]) == progress
    assert read(kafka.bootstrap_servers, target) == everything
    end = requests.list_offsets(cluster, {target: requests.LATEST})[target].offset
    assert end == 2 * (RECORDS + 1)
    aborted = fetch(cluster, target, IsolationLevel.READ_COMMITTED, RECORDS + 1).aborted
    assert [(each.producer_id, each.first_offset) for each in aborted] == [
        (producer.id, RECORDS + 1)
    ]
    listed = requests.list_transactions(cluster, states=["CompleteAbort"])
    assert transactional_id in {each.transactional_id for each in listed}


def test_new_owner_of_a_transactional_id_fences_the_old_one(
    kafka: KafkaCluster, cluster: Cluster, topic: str
) -> None:
    create_topic(kafka.bootstrap_servers, topic, configs={"retention.ms": -1})
    old = requests.init_producer_id(cluster, topic)
    requests.add_partitions_to_txn(cluster, topic, old, [TopicPartition(topic, 0)])
    new = requests.init_producer_id(cluster, topic)
    assert requests.describe_transaction(cluster, topic).state == "Empty"
    assert new.epoch > old.epoch
    with pytest.raises(
        KafkaApiError, match=r"refuses EndTxn v\d+: (PRODUCER_FENCED|INVALID_PRODUCER_EPOCH)"
    ):
        requests.end_txn(cluster, topic, old, commit=True)


def test_transaction_unknown_to_the_coordinator_is_aborted(
    kafka: KafkaCluster, cluster: Cluster, topic: str
) -> None:
    create_topic(kafka.bootstrap_servers, topic, configs={"retention.ms": -1})
    tp = TopicPartition(topic, 0)
    producer = requests.init_producer_id(cluster, topic)
    requests.add_partitions_to_txn(cluster, topic, producer, [tp])
    produce(kafka.bootstrap_servers, tp)
    send_copies(cluster, tp, tp, topic, producer, sequence=0)
    stable = requests.list_offsets(
        cluster, {tp: requests.LATEST}, isolation=IsolationLevel.READ_COMMITTED
    )
    assert stable[tp].offset == RECORDS
    (found,) = (
        each
        for each in requests.active_producers(cluster, [tp])[tp]
        if each.transaction_start is not None
    )
    requests.abort_hung_transaction(cluster, tp, found)
    stable = requests.list_offsets(
        cluster, {tp: requests.LATEST}, isolation=IsolationLevel.READ_COMMITTED
    )
    assert stable[tp].offset == 2 * RECORDS + 1
    epoch = stable[tp].leader_epoch
    ends = requests.epoch_ends(cluster, {tp: epoch})
    assert ends[tp] == requests.EpochEnd(LeaderEpoch(epoch), Offset(2 * RECORDS + 1))


def test_quotas_and_scram_users_are_described(cluster: Cluster) -> None:
    assert requests.client_quotas(cluster) == ()
    assert requests.scram_credentials(cluster) == ()


def test_missing_topic_is_refused_by_name(cluster: Cluster) -> None:
    metadata = cluster.metadata(["no-such-topic"])
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(metadata.refused["no-such-topic"])
    with pytest.raises(KafkaApiError, match="for no-such-topic: UNKNOWN_TOPIC_OR_PARTITION"):
        requests.list_offsets(cluster, {TopicPartition("no-such-topic", 0): -1}, timeout=0.5)


def produce(servers: str, tp: TopicPartition) -> None:
    """Produce batches of several records, some compressed, with keys, headers and timestamps."""
    at = count()
    for codec in ("none", "lz4", "zstd"):
        producer = Producer(
            {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 50}
        )
        for index in (next(at) for _ in range(RECORDS // 3)):
            producer.produce(
                tp.topic,
                key=b"%d" % index,
                value=None if index % 7 == 0 else b"value %d " % index * 20,
                headers=[("index", b"%d" % index)],
                partition=tp.partition,
                timestamp=1_600_000_000_000 + index,
            )
        producer.flush()


def fetch(
    cluster: Cluster, tp: TopicPartition, isolation: IsolationLevel, offset: int = 0
) -> FetchedPartition:
    connection = cluster.connect(cluster.partition_metadata(tp).leader)
    with connection:
        ids = {}
        if topic_id := cluster.metadata([tp.topic]).topics[tp.topic].topic_id:
            ids[tp.topic] = topic_id
        position = FetchPosition(tp, Offset(offset), 1_000_000)
        send_fetch(connection, [position], isolation=isolation, topic_ids=ids)
        (fetched,) = receive_fetched(connection, ids)
    assert (fetched.error_code, fetched.partition) == (0, tp)
    return fetched


def send_copies(
    cluster: Cluster,
    source: TopicPartition,
    target: TopicPartition,
    transactional_id: str,
    producer: batches.Producer,
    sequence: int,
) -> int:
    """Send all batches of a partition in the open transaction, with several requests in flight."""
    requests.add_partitions_to_txn(cluster, transactional_id, producer, [target])
    records = fetch(cluster, source, IsolationLevel.READ_COMMITTED).records
    copied = list(batches.split_batches(records))
    assert len(copied) >= 3
    with cluster.connect(cluster.partition_metadata(target).leader) as connection:
        for batch, header in copied:
            batches.set_producer(batch, producer, sequence, transactional=True)
            sequence = batches.next_sequence(sequence, header.record_count)
            if connection.in_flight == cluster.settings.max_in_flight:
                check_produced(connection)
            send_produce(connection, [(target, batch)], transactional_id=transactional_id)
        while connection.in_flight:
            check_produced(connection)
    return sequence


def check_produced(connection: Connection) -> None:
    (produced,) = receive_produced(connection)
    assert (produced.error_code, produced.message) == (0, None)


def read(servers: str, tp: TopicPartition) -> list[Shown]:
    """Output of a read-committed consumer up to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([KafkaPartition(tp.topic, tp.partition, 0)])
    shown: list[Shown] = []
    while (message := consumer.poll(30)) is not None:
        if message.error() is not None:
            break
        shown.append((message.key(), message.value(), message.timestamp()[1], message.headers()))
    consumer.close()
    return shown


@pytest.mark.parametrize("by_id", [True, False])
def test_a_fetch_session_answers_only_for_what_is_new(
    kafka: KafkaCluster, cluster: Cluster, topic: str, *, by_id: bool
) -> None:
    name = f"{topic}-session-{by_id}"
    create_topic(kafka.bootstrap_servers, name, partitions=20)
    shown = cluster.metadata([name]).topics[name]
    topics = LiveTopics(topics={name: shown if by_id else replace(shown, topic_id=None)})
    leader, session = cluster.connect(shown.partitions[0].leader), FetchSession()
    ends = dict.fromkeys(range(20), Offset(0))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def send(*numbers: int) -> None:
        for number in numbers:
            producer.produce(name, b"value", partition=number)
        assert producer.flush(30) == 0

    def ask(*numbers: int) -> list[int]:
        """Return the partitions that were answered for, after a Fetch of these in the session."""
        positions = [FetchPosition(TopicPartition(name, at), ends[at], 1 << 20) for at in numbers]
        answers, _ = fetch_from(
            leader, positions, topics, isolated=False, timeout=20, max_wait=0.05, session=session
        )
        for answer in answers:
            assert answer.error_code == 0
            ends[answer.partition.partition] = answer.high_watermark
        return sorted(answer.partition.partition for answer in answers)

    every, few = tuple(range(20)), tuple(range(10))
    send(*every)  # so that the broker knows that it leads them
    assert ask(*every) == list(every)
    assert ask(*every) == []
    send(7, 12)
    assert ask(*every) == [7, 12]
    assert ask(*every) == []
    assert ask(*few) == []
    send(3, 15)
    assert ask(*few) == [3], "15 was forgotten"
    session._epoch += 3
    assert ask(*few) == list(few), "INVALID_FETCH_SESSION_EPOCH"
    assert ask(*few) == []
    session._id += 1
    assert ask(*few) == list(few), "FETCH_SESSION_ID_NOT_FOUND"
    assert ask(*few) == []
    assert ask(*every) == list(range(10, 20))
    leader.close()
