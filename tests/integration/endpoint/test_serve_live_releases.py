"""`sidetier serve --live` in front of each release of Kafka, with KRaft and ZooKeeper.

In CI with the oldest brokers; `make test-long` has all others, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sidetier.wire.connection import Connection
from sidetier.wire.settings import ClientSettings, parse_addresses
from tests.harness.java_clients import read_with_java
from tests.harness.kafka_versions import VERSIONS
from tests.harness.live_log import (
    OLDEST,
    LiveLog,
    Release,
    live_log,
    read,
    releases,
    value_at,
)
from tests.harness.topics import alter_topic, create_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(420)]

PLAIN, PAID = "plain", "paid"
"""The second topic has transactions."""
SENT = 600
TRIMMED = 300


@pytest.fixture(scope="module", params=releases(OLDEST), ids=str)
def log(
    request: pytest.FixtureRequest,
    java: object,  # noqa: ARG001 - servers need it
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveLog]:
    release: Release = request.param
    with live_log(tmp_path_factory.mktemp("live"), release, {PLAIN: 1, PAID: 2}) as log:
        log.produce(PLAIN, 0, SENT)
        log.archived(PLAIN)
        log.delete(PLAIN, 0, TRIMMED)
        yield log


def end_of(consumer: Consumer) -> int:
    """Return the end of the plain topic, as the endpoint shows it; it begins at 0."""
    low, end = consumer.get_watermark_offsets(TopicPartition(PLAIN, 0), 30)
    assert low == 0
    return int(end)


def test_the_fake_brokers_know_the_versions_of_the_real_ones(log: LiveLog) -> None:
    (address,) = parse_addresses(log.brokers)
    settings = ClientSettings.from_properties({"bootstrap.servers": log.brokers})
    with Connection(address, settings) as broker:
        versions = VERSIONS[log.release.version]
        assert {api: broker.offered(api) for api in versions} == versions


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_plain_consumer_reads_from_the_archive_into_the_live_tail(
    log: LiveLog, isolation: str
) -> None:
    plain = log.consumer(isolation_level=isolation)
    end = end_of(plain)
    plain.assign([TopicPartition(PLAIN, 0, 0)])
    records = read(plain, end)
    log.produce(PLAIN, end, 50)
    records += read(plain, 50)
    assert [record.offset() for record in records] == list(range(end + 50))
    assert all(record.value() == value_at(at) for at, record in enumerate(records))
    times = {at: record.timestamp()[1] for at, record in enumerate(records)}
    for offset in (0, TRIMMED - 1, TRIMMED, end - 1, end + 2):
        (found,) = plain.offsets_for_times([TopicPartition(PLAIN, 0, times[offset])], 30)
        assert found.offset == min(at for at, time in times.items() if time >= times[offset])
    plain.close()


def test_a_consumer_that_falls_below_the_log_start_skips_nothing(log: LiveLog) -> None:
    # So that a reset would show as skipped records.
    plain = log.consumer(auto_offset_reset="latest")
    end = end_of(plain)
    plain.assign([TopicPartition(PLAIN, 0, end - 5)])
    assert [record.offset() for record in read(plain, 5)] == list(range(end - 5, end))
    plain.pause([TopicPartition(PLAIN, 0)])
    log.produce(PLAIN, end, SENT)
    archived = log.archived(PLAIN)
    assert archived > end + 100
    log.delete(PLAIN, 0, archived)
    plain.resume([TopicPartition(PLAIN, 0)])
    assert [record.offset() for record in read(plain, SENT)] == list(range(end, end + SENT))
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

    def knows_topic(self) -> bool:
        """Ask the brokers; return whether the producer knows all partitions now."""
        topic = self.producer.list_topics(PAID, timeout=30).topics[PAID]
        return topic.error is None and len(topic.partitions) == len(self.committed)

    def run(self, number: int) -> None:
        """Send a transaction, and end it: every third one is aborted."""
        self.producer.begin_transaction()
        self.send(number, is_committed=number % 3 != 0)
        if number % 3:
            self.producer.commit_transaction(60)
        else:
            self.producer.abort_transaction(60)


@dataclass(slots=True)
class Found:
    """The committed records that a plain consumer has read, by partition and offset."""

    consumer: Consumer
    values: dict[int, dict[int, bytes]] = field(default_factory=lambda: {0: {}, 1: {}})

    def take(self, count: int, seconds: float = 90) -> None:
        """Read more records."""
        for record in read(self.consumer, count, seconds):
            value, partition, offset = record.value(), record.partition(), record.offset()
            assert value is not None
            assert partition is not None
            assert offset is not None
            self.values[partition][offset] = value

    def check(self, committed: dict[int, list[bytes]]) -> None:
        """Check that these are all values, in this order."""
        found = {partition: list(values.values()) for partition, values in self.values.items()}
        assert found == committed


def test_transactions_are_read_across_the_seam(log: LiveLog, tmp_path: Path) -> None:
    """Some are aborted, the log start is within one of them, and the last one is open. Then the
    broker restarts: it fences leader epochs of before.

    Where Metadata has no leader epoch, librdkafka sends 0.
    """
    settings = {"bootstrap.servers": log.brokers, "transactional.id": PAID, "linger.ms": 0}
    producer = Producer(settings)
    producer.init_transactions(60)
    payments = Payments(producer)
    for number in range(30):
        payments.run(number)
    for partition in payments.committed:
        log.delete(PAID, partition, log.archived(PAID, partition) // 2 + partition * 3)
    ended = {number: list(values) for number, values in payments.committed.items()}
    sent = sum(map(len, ended.values()))
    producer.begin_transaction()
    payments.send(30, is_committed=True)
    producer.flush(30)
    plain = log.consumer(isolation_level="read_committed")
    plain.assign([TopicPartition(PAID, partition, 0) for partition in payments.committed])
    found = Found(plain)
    found.take(sent)
    found.take(1, seconds=2)
    found.check(ended)  # without the open one
    java = read_with_java(log.endpoint.bootstrap, "java", PAID, sent, tmp_path)
    assert java.offsets == {partition: list(values) for partition, values in found.values.items()}
    for partition, searched in java.times.items():
        check_times(java.timestamps[partition], searched)
    producer.commit_transaction(60)
    log.cluster.stop_broker(1)
    log.cluster.start_broker(1)
    # With ZooKeeper, a broker that has just started knows no topics yet; the producer remembers it.
    wait_until(payments.knows_topic, 60, "the topics")
    payments.run(31)
    found.take(sum(map(len, payments.committed.values())) - sent)
    found.check(payments.committed)
    plain.close()
    # The group goes on where it has committed, in the live cluster.
    more = read_with_java(log.endpoint.bootstrap, "java", PAID, 28, tmp_path)
    assert more.offsets == {
        partition: list(values)[-14:] for partition, values in found.values.items()
    }
    for partition, (offset, _) in more.committed.items():
        # Behind the record or, if Java has received it, behind the marker.
        assert offset - max(more.offsets[partition]) in {1, 2}


def check_times(timestamps: dict[int, int], searched: dict[int, int]) -> None:
    """Check what a search for times has found. Markers, which no consumer gets, have timestamps."""
    for time, found in searched.items():
        first = min(offset for offset, at in timestamps.items() if at >= time)
        before = max((offset for offset in timestamps if offset < first), default=-1)
        assert before < found <= first


def test_topics_without_an_archive_are_shown_whole(log: LiveLog) -> None:
    create_topic(log.brokers, "live-only", partitions=2)
    producer = Producer({"bootstrap.servers": log.brokers})
    for number in range(40):
        producer.produce("live-only", str(number).encode(), partition=number % 2)
    assert producer.flush(30) == 0
    plain = log.consumer("live-only", auto_offset_reset="earliest")
    plain.subscribe(["live-only"])
    assert sorted(int(record.value() or b"") for record in read(plain, 40)) == list(range(40))
    plain.commit(asynchronous=False)
    kept = plain.committed([TopicPartition("live-only", number) for number in (0, 1)], 30)
    assert [each.offset for each in kept] == [20, 20]
    plain.close()


def test_records_of_old_message_formats_are_those_of_the_leader(
    log: LiveLog, tmp_path: Path
) -> None:
    """Brokers up to 2.8 write them on request; all later ones keep what was written."""
    if log.release is not OLDEST:
        return
    create_topic(log.brokers, "old", configs={"message.format.version": "0.9.0"})
    for version, codec in (
        ("0.9.0", "none"),
        ("0.10.2", "none"),
        ("0.10.2", "gzip"),
        ("2.8", "lz4"),
    ):
        alter_topic(log.brokers, "old", {"message.format.version": version})
        producer = Producer({"bootstrap.servers": log.brokers, "compression.type": codec})
        for number in range(20):
            producer.produce("old", str(number).encode(), partition=0)
            if number % 7 == 6:
                producer.flush(30)
        assert producer.flush(30) == 0
    for isolation in ("read_committed", "read_uncommitted"):
        plain = log.consumer(isolation_level=isolation)
        plain.assign([TopicPartition("old", 0, 0)])
        records = read(plain, 80)
        assert [record.offset() for record in records] == list(range(80))
        assert [int(record.value() or b"") for record in records] == [*range(20)] * 4
        plain.close()
    java = read_with_java(log.endpoint.bootstrap, "old", "old", 80, tmp_path)
    assert java.offsets == {0: list(range(80))}
