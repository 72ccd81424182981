"""Methods that only Kafka can answer: consumer group, commits, cluster metadata.

Each method takes the `PollLock` first: confluent-kafka allows one thread at a time in a consumer,
and a second thread would wait forever while the first one polls without a pause.
"""

import threading
from typing import Any, Final, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sidetier.consumer.errors import not_configured
from sidetier.consumer.feed import DeliveryRecorder, Feed
from sidetier.consumer.kafka_side import KafkaSide
from sidetier.consumer.settings import Settings
from sidetier.consumer.sides import Sides
from sidetier.consumer.subscription_state import SubscriptionState
from sidetier.segments import offsets as domain

_REST_SECONDS: Final = 0.002
"""How long a poll leaves the lock free for a waiting thread."""


class PollLock:
    """A reentrant lock, so that a callback inside a poll can call the consumer.

    Short calls use `with poll_lock:`. A poll loop uses `with poll_lock.slice:` for each pass, and
    pauses 2 ms after a pass if another thread waits. Without the pause the polling thread would
    almost always get the lock back first.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._guard = threading.Lock()
        self._waiting = 0
        self._never = threading.Event()
        self.slice: Final = _Slice(self)

    def __enter__(self) -> Self:
        with self._guard:
            self._waiting += 1
        self._lock.acquire()
        with self._guard:
            self._waiting -= 1
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def take(self) -> None:
        """Begin a slice."""
        # Before it, not at its end: an interruption would lose the records of the slice.
        if self._waiting:  # read without the guard: a thread that is missed waits one slice more
            self._never.wait(_REST_SECONDS)
        self._lock.acquire()

    def give(self) -> None:
        """End a slice."""
        self._lock.release()


class _Slice:
    def __init__(self, poll_lock: PollLock) -> None:
        self._poll_lock = poll_lock

    def __enter__(self) -> None:
        self._poll_lock.take()

    def __exit__(self, *_: object) -> None:
        self._poll_lock.give()


class GroupApi:
    """Methods that call the inner `confluent_kafka.Consumer`."""

    _settings: Settings
    _sides: Sides
    _state: SubscriptionState
    _feed: Feed
    _delivery: DeliveryRecorder
    _poll_lock: PollLock
    _closed: bool

    def commit(self, *args: Any, **kwargs: Any) -> list[TopicPartition] | None:  # noqa: ANN401 -- theirs
        """Commit as `confluent_kafka.Consumer.commit` does: `message`, `offsets`, `asynchronous`.

        Without `message` and `offsets`, commit the positions after all returned records, of both
        sources.
        """
        with self._poll_lock:
            inner = self._inner("commit")
            # librdkafka's offset store does not have the positions since the last flush yet.
            self._flush()
            return inner.commit(*args, **kwargs)  # type: ignore[no-any-return]

    def committed(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """Return the group's committed offsets."""
        with self._poll_lock:
            return self._inner("committed").committed(partitions, timeout)

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """Store offsets for the next commit. Needs `enable.auto.offset.store` to be false.

        Raises:
            ValueError: both or neither of `message` and `offsets` are given.
            KafkaException: `enable.auto.offset.store` is true, or the message is an error.
        """
        kafka = self._kafka("store_offsets")
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is None and offsets is None:
            raise ValueError("expected either message or offsets")
        if self._settings.kafka.auto_store:
            text = "store_offsets() needs enable.auto.offset.store to be false"
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text))
        if message is not None:
            offsets = [_behind(message)]
        with self._poll_lock:
            kafka.consumer.store_offsets(offsets=offsets or [])
            for offset in offsets or []:
                tp = domain.TopicPartition(offset.topic, offset.partition)
                partition = self._state.partitions.get(tp)
                if partition is not None:
                    partition.stored = offset

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:  # noqa: ANN401
        """Return the cluster's metadata."""
        options = {} if topic is None else {"topic": topic}
        with self._poll_lock:
            return self._inner("list_topics").list_topics(timeout=timeout, **options)

    def cluster_id(self, timeout: float = -1) -> str:
        """Return the cluster's id."""
        with self._poll_lock:
            return self._inner("cluster_id").cluster_id(timeout)

    def consumer_group_metadata(self) -> Any:  # noqa: ANN401 -- librdkafka's own, opaque
        """Return the group metadata for `Producer.send_offsets_to_transaction`."""
        with self._poll_lock:
            return self._inner("consumer_group_metadata").consumer_group_metadata()

    def memberid(self) -> str:
        """Return this member's id in the group."""
        with self._poll_lock:
            return self._inner("memberid").memberid()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for connections that are opened from now on."""
        with self._poll_lock:
            self._kafka("set_sasl_credentials").set_sasl_credentials(username, password)

    def _inner(self, method: str) -> confluent_kafka.Consumer:
        """Return Kafka's client; errors as in `_kafka`."""
        return self._kafka(method).consumer

    def _kafka(self, method: str) -> KafkaSide:
        """Return Kafka's side.

        Raises:
            RuntimeError: the consumer is closed.
            KafkaException: `_NOT_CONFIGURED`: there is no broker.
        """
        self._require_open()
        kafka = self._sides.kafka
        if kafka is None:
            raise not_configured(
                f"{method}() needs bootstrap.servers: this consumer reads the store alone, without "
                "a broker and without a group; assign partitions by assign()"
            )
        return kafka

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")

    def _flush(self) -> None:
        with self._poll_lock:
            self._delivery.flush(self._state.partitions.values())


def _behind(message: Message) -> TopicPartition:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    epoch = message.leader_epoch()
    place = (str(message.topic()), int(message.partition() or 0), int(message.offset() or 0) + 1)
    if epoch is None:
        return TopicPartition(*place)
    return TopicPartition(*place, leader_epoch=epoch)
