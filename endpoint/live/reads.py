"""Fetch from the leaders of the live cluster, for all clients of the endpoint together.

A client that asks for records that no other client has read costs one request. A client at the end
of a partition waits here: for each broker and isolation level one thread *follows* all partitions
at whose end clients wait, with one Fetch after the other over one connection, as a replica does.
What it returns is kept for all of them (`chunks`).
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import LifoQueue
from typing import Final

from kio.schema.errors import ErrorCode

from sidetier.endpoint.live.chunks import Chunk, ChunkCache, Reader, chunk_of
from sidetier.endpoint.live.client import LiveClient
from sidetier.endpoint.live.side import LiveBounds
from sidetier.endpoint.live.topics import LiveTopics, LiveTopicsWatch
from sidetier.endpoint.log_limits import FewPerSubject
from sidetier.segments.errors import (
    BrokerError,
    BrokerUnavailableError,
    KafkaApiError,
    SidetierError,
)
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger
from sidetier.wire.cluster import NO_LEADER, Broker, Cluster
from sidetier.wire.connection import Connection
from sidetier.wire.protocol import api_error
from sidetier.wire.record_requests import (
    FetchedPartition,
    FetchPosition,
    receive_fetched,
    send_fetch,
)
from sidetier.wire.requests import (
    EARLIEST,
    LATEST,
    EpochEnd,
    ListedOffset,
    epoch_ends,
    list_offsets,
)

log = logger()

_CLUSTERS: Final = 4
"""Requests at the same time, besides those of the followers; each has a connection per broker."""
_TIMEOUT: Final = 2.0
"""Seconds for all attempts of a request: clients ask again."""
_MAX_CHUNK: Final = 8 << 20
_PARTITION_BYTES: Final = 1 << 20
_FOLLOW_BYTES: Final = 16 << 20
_FOLLOW_WAIT: Final = 0.1
"""Seconds that a leader holds a Fetch without records: how long a partition at whose end the first
client arrives may wait for the next Fetch.
"""
_UNWANTED_SECONDS: Final = 90.0
"""Time without a client after which a partition is followed no more."""
_PAUSE: Final = 0.2
_RENEW_SECONDS: Final = 0.5
"""Longest wait for the leaders before a second attempt."""
_AWAY_SECONDS: Final = 1.0
"""Time after a failure for which a leader is not asked again by requests that need not reach it."""
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


@dataclass(slots=True)
class _Followed:
    """A partition at whose end clients wait.

    Attributes:
        position: The next offset.
        wanted_at: Monotonic second at which a client has asked for it last.
    """

    position: Offset
    wanted_at: float


class LiveReads:
    """Reads the live cluster. Thread-safe.

    Args:
        client: Returns the client of the live cluster.
        watch: Its topics.
        cache: Keeps chunks.
        notify: Is called with partitions that have new records or other bounds.
        stop: Once set, all threads end.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        client: Callable[[], LiveClient],
        watch: LiveTopicsWatch,
        cache: ChunkCache,
        notify: Callable[[Collection[TopicPartition]], None],
        stop: threading.Event,
        clock: Clock = monotonic,
    ) -> None:
        self._client, self._watch, self._cache = client, watch, cache
        self._notify, self._stop, self._clock = notify, stop, clock
        self._guard = threading.Condition()
        """Notified when a partition is followed from now on."""
        self._known: dict[TopicPartition, _Known] = {}
        self._changes: dict[TopicPartition, int] = {}
        self._followed: dict[Reader, _Followed] = {}
        self._followers: dict[tuple[BrokerId, bool], threading.Thread] = {}
        self._flights: dict[tuple[Reader, Offset], Future[Chunk | None]] = {}
        self._failed: dict[TopicPartition, tuple[float, str]] = {}
        self._events = FewPerSubject(clock)
        self._idle: LifoQueue[tuple[LiveClient, Cluster] | None] = LifoQueue()
        for _ in range(_CLUSTERS):
            self._idle.put(None)

    def close(self) -> None:
        """Wait for the threads; `stop` must be set."""
        with self._guard:
            self._guard.notify_all()
            followers = list(self._followers.values())
        for thread in followers:
            thread.join()

    def state(self, tp: TopicPartition) -> LiveState:
        """Return what differs after the leader's log has changed."""
        known = self._known.get(tp)
        return self._changes.get(tp, 0), None if known is None else known.bounds

    def is_followed(self, tp: TopicPartition) -> bool:
        """Whether a thread reads the partition's end."""
        return any(Reader(tp, isolated) in self._followed for isolated in (False, True))

    def bounds(self, tp: TopicPartition, max_age: float) -> LiveBounds | None:
        """Return bounds that are at most `max_age` seconds old; None if the leader is away."""
        known = self._known.get(tp)
        if known is not None and self._clock() - known.at <= max_age:
            return known.bounds
        if self._is_away(tp):
            return None
        try:
            with self._cluster() as cluster:
                # The start first: see `side`.
                start = self._listed(cluster, tp, EARLIEST, IsolationLevel.READ_UNCOMMITTED)
                stable = self._listed(cluster, tp, LATEST, IsolationLevel.READ_COMMITTED)
                end = self._listed(cluster, tp, LATEST, IsolationLevel.READ_UNCOMMITTED)
        except BrokerError as error:
            self._note_failure(tp, error)
            return None
        bounds = LiveBounds(start.offset, end.offset, stable.offset)
        self._learn(tp, bounds)
        return bounds

    def fetch(
        self, tp: TopicPartition, offset: Offset, most_bytes: int, *, isolated: bool
    ) -> Sequence[Chunk]:
        """Return records from an offset on; none at the end, whose growth is watched then.

        Raises:
            KafkaApiError: The leader refuses the offset or the partition.
            BrokerError: It cannot be reached.
        """
        reader = Reader(tp, isolated)
        chunks = self._cache.read(reader, offset, most_bytes)
        if chunks:
            return chunks
        with self._guard:
            followed = self._followed.get(reader)
            if followed is not None:
                followed.wanted_at = self._clock()
                # With more records than the follower has returned so far, they are asked for.
                if followed.position == offset and self._limit(reader) <= offset:
                    return ()
        failed = self._failed.get(tp)
        if failed is not None and self._clock() - failed[0] < _AWAY_SECONDS:
            raise BrokerUnavailableError(failed[1])
        chunk = self._fetched_once(reader, offset, most_bytes)
        if chunk is not None:
            return [chunk]
        self._follow(reader, offset)
        return ()

    def list_offset(self, tp: TopicPartition, timestamp: int, *, isolated: bool) -> ListedOffset:
        """Ask the leader for an offset; see `wire.requests.list_offsets`.

        Raises:
            BrokerError: It refuses, or cannot be reached.
        """
        with self._cluster() as cluster:
            return self._listed(
                cluster,
                tp,
                timestamp,
                IsolationLevel.READ_COMMITTED if isolated else IsolationLevel.READ_UNCOMMITTED,
            )

    def epoch_end(self, tp: TopicPartition, epoch: LeaderEpoch) -> EpochEnd:
        """Ask the leader where a leader epoch ends.

        Raises:
            BrokerError: It refuses, or cannot be reached.
        """
        with self._cluster() as cluster:
            return epoch_ends(cluster, {tp: epoch}, timeout=_TIMEOUT)[tp]

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Forget what leaders have told of partitions: others lead them, or other topics have their
        names.
        """
        for tp in tps:
            self._cache.drop(tp)
        with self._guard:
            for tp in tps:
                self._failed.pop(tp, None)
        if tps:
            # Their clients ask again, and are refused if the new leader has less.
            self._follow_no_more(tps)

    # Single requests

    @contextmanager
    def _cluster(self) -> Iterator[Cluster]:
        """Lend a client of the cluster; a new one after the settings have changed."""
        lent = self._idle.get()
        try:
            client = self._client()
            if lent is None or lent[0] is not client:
                if lent is not None:
                    lent[1].close()
                lent = client, self._new_cluster(client)
            yield lent[1]
        finally:
            self._idle.put(lent)

    def _new_cluster(self, client: LiveClient) -> Cluster:
        # A broker that hangs must not hold the few clients longer than the endpoint's clients wait.
        settings = replace(client.settings, request_timeout=_TIMEOUT, connect_timeout=_TIMEOUT)
        return Cluster(settings, stop=self._stop, context=client.context)

    def _listed(
        self, cluster: Cluster, tp: TopicPartition, timestamp: int, isolation: IsolationLevel
    ) -> ListedOffset:
        return list_offsets(cluster, {tp: timestamp}, isolation=isolation, timeout=_TIMEOUT)[tp]

    def _fetched_once(self, reader: Reader, offset: Offset, most_bytes: int) -> Chunk | None:
        """Fetch a chunk; clients that ask for the same at the same time share one request."""
        key = reader, offset
        with self._guard:
            flight = self._flights.get(key)
            is_own = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if not is_own:
            return flight.result()
        try:
            chunk = self._fetched(reader, offset, most_bytes)
        except BaseException as error:
            if isinstance(error, BrokerError):
                self._note_failure(reader.tp, error)
            flight.set_exception(error)
            raise
        else:
            flight.set_result(chunk)
            return chunk
        finally:
            with self._guard:
                del self._flights[key]

    def _fetched(self, reader: Reader, offset: Offset, most_bytes: int) -> Chunk | None:
        """Fetch from the leader; once more if another broker leads now."""
        try:
            return self._fetched_from_leader(reader, offset, most_bytes)
        except BrokerError as error:
            if not error.retry and not is_out_of_range(error):
                raise
        # Also after OFFSET_OUT_OF_RANGE: a former leader may lag behind.
        self._watch.renew(wait=_RENEW_SECONDS)
        return self._fetched_from_leader(reader, offset, most_bytes)

    def _fetched_from_leader(self, reader: Reader, offset: Offset, most_bytes: int) -> Chunk | None:
        topics, tp = self._watch.latest, reader.tp
        leader = topics.leader(tp)
        if leader == NO_LEADER:
            raise BrokerUnavailableError(f"{tp} has no leader now")
        position = FetchPosition(tp, offset, min(most_bytes, _MAX_CHUNK), topics.epoch(tp))
        ids = topics.ids([tp.topic])
        with self._cluster() as cluster:
            connection = cluster.connection(Broker(leader))
            send_fetch(
                connection, [position], topic_ids=ids, isolation=_level(reader), max_wait=0.0
            )
            (fetched,) = receive_fetched(connection, ids)
        if fetched.error_code:
            raise api_error(f"{connection} refuses Fetch of {tp}", fetched.error_code)
        return self._take(reader, offset, fetched, topics)

    def _take(
        self, reader: Reader, offset: Offset, fetched: FetchedPartition, asked_of: LiveTopics
    ) -> Chunk | None:
        """Keep what a leader has returned.

        Raises:
            BrokerUnavailableError: Another broker leads since it was asked, or the topic is another
                one: its records may not be those of the log.
            DamagedSegmentError, UnsupportedFormatError: As `chunk_of`.
        """
        if not self._watch.latest.is_same(asked_of, reader.tp):
            raise BrokerUnavailableError(f"the leader of {reader.tp} has changed")
        chunk = chunk_of(offset, fetched)
        if chunk is not None:
            self._cache.add(reader, chunk)
            with self._guard:
                followed = self._followed.get(reader)
                if followed is not None and offset <= followed.position < chunk.end:
                    followed.position = chunk.end
        # Last: it wakes the clients, who then ask for the offset after the chunk.
        start, stable = fetched.log_start_offset, fetched.last_stable_offset
        bounds = LiveBounds(start, fetched.high_watermark, stable)
        self._learn(reader.tp, bounds, has_records=chunk is not None)
        return chunk

    def _limit(self, reader: Reader) -> Offset:
        """Return the end up to which a client may read, as far as it is known."""
        known = self._known.get(reader.tp)
        if known is None:
            return Offset(0)
        bounds = known.bounds
        return bounds.last_stable_offset if reader.is_isolated else bounds.high_watermark

    def _learn(self, tp: TopicPartition, bounds: LiveBounds, *, has_records: bool = False) -> None:
        now = self._clock()
        with self._guard:
            known = self._known.get(tp)
            self._known[tp] = _Known(bounds, now)
            self._failed.pop(tp, None)
            is_new = has_records or known is None or known.bounds != bounds
            if is_new:
                self._changes[tp] = self._changes.get(tp, 0) + 1
        if is_new:
            self._notify((tp,))

    def _is_away(self, tp: TopicPartition) -> bool:
        failed = self._failed.get(tp)
        return failed is not None and self._clock() - failed[0] < _AWAY_SECONDS

    def _note_failure(self, tp: TopicPartition, error: SidetierError) -> None:
        if is_out_of_range(error):
            return
        code = error.code if isinstance(error, KafkaApiError) else None
        if code is None or code in _MOVED:
            self._watch.renew()
        with self._guard:
            self._failed[tp] = self._clock(), str(error)
            self._known.pop(tp, None)
        if failures := self._events.count((type(error), tp.topic)):
            log.warning(
                "endpoint.live_fetch_failed",
                topic=tp.topic,
                partition=tp.partition,
                error=str(error),
                failures=failures,
            )

    # Followers

    def _follow(self, reader: Reader, offset: Offset) -> None:
        broker = self._watch.latest.leader(reader.tp)
        with self._guard:
            self._followed[reader] = _Followed(offset, self._clock())
            if broker != NO_LEADER and not self._stop.is_set():
                key = broker, reader.is_isolated
                if key not in self._followers:
                    thread = self._followers[key] = threading.Thread(
                        target=self._run_follower,
                        args=key,
                        name=f"endpoint-live-{broker}-{'committed' if key[1] else 'all'}",
                        daemon=True,
                    )
                    thread.start()
            self._guard.notify_all()

    def _run_follower(self, broker: BrokerId, isolated: bool) -> None:  # noqa: FBT001 - a key
        cluster: Cluster | None = None
        connection: Connection | None = None
        while not self._stop.is_set():
            positions = self._positions(broker, isolated=isolated)
            if not positions:
                with self._guard:
                    self._guard.wait(_PAUSE if self._followed else None)
                continue
            try:
                if connection is None or connection.is_closed:
                    if cluster is not None:
                        cluster.close()
                    cluster = self._new_cluster(self._client())
                    cluster.metadata((), timeout=_TIMEOUT)
                    connection = cluster.connection(Broker(broker))
                self._fetch_ends(connection, positions, isolated=isolated)
            except SidetierError as error:
                self._pause_following([position.partition for position in positions], error)
            except Exception:
                log.exception("endpoint.live_follower_failed", broker=broker)
                self._stop.wait(_PAUSE)
        if cluster is not None:
            cluster.close()

    def _positions(self, broker: BrokerId, *, isolated: bool) -> list[FetchPosition]:
        """Return what to follow at a broker; forget what no client has asked for."""
        topics, now = self._watch.latest, self._clock()
        with self._guard:
            for reader, followed in tuple(self._followed.items()):
                if now - followed.wanted_at > _UNWANTED_SECONDS:
                    del self._followed[reader]
            return [
                FetchPosition(
                    reader.tp, followed.position, _PARTITION_BYTES, topics.epoch(reader.tp)
                )
                for reader, followed in self._followed.items()
                if reader.is_isolated == isolated and topics.leader(reader.tp) == broker
            ]

    def _fetch_ends(
        self, connection: Connection, positions: Sequence[FetchPosition], *, isolated: bool
    ) -> None:
        topics = self._watch.latest
        ids = topics.ids({position.partition.topic for position in positions})
        send_fetch(
            connection,
            positions,
            topic_ids=ids,
            isolation=_level(Reader(positions[0].partition, isolated)),
            max_wait=_FOLLOW_WAIT,
            max_bytes=_FOLLOW_BYTES,
        )
        asked = {position.partition: position.offset for position in positions}
        moved = []
        for fetched in receive_fetched(connection, ids):
            reader = Reader(fetched.partition, isolated)
            if fetched.error_code:
                moved.append(fetched.partition)
                continue
            try:
                self._take(reader, asked[fetched.partition], fetched, topics)
            except SidetierError as error:  # of this partition alone
                self._note_failure(fetched.partition, error)
                moved.append(fetched.partition)
        if moved:
            # Clients that ask again get the leader's error, or another leader's records.
            self._follow_no_more(moved)

    def _pause_following(self, tps: Collection[TopicPartition], error: SidetierError) -> None:
        if failures := self._events.count(type(error).__name__):
            log.warning("endpoint.live_follower_failed", error=str(error), failures=failures)
        self._follow_no_more(tps)
        self._stop.wait(_PAUSE)

    def _follow_no_more(self, tps: Collection[TopicPartition]) -> None:
        """Let the waiting clients ask again: they find the leader, or get its error."""
        self._watch.renew()
        with self._guard:
            for tp in tps:
                self._known.pop(tp, None)
                self._changes[tp] = self._changes.get(tp, 0) + 1
                for isolated in (False, True):
                    self._followed.pop(Reader(tp, isolated), None)
        self._notify(tps)


def _level(reader: Reader) -> IsolationLevel:
    return IsolationLevel.READ_COMMITTED if reader.is_isolated else IsolationLevel.READ_UNCOMMITTED


def is_out_of_range(error: SidetierError) -> bool:
    """Return whether a leader does not have an offset."""
    return isinstance(error, KafkaApiError) and error.code == ErrorCode.offset_out_of_range
