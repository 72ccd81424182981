"""One log that is partly on Kafka and partly on the store, and fakes of both sides.

`FakeKafka` behaves as `confluent_kafka.Consumer` in these respects: it fetches ahead, drops fetched
records on `pause` and `seek`, stops a partition whose fetch was refused until it is assigned again,
refuses to change single partitions of an eager group, and drops stored offsets with an assignment.
`FakeReader` behaves as `ArchiveReader` promises.
"""

import random
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.missing_offsets import GapReason
from sidetier.archive.partition_archive import ArchiveBounds
from sidetier.archive.reader.results import (
    Failed,
    Gap,
    ReachedEnd,
    Records,
    Taken,
)
from sidetier.segments.arrow.schema import RECORD_SCHEMA
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

END, BEGINNING, STORED, INVALID = -1, -2, -1000, -1001


@dataclass(slots=True)
class Log:
    """A partition's log: the offsets with records, and the range that each side holds."""

    records: dict[int, bytes] = field(default_factory=dict)
    end: int = 0
    kafka_start: int = 0
    store_start: int = 0
    store_end: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    undecided: int | None = None
    """First offset of a transaction whose end the store does not have."""
    topic: int = 0
    """How many topics had the name before."""

    def produce(self, count: int, markers: int = 0) -> None:
        """Produce records, followed by offsets without records."""
        name = f"new-{self.topic}" if self.topic else "value"
        for _ in range(count):
            self.records[self.end] = f"{name}-{self.end}".encode()
            self.end += 1
        self.end += markers

    @property
    def last(self) -> int:
        """Offset of the last record."""
        return max(self.records, default=-1)

    def upload(self, end: int) -> None:
        """Let the store hold everything up to `end`, exclusive."""
        self.store_end = max(self.store_end, min(end, self.end))

    def retain(self, start: int) -> None:
        """Let Kafka delete everything below `start`."""
        self.kafka_start = max(self.kafka_start, min(start, self.end))

    def gc(self, start: int) -> None:
        """Let the store delete everything below `start`."""
        self.store_start = max(self.store_start, min(start, self.store_end))

    def between(self, start: int, end: int) -> list[int]:
        """Return the offsets with records in [start, end)."""
        return [offset for offset in range(start, end) if offset in self.records]

    def gap_at(self, offset: int) -> tuple[int, int] | None:
        """Return the gap of the store that contains the offset."""
        return next((gap for gap in self.gaps if gap[0] <= offset < gap[1]), None)


@dataclass(slots=True)
class World:
    """Logs by partition, the group's committed offsets, and faults."""

    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    brokers_away: bool = False
    store_error: SidetierError | None = None
    now: float = 1000.0
    seed: int = 0
    topic_id: str | None = "0"
    archived_id: str | None = "0"
    archived_cluster: str | None = None
    archived: dict[TopicPartition, Log] = field(default_factory=dict)
    unseen: int = 0
    """Clients that have a topic before this one do not see that it was created again."""
    has_told_id: bool = False
    """Whether brokers have answered a question for the topic's id; tests reset it."""
    left: list[TopicPartition] = field(default_factory=list)
    """Partitions of a member that has left the group; the next member gets them."""

    def recreate(self, records: int, *, seen: bool = True) -> None:
        """Delete the topic and create it again, with records. Its archive stays until `retire`.

        If its absence is not `seen`, clients fetch nothing of the new topic.
        """
        self.archived, self.committed = self.archived or self.logs, {}
        topic = 1 + max(log.topic for log in self.logs.values())
        self.topic_id = str(topic)
        self.unseen = self.unseen if seen else topic
        self.logs = {tp: Log(topic=topic) for tp in self.logs}
        for log in self.logs.values():
            log.produce(records)

    def retire(self, *, uploads: bool = False) -> None:
        """Move the archive of the deleted topic away. The new topic's archive begins."""
        self.archived, self.archived_id = {}, self.topic_id
        for log in self.logs.values() if uploads else ():
            log.upload(log.end)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str | KafkaError | None]:
        """Act as `KafkaClients.topic_ids`."""
        if self.brokers_away:
            return {topic: KafkaError(KafkaError._TRANSPORT) for topic in topics}
        self.has_told_id = True
        return dict.fromkeys(topics, self.topic_id)

    def stored(self, tp: TopicPartition) -> Log:
        """Return the log that the partition's archive is of."""
        return self.archived.get(tp) or self.log(tp)

    def log(self, tp: TopicPartition) -> Log:
        """Return the partition's log; an empty one is created if it is missing."""
        return self.logs.setdefault(tp, Log())

    def clock(self) -> float:
        """Return the time, which tests advance."""
        return self.now

    def wait(self, timeout: float) -> None:
        """Advance the time by `timeout` seconds."""
        self.now += timeout

    def set(self) -> None:
        """Do nothing: no thread waits."""


@dataclass(slots=True)
class _Fetcher:
    """librdkafka's state of an assigned partition."""

    offset: int
    paused: bool = False
    stopped: bool = False
    app: int | None = None
    ahead: list[Message] = field(default_factory=list)


class FakeKafka:
    """A `confluent_kafka.Consumer` over a `World`."""

    def __init__(self, world: World, *, cooperative: bool = False, ahead: int = 8) -> None:
        self.world, self.ahead = world, ahead
        self.cooperative = cooperative
        self.group = False
        self.closed = False
        self.served = 0
        self.stored: dict[TopicPartition, int] = {}
        self.sent: dict[TopicPartition, int] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.fetchers: dict[TopicPartition, _Fetcher] = {}
        self.paused: set[TopicPartition] = set()
        self.known_topics: set[str] = set()
        self.callbacks: dict[str, Callable[..., None]] = {}
        self.queue: list[Callable[[], None]] = []
        self.errors: list[Message] = []
        self.cached: dict[TopicPartition, int] = {}
        self.met: dict[TopicPartition, int] = {}
        self._random = random.Random(world.seed)

    # Group

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        self._must_be_open()
        self.group, self.callbacks = True, callbacks
        if self.world.left:
            self.rebalance(self.world.left)
            self.world.left = []

    def unsubscribe(self) -> None:
        self.group = False

    def rebalance(self, partitions: Iterable[TopicPartition], event: str = "on_assign") -> None:
        """Let the group assign or revoke these partitions at the next `consume`."""
        assigned = [_named(tp, INVALID) for tp in partitions]
        self.queue.append(lambda: self.callbacks[event](self, assigned))

    # Assignment

    def assign(self, partitions: list[KafkaTopicPartition]) -> None:
        self._must_be_open()
        if self.group and self.cooperative:
            raise _state("must be made using incremental_assign()")
        self._auto_commit(self.fetchers)
        self.fetchers, self.stored = {}, {}
        self._start(partitions)

    def unassign(self) -> None:
        self._must_be_open()
        self._auto_commit(self.fetchers)
        self.fetchers, self.stored = {}, {}

    def incremental_assign(self, partitions: list[KafkaTopicPartition]) -> None:
        self._must_be_open()
        if self.group and not self.cooperative:
            raise _state("must be made using assign()")
        for partition in partitions:
            if _tp(partition) in self.fetchers:
                raise KafkaException(KafkaError(KafkaError._CONFLICT, "already assigned"))
        self._start(partitions)

    def incremental_unassign(self, partitions: list[KafkaTopicPartition]) -> None:
        self._must_be_open()
        if self.group and not self.cooperative:
            raise _state("must be made using assign()")
        revoked = [_tp(partition) for partition in partitions]
        for tp in revoked:
            if tp not in self.fetchers:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "not assigned"))
        self._auto_commit(revoked)
        for tp in revoked:
            del self.fetchers[tp]
            self.stored.pop(tp, None)

    def assignment(self) -> list[KafkaTopicPartition]:
        return [_named(tp, INVALID) for tp in self.fetchers]

    def pause(self, partitions: list[KafkaTopicPartition]) -> None:
        self._must_be_open()
        for partition in partitions:
            if partition.topic in self.known_topics:
                self.paused.add(_tp(partition))
            fetcher = self.fetchers.get(_tp(partition))
            if fetcher is not None:
                fetcher.paused = True
                self._back(fetcher)

    def resume(self, partitions: list[KafkaTopicPartition]) -> None:
        self._must_be_open()
        for partition in partitions:
            self.paused.discard(_tp(partition))
            fetcher = self.fetchers.get(_tp(partition))
            if fetcher is not None:
                fetcher.paused = False

    def seek(self, partition: KafkaTopicPartition) -> None:
        self._must_be_open()
        fetcher = self.fetchers.get(_tp(partition))
        if fetcher is None or fetcher.stopped:
            raise _state("not in a fetch state")
        if partition.offset in (STORED, INVALID):
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "no offset"))
        fetcher.offset, fetcher.app = partition.offset, None
        fetcher.ahead = []

    # Reads

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        self._must_be_open()
        self.served += 1
        self.world.now += max(timeout, 0.0)
        raised: list[BaseException] = []
        while self.queue:
            try:
                self.queue.pop(0)()
            except ValueError as error:  # raised by the application's callback
                raised.append(error)
        messages, self.errors = list(self.errors), []
        fetchers = list(self.fetchers.items())
        self._random.shuffle(fetchers)
        for tp, fetcher in fetchers:
            self.fetch(tp)
            while fetcher.ahead and not fetcher.paused and len(messages) < num_messages:
                message = fetcher.ahead.pop(0)
                if message.error() is None:
                    fetcher.app = int(message.offset() or 0) + 1
                messages.append(message)
        if raised:  # messages that were about to be returned are dropped, and not fetched again
            raise raised[0]
        return messages

    def fetch(self, tp: TopicPartition) -> None:
        """Fetch ahead, as librdkafka's threads do at any time."""
        fetcher = self.fetchers.get(tp)
        if self.world.brokers_away or fetcher is None or fetcher.paused or fetcher.stopped:
            return
        log = self.world.log(tp)
        if self.met[tp] < min(log.topic, self.world.unseen):
            return
        self.met[tp] = log.topic
        self._place(tp, fetcher)
        if len(fetcher.ahead) >= self.ahead or any(message.error() for message in fetcher.ahead):
            return
        if not log.kafka_start <= fetcher.offset <= log.end:
            self._refuse(tp, fetcher, fetcher.offset)
            return
        stop = min(fetcher.offset + self.ahead, log.end)
        fetcher.ahead += [
            Message(tp.topic, tp.partition, at, None, log.records[at], None, None, (1, at))
            for at in log.between(fetcher.offset, stop)
        ]
        fetcher.offset = stop

    # Queries

    def committed(
        self, partitions: list[KafkaTopicPartition], timeout: float = -1
    ) -> list[KafkaTopicPartition]:
        self._reachable()
        return [
            _named(_tp(partition), self.world.committed.get(_tp(partition), INVALID))
            for partition in partitions
        ]

    def offsets_for_times(
        self, partitions: list[KafkaTopicPartition], timeout: float = -1
    ) -> list[KafkaTopicPartition]:
        self._reachable()
        return [
            _named(_tp(partition), self._for_time(_tp(partition), partition.offset))
            for partition in partitions
        ]

    def get_watermark_offsets(
        self, partition: KafkaTopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        if cached:  # librdkafka only knows the first offset from statistics
            return INVALID, self.cached.get(_tp(partition), INVALID)
        self._reachable()
        log = self.world.log(_tp(partition))
        return log.kafka_start, log.end

    # Commits

    def store_offsets(self, *, offsets: list[KafkaTopicPartition]) -> None:
        self._must_be_open()
        assigned = [partition for partition in offsets if _tp(partition) in self.fetchers]
        if offsets and not assigned:
            raise _state("not assigned")
        self.stored.update((_tp(partition), partition.offset) for partition in assigned)
        self.stored = {tp: offset for tp, offset in self.stored.items() if offset != INVALID}

    def commit(
        self,
        message: Message | None = None,
        offsets: list[KafkaTopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[KafkaTopicPartition] | None:
        self._reachable()
        if message is not None:
            tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
            new = {tp: int(message.offset() or 0) + 1}
        elif offsets is not None:
            new = {_tp(partition): partition.offset for partition in offsets}
        else:
            new = self._unsent(self.stored)
        if not new:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET, "no offset stored"))
        self.commits.append(new)
        self._send(new)
        return None if asynchronous else [_named(tp, offset) for tp, offset in new.items()]

    def close(self) -> None:
        self._must_be_open()
        if self.group and self.fetchers:
            self.world.left = list(self.fetchers)
            self.callbacks["on_revoke"](self, self.assignment())
        self._auto_commit(self.fetchers)
        self.closed = True

    def cluster_id(self, timeout: float = -1) -> str:
        return "fake"

    def memberid(self) -> str:
        return "member"

    def _start(self, partitions: list[KafkaTopicPartition]) -> None:
        for partition in partitions:
            tp = _tp(partition)
            self.known_topics.add(tp.topic)
            self.met.setdefault(tp, self.world.log(tp).topic)
            self.fetchers[tp] = _Fetcher(partition.offset, paused=tp in self.paused)

    def _back(self, fetcher: _Fetcher) -> None:
        """Drop fetched messages, and fetch them again from the application's position."""
        if fetcher.app is not None:
            fetcher.offset = fetcher.app
        elif fetcher.ahead and fetcher.ahead[0].error() is None:
            fetcher.offset = int(fetcher.ahead[0].offset() or 0)
        fetcher.ahead = [message for message in fetcher.ahead if message.error() is not None]

    def _place(self, tp: TopicPartition, fetcher: _Fetcher) -> None:
        log = self.world.log(tp)
        if fetcher.offset in (STORED, INVALID):
            committed = self.world.committed.get(tp)
            if committed is None:
                self._refuse(tp, fetcher, INVALID)
            else:
                fetcher.offset = committed
        elif fetcher.offset == END:
            fetcher.offset = log.end
        elif fetcher.offset == BEGINNING:
            fetcher.offset = log.kafka_start

    def _refuse(self, tp: TopicPartition, fetcher: _Fetcher, offset: int) -> None:
        error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "fetch failed: offset out of range")
        fetcher.ahead.append(Message(tp.topic, tp.partition, offset, error=error))
        fetcher.stopped = True

    def _for_time(self, tp: TopicPartition, timestamp: int) -> int:
        log = self.world.log(tp)
        if timestamp == BEGINNING:
            return log.kafka_start
        if timestamp == END:
            return log.end
        later = [at for at in log.between(log.kafka_start, log.end) if at >= timestamp]
        return min(later, default=END)

    def _auto_commit(self, tps: Iterable[TopicPartition]) -> None:
        stored = {tp: self.stored[tp] for tp in tps if tp in self.stored}
        self._send(self._unsent(stored))

    def _unsent(self, stored: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return what librdkafka commits: offsets above the last one that it has committed."""
        return {tp: at for tp, at in stored.items() if at > self.sent.get(tp, INVALID)}

    def _send(self, offsets: dict[TopicPartition, int]) -> None:
        self.sent.update(offsets)
        self.world.committed.update(offsets)

    def _must_be_open(self) -> None:
        if self.closed:
            raise RuntimeError("Consumer closed")

    def _reachable(self) -> None:
        self._must_be_open()
        if self.world.brokers_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no broker answers"))


class FakeClients:
    """Acts as `KafkaClients`. `opened` has the consumers, the present one last."""

    def __init__(self, world: World, *, cooperative: bool) -> None:
        self.opened: list[FakeKafka] = []
        self.topic_ids = world.topic_ids
        self.credentials: list[tuple[str, str]] = []
        self._world, self._cooperative = world, cooperative

    def open_consumer(self) -> FakeKafka:
        self.opened.append(FakeKafka(self._world, cooperative=self._cooperative))
        return self.opened[-1]

    def cluster_id(self) -> str:
        return "fake"

    def set_sasl_credentials(self, username: str, password: str) -> None:
        self.credentials.append((username, password))


@dataclass(slots=True)
class _Reading:
    offset: int
    paused: bool = False
    said_end: int | None = None
    halted: bool = False
    again_at: float = 0.0
    topic: int = 0


class FakeReader:
    """An `ArchiveReader` over a `World`."""

    def __init__(self, world: World, *, most: int = 7) -> None:
        self.world, self.most = world, most
        self.readings: dict[TopicPartition, _Reading] = {}
        self.looks = 0
        self.seen: dict[TopicPartition, int] = {}
        self.closed = False
        self._random = random.Random(world.seed + 1)

    def bounds(self, tp: TopicPartition, *, max_age: float = 0.0) -> ArchiveBounds | None:
        self.looks += 1
        if self.world.store_error is not None:
            raise self.world.store_error
        log = self.world.stored(tp)
        self.seen[tp] = log.topic
        if log.store_start >= log.store_end:
            return None
        return ArchiveBounds(
            Offset(log.store_start),
            Offset(log.store_end),
            is_pinterest=False,
            taken_at=0.0,
            topic_id=self.world.archived_id,
        )

    def kafka_cluster_id(self, topic: str) -> str | None:
        return self.world.archived_cluster

    def where(self, tp: TopicPartition) -> str:
        return f"memory://archive/c/{tp}/"

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> Offset | None:
        log = self.world.stored(tp)
        later = [at for at in log.between(log.store_start, log.store_end) if at >= timestamp_ms]
        return Offset(min(later)) if later else None

    def assign(self, tp: TopicPartition, offset: int) -> None:
        self.readings[tp] = _Reading(offset, topic=self.seen[tp])

    def seek(self, tp: TopicPartition, offset: int) -> None:
        reading = self.readings[tp]
        reading.offset, reading.said_end, reading.halted = offset, None, False

    def unassign(self, tp: TopicPartition) -> None:
        self.readings.pop(tp, None)

    def pause(self, tp: TopicPartition) -> None:
        self.readings[tp].paused = True

    def resume(self, tp: TopicPartition) -> None:
        self.readings[tp].paused = False

    def take(self, max_records: int, timeout: float) -> list[Taken]:
        assert max_records >= 1
        items: list[Taken] = []
        remaining = max_records
        for tp, reading in list(self.readings.items()):
            if (
                remaining <= 0
                or reading.paused
                or reading.halted
                or self.world.now < reading.again_at
            ):
                continue
            item = self._take(tp, reading, remaining)
            if isinstance(item, Records):
                remaining -= item.records.num_rows
            if item is not None:
                items.append(item)
        if not items:
            self.world.now += max(timeout, 0.0)
        return items

    def close(self) -> None:
        self.closed = True

    def _take(self, tp: TopicPartition, reading: _Reading, most: int) -> Taken | None:
        log = self.world.stored(tp)
        at = reading.offset
        error = self.world.store_error
        if log.topic != reading.topic:
            error = ArchiveReplacedError("the topic was created again", Offset(0))
        if error is not None:
            reading.halted = not error.retry
            reading.again_at = self.world.now + 5.0
            return Failed(tp, Offset(at), error)
        if at < log.store_start:
            reading.halted = True
            end = Offset(log.store_start)
            return Gap(tp, OffsetRange(Offset(at), end), GapReason.BELOW_START, "below the start")
        gap = log.gap_at(at)
        if gap is not None and at < log.store_end:
            reading.halted = True
            return Gap(
                tp, OffsetRange(Offset(at), Offset(gap[1])), GapReason.NOT_STORED, "not stored"
            )
        decided = log.store_end if log.undecided is None else log.undecided
        if at >= min(log.store_end, decided):
            return self._end(tp, reading)
        until = min([log.store_end, decided, *(start for start, _ in log.gaps if start > at)])
        offsets = log.between(at, until)[: min(most, self._random.randint(1, self.most))]
        if not offsets:
            reading.offset = until
            return self._take(tp, reading, most)
        later = log.between(offsets[-1] + 1, until)
        reading.offset = later[0] if later else until
        return Records(tp, records_of(log, offsets), Offset(reading.offset))

    def _end(self, tp: TopicPartition, reading: _Reading) -> ReachedEnd | None:
        if reading.said_end == reading.offset:
            return None
        reading.said_end = reading.offset
        return ReachedEnd(tp, Offset(reading.offset))


class AtOnce(Executor):
    """Runs each job at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Later(Executor):
    """Runs a job when the test says so, so that the world can change in between."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> None:
        """Run the oldest job."""
        if self.jobs:
            self.jobs.pop(0)()


def records_of(log: Log, offsets: list[int]) -> pa.RecordBatch:
    """Return these records in the reader's form; each offset is also the timestamp."""
    rows = len(offsets)
    columns: list[list[Any]] = [
        offsets,
        offsets,
        [0] * rows,
        [None] * rows,
        [log.records[offset] for offset in offsets],
        [[]] * rows,
        [0] * rows,
        [-1] * rows,
        [-1] * rows,
        [False] * rows,
    ]
    arrays = [
        pa.array(values, field.type) for values, field in zip(columns, RECORD_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _tp(one: KafkaTopicPartition) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)


def _named(tp: TopicPartition, offset: int) -> KafkaTopicPartition:
    return KafkaTopicPartition(tp.topic, tp.partition, offset)


def _state(text: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._STATE, text))
