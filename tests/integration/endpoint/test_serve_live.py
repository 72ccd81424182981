"""`sidetier serve --live`: archive and live cluster as one log, for unmodified clients."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import file_store
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.serve_process import LAYOUT, ServeProcess, serve_process
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic, delete_records

pytestmark = [pytest.mark.integration, pytest.mark.timeout(420)]

SENT = 600
TRIMMED = 300


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A topic whose first half is in the archive alone, and an endpoint over both."""

    topic: str
    cluster: KraftCluster
    endpoint: ServeProcess
    archived: int

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
    kraft43: KraftCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trimmed]:
    topic, root = f"live-{uuid4().hex[:6]}", tmp_path_factory.mktemp("live")
    store = file_store(root / "store")
    create_topic(kraft43.bootstrap_servers, topic, partitions=1, configs=small_segments())
    bits = {"storage": {"prefix_entropy_bits": LAYOUT.bits}}
    settings = merged(beside(kraft43, store, topics=[topic]), bits)
    with Sidecar(tmp_path_factory.mktemp("sidecar"), settings, store):
        producer = Producer({"bootstrap.servers": kraft43.bootstrap_servers})
        for number in range(SENT):
            producer.produce(topic, str(number).encode() * 40, partition=0)
            if number % 10 == 9:
                producer.flush(30)
        assert producer.flush(30) == 0
        end = closed_end(kraft43.log_dirs(1)[0] / f"{topic}-0")
        wait_until_stored(store.objects, topic, 0, end)
        delete_records(kraft43.bootstrap_servers, topic, 0, TRIMMED)
        options = ("--live", kraft43.bootstrap_servers)
        with serve_process(root, *options, store=store) as endpoint:
            yield Trimmed(topic, kraft43, endpoint, end)


def read(consumer: Consumer, count: int, seconds: float = 90) -> list[tuple[int, bytes]]:
    """Return offset and value of this number of records, or fewer after a time."""
    records: list[tuple[int, bytes]] = []
    deadline = monotonic() + seconds
    while len(records) < count and monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        assert message.error() is None, message.error().str()
        value = message.value()
        assert value is not None
        records.append((int(message.offset() or 0), value))
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
