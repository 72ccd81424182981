"""Consumers at the end of a partition, in a process of their own, and the ages of what they get.

    python tail_reading.py '{"config": {...}, "topic": "t", "groups": 50, "records": 1000}'

prints "ready" once all wait at the end, and then, as JSON, the ages in ms of all records of all
consumers. A record's value begins with the monotonic nanosecond at which it was sent.
"""

import json
import sys
import threading
from time import monotonic_ns
from typing import Any

from confluent_kafka import Consumer, TopicPartition

_WAIT_SECONDS = 60.0
_STAMP = 20


def read(config: dict[str, Any], topic: str, groups: int, records: int) -> list[float]:
    """Return the ages of this number of records for each group."""
    ages: list[float] = []
    failures: list[BaseException] = []
    ready = threading.Barrier(groups + 1)

    def follow(number: int) -> None:
        try:
            consumer = Consumer({**config, "group.id": f"bench-{number}"})
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), _WAIT_SECONDS)
            consumer.assign([TopicPartition(topic, 0, end)])
            consumer.poll(1.0)
            ready.wait(_WAIT_SECONDS)
            own = []
            while len(own) < records:
                message = consumer.poll(_WAIT_SECONDS)
                if message is None:
                    raise TimeoutError(f"{len(own)} of {records} records came")
                if message.error() is not None:
                    raise RuntimeError(message.error().str())
                own.append((monotonic_ns() - int(message.value()[:_STAMP])) / 1e6)
            ages.extend(own)
            consumer.close()
        except BaseException as error:
            failures.append(error)
            ready.abort()
            raise

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(groups)]
    for thread in threads:
        thread.start()
    ready.wait(_WAIT_SECONDS)
    print("ready", flush=True)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return ages


if __name__ == "__main__":
    print(json.dumps(read(**json.loads(sys.argv[1]))))
