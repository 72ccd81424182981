"""Consumer groups that record their messages, separately for each assignment of a partition."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from prometheus_client import CollectorRegistry

from sidetier import TieredConsumer
from tests.end_to_end.chaos.ledger import Partition, Sums, checksum

_COMMIT_SECONDS = 1.0
_WAIT_SECONDS = 0.3
_BATCH = 200
_JOIN_SECONDS = 180.0


@dataclass(slots=True)
class Assignment:
    """Messages that one member received of one partition between its assignment and its
    revocation.
    """

    tp: Partition
    member: str
    rows: list[tuple[int, int]] = field(default_factory=list)
    """Offset and checksum, in the order of delivery."""


class Group:
    """A consumer group in one mode; members join and leave."""

    def __init__(
        self,
        mode: str,
        config: Mapping[str, Any],
        topics: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:
        self.mode = mode
        self.registry = CollectorRegistry()
        self.assignments: list[Assignment] = []
        self.seen: dict[Partition, Sums] = {}
        self.problems: list[str] = []
        self.failed_commits = 0
        self._config = {
            **config,
            "group.id": f"group-{mode.lower()}",
            "tiered.storage.mode": mode,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "log_level": 0,
        }
        self._topics = list(topics)
        self._tell = tell
        self._members: list[Member] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._members:
            self.leave()

    def join(self) -> None:
        """Add a member."""
        name = f"{self.mode}/{len(self._members) + 1}@{len(self.assignments)}"
        # One registry can collect the metrics of one consumer: the first member's.
        registry = self.registry if not self.assignments and not self._members else None
        more = {} if registry is None else {"tiered.storage.metrics.registry": registry}
        self._members.append(Member(self, name, {**self._config, **more}, self._topics))
        self._members[-1].start()
        self._tell(f"{name} joins")

    def leave(self) -> None:
        """Remove the oldest member, as if killed between a poll and a commit."""
        member = self._members.pop(0)
        member.stop()
        self._tell(f"{member.name} is gone")

    def begin(self, tp: Partition, member: str) -> Assignment:
        """Record the assignment of a partition to a member."""
        with self._lock:
            self.assignments.append(Assignment(tp, member))
            return self.assignments[-1]

    def note(self, assignment: Assignment, offset: int, number: int) -> None:
        """Record a message of a member."""
        with self._lock:
            assignment.rows.append((offset, number))
            if not self.seen.setdefault(assignment.tp, Sums()).put(offset, number):
                self.problem(f"{assignment.tp}: other bytes at {offset} than before")

    def problem(self, text: str) -> None:
        """Record a violation."""
        self.problems.append(f"{self.mode}: {text}")
        self._tell(self.problems[-1])

    def has(self, wanted: Mapping[Partition, Sums]) -> bool:
        """Return whether all these records were received."""
        return all(
            (seen := self.seen.get(tp)) is not None
            and all(seen.get(offset) is not None for offset, _ in sums.items())
            for tp, sums in wanted.items()
        )

    def missing(self, wanted: Mapping[Partition, Sums]) -> dict[str, list[int]]:
        """Some of the offsets that were not received."""
        found = {}
        for tp, sums in wanted.items():
            seen = self.seen.get(tp, Sums())
            gone = [offset for offset, _ in sums.items() if seen.get(offset) is None]
            if gone:
                found[f"{tp[0]}-{tp[1]}"] = [len(gone), *gone[:3], gone[-1]]
        return found

    def from_source(self, source: str) -> float:
        """Number of records that its first member received from `kafka` or `store`."""
        name = "sidetier_consumer_records_total"
        return self.registry.get_sample_value(name, {"source": source}) or 0.0


class Member:
    """A `TieredConsumer` in a thread; it commits once a second, but not at its end."""

    def __init__(
        self, group: Group, name: str, config: Mapping[str, Any], topics: Sequence[str]
    ) -> None:
        self.name = name
        self._group = group
        self._config = config
        self._topics = list(topics)
        self._mine: dict[Partition, Assignment] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        """Subscribe, and read until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the group; messages since the last commit stay uncommitted."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            self._group.problem(f"{self.name} does not come to its end")

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 -- looked at by the verdict
            self._group.problem(f"{self.name}: {error!r}")

    def _run(self) -> None:
        with TieredConsumer(dict(self._config)) as consumer:
            consumer.subscribe(self._topics, on_assign=self._given, on_revoke=self._taken)
            due = monotonic() + _COMMIT_SECONDS
            while not self._stop.is_set():
                for message in consumer.consume(_BATCH, _WAIT_SECONDS):
                    self._note(message)
                if monotonic() >= due:
                    self._commit(consumer)
                    due = monotonic() + _COMMIT_SECONDS

    def _given(self, _: TieredConsumer, partitions: list[KafkaTopicPartition]) -> None:
        for one in partitions:
            tp = (one.topic, one.partition)
            self._mine[tp] = self._group.begin(tp, self.name)

    def _taken(self, _: TieredConsumer, partitions: list[KafkaTopicPartition]) -> None:
        for one in partitions:
            self._mine.pop((one.topic, one.partition), None)

    def _note(self, message: Message) -> None:
        tp, offset = (str(message.topic()), int(message.partition() or 0)), message.offset()
        error = message.error()
        if error is not None:
            self._group.problem(f"{self.name}: {tp}: {error.str()}")
        elif tp not in self._mine:
            self._group.problem(f"{self.name}: {tp} {offset} came without being assigned")
        elif offset is not None:
            number = checksum(message.key(), message.value())
            self._group.note(self._mine[tp], offset, number)

    def _commit(self, consumer: TieredConsumer) -> None:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:  # no offset, a rebalance or a moved coordinator: retry
            self._group.failed_commits += 1
