"""A real broker with topics, and producers for it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from devtools.sandbox.kafka import KraftCluster

VERSION = "4.3.1"
_VALUES = 64
# As a broker in service has it, not as the sandbox's tests want it.
_PROPERTIES = {
    "log.retention.check.interval.ms": 300_000,
    "replica.high.watermark.checkpoint.interval.ms": 5000,
    "num.network.threads": 3,
    "num.io.threads": 8,
}


@contextmanager
def broker(directory: Path) -> Iterator[KraftCluster]:
    """Yield a running KRaft broker."""
    with KraftCluster(directory, VERSION, properties=_PROPERTIES) as cluster:
        yield cluster


def create_topic(cluster: KraftCluster, name: str, partitions: int, segment_bytes: int) -> None:
    """Create a topic, and wait until it exists."""
    config = {"segment.bytes": str(segment_bytes)}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)


def delete_topic(cluster: KraftCluster, name: str) -> None:
    """Delete a topic; the broker removes its files a minute later."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([name])[name].result(30)


def make_producer(cluster: KraftCluster, **more: Any) -> Producer:  # noqa: ANN401 - values of librdkafka properties
    """Return a producer with acks=all; the topics have one replica."""
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "acks": "all",
        "queue.buffering.max.kbytes": 256 << 10,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return Producer(settings)


def values(size: int) -> list[bytes]:
    """Return random values, which do not compress."""
    source = random.Random(size)
    return [source.randbytes(size) for _ in range(_VALUES)]


def words(size: int) -> list[bytes]:
    """Return texts of 500 random words with ten characters; they compress to about a third."""
    source = random.Random(size)
    vocabulary = [source.randbytes(5).hex() for _ in range(500)]
    count = size // 11 + 1
    return [" ".join(source.choices(vocabulary, k=count)).encode()[:size] for _ in range(_VALUES)]


def fill(cluster: KraftCluster, topic: str, partitions: int, size: int) -> None:
    """Produce this many bytes at full speed, in records of 10 KiB."""
    producer = make_producer(cluster, linger_ms=20, batch_size=1 << 20)
    kinds, failures = values(10 << 10), Failures()
    for number in range(size // (10 << 10)):
        while True:
            try:
                producer.produce(
                    topic,
                    kinds[number % _VALUES],
                    partition=number % partitions,
                    on_delivery=failures.note,
                )
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    producer.flush(60)
    failures.check()


class Failures:
    """Remembers whether a record was not delivered."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def note(self, error: KafkaError | None, _: Message) -> None:
        """Check a delivery report (callback)."""
        self._error = self._error or error

    def check(self) -> None:
        """Raise RuntimeError if a record was not delivered."""
        if self._error is not None:
            raise RuntimeError(f"a record was not delivered: {self._error}")
