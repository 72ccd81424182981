"""A partition that brokers and an archive share, and endpoints over both without any thread.

The endpoints are real, from Fetch down to the requests: only what a broker or the store answers is
made here. The clock stands still until a test moves it, and what runs in threads elsewhere (the
archive's refresh, the followers, the question for topics) runs when a test says so. So each step is
the same in each run, and views of either side get as old as a test wants.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from sidetier.endpoint.blocks import BlockCache, Lease, SegmentBytes
from sidetier.endpoint.catalog import Catalog, format_topic_id
from sidetier.endpoint.fetch import FetchedData, Fetcher
from sidetier.endpoint.live import followers as followers_module
from sidetier.endpoint.live import reads as reads_module
from sidetier.endpoint.live.client import LiveCluster
from sidetier.endpoint.live.followers import Followers, _Follower, _Key
from sidetier.endpoint.live.logs import LiveLogs, LiveSettings
from sidetier.endpoint.live.topics import INTERVAL
from sidetier.endpoint.metrics import LiveMetrics
from sidetier.endpoint.offsets import EpochEnd as AnsweredEnd
from sidetier.endpoint.offsets import ListedOffset as AnsweredOffset
from sidetier.endpoint.offsets import OffsetAnswers
from sidetier.endpoint.positions import Positions
from sidetier.segments.errors import (
    BrokerUnavailableError,
    KafkaApiError,
    SidetierError,
    StoreUnavailableError,
)
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfMatch
from sidetier.wire.cluster import ClusterMetadata, PartitionMetadata, TopicMetadata
from sidetier.wire.fetch_session import FetchPosition, FetchSession
from sidetier.wire.protocol import ApiKey, api_error, build_request
from sidetier.wire.record_requests import FetchedPartition
from sidetier.wire.requests import EpochEnd, ListedOffset
from sidetier.wire.settings import Address, ClientSettings
from tests.harness.endpoint import fetch_of
from tests.harness.made_archive import Clock, MadeArchive, access_to
from tests.harness.record_batches import MadeBatch, MadeRecord

TP = TopicPartition("t", 0)
BROKERS = (0, 1)
STORE_AWAY = StoreUnavailableError("the store is away")
_MEMORY = 1 << 20
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of the log. `base` is at or below `first`: the log may have lost offsets there."""

    base: int
    first: int
    end: int
    epoch: int
    time: int
    data: bytes


@dataclass(slots=True, eq=False)
class Log:
    """The partition of one topic: of the present one, or of one that was deleted.

    Attributes:
        topic_id: The topic's id.
        batches: All batches that it ever had.
        start, other_start: The log starts of the leader and of the other replica.
        high_watermark: The leader's; below `committed` after a new leader was elected.
        committed: The highest high watermark that any leader had.
        end: The log end.
        epochs: Each leader epoch with its first offset.
        archive_start, archive_end: What the archive has.
        starts: All first offsets that the archive and the leader ever had.
        gaps: What the archive lacks.
        is_live: Whether the brokers have the topic.
        is_stored: Whether its archive is there.
    """

    topic_id: UUID
    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    other_start: int = 0
    high_watermark: int = 0
    committed: int = 0
    end: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    archive_start: int = 0
    archive_end: int = 0
    starts: set[int] = field(default_factory=lambda: {0})
    gaps: list[tuple[int, int]] = field(default_factory=list)
    is_live: bool = True
    is_stored: bool = True

    def next_batch(self, offset: int) -> Batch | None:
        """Return the batch with the first record at or above an offset."""
        return next((each for each in self.batches if each.end > offset), None)

    def is_archived(self, offset: int) -> bool:
        is_lost = any(first <= offset < end for first, end in self.gaps)
        is_within = self.archive_start <= offset < self.archive_end
        return self.is_stored and is_within and not is_lost

    def is_readable(self, offset: int) -> bool:
        """Whether a side has this offset, or will have it next."""
        is_at_leader = self.is_live and self.start <= offset <= self.end
        return is_at_leader or self.is_archived(offset)

    def is_there(self, batch: Batch) -> bool:
        """Whether a client can read a batch."""
        is_committed = batch.end <= self.high_watermark
        return is_committed and any(map(self.is_readable, range(batch.first, batch.end)))

    def is_lost(self, offset: int) -> bool:
        """Whether a client at this offset can read no further."""
        if not self.is_readable(offset):
            return True
        batch = self.next_batch(offset)  # there may be no records up to what is lost
        return batch is not None and not self.is_readable(max(batch.first, offset))

    def epoch_end(self, epoch: int) -> EpochEnd:
        """As the leader answers, which forgets the epochs of the records that it deletes."""
        ends = [start for _, start in self.epochs[1:]]
        first = sum(end <= self.start for end in ends)
        known = [row for row in self.epochs[first:] if row[0] <= epoch]
        if not known:
            return EpochEnd(LeaderEpoch(epoch), Offset(max(self.epochs[first][1], self.start)))
        following = [start for each, start in self.epochs if each > known[-1][0]]
        end = following[0] if following else self.end
        return EpochEnd(LeaderEpoch(known[-1][0]), Offset(end))


@dataclass(frozen=True, slots=True)
class Former:
    """A leader that is cut off from the other brokers, and does not know of the next one.

    Attributes:
        broker: Its id.
        epoch: The leader epoch that it knows.
        log: The log as it was.
        until: When it learns that it was replaced.
    """

    broker: int
    epoch: int
    log: Log
    until: float


class WorldStore(FakeStorage):
    """The archive's store; other things happen right before each request of an endpoint."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world

    @contextmanager
    def _request(
        self, operation: str, key: str, start: int = 0, end: int | None = None
    ) -> Iterator[None]:
        self._world.go_on()
        with super()._request(operation, key, start, end):
            yield


class World:
    """Both sides. Its methods are what brokers, sidecars and administrators do."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = WorldStore(self)
        self.archive = MadeArchive(self.store, tp=TP)
        self.log: Log | None = None
        """The topic's partition; None after the topic was deleted."""
        self.archived: Log | None = None
        """Whose archive is stored; a deleted topic's, until it is retired."""
        self.leader, self.leader_epoch = 0, 0
        self.shown = (0, 0)
        """Leader and epoch in the answers to Metadata, which may lag behind."""
        self.shows_topic: Log | None = None
        """The topic that Metadata shows."""
        self.former: Former | None = None
        """The last leader that was cut off."""
        self.hints = True
        """Whether a broker names the leader in place of itself."""
        self.away: set[int] = set()
        self.is_store_away = False
        self.agenda: list[Callable[[], None]] = []
        """What happens before the next requests."""
        self._topics = 0
        self._bases: list[int] = []
        self._is_acting = False
        self._told: dict[int, dict[TopicPartition, object]] = {}
        """What was told in each fetch session."""
        self.create()

    def go_on(self) -> None:
        """Let the next thing of the agenda happen."""
        if self.agenda and not self._is_acting:
            self.act(self.agenda.pop(0))

    def act(self, what: Callable[[], None]) -> None:
        """Do something, during which nothing else happens."""
        self._is_acting = True
        try:
            what()
        finally:
            self._is_acting = False

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.now += seconds

    def set_store_away(self, *, is_away: bool) -> None:
        """Let no request reach the store, or all."""
        self.is_store_away = is_away
        self.store.heal()
        if is_away:
            self.store.fail(None, STORE_AWAY, times=None)

    # Topics and leaders

    def create(self) -> None:
        """Create the topic."""
        if self.log is None:
            self._topics += 1
            self.log = Log(UUID(int=self._topics))
            self.leader_epoch = 0
            self.log.epochs.append((0, 0))
            if self.archived is None:
                self.archived = self.log
            self.show()

    def delete(self) -> None:
        """Delete the topic; its archive stays."""
        if self.former is not None:  # it learns of it, too
            self.former = replace(self.former, until=min(self.former.until, self.clock.now))
        if self.log is not None:
            self.log.is_live = False
        self.log = None

    def retire(self) -> None:
        """Move the archive of a deleted topic away."""
        if self.archived is not self.log and not self.is_store_away:
            for row in tuple(self.store.list_objects(self.archive.layout.partition_prefix(TP))):
                self.store.delete_object(row.key)
            if self.archived is not None:
                self.archived.is_stored = False
            self.archived, self._bases = self.log, []

    def move_leader(self, lag: int) -> None:
        """Elect the other broker, whose high watermark is up to `lag` batches behind. It may still
        have what the other one has deleted.
        """
        log, self.leader = self.log, 1 - self.leader
        self.leader_epoch += 1
        if log is not None:
            # As `LeaderEpochFileCache` does: an epoch without records is forgotten.
            log.epochs = [row for row in log.epochs if row[1] < log.end]
            log.epochs.append((self.leader_epoch, log.end))
            log.start, log.other_start = log.other_start, log.start
            ends = [0, *(each.end for each in log.batches if each.end <= log.high_watermark)]
            log.high_watermark = max(ends[max(len(ends) - 1 - lag, 0)], log.start)

    def cut_off(self) -> None:
        """Elect the other broker while the leader goes on, and is the only one that clients ask."""
        now, log = self.clock.now, self.log
        if log is None or (self.former is not None and now < self.former.until + 20):
            return
        log.other_start = log.start
        kept = replace(log, batches=[*log.batches], epochs=[*log.epochs])
        self.former = Former(self.leader, self.leader_epoch, kept, now + 9)
        self.move_leader(0)

    def was_cut_off(self) -> bool:
        """Whether endpoints may have asked a former leader lately."""
        return self.former is not None and self.clock.now < self.former.until + 10

    def answering(self, broker: int) -> tuple[Log, int] | None:
        """Return the log and the leader epoch of a broker that takes itself for the leader."""
        former = self.former
        is_former = former is not None and former.broker == broker
        if former is not None and is_former and self.clock.now < former.until:
            return former.log, former.epoch
        is_leader = broker == self.leader and self.log is not None
        return (self.log, self.leader_epoch) if is_leader and self.log is not None else None

    def show(self) -> None:
        """Let all brokers know the leader and the topic."""
        self.shown = self.leader, self.leader_epoch
        self.shows_topic = self.log

    # Records

    def produce(self, records: int, lost: int = 0) -> None:
        """Append a batch after `lost` offsets without records, as compaction leaves them."""
        log = self.log
        if log is None:
            return
        first = log.end + lost if log.batches else log.end
        now = self.now_ms()
        made = MadeBatch(
            tuple(
                MadeRecord(first + row, now, value=str(log.topic_id).encode())
                for row in range(records)
            ),
            leader_epoch=self.leader_epoch,
        )
        end = first + records
        batch = Batch(log.end, first, end, self.leader_epoch, now, made.encoded())
        log.batches.append(batch)
        log.end = end

    def commit(self) -> None:
        """Let the replicas have all records."""
        if self.log is not None:
            self.log.high_watermark = self.log.committed = self.log.end
            self.log.other_start = max(self.log.other_start, self.log.start)

    def now_ms(self) -> int:
        return round(self.clock.now * 1000) + 1_700_000_000_000

    # The archive

    def upload(self, segments: int) -> None:
        """Archive the next segments, of two batches each, and then write `offset.wm`."""
        log = self.log
        if log is None or self.archived is not log or self.is_store_away:
            return
        for _ in range(segments):
            begin = max(log.archive_end, log.start if self._bases else 0)
            due = [each for each in log.batches if each.end > begin]
            if len(due) < 3:
                break
            base = max(due[0].base, log.archive_end)
            # Compaction may have left the next segment without its first offsets, or this one
            # without its last ones.
            is_hole_here = (due[2].first - due[2].base) % 2
            end = due[2].first if is_hole_here else due[2].base
            if end > log.high_watermark:
                break
            if log.archive_end < base:
                self.archive.gap(log.archive_end, base)
                log.gaps.append((log.archive_end, base))
            self.archive.segment(base, b"".join(each.data for each in due[:2]), end)
            self._bases.append(base)
            log.archive_end = end
        if self._bases:
            self._write_epochs_and_mark(log)

    def _write_epochs_and_mark(self, log: Log) -> None:
        rows = [row for row in log.epochs if row[1] < log.archive_end]
        self.archive.epoch_history(*rows)
        self.archive.mark(
            self._bases[-1],
            log.archive_end,
            leader_epoch=self.leader_epoch,
            topic_id=format_topic_id(log.topic_id),
            start_offset=log.archive_start,
        )

    def trim(self, records: int) -> None:
        """Delete archived records at the leader."""
        log = self.log
        if log is not None and self.archived is log:
            self._raise_start(log, min(log.start + records, log.archive_end))

    def lose(self) -> None:
        """Delete records at the leader that are not archived, up to a batch."""
        log = self.log
        if log is None or self.archived is not log or not log.archive_end:
            return
        beyond = [each for each in log.batches if each.base > log.archive_end]
        if beyond and beyond[0].base <= log.high_watermark and log.start <= log.archive_end:
            self._raise_start(log, beyond[0].base)

    def _raise_start(self, log: Log, start: int) -> None:
        log.start = max(log.start, min(start, log.high_watermark))
        log.starts.add(log.start)

    def collect(self) -> None:
        """Move the archive's start to its second segment; as gc, before it deletes objects."""
        log = self.archived
        is_writable = log is self.log and not self.is_store_away
        if log is not None and is_writable and len(self._bases) > 1:
            log.archive_start = self._bases[1]
            log.starts.add(log.archive_start)
            self._write_epochs_and_mark(log)

    def delete_objects(self) -> None:
        """Delete the segments below the archive's start."""
        log = self.archived
        if log is None or self.is_store_away:
            return
        while self._bases and self._bases[0] < log.archive_start:
            self.archive.lose(self._bases.pop(0))

    # Requests of the endpoints

    def metadata(self, names: Collection[str] | None = None, **_: object) -> ClusterMetadata:
        """Answer Metadata. Raises BrokerUnavailableError if no broker can be reached."""
        self.go_on()
        if len(self.away) == len(BROKERS):
            raise BrokerUnavailableError("no broker can be reached")
        topics: dict[str, TopicMetadata] = {}
        if self.shows_topic is not None:
            leader, epoch = BrokerId(self.shown[0]), LeaderEpoch(self.shown[1])
            replicas = tuple(map(BrokerId, BROKERS))
            partition = PartitionMetadata(leader, epoch, replicas, replicas)
            topics["t"] = TopicMetadata(
                "t", self.shows_topic.topic_id, is_internal=False, partitions={0: partition}
            )
        asked = topics.keys() if names is None else names
        missing = {name: _refusal(ErrorCode.unknown_topic_or_partition) for name in asked}
        return ClusterMetadata(
            "cluster",
            BrokerId(0),
            {BrokerId(each): Address("broker", 9092 + each) for each in BROKERS},
            {name: topic for name, topic in topics.items() if name in asked},
            {name: error for name, error in missing.items() if name not in topics},
        )

    def log_at(self, connection: "Connected") -> Log:
        """Return the log at a broker.

        Raises:
            BrokerError: The broker cannot be reached, or does not lead the partition.
        """
        self.go_on()
        if connection.broker in self.away:
            raise BrokerUnavailableError("the broker closed the connection")
        answering = self.answering(connection.broker)
        if answering is None:
            is_gone = self.log is None
            unknown, moved = ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower
            raise _refusal(unknown if is_gone else moved)
        return answering[0]

    def list_offsets(
        self,
        connection: "Connected",
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel,
        timeout: float,
    ) -> dict[TopicPartition, ListedOffset | KafkaApiError]:
        """Answer ListOffsets."""
        del isolation, timeout
        return {tp: self._listed(connection, timestamp) for tp, timestamp in timestamps.items()}

    def _listed(self, connection: "Connected", timestamp: int) -> ListedOffset | KafkaApiError:
        try:
            log = self.log_at(connection)
        except KafkaApiError as error:
            return error
        offset, time = -1, -1
        if timestamp == EARLIEST:
            offset = log.start
        elif log.high_watermark < log.epochs[-1][1]:
            return _refusal(ErrorCode.offset_not_available)  # KIP-207
        elif timestamp == LATEST:
            offset = log.high_watermark
        else:
            for batch in log.batches:
                is_there = log.start < batch.end <= log.high_watermark
                if is_there and batch.time >= timestamp:
                    offset, time = max(batch.first, log.start), batch.time
                    break
        return ListedOffset(Offset(offset), time, LeaderEpoch(-1))

    def epoch_end(
        self, connection: "Connected", tp: TopicPartition, epoch: LeaderEpoch, *, timeout: float
    ) -> EpochEnd:
        """Answer OffsetForLeaderEpoch."""
        del tp, timeout
        return self.log_at(connection).epoch_end(epoch)

    def fetch(
        self,
        connection: "Connected",
        positions: Sequence[FetchPosition],
        topics: Any,  # noqa: ANN401 - LiveTopics
        *,
        session: FetchSession | None = None,
        **_: object,
    ) -> tuple[list[FetchedPartition], float]:
        """Answer Fetch; in a session, only for what is new."""
        ids = topics.ids({"t"})
        answers = [self._fetched(connection, each, ids.get("t")) for each in positions]
        if session is None:
            return answers, 0.0
        told = self._told.setdefault(id(session), {})
        changes = session.changes(positions, ids)
        if not changes.epoch or changes.forgotten:
            told.clear()
        session.is_refused(0, 1)
        new = []
        for each in answers:
            offsets = each.high_watermark, each.log_start_offset
            if each.records or each.error_code or told.get(each.partition) != offsets:
                told[each.partition] = offsets
                new.append(each)
        return new, 0.0

    def _fetched(
        self, connection: "Connected", asked: FetchPosition, topic_id: UUID | None
    ) -> FetchedPartition:
        try:
            log = self.log_at(connection)
            if topic_id not in {None, log.topic_id}:
                raise _refusal(ErrorCode.unknown_topic_id)
            answering = self.answering(connection.broker)
            epoch = self.leader_epoch if answering is None else answering[1]
            if asked.leader_epoch >= 0 and asked.leader_epoch != epoch:
                is_old = asked.leader_epoch < epoch
                code = ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch
                raise _refusal(code)
            if not log.start <= asked.offset <= log.end:
                raise _refusal(ErrorCode.offset_out_of_range)
        except KafkaApiError as error:
            named = None
            moved = {ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch}
            if self.hints and error.code in moved:
                named = BrokerId(self.leader), LeaderEpoch(self.leader_epoch)
            none, no_records = Offset(-1), memoryview(b"")
            return FetchedPartition(
                asked.partition, error.code, none, none, none, (), -1, no_records, named
            )
        data = bytearray()
        for batch in log.batches:
            is_asked = asked.offset < batch.end <= log.high_watermark
            if is_asked and (not data or len(data) + len(batch.data) <= asked.max_bytes):
                data += batch.data
        end = Offset(log.high_watermark)
        records = memoryview(data)
        return FetchedPartition(
            asked.partition, 0, end, end, Offset(log.start), (), -1, records, None
        )


def _refusal(code: ErrorCode) -> KafkaApiError:
    return api_error("the broker refuses", int(code))


@dataclass(slots=True)
class Connected:
    """A connection to a broker."""

    broker: int
    client_id: str = ""
    is_closed: bool = False

    def close(self) -> None:
        """Close it."""
        self.is_closed = True

    def interrupt(self) -> None:
        """Do nothing: no request is in flight."""

    def version(self, *_: object, **__: object) -> int:
        """Return the version of any request."""
        return 11


class _DirectBytes(SegmentBytes):
    """Reads segments at once, and keeps nothing."""

    def lend(self, topic: str, log: Any, start: int, end: int, *_: object, **__: object) -> Lease:  # noqa: ANN401
        return Lease([self.read(topic, log, start, end - start)])

    def read(self, topic: str, log: Any, start: int, size: int, **_: object) -> bytes:  # noqa: ANN401
        store, version = self._archive.store(topic), IfMatch(log.row.etag)
        with store.get_object_input_stream(log.key, start, start + size, condition=version) as data:
            return data.read()

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Do nothing: it only prepares."""


class _Executor:
    """Runs listings at once, and the rest when the test says so."""

    _LATER = frozenset({"_refresh_one", "read_ahead"})

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[..., None], *arguments: object) -> None:
        if work.__name__ in self._LATER:
            self.waiting.append(lambda: work(*arguments))
        else:
            work(*arguments)

    def map(self, work: Callable[[Any], Any], items: Collection[Any]) -> Iterator[Any]:
        return map(work, items)

    def shutdown(self, **_: object) -> None:
        """Do nothing."""

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            work()


class _Catalog(Catalog):
    """Has no threads."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self.executor = _Executor()
        self.threads = ()  # type: ignore[assignment]

    def _helpers_at(self, endpoint: object) -> Any:  # noqa: ANN401, ARG002
        return self.executor


class _Followers(Followers):
    """Has no threads: `poll` sends one Fetch for each follower."""

    def _follower(self, key: _Key) -> _Follower:
        if key not in self._followers:
            follower = self._followers[key] = _Follower(key, lambda _: None)
            follower.thread = SimpleNamespace(is_alive=lambda: True, join=lambda _: None)  # type: ignore[assignment]
        return self._followers[key]

    def poll(self) -> None:
        for follower in tuple(self._followers.values()):
            topics = self._watch.latest
            positions = self._due(follower, topics)
            try:
                if positions:
                    self._fetch(follower, positions, topics)
            except SidetierError:
                self._lose([position.partition for position in positions])


class _NoTime(threading.Event):
    """Is never waited for."""

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002
        return self.is_set()


class Endpoint:
    """An endpoint over such a world.

    Args:
        world: The world.
        window: As `LiveSettings.window`.
        gap_patience: As `LiveSettings.gap_patience`.
    """

    def __init__(self, world: World, window: float, gap_patience: float = 0.0) -> None:
        self.world = world
        clock = world.clock
        settings = ClientSettings.from_properties({"bootstrap.servers": "broker:9092"})
        self.live = LiveLogs(
            LiveSettings(LiveCluster(lambda: settings), window, gap_patience=gap_patience),
            _MEMORY,
            LiveMetrics(CollectorRegistry()),
            lambda: None,
            clock,
            lambda: world.now_ms() / 1000,
        )
        watch, reads = self.live.watch, self.live.reads
        watch.renew = self._renew  # type: ignore[method-assign]
        reads.pool.lend = self._lend  # type: ignore[method-assign,assignment]
        reads.pool.open = lambda broker, _=None: self._connected(broker)  # type: ignore[method-assign,assignment,return-value]
        reads.pool.away = lambda broker: "away" if broker in world.away else None  # type: ignore[method-assign]
        self.followers = reads.followers = _Followers(
            watch,
            reads.pool,
            _MEMORY,
            reads._take_followed,
            reads._confirm,
            reads._lose,
            _NoTime(),
            clock=clock,
        )
        self._ahead = reads._ahead_threads = _Executor()  # type: ignore[assignment]
        self.is_due = False
        """Whether somebody has asked for the topics."""
        self._asked_at = clock.now
        self.live.expect_cluster(None)
        archive = access_to(world.store)
        self._blocks = BlockCache(_MEMORY, clock=clock)
        segment_bytes = _DirectBytes(archive, self._blocks)
        self.catalog = _Catalog(archive, segment_bytes, None, clock, self.live)
        self.catalog.start()
        self._fetcher = Fetcher(
            self.catalog, segment_bytes, Positions(archive, segment_bytes), clock
        )
        self._offsets = OffsetAnswers(self.catalog, segment_bytes)
        self.ask_for_topics()

    def close(self) -> None:
        self.live.close()
        self._blocks.close()

    def _connected(self, broker: int) -> Connected:
        if broker in self.world.away:
            raise BrokerUnavailableError(f"broker {broker} cannot be reached")
        return Connected(broker)

    @contextmanager
    def _lend(self, broker: int, _: float = 0.0) -> Iterator[Connected]:
        yield self._connected(broker)

    def _renew(self, *, wait: float = 0.0) -> None:
        if wait > 0:
            self.ask_for_topics()
        else:
            self.is_due = True

    # What runs in threads elsewhere

    def ask_for_topics(self) -> None:
        """Ask for the topics of the cluster."""
        self.is_due, self._asked_at = False, self.world.clock.now
        watch = self.live.watch
        try:
            watch._ask(self.world)  # type: ignore[arg-type]
        except BrokerUnavailableError:
            watch._unknown_since, watch._gone = {}, set()  # as `LiveTopicsWatch._run`

    def run_threads(self, *, lists: bool) -> None:
        """Let each thread do its work once; `lists` also lists the store."""
        if self.is_due or self.world.clock.now - self._asked_at >= INTERVAL:
            self.ask_for_topics()
        self.followers.poll()
        self.catalog.executor.run()
        self._ahead.run()
        if lists:
            self.catalog._begin_listings(self.catalog.archive.provider.endpoints, 0.0)

    # Requests of a client

    def shows(self, log: Log) -> bool:
        """Whether the endpoint has heard of this topic."""
        topic = self.live.topics.topics.get("t")
        return topic is not None and topic.topic_id == log.topic_id

    def topic_id(self) -> UUID | None:
        """Return the id of the topic, as Metadata shows it."""
        topic = self.catalog.topic("t")
        return None if topic is None else topic.topic_id

    def fetch(
        self, topic_id: UUID, offset: int, *, isolated: bool = False, most: int = 300
    ) -> tuple[FetchedData, bytes]:
        """Return the answer to a Fetch by topic id, and its records."""
        fields = fetch_of("t", offset, isolation=int(isolated), partition_max_bytes=most)
        (topic,) = fields["topics"]
        topic["topic_id"] = topic_id
        del topic["topic"], fields["replica_id"]
        answer = self._fetcher.fetch(build_request(ApiKey.FETCH, 16, **fields), 16)
        (data,) = answer.topics[0].partitions
        records = b"".join(bytes(piece) for piece in data.lease.pieces)  # type: ignore[arg-type]
        answer.release()
        return data, records

    def list_offset(self, timestamp: int, *, isolated: bool = False) -> AnsweredOffset:
        """Return the answer to ListOffsets."""
        told = self._offsets.ask_leaders([(TP, timestamp)], int(isolated))
        return self._offsets.list_offset("t", 0, timestamp, int(isolated), told=told)

    def epoch_end(self, epoch: int) -> AnsweredEnd:
        """Return the answer to OffsetForLeaderEpoch."""
        return self._offsets.epoch_end("t", 0, epoch)


@contextmanager
def answered_by(world: World) -> Iterator[None]:
    """Let the world answer the requests of all endpoints."""
    with (
        patch.object(reads_module, "list_offsets_at", world.list_offsets),
        patch.object(reads_module, "epoch_end_at", world.epoch_end),
        patch.object(reads_module, "fetch_from", world.fetch),
        patch.object(followers_module, "fetch_from", world.fetch),
    ):
        yield
