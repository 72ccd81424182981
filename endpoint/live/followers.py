"""Threads that read the ends of partitions at which clients wait: one for each broker and isolation
level.

Each sends one Fetch after the other for all these partitions over one connection, as a replica
does. So the clients at the ends cost a broker the same, whether they are one or a thousand. In a
fetch session (KIP-227), a thousand idle partitions cost it little more than one.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sidetier.endpoint.live.brokers import BrokerPool, fetch_from
from sidetier.endpoint.live.chunks import Reader
from sidetier.endpoint.live.side import LiveBounds
from sidetier.endpoint.live.topics import LiveTopics, LiveTopicsWatch
from sidetier.endpoint.log_limits import AtMostEvery
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger
from sidetier.wire.cluster import NO_LEADER
from sidetier.wire.fetch_session import FetchPosition, FetchSession
from sidetier.wire.record_requests import FetchedPartition

if TYPE_CHECKING:
    from sidetier.wire.connection import Connection

log = logger()

_PARTITION_BYTES: Final = 1 << 20
_MAX_BYTES: Final = 8 << 20
_MIN_BYTES: Final = 1 << 20
_SHORT_WAIT: Final = 0.1
_LONG_WAIT: Final = 0.5
"""Seconds that a leader holds a Fetch without records. A partition at whose end the first client
arrives waits for the end of it, so the wait is short while clients arrive.
"""
_ARRIVAL_SECONDS: Final = 5.0
_UNWANTED_SECONDS: Final = 90.0
"""Time without a client after which a partition is followed no more: more than the longest wait of
clients.
"""
_PAUSE: Final = 0.2
_LOG_PAUSE: Final = 60.0
_CLOSE_SECONDS: Final = 2.0

Take = Callable[[Reader, Offset, FetchedPartition, LiveTopics], bool]
"""Keeps what a leader has returned for an offset; returns whether the partition is followed on."""
Confirm = Callable[[Mapping[TopicPartition, LiveBounds], LiveTopics, float], None]
"""Notes that the bounds of partitions are those that the leader has reported last. It was asked at
this monotonic second.
"""
_Key = tuple[BrokerId, bool]
"""A broker, and whether `read_committed` applies."""


@dataclass(slots=True)
class _Followed:
    """A partition at whose end clients wait.

    Attributes:
        position: The next offset.
        wanted_at: Monotonic second at which a client has asked for it last.
        bounds: The bounds that the leader has reported last; None if it has not yet.
    """

    position: Offset
    wanted_at: float
    bounds: LiveBounds | None = None


class _Follower:
    """The partitions that one thread follows, and its thread. `changed` guards all of it."""

    def __init__(self, key: _Key, run: Callable[["_Follower"], None]) -> None:
        self.broker, self.is_isolated = key
        self.changed = threading.Condition()
        self.followed: dict[Reader, _Followed] = {}
        self.arrived_at = float("-inf")
        self.connection: Connection | None = None
        self.session = FetchSession()
        name = f"endpoint-live-{self.broker}-{'committed' if self.is_isolated else 'all'}"
        self.thread = threading.Thread(target=run, args=(self,), name=name, daemon=True)


class Followers:
    """The followers of all brokers. Thread-safe.

    Args:
        watch: The topics of the cluster.
        pool: Opens the connections.
        memory: Bytes for the answers of all brokers together; each gets 1 MiB in any case.
        take: Is called with each answer.
        confirm: Is called with the partitions without anything new.
        lose: Is called with partitions that are followed no more, because of an error.
        stop: Once set, all threads end.
        clock: Returns monotonic seconds.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is of another kind
        self,
        watch: LiveTopicsWatch,
        pool: BrokerPool,
        memory: int,
        take: Take,
        confirm: Confirm,
        lose: Callable[[Collection[TopicPartition]], None],
        stop: threading.Event,
        *,
        clock: Clock = monotonic,
    ) -> None:
        self._watch, self._pool, self._memory = watch, pool, memory
        self._take, self._confirm, self._lose = take, confirm, lose
        self._stop, self._clock = stop, clock
        self._guard = threading.Lock()
        """Guards the dictionaries; held before the lock of a follower."""
        self._followers: dict[_Key, _Follower] = {}
        self._of: dict[Reader, _Follower] = {}
        self._log_away = AtMostEvery(_LOG_PAUSE)

    def close(self) -> None:
        """End the threads; `stop` must be set. An attempt to connect may outlive it."""
        with self._guard:
            followers = list(self._followers.values())
        for follower in followers:
            with follower.changed:
                follower.changed.notify_all()
                if follower.connection is not None:
                    follower.connection.interrupt()
        for follower in followers:
            follower.thread.join(_CLOSE_SECONDS)

    def positions(self) -> dict[Reader, Offset]:
        """Return the next offset of each partition that is followed."""
        with self._guard:
            followers = list(self._followers.values())
        positions = {}
        for follower in followers:
            with follower.changed:
                for reader, known in follower.followed.items():
                    positions[reader] = known.position
        return positions

    def is_followed(self, tp: TopicPartition) -> bool:
        """Whether a thread reads the partition's end."""
        return any(Reader(tp, isolated) in self._of for isolated in (False, True))

    def waits_at(self, reader: Reader, offset: Offset) -> bool:
        """Whether a follower waits for the record at this offset; it goes on for this client."""
        follower = self._of.get(reader)
        if follower is None or not follower.thread.is_alive():
            return False
        with follower.changed:
            known = follower.followed.get(reader)
            if known is None:
                return False
            known.wanted_at = self._clock()
            return known.position == offset

    def follow(self, reader: Reader, offset: Offset) -> None:
        """Follow a partition from an offset on, at which its log ends now."""
        with self._guard:
            # Within the lock: a change of the leader calls `leave` afterwards.
            leader = self._watch.latest.leader(reader.tp)
            if leader == NO_LEADER or self._stop.is_set():
                return
            follower = self._follower((leader, reader.is_isolated))
            before = self._of.get(reader)
            if before is not None and before is not follower:
                with before.changed:
                    before.followed.pop(reader, None)
            self._of[reader] = follower
            with follower.changed:
                known = follower.followed.get(reader)
                # The leader may have returned more meanwhile.
                position = offset if known is None else max(known.position, offset)
                bounds = None if known is None else known.bounds
                follower.followed[reader] = _Followed(position, self._clock(), bounds)
                follower.arrived_at = self._clock()
                follower.changed.notify_all()

    def passed(self, reader: Reader, offset: Offset, end: Offset) -> bool:
        """Continue at `end`, if the records from `offset` on are those that were waited for.

        Returns:
            Whether they are.
        """
        follower = self._of.get(reader)
        if follower is None:
            return False
        with follower.changed:
            known = follower.followed.get(reader)
            if known is None or not offset <= known.position < end:
                return False
            known.position = end
            return True

    def leave(self, tps: Collection[TopicPartition]) -> None:
        """Follow these partitions no more."""
        with self._guard:
            for reader in (Reader(tp, isolated) for tp in tps for isolated in (False, True)):
                follower = self._of.pop(reader, None)
                if follower is not None:
                    with follower.changed:
                        follower.followed.pop(reader, None)

    def _follower(self, key: _Key) -> _Follower:
        follower = self._followers.get(key)
        if follower is None or not follower.thread.is_alive():
            follower = _Follower(key, self._run)
            follower.thread.start()  # first: the system may allow no more threads
            self._followers[key] = follower
        return follower

    def _run(self, follower: _Follower) -> None:
        turn = 0
        positions: list[FetchPosition] = []
        while not self._stop.is_set():
            try:
                # One answer of the cluster for all: another one may have other leaders.
                topics = self._watch.latest
                positions = self._due(follower, topics)
                if positions:
                    # Each partition is the first one in turn: one alone may fill the answer.
                    turn = (turn + 1) % len(positions)
                    self._fetch(follower, positions[turn:] + positions[:turn], topics)
                elif self._ends(follower):
                    break
            except SidetierError as error:
                if failures := self._log_away.count():
                    log.warning(
                        "endpoint.live_follower_failed", error=str(error), failures=failures
                    )
                self._give_up(follower, positions)
            except Exception:
                log.exception("endpoint.live_follower_failed", broker=follower.broker)
                self._give_up(follower, positions)
        if follower.connection is not None:
            follower.connection.close()

    def _give_up(self, follower: _Follower, positions: Collection[FetchPosition]) -> None:
        try:
            self._lose([position.partition for position in positions])
        except Exception:
            log.exception("endpoint.live_follower_failed", broker=follower.broker)
        self._stop.wait(_PAUSE)

    def _due(self, follower: _Follower, topics: LiveTopics) -> list[FetchPosition]:
        """Return what to follow; forget what no client has asked for."""
        now = self._clock()
        with self._guard, follower.changed:
            for reader, known in tuple(follower.followed.items()):
                if now - known.wanted_at > _UNWANTED_SECONDS:
                    del follower.followed[reader]
                    self._of.pop(reader, None)
            return [
                FetchPosition(reader.tp, known.position, _PARTITION_BYTES, topics.epoch(reader.tp))
                for reader, known in follower.followed.items()
            ]

    def _ends(self, follower: _Follower) -> bool:
        """Wait for something to follow; return True, and forget the follower, if nothing comes."""
        with follower.changed:
            if not follower.followed and not self._stop.is_set():
                follower.changed.wait(_UNWANTED_SECONDS)
        with self._guard, follower.changed:
            if follower.followed:
                return False
            key = follower.broker, follower.is_isolated
            if self._followers.get(key) is follower:
                del self._followers[key]
            return True

    def _fetch(
        self, follower: _Follower, positions: list[FetchPosition], topics: LiveTopics
    ) -> None:
        """Send one Fetch, and keep its answers.

        Raises:
            BrokerError: The broker refuses it, or cannot be reached.
        """
        if follower.connection is None or follower.connection.is_closed:
            connection = self._pool.open(follower.broker)
            with follower.changed:
                follower.connection = connection
            follower.session.restart()
            if self._stop.is_set():
                return
        is_arriving = self._clock() - follower.arrived_at < _ARRIVAL_SECONDS
        share = self._memory // max(len(self._followers), 1)
        asked_at = self._clock()
        try:
            answers, throttle = fetch_from(
                follower.connection,
                positions,
                topics,
                isolated=follower.is_isolated,
                timeout=self._pool.timeout,
                max_wait=_SHORT_WAIT if is_arriving else _LONG_WAIT,
                max_bytes=min(max(share, _MIN_BYTES), _MAX_BYTES),
                session=follower.session,
            )
        except BaseException:
            follower.session.restart()
            raise
        self._watch.learn_leaders(answers)
        asked = {position.partition: position.offset for position in positions}
        lost = [
            fetched.partition
            for fetched in answers
            if not self._take(
                Reader(fetched.partition, follower.is_isolated),
                asked[fetched.partition],
                fetched,
                topics,
            )
        ]
        if lost:
            # Clients that ask again get the leader's error, or another leader's records.
            self._lose(lost)
        if not throttle:  # else the broker has looked at nothing
            unchanged = self._note_bounds(follower, asked, answers)
            self._confirm(unchanged, topics, asked_at)
        self._stop.wait(throttle)

    @staticmethod
    def _note_bounds(
        follower: _Follower,
        asked: Collection[TopicPartition],
        answers: Collection[FetchedPartition],
    ) -> Mapping[TopicPartition, LiveBounds]:
        """Remember the bounds that were reported; return those of the other partitions."""
        reported = {fetched.partition: bounds_of(fetched) for fetched in answers}
        unchanged: dict[TopicPartition, LiveBounds] = {}
        with follower.changed:
            for tp in asked:
                followed = follower.followed.get(Reader(tp, follower.is_isolated))
                if followed is not None and tp in reported:
                    followed.bounds = reported[tp]
                elif followed is not None and followed.bounds is not None:
                    unchanged[tp] = followed.bounds
                elif followed is not None:
                    # It was left and followed again meanwhile: the session has it from before.
                    follower.session.restart()
        return unchanged


def bounds_of(fetched: FetchedPartition) -> LiveBounds:
    """Return the bounds that an answer reports."""
    start, stable = fetched.log_start_offset, fetched.last_stable_offset
    return LiveBounds(start, fetched.high_watermark, stable)
