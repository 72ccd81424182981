"""Consumers at the end of a partition, in a process of their own, and the ages of what they get.

    python tail_reading.py '{"config": {...}, "topic": "t", "groups": 50, "records": 1000}'

prints "ready" once all wait at the end, and then, as JSON, the ages in ms of all records of all
consumers. A record's value begins with the monotonic nanosecond at which it was sent.
"""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic_ns
from typing import Any

from confluent_kafka import Consumer, TopicPartition

_WAIT_SECONDS = 60.0
_STAMP = 20


def follow(
    config: dict[str, Any], topic: str, records: int, ready: threading.Barrier
) -> list[float]:
    """Return the ages of this number of records behind the present end."""
    consumer = Consumer(config)
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), _WAIT_SECONDS)
    consumer.assign([TopicPartition(topic, 0, end)])
    consumer.poll(1.0)
    ready.wait(_WAIT_SECONDS)
    ages: list[float] = []
    while len(ages) < records:
        message = consumer.poll(_WAIT_SECONDS)
        if message is None:
            raise TimeoutError(f"{len(ages)} of {records} records came")
        if message.error() is not None:
            raise RuntimeError(message.error().str())
        ages.append((monotonic_ns() - int(message.value()[:_STAMP])) / 1e6)
    consumer.close()
    return ages


def read(config: dict[str, Any], topic: str, groups: int, records: int) -> list[float]:
    """Return the ages of this number of records for each group."""
    ready = threading.Barrier(groups + 1)
    with ThreadPoolExecutor(groups) as threads:
        following = [
            threads.submit(follow, {**config, "group.id": f"bench-{number}"}, topic, records, ready)
            for number in range(groups)
        ]
        ready.wait(_WAIT_SECONDS)
        print("ready", flush=True)
        return [age for each in following for age in each.result()]


if __name__ == "__main__":
    print(json.dumps(read(**json.loads(sys.argv[1]))))
