"""Topics of a real cluster whose first records are in the archive alone, and `sidetier serve
--live` over both halves.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Final

from confluent_kafka import Consumer, Message, Producer

from devtools.sandbox.kafka import KafkaCluster, KraftCluster, ZookeeperCluster
from sidetier.brokers.kafka import (
    KAFKA_2_8,
    KAFKA_3_3,
    KAFKA_3_6,
    KAFKA_3_9,
    KAFKA_4_0,
    KAFKA_4_3,
    Properties,
)
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import Objects, file_store
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.serve_process import LAYOUT, ServeProcess, serve_process
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic, delete_records

_FLUSH_SECONDS: Final = 60
_NONE: Final[Properties] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Release:
    """A version of Kafka, with KRaft or ZooKeeper."""

    version: str
    zookeeper: bool = False

    def __str__(self) -> str:
        return f"{self.version}-{'zookeeper' if self.zookeeper else 'kraft'}"

    def cluster(
        self,
        directory: Path,
        brokers: int = 1,
        *,
        first_id: int = 1,
        properties: Properties = _NONE,
    ) -> KafkaCluster:
        """Return a cluster that is not started; with ZooKeeper, its ids begin at 1."""
        if self.zookeeper:
            return ZookeeperCluster(directory, self.version, brokers=brokers, properties=properties)
        return KraftCluster(
            directory, self.version, brokers=brokers, first_id=first_id, properties=properties
        )


OLDEST: Final = Release(KAFKA_2_8, zookeeper=True)
NEWEST: Final = Release(KAFKA_4_3)
_BETWEEN: Final = (
    Release(KAFKA_3_3),
    Release(KAFKA_3_6, zookeeper=True),
    Release(KAFKA_3_9, zookeeper=True),
    Release(KAFKA_3_9),
    Release(KAFKA_4_0),
)


def releases(*usual: Release) -> Sequence[Release]:
    """Return these releases; all with SERVE_LIVE_RELEASES=all, as in `make test-long`."""
    if os.environ.get("SERVE_LIVE_RELEASES") == "all":
        return (OLDEST, *_BETWEEN, NEWEST)
    return usual


@dataclass(frozen=True, slots=True)
class LiveLog:
    """The cluster, and an endpoint over it and its archive."""

    release: Release
    cluster: KafkaCluster
    endpoint: ServeProcess
    objects: Objects

    @property
    def brokers(self) -> str:
        """Addresses of the brokers, which producers use."""
        return self.cluster.bootstrap_servers

    def produce(self, topic: str, first: int, count: int) -> None:
        """Send records to partition 0, ten in each batch; their values tell their offsets."""
        producer = Producer({"bootstrap.servers": self.brokers, "acks": "all", "linger.ms": 0})
        for number in range(first, first + count):
            producer.produce(topic, value_at(number), partition=0)
            if number % 10 == 9:
                producer.flush(_FLUSH_SECONDS)
        assert producer.flush(_FLUSH_SECONDS) == 0

    def archived(self, topic: str, partition: int = 0, broker_id: int = 1) -> int:
        """Wait until all closed segments of a partition are stored; return the end of the last."""
        end = closed_end(self.cluster.log_dirs(broker_id)[0] / f"{topic}-{partition}")
        wait_until_stored(self.objects, topic, partition, end)
        return end

    def delete(self, topic: str, partition: int, before: int) -> None:
        """Let the broker delete records that are archived."""
        delete_records(self.brokers, topic, partition, before)

    def consumer(self, group: str = "plain", **settings: object) -> Consumer:
        """Return a plain consumer of the endpoint, which a reset stops or lets skip records."""
        return Consumer(
            {
                "bootstrap.servers": self.endpoint.bootstrap,
                "group.id": group,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )


def value_at(offset: int) -> bytes:
    """The value of the record with an offset."""
    return str(offset).encode() * 40


def read(consumer: Consumer, count: int, seconds: float = 90) -> list[Message]:
    """Return this number of records, or fewer after a time."""
    records: list[Message] = []
    deadline = monotonic() + seconds
    while len(records) < count and monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, str(message.error())
            records.append(message)
    return records


@contextmanager
def live_log(
    root: Path, release: Release, topics: Mapping[str, int], *options: str
) -> Iterator[LiveLog]:
    """Run a broker with topics of small segments, a sidecar beside it, and an endpoint.

    Args:
        root: Directory of all files.
        release: The version of Kafka.
        topics: Number of partitions, by topic.
        options: Further options of `sidetier serve`.
    """
    (root / "serve").mkdir()
    store = file_store(root / "serve" / "store")
    bits = {"storage": {"prefix_entropy_bits": LAYOUT.bits}}
    with ExitStack() as stack:
        cluster = stack.enter_context(release.cluster(root / "kafka"))
        for topic, partitions in topics.items():
            configs = small_segments(release.version)
            create_topic(cluster.bootstrap_servers, topic, partitions=partitions, configs=configs)
        settings = merged(beside(cluster, store, topics=list(topics)), bits)
        stack.enter_context(Sidecar(root / "sidecar", settings, store))
        live = ("--live", cluster.bootstrap_servers, *options)
        endpoint = stack.enter_context(serve_process(root / "serve", *live, store=store))
        yield LiveLog(release, cluster, endpoint, store.objects)
