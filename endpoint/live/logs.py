"""The live half of the logs that the endpoint shows."""

import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sidetier.endpoint.live.brokers import level_of
from sidetier.endpoint.live.client import LiveCluster
from sidetier.endpoint.live.reads import FollowedPartition, LiveReads
from sidetier.endpoint.live.topics import LiveTopics, LiveTopicsWatch
from sidetier.endpoint.metrics import LiveMetrics
from sidetier.endpoint.reloading import Reloaded
from sidetier.segments.errors import BrokerError, SidetierError
from sidetier.segments.offsets import MAX_OFFSET, Offset, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.wire.cluster import NO_LEADER

_WINDOW_CHECK: Final = 30.0
"""Seconds for which the beginning of the live window is kept."""
_AWAY_CHECK: Final = 5.0
"""The same after a leader did not answer."""
_STORE_PAUSE: Final = 10.0
"""Seconds for which the broker is preferred after the store did not answer."""
_CHECK_SECONDS: Final = 10.0
_SHOWN_FOLLOWED: Final = 20
"""Followed partitions in the status: those with the largest lag."""
_NO_RECORD: Final = -1
_SHORTEST_LOOK: Final = 1.0
"""Seconds between two requests because of names that are not known: clients choose them."""
_LOOK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """Options of `--live`.

    Attributes:
        cluster: How the cluster is reached.
        window: Records younger than this many seconds come from the broker if both sides have them,
            and older ones from the store; infinite for the broker, 0 for the store.
        windows: The same for the topics whose names a pattern matches; the first match counts.
        gap_patience: Seconds to wait for the upload of records that the brokers have deleted,
            before they count as lost. As for the mirror.
    """

    cluster: LiveCluster
    window: float
    windows: Sequence[tuple[re.Pattern[str], float]] = ()
    gap_patience: float = 60.0

    def window_of(self, topic: str) -> float:
        """Return the window of a topic."""
        matches = (window for pattern, window in self.windows if pattern.fullmatch(topic))
        return next(matches, self.window)


class LiveLogs:
    """The live cluster. Thread-safe. `start` starts its threads.

    Args:
        settings: The options.
        memory: Bytes of records to keep for clients that read the same.
        metrics: Counts what is read.
        failures: Is called after settings that cannot be loaded.
        clock: Returns monotonic seconds.
        wall_clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        settings: LiveSettings,
        memory: int,
        metrics: LiveMetrics,
        failures: Callable[[], None],
        clock: Clock = monotonic,
        wall_clock: Clock = time.time,  # noqa: TID251 -- brokers compare with it
    ) -> None:
        self._settings = settings
        self.metrics = metrics
        self._clock, self._wall_clock = clock, wall_clock
        self._stop = threading.Event()
        self._looked_at = float("-inf")
        self._counted: object = None
        self._starts: dict[TopicPartition, tuple[float, Offset]] = {}
        self._store_failed: dict[str, float] = {}
        self.is_checked = False
        """Whether the archive is known to be that of this cluster."""
        self._listeners: list[Callable[[Collection[TopicPartition]], None]] = []
        client = Reloaded(settings.cluster.files, settings.cluster.client, failures).current
        self.watch = LiveTopicsWatch(client, self._leaders_changed, self._stop, clock)
        self.reads = LiveReads(
            client, self.watch, memory, metrics, self._changed, self._stop, clock=clock
        )

    def start(self) -> None:
        """Ask for the topics; raises as `LiveTopicsWatch.start`."""
        self.watch.start()

    def listen(self, notify: Callable[[Collection[TopicPartition]], None]) -> None:
        """Call `notify` with the partitions whose end or leader has changed; none: the topics."""
        self._listeners.append(notify)

    def close(self) -> None:
        """Stop the threads."""
        self._stop.set()
        self.reads.close()
        self.watch.close()

    @property
    def topics(self) -> LiveTopics:
        """The topics that the cluster has shown last."""
        return self.watch.latest

    def status(self) -> dict[str, object]:
        """Return what is known of the cluster, as JSON."""
        topics, unreachable = self.topics, self.reads.pool.unreachable()
        answered_at = self.watch.answered_at
        led = topics.by_leader(topics.partitions())
        followed = sorted(self.reads.followed(), key=lambda each: each.lag, reverse=True)
        return {
            "cluster_id": topics.cluster_id,
            "archive_is_checked": self.is_checked,
            "problem": self.watch.mismatch if self.watch.is_of_another_cluster else None,
            "topics": len(topics.topics),
            "topics_age_seconds": (
                None if answered_at is None else round(self._clock() - answered_at, 1)
            ),
            "leaderless_partitions": len(led.get(NO_LEADER, ())),
            "brokers": [
                {
                    "id": broker,
                    "address": str(address),
                    "led_partitions": len(led.get(broker, ())),
                    "problem": unreachable.get(broker),
                }
                for broker, address in sorted(topics.brokers.items())
            ],
            **self.metrics.totals(),
            "followed_partitions": len(followed),
            "lag_records": followed[0].lag if followed else 0,
            "followed": [self._followed_row(each) for each in followed[:_SHOWN_FOLLOWED]],
        }

    def _followed_row(self, followed: FollowedPartition) -> dict[str, object]:
        reader = followed.reader
        return {
            "topic": reader.tp.topic,
            "partition": reader.tp.partition,
            "isolation_level": level_of(isolated=reader.is_isolated).value,
            "leader": self.topics.leader(reader.tp),
            "position": followed.position,
            "end": followed.end,
            "lag_records": followed.lag,
        }

    def look_for_topics(self) -> None:
        """Ask for the topics again, unless they were asked for a second ago."""
        if self._clock() - self._looked_at >= _SHORTEST_LOOK:
            self.watch.renew(wait=_LOOK_SECONDS)
            self._looked_at = self._clock()

    def expect_cluster(self, cluster_id: str | None) -> None:
        """Read no other cluster from now on; None if the archive does not name its own."""
        self.watch.expect_cluster(cluster_id)
        self.is_checked = True

    def check_later(self, find_id: Callable[[], str | None]) -> None:
        """Expect the archived cluster once the store names it."""

        def run() -> None:
            while self.watch.wanted_cluster_id is None and not self._stop.wait(_CHECK_SECONDS):
                with suppress(SidetierError):
                    self.expect_cluster(find_id())

        threading.Thread(target=run, name="endpoint-live-check", daemon=True).start()

    def note_store_failure(self, topic: str) -> None:
        """Prefer the broker for some seconds: the store of this topic does not answer."""
        self._store_failed[topic] = self._clock() + _STORE_PAUSE

    @property
    def gap_patience(self) -> float:
        """See `LiveSettings`."""
        return self._settings.gap_patience

    def store_below(self, tp: TopicPartition) -> Offset:
        """Return the offset below which the store is preferred."""
        if self._clock() < self._store_failed.get(tp.topic, 0.0):
            return Offset(0)
        window = self._settings.window_of(tp.topic)
        if window == float("inf"):
            return Offset(0)
        if window == 0:
            return MAX_OFFSET
        now = self._clock()
        known = self._starts.get(tp)
        if known is not None and now - known[0] < _WINDOW_CHECK:
            return known[1]
        first = round((self._wall_clock() - window) * 1000)
        try:
            listed = self.reads.list_offset(tp, first, isolated=False).offset
        except BrokerError:
            # The store is asked for what the broker cannot give.
            start = known[1] if known else MAX_OFFSET
            self._starts[tp] = now - _WINDOW_CHECK + _AWAY_CHECK, start
            return start
        start = MAX_OFFSET if listed == _NO_RECORD else listed
        self._starts[tp] = now, start
        return start

    def _leaders_changed(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            self._starts.pop(tp, None)
        self.reads.forget(tps)
        self.reads.prune([tp for tp in tps if self.topics.partition(tp) is None])
        if self._counted is not self.topics:  # it is called before and after each change
            self._counted = self.topics
            self.metrics.leader_changes.inc(len(tps))
        self.reads.pool.prune(self.topics.brokers)
        if not tps:
            self._changed(tps)

    def _changed(self, tps: Collection[TopicPartition]) -> None:
        for listener in self._listeners:
            listener(tps)
