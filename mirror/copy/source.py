"""Read the source ahead of the target: Fetch from the brokers, and the archive below them.

A partition is read from the brokers as long as they have its next offset. If they answer
OFFSET_OUT_OF_RANGE below their log start, it is read from the archive until the brokers' log start
is reached. Offsets that neither has are a gap, which is reported.
"""

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode

from sidetier.mirror.copy.archive_source import (
    ArchiveEnd,
    ArchiveGap,
    ArchiveSource,
)
from sidetier.mirror.copy.batches import Selection, select_batches
from sidetier.segments.errors import (
    BrokerError,
    KafkaApiError,
    MirrorError,
    SegmentError,
    SidetierError,
    SourceUnavailableError,
)
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import MAX_OFFSET, BrokerId, Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.connection import Connection
from sidetier.wire.fetch_session import FetchPosition
from sidetier.wire.protocol import ApiKey, api_error, missing_permission
from sidetier.wire.record_requests import FetchedPartition, receive_fetched, send_fetch
from sidetier.wire.requests import EARLIEST, LATEST, list_offsets

log = structlog.get_logger("sidetier.mirror")

BUFFER_BYTES: Final = 128 << 20
_FETCH_BYTES: Final = 32 << 20
_MIN_PARTITION_BYTES: Final = 1 << 20
_WAIT_SECONDS: Final = 0.25
_CHECK_SECONDS: Final = 1.0
_MAX_SNAPSHOT_AGE: Final = 1.0
"""Maximum age of an archive snapshot, in seconds."""
_PATIENCE_SECONDS: Final = 60.0
"""Seconds for which brokers may fail before the mirror ends."""
_GAP_PATIENCE_SECONDS: Final = 60.0
"""Seconds for which offsets that the brokers have deleted may be missing in the archive before they
count as a gap: a sidecar may still upload them.
"""
_NOT_LEADING: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.leader_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.replica_not_available,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_server_error,
    }
)
"""Errors after which another broker may lead the partition."""
_UNKNOWN_TOPIC: Final = frozenset(
    {
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
NO_IDS: Final[Mapping[str, UUID]] = MappingProxyType({})


class OnGap(StrEnum):
    """Reaction of the mirror when neither the brokers nor the archive have a record."""

    STOP = "stop"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Fetched:
    """Part of a partition that was read.

    Attributes:
        tp: The partition.
        start: The position before this part.
        selection: The batches to copy, and the position after this part.
        size: Bytes that were read.
        end: The end of the partition's committed records, exclusive, as far as it is known.
        from_archive: Whether the bytes were read from the archive.
    """

    tp: TopicPartition
    start: Offset
    selection: Selection
    size: int
    end: Offset
    from_archive: bool


@dataclass(frozen=True, slots=True)
class SourceGap:
    """Neither the brokers nor the archive have the offsets [`start`, `end`)."""

    tp: TopicPartition
    start: Offset
    end: Offset
    detail: str


@dataclass(frozen=True, slots=True)
class TopicRecreated:
    """A topic was deleted and created again since `assign`. Nothing of the new topic was read."""

    topic: str


@dataclass(frozen=True, slots=True)
class PartitionFailed:
    """A partition cannot be read any further until the next `assign`; the others can."""

    tp: TopicPartition
    error: SidetierError


SourceEvent = Fetched | SourceGap | TopicRecreated | PartitionFailed


class Source(Protocol):
    """The source that the engine reads from."""

    def assign(
        self,
        positions: Mapping[TopicPartition, Offset],
        topic_ids: Mapping[str, UUID] = NO_IDS,
    ) -> None:
        """Read only these partitions, from these offsets on. Buffered events are dropped.

        Args:
            positions: The offset of the next record to read of each partition.
            topic_ids: Topics with an id are read only as long as they have it.
        """
        ...

    def poll(self, timeout: float) -> list[SourceEvent]:
        """Return the read events, in offset order within each partition; wait for the first one.

        Args:
            timeout: Maximum wait in seconds.

        Raises:
            SidetierError: Reading has ended; the text gives the reason.
        """
        ...

    def finished(self) -> bool:
        """Whether all partitions were returned up to the end of reading."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


@dataclass(slots=True)
class _Partition:
    tp: TopicPartition
    position: Offset
    until: Offset
    from_archive: bool = False
    log_start: int = 0
    end: int = -1
    missing_since: float | None = None
    is_recreated: bool = False
    has_failed: bool = False
    is_starved: bool = False
    """The last answer had no batch of this partition, though the broker has one: the batches of
    other partitions filled the response.
    """

    @property
    def is_done(self) -> bool:
        return self.position >= self.until

    def advance(self, position: Offset) -> None:
        """Set the position, and read the brokers again once their log start is reached."""
        if position > self.position:
            self.missing_since = None
        self.position = position
        if self.from_archive and self.log_start and position >= self.log_start:
            self.from_archive = False


@dataclass(slots=True)
class _State:
    """State that the threads share, guarded by `changed`.

    Each `assign` begins a new generation. Results of requests of an earlier generation are dropped,
    because they belong to other positions.
    """

    on_gap: OnGap
    buffer_bytes: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    partitions: dict[TopicPartition, _Partition] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    generation: int = 0
    queue: deque[SourceEvent] = field(default_factory=deque)
    buffered: int = 0
    failure: BaseException | None = None
    is_closed: bool = False

    def may_read(self) -> bool:
        """Wait for space in the buffer; return False once closed."""
        with self.changed:
            while self.buffered >= self.buffer_bytes and not self.is_closed:
                self.changed.wait(_CHECK_SECONDS)
            return not self.is_closed

    def pause(self) -> None:
        """Wait a moment, or until something changes."""
        with self.changed:
            if not self.is_closed:
                self.changed.wait(_WAIT_SECONDS)

    def fail(self, error: BaseException) -> None:
        """End reading; `poll` raises the error after the queued events."""
        with self.changed:
            self.failure = error
            self.changed.notify_all()

    def put(self, generation: int, fetched: Fetched) -> bool:
        """Queue the result of a read; return False if it has nothing new."""
        with self.changed:
            # An `assign` has made the request pointless. True, so that the caller does not pause.
            if generation != self.generation:
                return True
            partition = self.partitions[fetched.tp]
            position = fetched.selection.next_offset
            is_new = position > partition.position or fetched.end != partition.end
            partition.end = fetched.end
            partition.advance(position)
            if is_new:
                self.queue.append(fetched)
                self.buffered += fetched.size
                self.changed.notify_all()
            return is_new

    def put_failure(self, generation: int, tp: TopicPartition, error: SidetierError) -> None:
        """Queue a partition's failure, and stop reading it."""
        with self.changed:
            if generation != self.generation:
                return
            self.partitions[tp].has_failed = True
            self.queue.append(PartitionFailed(tp, error))
            self.changed.notify_all()

    def has_been_missing(self, generation: int, tp: TopicPartition, now: float) -> bool:
        """Whether the next offset of a partition has been missing for long enough to be a gap."""
        with self.changed:
            if generation != self.generation:
                return False
            partition = self.partitions[tp]
            if partition.missing_since is None:
                partition.missing_since = now
                log.info("mirror.waits_for_archive", partition=str(tp), offset=partition.position)
            return now - partition.missing_since >= _GAP_PATIENCE_SECONDS

    def put_gap(self, generation: int, gap: SourceGap) -> None:
        """Queue a gap and skip it.

        Raises:
            MirrorError: A gap ends reading of its partition.
        """
        with self.changed:
            if generation != self.generation:
                return
            if self.on_gap is OnGap.STOP:
                raise MirrorError(
                    f"{gap.detail}. Nothing after this gap is copied; with --on-gap skip the copy "
                    f"continues after it, at offset {gap.end}"
                )
            self.partitions[gap.tp].advance(gap.end)
            self.queue.append(gap)
            self.changed.notify_all()


class KafkaSource:
    """Reads from brokers, an archive, or both.

    Args:
        cluster: Makes a client of the source's brokers for the thread that fetches; None to read
            only the archive.
        archive: The archive, if there is one; only one thread uses it.
        until: The end of reading of each partition, exclusive; a partition that is not in it cannot
            be read. None to read without an end.
        on_gap: Whether a gap ends reading.
    """

    def __init__(
        self,
        cluster: Callable[[], Cluster] | None,
        archive: ArchiveSource | None,
        *,
        until: Mapping[TopicPartition, Offset] | None = None,
        on_gap: OnGap = OnGap.STOP,
        buffer_bytes: int = BUFFER_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_cluster = cluster
        self._archive = archive
        self._until = until
        self._clock = clock
        self._state = _State(on_gap, buffer_bytes)
        self._threads: list[threading.Thread] = []

    def assign(
        self,
        positions: Mapping[TopicPartition, Offset],
        topic_ids: Mapping[str, UUID] = NO_IDS,
    ) -> None:
        """Start the threads at the first call; later calls take effect at their next request."""
        state = self._state
        with state.changed:
            state.generation += 1
            state.topic_ids = topic_ids
            if self._archive is not None:
                self._archive.expect(topic_ids)
            state.queue.clear()
            state.buffered = 0
            ends = dict.fromkeys(positions, MAX_OFFSET) if self._until is None else self._until
            state.partitions = {
                tp: _Partition(tp, offset, ends[tp], from_archive=self._make_cluster is None)
                for tp, offset in positions.items()
                if tp in ends
            }
            state.queue += [
                PartitionFailed(tp, SourceUnavailableError(f"{tp} had no leader at the start"))
                for tp in positions.keys() - ends.keys()
            ]
            state.changed.notify_all()
        if not self._threads:
            self._start()

    def poll(self, timeout: float) -> list[SourceEvent]:
        """Return all buffered events, which frees the buffer for the reading threads."""
        state = self._state
        with state.changed:
            if not state.queue and state.failure is None:
                state.changed.wait(timeout)
            if state.queue:
                events = list(state.queue)
                state.queue.clear()
                state.buffered = 0
                state.changed.notify_all()
                return events
            # After the queued events: they were read before the failure.
            if state.failure is not None:
                raise state.failure
            return []

    def finished(self) -> bool:
        """Whether the buffer is empty and every partition has reached its end."""
        with self._state.changed:
            return not self._state.queue and all(
                partition.is_done for partition in self._state.partitions.values()
            )

    def close(self) -> None:
        """Wait for the reading threads to end."""
        with self._state.changed:
            self._state.is_closed = True
            self._state.changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        if self._make_cluster is not None:
            self._threads.append(threading.Thread(target=self._fetch_all, name="mirror-fetch"))
        if self._archive is not None:
            self._threads.append(threading.Thread(target=self._read_all, name="mirror-archive"))
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def _fetch_all(self) -> None:
        assert self._make_cluster is not None  # noqa: S101 -- `_start` checks it
        try:
            with self._make_cluster() as cluster:
                fetcher = _Fetcher(
                    cluster, self._state, self._clock, has_archive=self._archive is not None
                )
                try:
                    while self._state.may_read():
                        fetcher.step()
                finally:
                    fetcher.close()
        except BaseException as error:  # noqa: BLE001 -- `poll` raises it in the caller's thread
            self._state.fail(error)

    def _read_all(self) -> None:
        assert self._archive is not None  # noqa: S101 -- `_start` checks it
        try:
            while self._state.may_read():
                if not self._read_archived(self._archive):
                    self._state.pause()
        except BaseException as error:  # noqa: BLE001 -- `poll` raises it in the caller's thread
            self._state.fail(error)

    def _read_archived(self, archive: ArchiveSource) -> bool:
        """Read a part of each partition that is read from the archive; False if nothing is new."""
        state = self._state
        with state.changed:
            generation = state.generation
            from_archive = [
                # Copies, because the requests are made without the lock.
                replace(partition)
                for partition in state.partitions.values()
                if partition.from_archive and not (partition.is_done or partition.has_failed)
            ]
        has_new = False
        for partition in from_archive:
            if not self._state.may_read():
                return True
            try:
                has_new |= self._read_partition(archive, partition, generation)
            except SidetierError as error:
                state.put_failure(generation, partition.tp, error)
        return has_new

    def _read_partition(
        self, archive: ArchiveSource, partition: _Partition, generation: int
    ) -> bool:
        """Read the next part of a partition; return whether anything is new."""
        tp, position = partition.tp, partition.position
        read = archive.read(tp, position, _MAX_SNAPSHOT_AGE)
        if isinstance(read, ArchiveEnd):
            return self._handle_archive_end(partition, read, generation)
        if isinstance(read, ArchiveGap):
            end = min(read.end, partition.until)
            if self._make_cluster is not None and partition.log_start > position:
                # The brokers have the records from their log start on.
                end = Offset(min(end, partition.log_start))
            self._state.put_gap(generation, SourceGap(tp, position, end, read.detail))
            return True
        until = min(partition.until, read.end)
        if read.data:
            selection = select_batches(read.data, position, read.aborted, until=until)
        else:  # compaction has removed the last records of a segment
            selection = Selection((), until, 0)
        end = archive.last_stable_offset(tp, _MAX_SNAPSHOT_AGE) or until
        fetched = Fetched(tp, position, selection, len(read.data), end, from_archive=True)
        return self._state.put(generation, fetched)

    def _handle_archive_end(self, partition: _Partition, read: ArchiveEnd, generation: int) -> bool:
        """Continue with the brokers; report a gap if neither side has the next offset for a minute.

        Returns False while it waits for the archive.
        """
        tp, position = partition.tp, partition.position
        if self._make_cluster is None:
            detail = f"{tp}: the archive ends at offset {read.offset}, or holds no record of it"
            self._state.put_gap(generation, SourceGap(tp, position, partition.until, detail))
            return True
        if position < partition.log_start:
            if not self._state.has_been_missing(generation, tp, self._clock()):
                return False
            detail = (
                f"{tp}: offsets [{position}, {partition.log_start}) are deleted on the "
                f"brokers, and the archive can be read up to {read.offset} only"
            )
            gap = SourceGap(tp, position, Offset(partition.log_start), detail)
            self._state.put_gap(generation, gap)
        with self._state.changed:
            if generation == self._state.generation:
                self._state.partitions[tp].from_archive = False
        return True


@dataclass(frozen=True, slots=True)
class _FetchRequest:
    """The content of a Fetch request. Its response is decoded with the same topic ids."""

    generation: int
    positions: Mapping[TopicPartition, Offset]
    topic_ids: Mapping[str, UUID]


class _Fetcher:
    """Fetches from all brokers, with one request in flight to each. Not thread-safe."""

    def __init__(
        self, cluster: Cluster, state: _State, clock: Callable[[], float], *, has_archive: bool
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._has_archive = has_archive
        self._clock = clock
        self._connections: dict[BrokerId, Connection] = {}
        self._in_flight: dict[BrokerId, _FetchRequest] = {}
        self._failing_since: float | None = None
        self._leaderless_since: dict[TopicPartition, float] = {}
        self._leaders_asked = float("-inf")

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def step(self) -> None:
        """Send the requests that can be sent, and receive the answers that have arrived.

        Raises:
            SidetierError: The brokers have failed for a minute, or refuse permanently.
        """
        try:
            self._send()
            if not self._in_flight:
                self._state.pause()
                return
            self._receive()
            self._failing_since = None
        except BrokerError as error:
            self._handle_failure(error)

    def _handle_failure(self, error: BrokerError) -> None:
        """Drop all connections and try again, unless the brokers have failed for too long."""
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        if not error.retry:
            raise error
        if now - self._failing_since > _PATIENCE_SECONDS:
            raise _unavailable(error) from error
        self.close()
        self._connections.clear()
        self._in_flight.clear()
        self._cluster.forget_leaders(list(self._state.partitions))
        self._state.pause()

    def _wanted(self) -> dict[TopicPartition, _Partition]:
        """Return the partitions to fetch. Hold the lock."""
        return {
            tp: partition
            for tp, partition in self._state.partitions.items()
            if not (
                partition.from_archive
                or partition.is_done
                or partition.is_recreated
                or partition.has_failed
            )
        }

    def _send(self) -> None:
        with self._state.changed:
            generation = self._state.generation
            wanted = {
                tp: (partition.position, partition.is_starved)
                for tp, partition in self._wanted().items()
            }
            topic_ids = self._state.topic_ids
        # A partition has one request in flight: its next position is known only from the answer.
        busy = {tp for request in self._in_flight.values() for tp in request.positions}
        to_ask = [tp for tp in wanted if tp not in busy]
        for broker, led in self._led(to_ask, generation).items():
            if broker in self._in_flight:
                continue
            # Alone in its request, so that the batches of
            # other partitions cannot fill the response again.
            starved = [tp for tp in led if wanted[tp][1]]
            to_fetch = starved[:1] or led
            share = max(_FETCH_BYTES // len(to_fetch), _MIN_PARTITION_BYTES)
            send_fetch(
                self._connection(broker),
                [FetchPosition(tp, wanted[tp][0], share) for tp in to_fetch],
                topic_ids=topic_ids,
                isolation=IsolationLevel.READ_COMMITTED,
                max_wait=_WAIT_SECONDS,
                max_bytes=_FETCH_BYTES,
            )
            positions = {tp: wanted[tp][0] for tp in to_fetch}
            self._in_flight[broker] = _FetchRequest(generation, positions, topic_ids)

    def _led(
        self, partitions: list[TopicPartition], generation: int
    ) -> dict[BrokerId, list[TopicPartition]]:
        """Return the partitions that have a leader, by leader.

        The other ones do not stop them: they are asked for once a second, and given up after a
        minute.
        """
        now = self._clock()
        if now < self._leaders_asked + _CHECK_SECONDS:
            partitions = [tp for tp in partitions if tp not in self._leaderless_since]
        led, errors = self._cluster.leaders_or_errors(partitions)
        for tp, error in errors.items():
            self._wait_for_leader(tp, error, now, generation)
        for tp in partitions:
            if tp not in errors:
                self._leaderless_since.pop(tp, None)
        return led

    def _wait_for_leader(
        self, tp: TopicPartition, error: KafkaApiError, now: float, generation: int
    ) -> None:
        """Ask again later, or give the partition up."""
        self._leaders_asked = now
        since = self._leaderless_since.setdefault(tp, now)
        has_lasted = now - since > _PATIENCE_SECONDS
        if has_lasted or not error.retry:
            del self._leaderless_since[tp]
            reason = _unavailable(error) if error.retry else error
            self._state.put_failure(generation, tp, reason)

    def _connection(self, broker: BrokerId) -> Connection:
        if broker not in self._connections:
            self._connections[broker] = self._cluster.connect(broker)
        return self._connections[broker]

    def _receive(self) -> None:
        by_descriptor = {self._connections[broker].fileno(): broker for broker in self._in_flight}
        ready, _, _ = select.select(list(by_descriptor), [], [], _CHECK_SECONDS)
        if not ready:
            # A dead broker does not answer: the deadline of the oldest request ends the wait.
            ready = list(by_descriptor)[:1]
        for descriptor in ready:
            broker = by_descriptor[descriptor]
            request = self._in_flight.pop(broker)
            fetched = []
            try:
                for answer in receive_fetched(self._connections[broker], request.topic_ids):
                    part = self._fetched_or_failed(answer, request)
                    if part is not None:
                        fetched.append(part)
            finally:
                # Queued under one lock, so that the engine takes them in one poll and sends them in
                # one Produce request.
                with self._state.changed:
                    for part in fetched:
                        self._state.put(request.generation, part)

    def _fetched_or_failed(
        self, answer: FetchedPartition, request: _FetchRequest
    ) -> Fetched | None:
        """Return what was fetched; a permanent failure ends reading of this partition only."""
        try:
            return self._fetched(answer, request)
        except (KafkaApiError, MirrorError, SegmentError) as error:
            if error.retry:
                raise
            self._state.put_failure(request.generation, answer.partition, error)
            return None

    def _fetched(self, answer: FetchedPartition, request: _FetchRequest) -> Fetched | None:
        tp, generation = answer.partition, request.generation
        offset = request.positions[tp]
        if answer.error_code == ErrorCode.offset_out_of_range:
            self._handle_out_of_range(tp, offset, generation)
            return None
        if answer.error_code in _UNKNOWN_TOPIC and self._is_recreated(tp, request):
            return None
        if answer.error_code in _NOT_LEADING | _UNKNOWN_TOPIC:
            self._cluster.forget_leaders([tp])
            raise _retriable(tp, answer.error_code)
        if answer.error_code:
            raise api_error(
                f"the source's brokers refuse Fetch of {tp}",
                answer.error_code,
                missing_permission(ApiKey.FETCH, answer.error_code),
            )
        with self._state.changed:
            partition = self._state.partitions.get(tp)
            if generation != self._state.generation or partition is None:
                return None
            until = partition.until
        selection = select_batches(answer.records, offset, answer.aborted, until=until)
        end = answer.last_stable_offset if answer.last_stable_offset >= 0 else answer.high_watermark
        fetched = Fetched(tp, offset, selection, len(answer.records), end, from_archive=False)
        with self._state.changed:
            if generation == self._state.generation:
                partition.is_starved = selection.next_offset == offset < end
        return fetched

    def _is_recreated(self, tp: TopicPartition, request: _FetchRequest) -> bool:
        """Whether the topic has another id now. If so, report it and stop reading the topic."""
        described = self._cluster.metadata([tp.topic]).topics.get(tp.topic)
        wanted = request.topic_ids.get(tp.topic)
        if described is None or wanted is None or described.topic_id in (None, wanted):
            return False
        state = self._state
        with state.changed:
            if request.generation == state.generation:
                state.partitions[tp].is_recreated = True
                state.queue.append(TopicRecreated(tp.topic))
                state.changed.notify_all()
        return True

    def _handle_out_of_range(self, tp: TopicPartition, offset: Offset, generation: int) -> None:
        """Read the partition from the archive, or report a gap, if its offset is deleted."""
        start = list_offsets(self._cluster, {tp: EARLIEST})[tp].offset
        end = list_offsets(self._cluster, {tp: LATEST})[tp].offset
        if offset > end:
            raise MirrorError(
                f"{tp}: the mirror has copied up to offset {offset}, but the source's log ends at "
                f"{end}: the topic was created again, or lost records in an unclean election. Copy "
                "it under another name (--rename), or delete its copy and the mirror's progress"
            )
        if offset >= start:
            return  # the log has the offset by now, for example after an election: fetch it again
        if self._has_archive:
            with self._state.changed:
                if generation == self._state.generation:
                    partition = self._state.partitions[tp]
                    partition.from_archive, partition.log_start = True, start
                    self._state.changed.notify_all()
            return
        detail = (
            f"{tp}: offsets [{offset}, {start}) are deleted on the brokers, and no archive of "
            "them is configured"
        )
        self._state.put_gap(generation, SourceGap(tp, offset, start, detail))


def _unavailable(error: SidetierError) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"the source's brokers have failed for {_PATIENCE_SECONDS:.0f} s, at last: {error}"
    )


def _retriable(tp: TopicPartition, code: int) -> KafkaApiError:
    """Return the error as one that may pass: an election, or a topic that a broker learns late."""
    error = api_error(f"the source's brokers refuse Fetch of {tp}", code)
    return KafkaApiError(str(error), code=error.code, name=error.name, retry=True)
