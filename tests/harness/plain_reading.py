"""A plain consumer that reads in its own thread, while servers go and come."""

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

_AWAY = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})
_COMMIT_EVERY = 10


@dataclass(slots=True)
class Reading:
    """A consumer that reads a topic from its start, and what it has received.

    Attributes:
        bootstrap: Address of the servers.
        topic: The topic.
        partitions: Number of its partitions.
        group: The group that it joins, and in which it commits; None for `assign`.
        offsets: The offsets of all records in the order in which they came, by partition.
        errors: Errors other than that no server can be reached.
    """

    bootstrap: str
    topic: str
    partitions: int = 1
    group: str | None = None
    offsets: dict[int, list[int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = {number: [] for number in range(self.partitions)}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        is_member = self.group is not None
        plain = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group or f"g-{uuid4().hex[:6]}",
                # With `assign`, a reset would skip, and show.
                "auto.offset.reset": "earliest" if is_member else "latest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        if is_member:
            plain.subscribe([self.topic])
        else:
            plain.assign([TopicPartition(self.topic, each, 0) for each in self.offsets])
        uncommitted = 0
        while not self._stop.is_set():
            message = plain.poll(0.5)
            if message is not None:
                uncommitted += self._take(message)
            if is_member and (uncommitted >= _COMMIT_EVERY or (uncommitted and message is None)):
                with suppress(KafkaException):  # again with the next records
                    plain.commit(asynchronous=False)
                    uncommitted = 0
        if is_member:
            self._commit_last(plain)
        plain.close()

    def _take(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            self.offsets[int(message.partition() or 0)].append(int(message.offset() or 0))
        elif error.code() not in _AWAY:
            self.errors.append(error.str())
        return error is None

    def _commit_last(self, plain: Consumer) -> None:
        try:
            plain.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                self.errors.append(str(error))

    def wait_for(self, count: int, seconds: float = 120, first: int = 0) -> None:
        """Wait until the records from `first` to `count` of each partition have come, each once and
        in order.
        """
        deadline = monotonic() + seconds
        while min(map(len, self.offsets.values())) < count - first and monotonic() < deadline:
            threading.Event().wait(0.05)
        for number, found in self.offsets.items():
            are_next = [first + at == offset for at, offset in enumerate(found)]
            assert all(are_next), f"partition {number}: {found[are_next.index(False) - 1 :][:3]}"
            assert len(found) >= count - first, f"{len(found)} of partition {number}: {self.errors}"
        assert not self.errors

    def end(self) -> None:
        """Stop; a member commits what it has received, and leaves its group."""
        self._stop.set()
        self._thread.join()
