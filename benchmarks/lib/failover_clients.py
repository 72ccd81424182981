"""A producer and consumers of a partition, in threads, that go on when its leader goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from lib.clock import monotonic, pause
from lib.repeated import InThread

_POLL_SECONDS = 0.1
_VALUE_BYTES = 100


@dataclass
class SteadyProducer(InThread):
    """Appends small numbered records with acks=all until the block ends.

    It finds a new leader at once, so that it delays no consumer: its requests have a short timeout,
    and it asks for the leaders each second.

    Attributes:
        bootstrap: Addresses of the brokers.
        topic: The topic; its partition 0.
        interval: Seconds between two records.
        acked: When each record was acknowledged, in monotonic seconds.
    """

    bootstrap: str
    topic: str
    interval: float
    acked: list[float] = field(default_factory=list)
    _failure: str | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def check(self) -> None:
        """Raise RuntimeError if a record was not delivered."""
        if self._failure is not None:
            raise RuntimeError(f"a record was not delivered: {self._failure}")

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "socket.timeout.ms": 1000,
                "retry.backoff.ms": 50,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        number = 0
        while not self._stopping.is_set():
            producer.produce(
                self.topic, b"%0*d" % (_VALUE_BYTES, number), partition=0, on_delivery=self._note
            )
            number += 1
            producer.poll(0)
            pause(self.interval)
        producer.flush(30)

    def _note(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acked.append(monotonic())
        else:
            self._failure = error.str()


@dataclass
class SteadyConsumer(InThread):
    """Reads a partition from its start until the block ends, and goes on after each error.

    Attributes:
        config: Settings of the consumer beside those of every one.
        topic: The topic; its partition 0.
        received: When each record came, in monotonic seconds: the index is its offset.
        errors: Texts of the errors, and how often each has come.
    """

    config: Mapping[str, Any]
    topic: str
    received: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    _failure: str | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def check(self) -> None:
        """Raise RuntimeError if a record was skipped or came twice."""
        if self._failure is not None:
            raise RuntimeError(f"{self.config['bootstrap.servers']}: {self._failure}")

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time between two records, of which the second came in this time."""
        moments = list(self.received)
        ends = [at for at in range(1, len(moments)) if since <= moments[at] <= until]
        return max(moments[at] - moments[at - 1] for at in ends)

    def _run(self) -> None:
        consumer = Consumer(
            {
                "group.id": "bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
                **self.config,
            }
        )
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        while not self._stopping.is_set():
            message = consumer.poll(_POLL_SECONDS)
            if message is not None:
                self._take(message, monotonic())
        consumer.close()

    def _take(self, message: Message, now: float) -> None:
        error, expected = message.error(), len(self.received)
        if error is not None:
            self.errors[error.str()] = self.errors.get(error.str(), 0) + 1
        elif message.offset() != expected or int(message.value() or b"-1") != expected:
            self._failure = f"{message.offset()} in place of {expected}"
        else:
            self.received.append(now)
