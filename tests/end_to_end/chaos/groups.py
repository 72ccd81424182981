"""Consumer groups that record their messages, separately for each assignment of a partition."""

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Self

import yaml
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from prometheus_client import CollectorRegistry

from sidetier import TieredConsumer
from tests.end_to_end.chaos.ledger import Partition, checksum
from tests.end_to_end.chaos.scene import ENTROPY_BITS, Scene
from tests.harness.sidecar import beside, merged

_COMMIT_SECONDS = 1.0
_WAIT_SECONDS = 0.3
_BATCH = 200
_JOIN_SECONDS = 180.0
_LOGGER = logging.getLogger("sidetier.consumer")
_LINE = re.compile(
    r"consumer\.(?:offset_reset partition=(?P<reset>\S+)-(?P<number>\d+) to=(?P<to>\d+)"
    r"|switched partition=(?P<left>\S+)-(?P<of>\d+) to=kafka offset=(?P<at>\d+))"
)
_DELETED = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_REPLACED = ("created again", "offset.wm is gone", "were moved to quarantine")
"""How a reader reports that the archive under its position was retired."""


@dataclass(frozen=True, slots=True)
class Sign:
    """What an application sees between two records of a partition.

    Attributes:
        kind: `reset`: `auto.offset.reset` replaced the position; `kafka`: the archive was left for
            Kafka; `commit`: an offset was committed; `error`: a message with an error came.
        rows: Number of records that came before.
        offset: The new position, or the committed offset; -1 for an error.
        at: The time, in monotonic seconds.
    """

    kind: Literal["reset", "kafka", "commit", "error"]
    rows: int
    offset: int
    at: float


@dataclass(slots=True)
class Assignment:
    """Messages that one member received of one partition between its assignment and its
    revocation.
    """

    tp: Partition
    member: str
    rows: list[tuple[int, int]] = field(default_factory=list)
    """Offset and checksum, in the order of delivery."""
    signs: list[Sign] = field(default_factory=list)
    began: float = field(default_factory=monotonic)
    """The time of the assignment, in monotonic seconds."""

    def show(self, kind: Literal["reset", "kafka", "commit", "error"], offset: int = -1) -> None:
        """Record a sign."""
        self.signs.append(Sign(kind, len(self.rows), offset, monotonic()))

    def was_reset(self) -> bool:
        """Return whether the position was reset before the first record."""
        return any(sign.kind == "reset" and sign.rows == 0 for sign in self.signs)


def consumer_config(scene: Scene, directory: Path) -> dict[str, Any]:
    """Common configuration of all groups, which read the store without a proxy; the store's keys
    come from the environment.
    """
    settings = beside(scene.cluster, scene.store.direct)
    path = directory / "consumer.yaml"
    bits = {"storage": {"prefix_entropy_bits": ENTROPY_BITS}}
    path.write_text(yaml.safe_dump(merged(settings, bits)))
    return {
        "bootstrap.servers": scene.cluster.bootstrap_servers,
        "tiered.storage.config": str(path),
        "tiered.storage.memory.budget": "8MiB",
        "tiered.storage.fetch.threads": 2,
        "tiered.storage.look.interval": "1s",
    }


class Group:
    """A consumer group in one mode; members join and leave.

    With `partitions`, each member is assigned these by hand, and reads them from the beginning.
    `rate` limits the records that a member reads per second. A topic in `recreated` is deleted and
    created again meanwhile: errors that report this are signs.
    """

    def __init__(  # noqa: PLR0913 -- half of them have a default
        self,
        mode: str,
        config: Mapping[str, Any],
        topics: Sequence[str],
        tell: Callable[[str], None],
        *,
        name: str = "",
        partitions: Sequence[Partition] = (),
        rate: float | None = None,
        recreated: Collection[str] = (),
    ) -> None:
        self.mode = mode
        self.name = name or mode
        self.recreated = recreated
        self.partitions = partitions
        self.rate = rate
        self.registry = CollectorRegistry()
        self.assignments: list[Assignment] = []
        self.seen: dict[Partition, set[tuple[int, int]]] = {}
        self.problems: list[str] = []
        self.failed_commits = 0
        self._joined = 0
        self._level = logging.NOTSET
        self._config = {
            **config,
            "group.id": f"group-{self.name.lower()}",
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
        self._level = _LOGGER.level
        _LOGGER.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        while self._members:
            self.leave()
        _LOGGER.setLevel(self._level)

    def join(self) -> None:
        """Add a member."""
        self._joined += 1
        name = f"{self.name}/{self._joined}"
        # One registry can collect the metrics of one consumer: the first member's.
        registry = self.registry if self._joined == 1 else None
        more = {} if registry is None else {"tiered.storage.metrics.registry": registry}
        self._members.append(Member(self, name, {**self._config, **more}, self._topics))
        self._members[-1].start()
        self._tell(f"{name} joins")

    def leave(self) -> None:
        """Remove the oldest member, as if killed between a poll and a commit."""
        member = self._members.pop(0)
        member.stop()
        self._tell(f"{member.name} is gone")

    def replace(self) -> None:
        """Remove the oldest member, if there is one, and add another one."""
        if self._members:
            self.leave()
        self.join()

    def begin(self, tp: Partition, member: str) -> Assignment:
        """Record the assignment of a partition to a member."""
        with self._lock:
            self.assignments.append(Assignment(tp, member))
            return self.assignments[-1]

    def note(self, assignment: Assignment, offset: int, number: int) -> None:
        """Record a message of a member."""
        with self._lock:
            assignment.rows.append((offset, number))
            self.seen.setdefault(assignment.tp, set()).add((offset, number))

    def problem(self, text: str) -> None:
        """Record a violation."""
        self.problems.append(f"{self.name}: {text}")
        self._tell(self.problems[-1])

    def missing(self, wanted: Mapping[Partition, tuple[int, int]]) -> list[Partition]:
        """The partitions of which this record was not received."""
        with self._lock:
            return [tp for tp, row in wanted.items() if row not in self.seen.get(tp, set())]

    def last_seen(self) -> list[tuple[str, Partition, int, int, Sequence[Sign]]]:
        """Return member, partition, number of records, last offset and last signs of the last
        assignments.
        """
        with self._lock:
            return [
                (
                    one.member,
                    one.tp,
                    len(one.rows),
                    one.rows[-1][0] if one.rows else -1,
                    one.signs[-3:],
                )
                for one in self.assignments[-4:]
            ]

    def from_source(self, source: str) -> float:
        """Number of records that its first member received from `kafka` or `store`."""
        name = "sidetier_consumer_records_total"
        return self.registry.get_sample_value(name, {"source": source}) or 0.0


class Member:
    """A `TieredConsumer` in a thread. If its group is subscribed, it commits once a second, but not
    at its end.
    """

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
        with TieredConsumer(dict(self._config)) as consumer, _heard(self._hear):
            self._begin(consumer)
            due = monotonic() + _COMMIT_SECONDS
            while not self._stop.is_set():
                rate = self._group.rate
                batch = _BATCH if rate is None else round(rate * _WAIT_SECONDS)
                for message in consumer.consume(batch, _WAIT_SECONDS):
                    self._note(message)
                if rate is not None:
                    self._stop.wait(_WAIT_SECONDS)
                if monotonic() >= due and not self._group.partitions:
                    self._commit(consumer)
                    due = monotonic() + _COMMIT_SECONDS

    def _begin(self, consumer: TieredConsumer) -> None:
        by_hand = self._group.partitions
        if not by_hand:
            consumer.subscribe(self._topics, on_assign=self._given, on_revoke=self._taken)
            return
        starts = [KafkaTopicPartition(*tp, OFFSET_BEGINNING) for tp in by_hand]
        self._given(consumer, starts)
        consumer.assign(starts)

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
            self._note_error(tp, error)
        elif tp not in self._mine:
            self._group.problem(f"{self.name}: {tp} {offset} came without being assigned")
        elif offset is not None:
            number = checksum(message.key(), message.value())
            self._group.note(self._mine[tp], offset, number)

    def _note_error(self, tp: Partition, error: KafkaError) -> None:
        expected = error.code() in _DELETED or any(said in error.str() for said in _REPLACED)
        if tp[0] not in self._group.recreated or not expected:
            self._group.problem(f"{self.name}: {tp}: {error.str()}")
        elif tp in self._mine:
            self._mine[tp].show("error")

    def _hear(self, line: str) -> None:
        found = _LINE.match(line)
        if found is None:
            return
        reset = found["reset"] is not None
        topic, number = (found["reset"], found["number"]) if reset else (found["left"], found["of"])
        assignment = self._mine.get((topic, int(number)))
        if assignment is not None:
            assignment.show("reset" if reset else "kafka", int(found["to"] or found["at"]))

    def _commit(self, consumer: TieredConsumer) -> None:
        try:
            for one in consumer.commit(asynchronous=False) or ():
                assignment = self._mine.get((one.topic, one.partition))
                if assignment is not None and one.error is None:
                    assignment.show("commit", one.offset)
        except KafkaException:  # no offset, a rebalance or a moved coordinator: retry
            self._group.failed_commits += 1


@contextmanager
def lines_of_readers(path: Path) -> Iterator[None]:
    """Write what all readers log to a file, each line with the name of its member."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(threadName)s %(message)s"))
    _LOGGER.addHandler(handler)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        handler.close()


@contextmanager
def _heard(hear: Callable[[str], None]) -> Iterator[None]:
    """Pass each line that this thread's consumer logs to `hear`: an application sees a reset only
    there.
    """
    thread = threading.get_ident()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                hear(record.getMessage())

    ear = Ear(logging.INFO)
    _LOGGER.addHandler(ear)
    try:
        yield
    finally:
        _LOGGER.removeHandler(ear)
