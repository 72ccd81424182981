"""Acknowledged records: the ground truth that an archive is compared with."""

import random
import threading
from collections.abc import Mapping, Sequence
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from tests.harness.stored_log import Record

FLUSH_SECONDS = 60.0
VALUE_BYTES = 1000


class Ledger:
    """Acknowledged records by partition and offset."""

    def __init__(self, seed: int = 4711) -> None:
        """Create a ledger; each seed gives other records."""
        self.records: dict[tuple[str, int], dict[int, Record]] = {}
        self.failures: list[KafkaError] = []
        self._random = random.Random(seed)
        self._number = 0

    def next_offset(self, topic: str, partition: int = 0) -> int:
        """Return the highest acknowledged offset plus one; 0 without records."""
        return max(self.records.get((topic, partition), {-1: None}), default=-1) + 1

    def produce(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        *,
        partitions: Sequence[int] = (0,),
        settings: Mapping[str, str | int] | None = None,
        timestamp: int = 0,
    ) -> None:
        """Send `count` records to each partition, and wait until all are acknowledged.

        `timestamp` is in ms since 1970; 0 means the present.
        """
        before = len(self.failures)
        producer = make_producer(bootstrap, settings)
        for _ in range(count):
            for partition in partitions:
                self.send(producer, topic, partition, timestamp)
        unacknowledged = producer.flush(FLUSH_SECONDS)
        assert unacknowledged == 0, f"{unacknowledged} records were not acknowledged"
        assert len(self.failures) == before, f"not delivered: {self.failures[-1]}"

    def send(self, producer: Producer, topic: str, partition: int, timestamp: int = 0) -> None:
        """Send one record. It enters the ledger once it is acknowledged."""
        self._number += 1
        key, value = f"{self._number:09d}".encode(), self._random.randbytes(VALUE_BYTES)
        record = Record(key, value)

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(error)
                return
            offset = message.offset()
            assert offset is not None
            assert offset >= 0
            self.records.setdefault((topic, partition), {})[offset] = record

        while True:
            try:
                producer.produce(
                    topic, value, key, partition, on_delivery=note, timestamp=timestamp
                )
            except BufferError:
                producer.poll(1)
            else:
                producer.poll(0)
                return


def make_producer(bootstrap: str, settings: Mapping[str, str | int] | None = None) -> Producer:
    """Return a producer of small batches that does not log errors about stopped brokers."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.num.messages": 20,
            "log_level": 0,
            **(settings or {}),
        }
    )


class Load:
    """Sends to all partitions of a topic in the background while the context is entered.

    The producer is idempotent and uses acks=all: an acknowledged record must never be lost.
    """

    def __init__(
        self, ledger: Ledger, bootstrap: str, topic: str, partitions: Sequence[int], rate: int
    ) -> None:
        """Create a load. `rate` is in records per second over all partitions."""
        self._ledger = ledger
        self._producer = make_producer(
            bootstrap, {"acks": "all", "enable.idempotence": "true", "delivery.timeout.ms": 60000}
        )
        self._topic = topic
        self._partitions = partitions
        self._pause = len(partitions) / rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, and wait until everything is acknowledged; may be called twice."""
        self._stop.set()
        self._thread.join()
        unacknowledged = self._producer.flush(FLUSH_SECONDS)
        assert unacknowledged == 0, f"{unacknowledged} records were not acknowledged"

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            for partition in self._partitions:
                self._ledger.send(self._producer, self._topic, partition)
