"""`sidetier serve --live`: archive and live cluster as one log, for unmodified clients."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.kafka import KAFKA_4_3
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import Objects, file_store
from tests.harness.java_clients import read_with_java
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.serve_process import LAYOUT, ServeProcess, serve_process
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic, delete_records

pytestmark = [pytest.mark.integration, pytest.mark.timeout(420)]

PAID = f"paid-{uuid4().hex[:6]}"
"""A topic with transactions."""
SENT = 600
TRIMMED = 300


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A topic whose first half is in the archive alone, and an endpoint over both."""

    topic: str
    cluster: KraftCluster
    endpoint: ServeProcess
    objects: Objects

    def produce(self, first: int, count: int) -> None:
        """Send records to the broker; the value is the offset."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "linger.ms": 0})
        for number in range(first, first + count):
            producer.produce(self.topic, str(number).encode() * 40, partition=0)
            if number % 10 == 9:
                producer.flush(30)
        assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def trimmed(
    java: object,  # noqa: ARG001 - servers need it
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Trimmed]:
    topic, root = f"live-{uuid4().hex[:6]}", tmp_path_factory.mktemp("live")
    store = file_store(root / "store")
    bits = {"storage": {"prefix_entropy_bits": LAYOUT.bits}}
    with KraftCluster(tmp_path_factory.mktemp("kraft"), KAFKA_4_3) as cluster:
        create_topic(cluster.bootstrap_servers, topic, partitions=1, configs=small_segments())
        create_topic(cluster.bootstrap_servers, PAID, partitions=2, configs=small_segments())
        settings = merged(beside(cluster, store, topics=[topic, PAID]), bits)
        with (
            Sidecar(tmp_path_factory.mktemp("sidecar"), settings, store),
            serve_process(root, "--live", cluster.bootstrap_servers, store=store) as endpoint,
        ):
            trimmed = Trimmed(topic, cluster, endpoint, store.objects)
            trimmed.produce(0, SENT)
            end = closed_end(cluster.log_dirs(1)[0] / f"{topic}-0")
            wait_until_stored(store.objects, topic, 0, end)
            delete_records(cluster.bootstrap_servers, topic, 0, TRIMMED)
            yield trimmed


def read(consumer: Consumer, count: int, seconds: float = 90) -> list[tuple[int, bytes]]:
    """Return offset and value of this number of records, or fewer after a time."""
    return [(offset, value) for offset, _, value in read_partitions(consumer, count, seconds)]


def read_partitions(
    consumer: Consumer, count: int, seconds: float = 90
) -> list[tuple[int, int, bytes]]:
    """The same with the partition between them."""
    records: list[tuple[int, int, bytes]] = []
    deadline = monotonic() + seconds
    while len(records) < count and monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        assert message.error() is None, str(message.error())
        value = message.value()
        assert value is not None
        records.append((int(message.offset() or 0), int(message.partition() or 0), value))
    return records


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_plain_consumer_reads_from_the_archive_into_the_live_tail(
    trimmed: Trimmed, isolation: str
) -> None:
    plain = Consumer(
        {
            "bootstrap.servers": trimmed.endpoint.bootstrap,
            "group.id": f"g-{uuid4().hex[:6]}",
            "auto.offset.reset": "error",
            "isolation.level": isolation,
        }
    )
    low, end = plain.get_watermark_offsets(TopicPartition(trimmed.topic, 0), 30)
    assert low == 0
    plain.assign([TopicPartition(trimmed.topic, 0, 0)])
    records = read(plain, end)
    trimmed.produce(end, 50)
    records += read(plain, 50)
    plain.close()
    assert [offset for offset, _ in records] == list(range(end + 50))
    assert all(value == str(offset).encode() * 40 for offset, value in records)


def test_a_consumer_that_falls_below_the_log_start_skips_nothing(trimmed: Trimmed) -> None:
    topic = trimmed.topic
    plain = Consumer(
        {
            "bootstrap.servers": trimmed.endpoint.bootstrap,
            "group.id": f"g-{uuid4().hex[:6]}",
            "auto.offset.reset": "latest",  # so that a reset would show as skipped records
        }
    )
    _, end = plain.get_watermark_offsets(TopicPartition(topic, 0), 30)
    plain.assign([TopicPartition(topic, 0, end - 5)])
    assert [offset for offset, _ in read(plain, 5)] == list(range(end - 5, end))
    plain.pause([TopicPartition(topic, 0)])
    trimmed.produce(end, SENT)
    archived = closed_end(trimmed.cluster.log_dirs(1)[0] / f"{topic}-0")
    assert archived > end + 100
    wait_until_stored(trimmed.objects, topic, 0, archived)
    delete_records(trimmed.cluster.bootstrap_servers, topic, 0, archived)
    plain.resume([TopicPartition(topic, 0)])
    assert [offset for offset, _ in read(plain, SENT)] == list(range(end, end + SENT))
    plain.close()


def test_java_groups_read_both_halves_after_the_leader_has_changed(
    trimmed: Trimmed, tmp_path: Path
) -> None:
    """Where Metadata has no leader epoch, librdkafka sends 0: a broker fences it after a change."""
    first, group = end_of(trimmed), f"java-{uuid4().hex[:6]}"
    got = read_with_java(trimmed.endpoint.bootstrap, group, trimmed.topic, first, tmp_path)
    assert got.offsets == {0: list(range(first))}
    trimmed.cluster.stop_broker(1)
    trimmed.cluster.start_broker(1)
    trimmed.produce(first, 20)
    more = read_with_java(trimmed.endpoint.bootstrap, group, trimmed.topic, 20, tmp_path)
    assert more.offsets == {0: list(range(first, first + 20))}
    plain = Consumer({"bootstrap.servers": trimmed.endpoint.bootstrap, "group.id": group})
    plain.assign([TopicPartition(trimmed.topic, 0, first)])
    assert [offset for offset, _ in read(plain, 20)] == list(range(first, first + 20))
    plain.close()


@dataclass(slots=True)
class Payments:
    """Transactions in both partitions, and the values of the committed ones."""

    producer: Producer
    committed: dict[int, list[bytes]] = field(default_factory=lambda: {0: [], 1: []})

    def send(self, number: int, *, is_committed: bool) -> None:
        """Send the records of a transaction, as several batches."""
        for partition, values in self.committed.items():
            for row in range(7):
                value = f"{number}-{row}".encode() * 150
                self.producer.produce(PAID, value, partition=partition)
                if row % 3 == 2:
                    self.producer.flush(30)
                if is_committed:
                    values.append(value)

    def run(self, number: int) -> None:
        """Send a transaction, and end it: every third one is aborted."""
        self.producer.begin_transaction()
        self.send(number, is_committed=number % 3 != 0)
        if number % 3:
            self.producer.commit_transaction(60)
        else:
            self.producer.abort_transaction(60)


def test_transactions_are_read_across_the_seam(trimmed: Trimmed) -> None:
    """Some are aborted, the log start is within one of them, and the last one is open."""
    servers = trimmed.cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": PAID, "linger.ms": 0})
    producer.init_transactions(60)
    payments = Payments(producer)
    for number in range(30):
        payments.run(number)
    for partition in payments.committed:
        end = closed_end(trimmed.cluster.log_dirs(1)[0] / f"{PAID}-{partition}")
        wait_until_stored(trimmed.objects, PAID, partition, end)
        delete_records(servers, PAID, partition, end // 2 + partition * 3)
    ended = {number: list(values) for number, values in payments.committed.items()}
    producer.begin_transaction()
    payments.send(30, is_committed=True)
    producer.flush(30)
    plain = Consumer(
        {
            "bootstrap.servers": trimmed.endpoint.bootstrap,
            "group.id": f"g-{uuid4().hex[:6]}",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
    )
    plain.assign([TopicPartition(PAID, partition, 0) for partition in payments.committed])
    found: dict[int, list[bytes]] = {0: [], 1: []}
    for _, partition, value in read_partitions(plain, 1 << 20, seconds=5):
        found[partition].append(value)
    assert found == ended, "the last one is open"
    producer.commit_transaction(60)
    rest = sum(map(len, payments.committed.values())) - sum(map(len, ended.values()))
    for _, partition, value in read_partitions(plain, rest):
        found[partition].append(value)
    plain.close()
    assert found == payments.committed


def test_topics_without_an_archive_are_shown_whole(trimmed: Trimmed) -> None:
    topic, servers = f"plain-{uuid4().hex[:6]}", trimmed.cluster.bootstrap_servers
    create_topic(servers, topic, partitions=2)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(40):
        producer.produce(topic, str(number).encode(), partition=number % 2)
    assert producer.flush(30) == 0
    plain = Consumer(
        {
            "bootstrap.servers": trimmed.endpoint.bootstrap,
            "group.id": f"g-{uuid4().hex[:6]}",
            "auto.offset.reset": "earliest",
        }
    )
    plain.subscribe([topic])
    values = sorted(int(value) for _, value in read(plain, 40))
    assert values == list(range(40))
    plain.commit(asynchronous=False)
    kept = plain.committed([TopicPartition(topic, number) for number in (0, 1)], 30)
    assert [each.offset for each in kept] == [20, 20]
    plain.close()


def test_timestamps_are_found_on_both_sides(trimmed: Trimmed) -> None:
    plain = Consumer({"bootstrap.servers": trimmed.endpoint.bootstrap, "group.id": "times"})
    end = end_of(trimmed)
    trimmed.produce(end, 3)
    times: dict[int, int] = {}
    plain.assign([TopicPartition(trimmed.topic, 0, 0)])
    while len(times) < end + 3:
        message = plain.poll(30)
        assert message is not None
        assert message.error() is None
        times[int(message.offset() or 0)] = message.timestamp()[1]
    for offset in (0, TRIMMED - 1, TRIMMED, end - 1, end + 2):
        asked = TopicPartition(trimmed.topic, 0, times[offset])
        (found,) = plain.offsets_for_times([asked], 30)
        assert found.offset == min(each for each, at in times.items() if at >= times[offset])
    plain.close()


def end_of(trimmed: Trimmed) -> int:
    """Return the end of the log, as the endpoint shows it."""
    plain = Consumer({"bootstrap.servers": trimmed.endpoint.bootstrap, "group.id": "end"})
    low, end = plain.get_watermark_offsets(TopicPartition(trimmed.topic, 0), 30)
    plain.close()
    assert low == 0
    return int(end)
