"""Fetch from the leaders of the live cluster, for all clients of the endpoint together.

A client that asks for records that no other client has read costs one request, under its own
`client.id`. A client at the end of a partition waits for the followers (`followers`), which read on
for all of them. What leaders return is kept (`chunks`), and what they tell of a log, too.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from sidetier.endpoint.blocks import NO_BYTES, Lease, Piece
from sidetier.endpoint.live.brokers import (
    PATIENCE,
    BrokerBusyError,
    BrokerPool,
    fetch_from,
    level_of,
)
from sidetier.endpoint.live.chunks import Chunk, ChunkCache, Reader, chunk_of
from sidetier.endpoint.live.client import LiveClient
from sidetier.endpoint.live.followers import Followers, bounds_of
from sidetier.endpoint.live.side import LiveBounds
from sidetier.endpoint.live.topics import LiveTopics, LiveTopicsWatch
from sidetier.endpoint.log_limits import FewPerSubject
from sidetier.endpoint.metrics import LiveMetrics
from sidetier.segments.errors import (
    BrokerError,
    BrokerUnavailableError,
    KafkaApiError,
    SidetierError,
)
from sidetier.segments.headers import batch_bytes
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger
from sidetier.wire.cluster import NO_LEADER
from sidetier.wire.connection import Connection
from sidetier.wire.fetch_session import FetchPosition
from sidetier.wire.protocol import ApiKey, api_error
from sidetier.wire.record_requests import FetchedPartition
from sidetier.wire.requests import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    EpochEnd,
    ListedOffset,
    epoch_end_at,
    list_offsets_at,
)

log = logger()

Value = TypeVar("Value")

TIMEOUT: Final = 2.0
"""Seconds: less than the 9 s after which the cluster itself gives a broker up."""
_MAX_CHUNK: Final = 8 << 20
_CHUNKS: Final = 8
"""Number of the largest chunks that fit the memory."""
_SMALL: Final = 64 << 10
"""Bytes of an answer while slow clients hold the memory."""
_AROUND: Final = 1 << 10
"""Bytes of an answer beside its records. Buffers have whole MiB, and clients ask for whole ones."""
_MAX_AHEAD: Final = 4
"""Chunks that are read ahead of clients. They fit the memory for kept records together."""
_AHEAD_SECONDS: Final = 2.0
"""Seconds after which the client of such a chunk counts as gone."""
_SHORT_PATIENCE: Final = 0.5
"""Seconds to wait for a busy leader with a question that is asked for each partition."""
_RENEW_SECONDS: Final = 0.5
"""Longest wait for the leaders before a second attempt."""
_FIRST_WITH_MAX_TIMESTAMP: Final = 7
_MOVED: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.kafka_storage_error,
        ErrorCode.replica_not_available,
    }
)
"""Errors after which another broker may lead, or the topic may be another one."""

LiveState = tuple[int, LiveBounds | None] | None
"""Number of changes of a partition, and its bounds, None if they are not known. None without a live
cluster.
"""


@dataclass(slots=True)
class _Known:
    """Bounds of a partition, and when they were reported, in monotonic seconds."""

    bounds: LiveBounds
    at: float


@dataclass(frozen=True, slots=True)
class FollowedPartition:
    """A partition whose end is read for waiting clients.

    Attributes:
        reader: The partition, and the isolation level.
        position: The next offset.
        end: The offset up to which a client may read, as far as it is known; 0 if it is not.
    """

    reader: Reader
    position: Offset
    end: Offset

    @property
    def lag(self) -> int:
        """Number of offsets that were not read yet."""
        return max(0, self.end - self.position)


class _ThrottledError(Exception):
    """The leader allows this client nothing now."""


class LiveReads:
    """Reads the live cluster. Thread-safe.

    Args:
        client: Returns the client of the live cluster.
        watch: Its topics.
        memory: Bytes for records: one half for those that are kept, the other one for those that
            are on their way.
        metrics: Counts what is read.
        notify: Is called with partitions that have new records or other bounds.
        stop: Once set, all threads end.
        clock: Returns monotonic seconds.
        timeout: Seconds after which a broker that does not answer counts as away.
    """

    def __init__(  # noqa: PLR0913 - each is of another kind
        self,
        client: Callable[[], LiveClient],
        watch: LiveTopicsWatch,
        memory: int,
        metrics: LiveMetrics,
        notify: Callable[[Collection[TopicPartition]], None],
        stop: threading.Event,
        *,
        clock: Clock = monotonic,
        timeout: float = TIMEOUT,
    ) -> None:
        self._watch, self._notify, self._clock = watch, notify, clock
        self._memory = memory // 2
        self._tails = ChunkCache(memory // 4)
        """What followers have read: clients that read older records do not push it out."""
        self._others = ChunkCache(memory // 4)
        self._keeping = threading.Lock()
        """Held while something of a leader is kept, and while it is dropped."""
        self._guard = threading.Lock()
        self._known: dict[TopicPartition, _Known] = {}
        self._changes: dict[TopicPartition, int] = {}
        self._flights: dict[tuple[Reader, Offset], Future[Chunk | None]] = {}
        self._ahead: dict[tuple[Reader, Offset], float] = {}
        """Where records are read ahead of a client that has not come yet, and since when."""
        self._ahead_threads: Executor = ThreadPoolExecutor(_MAX_AHEAD, "endpoint-live-ahead")
        self._throttled: dict[tuple[BrokerId, str], float] = {}
        self._lent: dict[int, tuple[int, int]] = {}
        """Buffers of records that are being sent, by identity: how often, and their bytes."""
        self._held = 0
        """Bytes of records that are being fetched or sent."""
        self._events = FewPerSubject(clock)
        self._metrics = metrics
        self.pool = BrokerPool(client, watch.address_of, timeout, clock)
        self.followers = Followers(
            watch,
            self.pool,
            self._memory,
            self._take_followed,
            self._confirm,
            self._lose,
            stop,
            clock=clock,
        )
        metrics.watch(
            lambda: len(self.pool.unreachable()),
            lambda: len(self.followers.positions()),
            self.lag,
        )

    def close(self) -> None:
        """End all requests, and wait for the threads; `stop` must be set."""
        self.pool.close()
        self.followers.close()
        self._ahead_threads.shutdown(cancel_futures=True)

    def state(self, tp: TopicPartition) -> LiveState:
        """Return what differs after the leader's log has changed."""
        known = self._known.get(tp)
        return self._changes.get(tp, 0), None if known is None else known.bounds

    def refresh(self, tps: Iterable[TopicPartition], max_age: float) -> None:
        """Ask leaders for the bounds that are older than `max_age` seconds: three requests to each
        leader. Those that cannot be asked stay unknown.
        """
        topics, oldest = self._watch.latest, self._clock() - max_age
        led = topics.by_leader(self._older(tps, oldest))
        leaderless = led.pop(NO_LEADER, [])
        self._forget_bounds(leaderless)
        if any(topics.partition(tp) is not None for tp in leaderless):
            self._watch.renew()
        for leader, asked in led.items():
            try:
                with self.pool.lend(leader, _SHORT_PATIENCE) as connection:
                    # Others may have asked meanwhile.
                    self._ask_bounds(connection, self._older(asked, oldest), topics)
            except BrokerBusyError:
                if max_age <= 0:
                    self._forget_bounds(asked)
            except BrokerError as error:
                self._forget_bounds(asked)
                self._note_failure(asked[0], error)

    def _older(self, tps: Iterable[TopicPartition], oldest: float) -> list[TopicPartition]:
        """Return the partitions whose bounds are not known since after `oldest`."""
        known = ((tp, self._known.get(tp)) for tp in tps)
        return [tp for tp, each in known if each is None or each.at <= oldest]

    def _ask_bounds(
        self, connection: Connection, tps: Sequence[TopicPartition], topics: LiveTopics
    ) -> None:
        if not tps:
            return
        found: list[Mapping[TopicPartition, ListedOffset | KafkaApiError]] = []
        for timestamp, isolation in (
            (EARLIEST, IsolationLevel.READ_UNCOMMITTED),  # the start first: see `side`
            (LATEST, IsolationLevel.READ_COMMITTED),
            (LATEST, IsolationLevel.READ_UNCOMMITTED),
        ):
            asked = dict.fromkeys(tps, timestamp)
            found.append(
                list_offsets_at(connection, asked, isolation=isolation, timeout=self.pool.timeout)
            )
        for tp in tps:
            offsets = []
            for answers in found:
                answer = answers[tp]
                if isinstance(answer, KafkaApiError):
                    self._forget_bounds([tp])
                    self._note_failure(tp, answer)
                    break
                offsets.append(answer.offset)
            else:
                start, stable, end = offsets
                bounds = LiveBounds(start, end, stable)
                with suppress(BrokerUnavailableError):  # another leader may know more
                    self._keep(tp, bounds, topics)

    def bounds(self, tp: TopicPartition, max_age: float) -> LiveBounds | None:
        """Return bounds that are at most `max_age` seconds old; None if the leader is away."""
        self.refresh((tp,), max_age)
        known = self._known.get(tp)
        return None if known is None else known.bounds

    def fetch(
        self,
        tp: TopicPartition,
        offset: Offset,
        most_bytes: int,
        *,
        isolated: bool,
        client_id: str | None = None,
    ) -> Sequence[Chunk] | None:
        """Return records from an offset on; none at the end, whose growth is watched then.

        Returns:
            None if the leader has no time for the client now: it is throttled, or too many others
            ask.

        Raises:
            KafkaApiError: The leader refuses the offset or the partition.
            BrokerError: It cannot be reached.
        """
        chunks = self.kept(tp, offset, most_bytes, isolated=isolated)
        reader = Reader(tp, isolated)
        if chunks:
            self._read_ahead(reader, chunks, most_bytes, client_id or "")
            return chunks
        if self.followers.waits_at(reader, offset) and self._limit(reader) <= offset:
            return ()
        try:
            chunk = self._fetched_once(reader, offset, most_bytes, client_id or "")
        except (_ThrottledError, BrokerBusyError):
            return None
        if chunk is not None:
            self._read_ahead(reader, [chunk], most_bytes, client_id or "")
            return [chunk]
        try:
            self.followers.follow(reader, offset)
        except RuntimeError:  # the system allows no more threads now
            return None
        return ()

    def kept(
        self, tp: TopicPartition, offset: Offset, most_bytes: int, *, isolated: bool
    ) -> Sequence[Chunk]:
        """Return records from an offset on that are kept; the leader is not asked."""
        reader = Reader(tp, isolated)
        return self._tails.read(reader, offset, most_bytes) or self._others.read(
            reader, offset, most_bytes
        )

    def lend(self, chunks: Sequence[Chunk], most: int) -> Lease:
        """Return the first `most` bytes of chunks.

        While clients that take their answers slowly hold the memory, these are fewer, but at least
        the first batch; and none once they hold twice the memory.
        """
        with self._guard:
            held = self._held
        if held >= self._memory * 2:
            return NO_BYTES
        pieces: list[Piece]
        if held < self._memory:
            pieces = [*_up_to(most, chunks)]
            buffers = [chunk.data.obj for chunk in chunks[: len(pieces)]]
        else:
            # Copies: a view holds the buffer of its whole chunk.
            most = min(most, max(batch_bytes(chunks[0].data), _SMALL))
            copied = [bytes(piece) for piece in _up_to(most, chunks)]
            pieces, buffers = [*copied], [*copied]
        with self._guard:
            for buffer in buffers:
                count, size = self._lent.get(id(buffer), (0, memoryview(buffer).nbytes))
                self._lent[id(buffer)] = count + 1, size
                self._held += 0 if count else size
        self._metrics.record_bytes.inc(most)
        return Lease(pieces, lambda: self._release(buffers))

    def _release(self, buffers: Sequence[object]) -> None:
        with self._guard:
            for buffer in buffers:
                count, size = self._lent.pop(id(buffer))
                if count > 1:
                    self._lent[id(buffer)] = count - 1, size
                else:
                    self._held -= size

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolated: bool
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Ask each leader once for offsets of all its partitions. Those that it refuses, and those
        of leaders that cannot be asked, are left out.
        """
        led = self._watch.latest.by_leader(timestamps)
        led.pop(NO_LEADER, None)
        found: dict[TopicPartition, ListedOffset] = {}
        for leader, asked in led.items():
            with (
                suppress(BrokerError, BrokerBusyError),
                self.pool.lend(leader, _SHORT_PATIENCE) as connection,
            ):
                answers = list_offsets_at(
                    connection,
                    {tp: timestamps[tp] for tp in asked},
                    isolation=level_of(isolated=isolated),
                    timeout=self.pool.timeout,
                )
                found |= {
                    tp: answer for tp, answer in answers.items() if isinstance(answer, ListedOffset)
                }
        return found

    def list_offset(self, tp: TopicPartition, timestamp: int, *, isolated: bool) -> ListedOffset:
        """Ask the leader for an offset; see `wire.requests.list_offsets`.

        Raises:
            UnsupportedVersionError: It does not know MAX_TIMESTAMP (KIP-734).
            BrokerError: It refuses, or cannot be reached.
        """

        def ask(connection: Connection, _: LiveTopics) -> ListedOffset:
            if timestamp == MAX_TIMESTAMP:
                # Older versions take it for a time.
                connection.version(ApiKey.LIST_OFFSETS, at_least=_FIRST_WITH_MAX_TIMESTAMP)
            answer = list_offsets_at(
                connection,
                {tp: timestamp},
                isolation=level_of(isolated=isolated),
                timeout=self.pool.timeout,
            )[tp]
            if isinstance(answer, KafkaApiError):
                raise answer
            return answer

        return self._answered(tp, ask)

    def epoch_end(self, tp: TopicPartition, epoch: LeaderEpoch) -> EpochEnd:
        """Ask the leader where a leader epoch ends.

        Raises:
            BrokerError: It refuses, or cannot be reached.
        """
        return self._answered(
            tp, lambda connection, _: epoch_end_at(connection, tp, epoch, timeout=self.pool.timeout)
        )

    def _answered(
        self, tp: TopicPartition, ask: Callable[[Connection, LiveTopics], Value]
    ) -> Value:
        """Ask the leader as `_asked_leader`; a busy one is an error that clients repeat."""
        try:
            return self._asked_leader(tp, ask, _SHORT_PATIENCE)
        except BrokerBusyError as error:
            raise BrokerUnavailableError(str(error)) from None

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Forget what leaders have told of partitions: others lead them, or other topics have their
        names.
        """
        with self._keeping:
            for tp in tps:
                self._tails.drop(tp)
                self._others.drop(tp)
            self._forget_bounds(tps)
        if tps:
            # Their clients ask again, and are refused if the new leader has less.
            self._lose(tps)

    # Single requests

    def _asked_leader(
        self,
        tp: TopicPartition,
        ask: Callable[[Connection, LiveTopics], Value],
        patience: float = PATIENCE,
    ) -> Value:
        """Ask the leader; once more if another broker leads now.

        Raises:
            BrokerError: It refuses, or cannot be reached.
            BrokerBusyError: As `BrokerPool.lend`.
        """
        topics = self._watch.latest
        try:
            return self._asked_once(tp, ask, patience)
        except BrokerError as error:
            # Also after OFFSET_OUT_OF_RANGE: a former leader may lag behind.
            if not error.retry and not is_out_of_range(error):
                raise
            leader = topics.leader(tp)
            if leader == NO_LEADER or self.pool.away(leader) is not None:
                # Without a wait for the next leader: a Fetch may name many partitions of this one.
                self._watch.renew()
                raise
            if self._watch.latest.is_same(topics, tp):  # not if the broker has named the next one
                self._watch.renew(wait=_RENEW_SECONDS)
        return self._asked_once(tp, ask, patience)

    def _asked_once(
        self, tp: TopicPartition, ask: Callable[[Connection, LiveTopics], Value], patience: float
    ) -> Value:
        """Ask the leader; raises as `_asked_leader`."""
        topics = self._watch.latest
        leader = topics.leader(tp)
        if leader == NO_LEADER:
            raise BrokerUnavailableError(f"{tp} has no leader now")
        with self.pool.lend(leader, patience) as connection:
            return ask(connection, topics)

    def _fetched_once(
        self, reader: Reader, offset: Offset, most_bytes: int, client_id: str
    ) -> Chunk | None:
        """Fetch a chunk; clients that ask for the same at the same time share one request."""
        key = reader, offset
        throttle_key = self._watch.latest.leader(reader.tp), client_id
        with self._guard:
            if self._clock() < self._throttled.get(throttle_key, 0.0):
                raise _ThrottledError
            flight = self._flights.get(key)
            is_own = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if not is_own:
            try:
                return flight.result()
            except _ThrottledError:  # another client is throttled
                return self._fetched_once(reader, offset, most_bytes, client_id)
        most = min(most_bytes, _MAX_CHUNK, max(self._memory // _CHUNKS, _SMALL))
        size = max(most - _AROUND, 1)
        with self._guard:
            if self._held >= self._memory:
                size = min(size, _SMALL)
            self._held += size
        try:
            chunk = self._asked_leader(
                reader.tp,
                lambda connection, topics: self._ask_records(
                    connection, topics, reader, offset, size, client_id
                ),
            )
        except BaseException as error:
            self._land(key, size)
            if isinstance(error, BrokerError):
                self._note_failure(reader.tp, error)
            flight.set_exception(error)
            raise
        self._land(key, size)
        flight.set_result(chunk)
        return chunk

    def _read_ahead(
        self, reader: Reader, chunks: Sequence[Chunk], most_bytes: int, client_id: str
    ) -> None:
        """Fetch the next chunk while a client reads these, which fill its answer."""
        start, end, now = chunks[0].start, chunks[-1].end, self._clock()
        is_bulk = 2 * sum(len(chunk.data) for chunk in chunks) >= most_bytes
        with self._guard:
            self._ahead.pop((reader, start), None)
            for key in [key for key, at in self._ahead.items() if now - at > _AHEAD_SECONDS]:
                del self._ahead[key]
            is_known = (reader, end) in self._ahead or len(self._ahead) >= _MAX_AHEAD
            if not is_bulk or is_known or end >= self._limit(reader) or self._held >= self._memory:
                return
            self._ahead[reader, end] = now

        def read_ahead() -> None:
            # The client gets the error by its own request.
            with suppress(_ThrottledError, BrokerBusyError, SidetierError):
                if not self.kept(reader.tp, end, 1, isolated=reader.is_isolated):
                    self._fetched_once(reader, end, most_bytes, client_id)

        with suppress(RuntimeError):  # the endpoint stops
            self._ahead_threads.submit(read_ahead)

    def _throttle(self, leader: BrokerId, client_id: str, seconds: float) -> None:
        now = self._clock()
        with self._guard:
            ended = [key for key, until in self._throttled.items() if until <= now]
            for key in ended:
                del self._throttled[key]
            self._throttled[leader, client_id] = now + seconds

    def _land(self, key: tuple[Reader, Offset], size: int) -> None:
        with self._guard:
            self._held -= size
            del self._flights[key]

    def _ask_records(
        self,
        connection: Connection,
        topics: LiveTopics,
        reader: Reader,
        offset: Offset,
        size: int,
        client_id: str,
    ) -> Chunk | None:
        tp = reader.tp
        usual = connection.client_id
        connection.client_id = client_id or usual
        try:
            answers, throttle = fetch_from(
                connection,
                [FetchPosition(tp, offset, size, topics.epoch(tp))],
                topics,
                isolated=reader.is_isolated,
                timeout=self.pool.timeout,
                max_bytes=size,
            )
        finally:
            connection.client_id = usual
        if throttle > 0:
            # The broker does not read from this connection before then; others may still use it.
            connection.close()
            self._throttle(topics.leader(tp), client_id, throttle)
            if not answers:  # as brokers answer then
                raise _ThrottledError
        (fetched,) = answers
        if fetched.error_code:
            self._watch.learn_leaders(answers)
            raise api_error(f"{connection} refuses Fetch of {tp}", fetched.error_code)
        return self._take(reader, offset, fetched, topics)

    # What leaders have returned

    def _take(
        self, reader: Reader, offset: Offset, fetched: FetchedPartition, asked_of: LiveTopics
    ) -> Chunk | None:
        """Keep what a leader has returned.

        Raises:
            BrokerUnavailableError: Another broker leads since it was asked, or the topic is another
                one: its records may not be those of the log.
            DamagedSegmentError, UnsupportedFormatError: As `chunk_of`.
        """
        chunk = chunk_of(offset, fetched)
        self._metrics.fetches.inc()
        if chunk is not None:
            self._metrics.fetched_bytes.inc(len(chunk.data))
        self._keep(reader.tp, bounds_of(fetched), asked_of, (reader, chunk))
        return chunk

    def _keep(
        self,
        tp: TopicPartition,
        bounds: LiveBounds,
        asked_of: LiveTopics,
        fetched: tuple[Reader, Chunk | None] | None = None,
    ) -> None:
        """Keep bounds and a chunk, and wake the clients that wait for them.

        Raises:
            BrokerUnavailableError: Another broker leads since the leader was asked, or the topic is
                another one.
        """
        reader, chunk = fetched or (None, None)
        with self._keeping:
            # Within the lock: what is kept before a change of the leader is dropped after it.
            if not self._watch.latest.is_same(asked_of, tp):
                raise BrokerUnavailableError(f"the leader of {tp} has changed")
            if reader is not None and chunk is not None:
                is_end = self.followers.passed(reader, chunk.start, chunk.end)
                (self._tails if is_end else self._others).add(reader, chunk)
            now = self._clock()
            with self._guard:
                known = self._known.get(tp)
                self._known[tp] = _Known(bounds, now)
                is_new = chunk is not None or known is None or known.bounds != bounds
                if is_new:
                    self._changes[tp] = self._changes.get(tp, 0) + 1
        if is_new:
            self._notify((tp,))

    def prune(self, tps: Iterable[TopicPartition]) -> None:
        """Forget partitions that the cluster does not have any more."""
        self._forget_bounds(tps)
        with self._guard:
            for tp in tps:
                self._changes.pop(tp, None)

    def _take_followed(
        self, reader: Reader, offset: Offset, fetched: FetchedPartition, asked_of: LiveTopics
    ) -> bool:
        """Keep what a leader has returned to a follower; return whether it goes on."""
        if fetched.error_code:
            return False
        try:
            self._take(reader, offset, fetched, asked_of)
        except SidetierError as error:  # of this partition alone
            self._note_failure(reader.tp, error)
            return False
        return True

    def _confirm(
        self, bounds: Mapping[TopicPartition, LiveBounds], asked_of: LiveTopics, asked_at: float
    ) -> None:
        """Keep the bounds of partitions without anything new, all at once; but not in place of what
        was reported after `asked_at`.
        """
        changed = []
        with self._keeping, self._guard:
            latest, now = self._watch.latest, self._clock()
            for tp, each in bounds.items():
                if latest is not asked_of and not latest.is_same(asked_of, tp):
                    continue
                known = self._known.get(tp)
                if known is not None and known.bounds.high_watermark == each.high_watermark:
                    # A session does not report that the last stable offset alone has risen.
                    stable = max(known.bounds.last_stable_offset, each.last_stable_offset)
                    each = replace(each, last_stable_offset=stable)  # noqa: PLW2901
                if known is not None and known.bounds == each:
                    known.at = now
                elif known is None or known.at < asked_at:
                    changed.append(tp)
                    self._known[tp] = _Known(each, now)
                    self._changes[tp] = self._changes.get(tp, 0) + 1
        if changed:
            self._notify(changed)

    def lag(self) -> int:
        """Return the most records that the followers have not read of a partition."""
        return max((each.lag for each in self.followed()), default=0)

    def followed(self) -> list[FollowedPartition]:
        """Return what the followers read, in no order."""
        positions = self.followers.positions()
        return [
            FollowedPartition(reader, position, self._limit(reader))
            for reader, position in positions.items()
        ]

    def _limit(self, reader: Reader) -> Offset:
        """Return the end up to which a client may read, as far as it is known."""
        known = self._known.get(reader.tp)
        if known is None:
            return Offset(0)
        bounds = known.bounds
        return bounds.last_stable_offset if reader.is_isolated else bounds.high_watermark

    def _forget_bounds(self, tps: Iterable[TopicPartition]) -> None:
        with self._guard:
            for tp in tps:
                self._known.pop(tp, None)

    def _lose(self, tps: Collection[TopicPartition]) -> None:
        """Let the waiting clients ask again: they find the leader, or get its error."""
        self._watch.renew()
        with self._guard:
            for tp in tps:
                self._known.pop(tp, None)
                self._changes[tp] = self._changes.get(tp, 0) + 1
        self.followers.leave(tps)
        self._notify(tps)

    def _note_failure(self, tp: TopicPartition, error: SidetierError) -> None:
        if is_out_of_range(error):
            return
        code = error.code if isinstance(error, KafkaApiError) else None
        if code is None or code in _MOVED:
            self._watch.renew()
            self._forget_bounds([tp])
        self._report(tp, error)

    def _report(self, tp: TopicPartition, error: SidetierError) -> None:
        if failures := self._events.count((type(error), tp.topic)):
            log.warning(
                "endpoint.live_fetch_failed",
                topic=tp.topic,
                partition=tp.partition,
                error=str(error),
                failures=failures,
            )


def _up_to(size: int, chunks: Iterable[Chunk]) -> Iterator[memoryview]:
    """Yield the first `size` bytes."""
    for chunk in chunks:
        if size <= 0:
            break
        yield chunk.data[:size]
        size -= len(chunk.data)


def is_out_of_range(error: SidetierError) -> bool:
    """Return whether a leader does not have an offset."""
    return isinstance(error, KafkaApiError) and error.code == ErrorCode.offset_out_of_range
