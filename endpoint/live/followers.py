"""Threads that read the ends of partitions at which clients wait: one for each broker and isolation
level.

Each sends one Fetch after the other for all these partitions over one connection, as a replica
does. So the clients at the ends cost a broker the same, whether they are one or a thousand.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sidetier.endpoint.live.brokers import BrokerPool, fetch_from
from sidetier.endpoint.live.chunks import Reader
from sidetier.endpoint.live.topics import LiveTopics, LiveTopicsWatch
from sidetier.endpoint.log_limits import AtMostEvery
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger
from sidetier.wire.cluster import NO_LEADER
from sidetier.wire.record_requests import FetchedPartition, FetchPosition

if TYPE_CHECKING:
    from sidetier.wire.connection import Connection

log = logger()

_PARTITION_BYTES: Final = 1 << 20
_MAX_BYTES: Final = 8 << 20
_SHORT_WAIT: Final = 0.1
_LONG_WAIT: Final = 0.5
"""Seconds that a leader holds a Fetch without records: how long a partition at whose end the first
client arrives may wait for the next Fetch. The short one while clients arrive.
"""
_ARRIVAL_SECONDS: Final = 5.0
_UNWANTED_SECONDS: Final = 90.0
"""Time without a client after which a partition is followed no more: more than the longest wait of
clients.
"""
_PAUSE: Final = 0.2
_LOG_PAUSE: Final = 60.0

Take = Callable[[Reader, Offset, FetchedPartition, LiveTopics], bool]
"""Keeps what a leader has returned for an offset; returns whether the partition is followed on."""


@dataclass(slots=True)
class _Followed:
    """A partition at whose end clients wait.

    Attributes:
        position: The next offset.
        wanted_at: Monotonic second at which a client has asked for it last.
    """

    position: Offset
    wanted_at: float


class Followers:
    """The followers of all brokers. Thread-safe.

    Args:
        watch: The topics of the cluster.
        pool: Opens the connections.
        take: Is called with each answer.
        lose: Is called with partitions that are followed no more, because of an error.
        stop: Once set, all threads end.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        watch: LiveTopicsWatch,
        pool: BrokerPool,
        take: Take,
        lose: Callable[[Collection[TopicPartition]], None],
        stop: threading.Event,
        clock: Clock = monotonic,
    ) -> None:
        self._watch, self._pool, self._take, self._lose = watch, pool, take, lose
        self._stop, self._clock = stop, clock
        self._changed = threading.Condition()
        """Notified when a partition is followed from now on, and at the end."""
        self._followed: dict[Reader, _Followed] = {}
        self._threads: dict[tuple[BrokerId, bool], threading.Thread] = {}
        self._connections: dict[tuple[BrokerId, bool], Connection] = {}
        self._arrived_at = float("-inf")
        self._log_away = AtMostEvery(_LOG_PAUSE)

    def close(self) -> None:
        """Wait for the threads; `stop` must be set."""
        with self._changed:
            self._changed.notify_all()
            threads = list(self._threads.values())
            connections = list(self._connections.values())
        for connection in connections:
            connection.interrupt()
        for thread in threads:
            thread.join()

    def positions(self) -> dict[Reader, Offset]:
        """Return the next offset of each partition that is followed."""
        with self._changed:
            return {reader: followed.position for reader, followed in self._followed.items()}

    def is_followed(self, tp: TopicPartition) -> bool:
        """Whether a thread reads the partition's end."""
        return any(Reader(tp, isolated) in self._followed for isolated in (False, True))

    def waits_at(self, reader: Reader, offset: Offset) -> bool:
        """Whether a follower waits for the record at this offset; it goes on for this client."""
        with self._changed:
            followed = self._followed.get(reader)
            if followed is None:
                return False
            followed.wanted_at = self._clock()
            return followed.position == offset

    def follow(self, reader: Reader, offset: Offset) -> None:
        """Follow a partition from an offset on, at which its log ends now."""
        broker = self._watch.latest.leader(reader.tp)
        key = broker, reader.is_isolated
        with self._changed:
            known = self._followed.get(reader)
            if known is not None and known.position > offset:
                return  # the leader has returned more meanwhile
            self._followed[reader] = _Followed(offset, self._clock())
            self._arrived_at = self._clock()
            thread = self._threads.get(key)
            is_running = thread is not None and thread.is_alive()
            if broker != NO_LEADER and not is_running and not self._stop.is_set():
                name = f"endpoint-live-{broker}-{'committed' if reader.is_isolated else 'all'}"
                thread = self._threads[key] = threading.Thread(
                    target=self._run, args=key, name=name, daemon=True
                )
                thread.start()
            self._changed.notify_all()

    def passed(self, reader: Reader, offset: Offset, end: Offset) -> None:
        """Continue at `end`: the records from `offset` on are kept."""
        with self._changed:
            followed = self._followed.get(reader)
            if followed is not None and offset <= followed.position < end:
                followed.position = end

    def leave(self, tps: Collection[TopicPartition]) -> None:
        """Follow these partitions no more."""
        with self._changed:
            for tp in tps:
                for isolated in (False, True):
                    self._followed.pop(Reader(tp, isolated), None)

    def _run(self, broker: BrokerId, isolated: bool) -> None:  # noqa: FBT001 - a key
        key, turn = (broker, isolated), 0
        positions: list[FetchPosition] = []
        while not self._stop.is_set():
            try:
                positions = self._due(broker, isolated=isolated)
                if not positions:
                    with self._changed:
                        if not self._stop.is_set():
                            self._changed.wait(_LONG_WAIT if self._followed else None)
                    continue
                # Each partition is the first one in turn: one alone may fill the answer.
                turn = (turn + 1) % len(positions)
                self._fetch(key, positions[turn:] + positions[:turn])
            except SidetierError as error:
                if failures := self._log_away.count():
                    log.warning(
                        "endpoint.live_follower_failed", error=str(error), failures=failures
                    )
                self._lose([position.partition for position in positions])
                self._stop.wait(_PAUSE)
            except Exception:
                log.exception("endpoint.live_follower_failed", broker=broker)
                self._stop.wait(_PAUSE)
        with self._changed:
            connection = self._connections.pop(key, None)
        if connection is not None:
            connection.close()

    def _due(self, broker: BrokerId, *, isolated: bool) -> list[FetchPosition]:
        """Return what to follow at a broker; forget what no client has asked for."""
        topics, now = self._watch.latest, self._clock()
        with self._changed:
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

    def _fetch(self, key: tuple[BrokerId, bool], positions: list[FetchPosition]) -> None:
        """Send one Fetch, and keep its answers.

        Raises:
            BrokerError: The broker refuses it, or cannot be reached.
        """
        broker, isolated = key
        connection = self._connections.get(key)
        if connection is None or connection.is_closed:
            connection = self._pool.open(broker)
            with self._changed:
                self._connections[key] = connection
        topics = self._watch.latest
        is_arriving = self._clock() - self._arrived_at < _ARRIVAL_SECONDS
        max_wait = _SHORT_WAIT if is_arriving else _LONG_WAIT
        answers, throttle = fetch_from(
            connection,
            positions,
            topics,
            isolated=isolated,
            timeout=self._pool.timeout,
            max_wait=max_wait,
            max_bytes=_MAX_BYTES,
        )
        asked = {position.partition: position.offset for position in positions}
        lost = [
            fetched.partition
            for fetched in answers
            if not self._take(
                Reader(fetched.partition, isolated), asked[fetched.partition], fetched, topics
            )
        ]
        if lost:
            # Clients that ask again get the leader's error, or another leader's records.
            self._lose(lost)
        self._stop.wait(throttle)
