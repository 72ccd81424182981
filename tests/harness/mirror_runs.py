"""`sidetier mirror` as a process, and consumers of its copies."""

import itertools
import json
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

WAIT = 90.0


def command(name: str, topic: str, source: str, target: str, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "sidetier.cli", "mirror", "--name", name, "--topic", topic),
        *("--source", f"bootstrap.servers={source}"),
        *("--target", f"bootstrap.servers={target}"),
        *("--transaction-interval", "200ms", *more),
    ]


def mirror(line: Sequence[str], *more: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [*line, "-o", "json", *more], capture_output=True, text=True, check=False, timeout=WAIT
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


Seen = tuple[Any, ...]
"""Key, value, headers and timestamp of a record."""


def consumed(servers: str, topic: str) -> dict[int, list[Seen]]:
    """Return what a read-committed consumer reads of each partition, without offsets."""
    records_by_partition = consumed_at(servers, topic)
    return defaultdict(
        list,
        {
            number: [record for _, record in records]
            for number, records in records_by_partition.items()
        },
    )


def consumed_at(servers: str, topic: str) -> dict[int, list[tuple[int, Seen]]]:
    """Return what a read-committed consumer reads of each partition, with offsets."""
    consumer = _reader(servers)
    partitions = list(consumer.list_topics(topic, WAIT).topics[topic].partitions)
    consumer.assign([KafkaPartition(topic, number, 0) for number in partitions])
    records_by_partition: dict[int, list[tuple[int, Seen]]] = defaultdict(list)
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(WAIT)
        assert message is not None, f"nothing comes of {topic}"
        if message.error() is not None:
            ended.add(message.partition() or 0)
            continue
        record = (message.key(), message.value(), message.headers(), message.timestamp())
        records_by_partition[message.partition() or 0].append((message.offset() or 0, record))
    consumer.close()
    return records_by_partition


def values_from(servers: str, topic: str, offset: int = 0) -> list[bytes | None]:
    """Return the values that a read-committed consumer reads of partition 0 from an offset."""
    consumer = _reader(servers)
    consumer.assign([KafkaPartition(topic, 0, offset)])
    values = []
    while (message := consumer.poll(WAIT)) is not None and message.error() is None:
        values.append(message.value())
    consumer.close()
    return values


def _reader(servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def write(servers: str, topic: str, *values: bytes, partition: int = 0) -> None:
    """Write records into one partition, and wait until they are acknowledged."""
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(WAIT) == 0


def write_until(
    stop: threading.Event,
    servers: str,
    topic: str,
    failures: list[BaseException],
    partitions: int = 3,
) -> None:
    """Write transactions of random size until stopped; about one in five is aborted."""
    try:
        producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
        producer.init_transactions(WAIT)
        choices, numbers = random.Random(1), itertools.count()
        while not stop.wait(0.02):
            producer.begin_transaction()
            for _ in range(choices.randrange(1, 200)):
                value = b"%d" % next(numbers) + b"." * 100
                producer.produce(topic, value, partition=choices.randrange(partitions))
            producer.flush(WAIT)
            if choices.random() < 1 / 5:
                producer.abort_transaction(WAIT)
            else:
                producer.commit_transaction(WAIT)
    except BaseException as error:  # noqa: BLE001 -- the test checks it
        failures.append(error)
