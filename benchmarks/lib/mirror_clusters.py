"""Source and target of the mirror benchmark: brokers, topics, and a check of each copy."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from devtools.sandbox.kafka import KraftCluster
from lib.backlog import VERSION, Failures, make_producer
from sidetier.segments.arrow import scan_headers

PARTITIONS = 4
RECORD_BYTES = 1024
_KEY_BYTES = 10
_MANY_VALUES = 1021
"""Number of distinct values. They exceed lz4's window of 64 KiB, and each partition gets all."""
_SILENCE_SECONDS = 60.0
_LOOK_BYTES = 16 << 20
KAFKA_JVM_FLAGS = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Djava.awt.headless=true",
)
"""JVM flags of `kafka-server-start.sh`."""
_PROPERTIES = {
    "log.retention.check.interval.ms": 300_000,
    "log.segment.delete.delay.ms": 1000,
    "log.initial.task.delay.ms": 30_000,
    "replica.high.watermark.checkpoint.interval.ms": 5000,
    "num.network.threads": 3,
    "num.io.threads": 8,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A topic to copy: bytes of a batch before compression, its codec, bytes of all records."""

    batch_bytes: int
    codec: str
    size: int

    @property
    def name(self) -> str:
        """Name for tables, and name of the topic."""
        batch = "1m" if self.batch_bytes >= 1_000_000 else f"{self.batch_bytes >> 10}k"
        return f"{batch}-{self.codec}"

    @property
    def records(self) -> int:
        """Number of records in all partitions."""
        return self.size // RECORD_BYTES // PARTITIONS * PARTITIONS


@contextmanager
def cluster(directory: Path) -> Iterator[KraftCluster]:
    """Yield a running broker with the heap and garbage collector of Kafka's start script."""
    kraft_cluster = KraftCluster(
        directory, VERSION, properties=_PROPERTIES, jvm_flags=KAFKA_JVM_FLAGS
    )
    with kraft_cluster as running:
        yield running


def admin_of(running: KraftCluster) -> AdminClient:
    """Return an admin client."""
    return AdminClient({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})


def fill(running: KraftCluster, shape: Shape) -> None:
    """Create the shape's topic and produce its records: keys are numbers, values repeat.

    Half of each value is random, so that lz4 halves it.
    """
    new = NewTopic(shape.name, PARTITIONS, 1, config={"max.message.bytes": str(4 << 20)})
    admin = admin_of(running)
    admin.create_topics([new])[shape.name].result(60)
    producer = make_producer(
        running,
        enable_idempotence=True,  # otherwise a resent batch could follow later ones
        linger_ms=1000,
        batch_size=shape.batch_bytes,
        batch_num_messages=1_000_000,
        message_max_bytes=4 << 20,
        compression_type=shape.codec,
        queue_buffering_max_messages=2_000_000,
    )
    values, failures = _values(), Failures()
    for number in range(shape.records):
        key, value = b"%010d" % number, values[number % _MANY_VALUES]
        while True:
            try:
                producer.produce(
                    shape.name, value, key, number % PARTITIONS, on_delivery=failures.note
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(300)
    failures.check()
    check_copy(running, shape.name, shape)


def delete_topics(running: KraftCluster, *names: str) -> None:
    """Delete topics; the broker removes their files a second later."""
    admin = admin_of(running)
    for future in admin.delete_topics(list(names)).values():
        future.result(60)


def mean_batch(running: KraftCluster, topic: str) -> tuple[float, float]:
    """Return mean bytes and records of the batches in the topic's first log file."""
    path = running.log_dirs(1)[0] / f"{topic}-0" / f"{0:020d}.log"
    with path.open("rb") as log:
        rows = scan_headers(log.read(_LOOK_BYTES)).rows
    return float(rows["length"].mean()), float(rows["record_count"].mean())


def has_records(running: KraftCluster, topic: str) -> bool:
    """Return whether a partition of the topic has bytes on the disk."""
    logs = running.log_dirs(1)[0].glob(f"{topic}-[0-9]*/*.log")
    return any(path.stat().st_size for path in logs)


def check_copy(running: KraftCluster, topic: str, shape: Shape) -> None:
    """Consume a topic with read_committed, and check that it has each record once, in order.

    Raises:
        RuntimeError: It has not.
    """
    values = _values()
    for partition in range(PARTITIONS):
        expected = range(partition, shape.records, PARTITIONS)
        numbers = iter(expected)
        for message in _consumed(running, topic, partition):
            number = next(numbers, None)
            if (
                number is None
                or message.key() != b"%010d" % number
                or message.value() != values[number % _MANY_VALUES]
            ):
                raise RuntimeError(
                    f"{topic}-{partition}: offset {message.offset()} has record {message.key()}, "
                    f"expected {number}"
                )
        missing = next(numbers, None)
        if missing is not None:
            raise RuntimeError(f"{topic}-{partition}: record {missing} and later ones are missing")


def _consumed(running: KraftCluster, topic: str, partition: int) -> Iterator[Any]:
    """Yield all records of a partition that are committed now."""
    consumer = Consumer(
        {
            "bootstrap.servers": running.bootstrap_servers,
            "group.id": "bench-check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        silent = 0.0
        while True:
            messages = consumer.consume(10_000, 0.25)
            silent = 0.0 if messages else silent + 0.25
            if silent >= _SILENCE_SECONDS:
                raise RuntimeError(f"{topic}-{partition}: the broker sends nothing")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name
                    return
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def _values() -> list[bytes]:
    size = RECORD_BYTES - _KEY_BYTES
    source = random.Random(size)
    return [source.randbytes(size // 2) + b"x" * (size - size // 2) for _ in range(_MANY_VALUES)]
