"""Reads a topic with confluent-kafka, in a separate process with its own CPU time.

    python kafka_reading.py '{"config": {...}, "topic": "t", "partitions": 8, "records": 1000000}'

prints its result as JSON. It stops when it has read this many records, from all partitions.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

_AT_ONCE = 5000
_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class KafkaRead:
    """Result: bytes of values, and seconds.

    `first_seconds` is the time from before the creation of the consumer to its first record, and
    `seconds` from there to the last record.
    """

    first_seconds: float
    records: int
    size: int
    seconds: float
    cpu_seconds: float

    @property
    def megabytes_per_second(self) -> float:
        """MB of values per second."""
        return self.size / self.seconds / 1e6


def read(config: dict[str, Any], topic: str, partitions: int, records: int) -> KafkaRead:
    """Read this many records."""
    began = monotonic()
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    count = size = 0
    first, cpu = 0.0, 0.0
    while count < records:
        # `consume` waits until it has as many as it was asked for.
        most = min(_AT_ONCE, records - count) if count else 1
        messages = consumer.consume(most, _WAIT_SECONDS)
        if not messages:
            raise TimeoutError(f"{count} of {records} records came")
        read_before = count
        for message in messages:
            error = message.error()
            if error is None:
                size += len(message.value())
                count += 1
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                # `sidetier serve --groups none` refuses `group.id`, which librdkafka requires.
                raise RuntimeError(error.str())
        if count and not read_before:
            first, cpu = monotonic(), _cpu()
    seconds, cpu = monotonic() - first, _cpu() - cpu
    consumer.close()
    return KafkaRead(first - began, count, size, seconds, cpu)


def _cpu() -> float:
    usage = os.times()
    return usage.user + usage.system


if __name__ == "__main__":
    print(json.dumps(asdict(read(**json.loads(sys.argv[1])))))
