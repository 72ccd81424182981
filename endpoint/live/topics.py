"""The topics of the live cluster, their ids and leaders: asked again every few seconds, and at once
after a broker's answer that shows a change.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from sidetier.endpoint.live.client import LiveClient
from sidetier.endpoint.log_limits import AtMostEvery
from sidetier.segments.errors import BrokerError, BrokerUnavailableError, SidetierError
from sidetier.segments.offsets import UNKNOWN_EPOCH, BrokerId, LeaderEpoch, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger
from sidetier.wire.cluster import NO_LEADER, Cluster, PartitionMetadata, TopicMetadata
from sidetier.wire.record_requests import FetchedPartition
from sidetier.wire.settings import Address

log = logger()

INTERVAL: Final = 10.0
"""Seconds between two requests without a reason."""
_AWAY_INTERVAL: Final = 1.0
"""The same after no broker has answered."""
_DOUBT_SECONDS: Final = 60.0
"""Time without a client after which a topic is no longer asked for by name."""
_SHORTEST: Final = 0.1
_LONGER: Final = 0.25
_LONGEST: Final = 1.0
"""Seconds between two requests, whatever the reasons are; the longer ones while nothing changes, up
to 1 s if the answers of a large cluster take long.
"""
_SHARE: Final = 10
"""Answers take at most a tenth of the time."""
_WANTED_SECONDS: Final = 1.0
"""Time for which the topics are asked for again after somebody wants a change, until one shows:
clients that wait for a new leader ask less often.
"""
_TIMEOUT: Final = 2.0
_CONNECT_TIMEOUT: Final = 1.0
_CLOSE_SECONDS: Final = 2.0
_LOG_PAUSE: Final = 60.0


@dataclass(frozen=True, slots=True)
class LiveTopics:
    """The topics of the live cluster, as one answer has shown them; without internal ones.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        topics: By name.
        brokers: The addresses of all brokers.
        shape: Ids and numbers of partitions of all topics; the same object until they change.
    """

    cluster_id: str | None = None
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    brokers: Mapping[BrokerId, Address] = field(default_factory=dict)
    shape: Mapping[str, tuple[UUID | None, int]] = field(default_factory=dict)

    def partition(self, tp: TopicPartition) -> PartitionMetadata | None:
        """Return leader and replicas of a partition; None if the cluster does not have it."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def leader(self, tp: TopicPartition) -> BrokerId:
        """Return the leader of a partition; -1 if there is none."""
        partition = self.partition(tp)
        return NO_LEADER if partition is None else partition.leader

    def epoch(self, tp: TopicPartition) -> LeaderEpoch:
        """Return the leader epoch of a partition, which makes a former leader refuse a request."""
        partition = self.partition(tp)
        return UNKNOWN_EPOCH if partition is None else partition.leader_epoch

    def partitions(self) -> Iterator[TopicPartition]:
        """Yield all partitions."""
        for name, topic in self.topics.items():
            for number in topic.partitions:
                yield TopicPartition(name, number)

    def by_leader(self, tps: Iterable[TopicPartition]) -> dict[BrokerId, list[TopicPartition]]:
        """Return partitions by their leaders; those without one by -1."""
        led: dict[BrokerId, list[TopicPartition]] = {}
        for tp in tps:
            led.setdefault(self.leader(tp), []).append(tp)
        return led

    def is_same(self, other: "LiveTopics", tp: TopicPartition) -> bool:
        """Whether both have a partition, of the same topic, leader and leader epoch."""
        now, before = self.partition(tp), other.partition(tp)
        if self is other:
            return True
        if now is None or before is None:
            return False
        if self.topics[tp.topic].topic_id != other.topics[tp.topic].topic_id:
            return False
        return (now.leader, now.leader_epoch) == (before.leader, before.leader_epoch)

    def ids(self, names: Collection[str]) -> Mapping[str, UUID]:
        """Return the ids of topics that have one, by name."""
        found = {name: self.topics[name].topic_id for name in names if name in self.topics}
        return {name: topic_id for name, topic_id in found.items() if topic_id is not None}

    def changed(self, before: "LiveTopics") -> list[TopicPartition]:
        """Return the partitions that have another leader, leader epoch or topic than before."""
        return [tp for tp in before.partitions() if not self.is_same(before, tp)]


@dataclass(slots=True)
class Pace:
    """When the topics are asked for again. Pure; times are in monotonic seconds.

    Attributes:
        pause: Time after an answer in which nothing is asked, whoever wants it.
        wait: Time after this pause in which nothing is asked unless somebody wants a change.
    """

    pause: float = _SHORTEST
    wait: float = INTERVAL
    _began: float = 0.0
    _wanted_until: float = 0.0

    def begin(self, now: float, *, is_due: bool) -> bool:
        """Begin to ask; return whether somebody wants a change.

        `is_due`: somebody has asked for it since the last answer.
        """
        self._began = now
        if is_due:
            self._wanted_until = now + _WANTED_SECONDS
        is_wanted = now < self._wanted_until
        if not is_wanted:
            self.pause = _SHORTEST
        return is_wanted

    def end(self, now: float, *, is_changed: bool, is_away: bool) -> None:
        """Note the answer, or that no broker has answered."""
        if is_changed:
            self._wanted_until = 0.0
            self.pause, self.wait = _SHORTEST, INTERVAL
            return
        slowest = min(max((now - self._began) * _SHARE, _LONGER), _LONGEST)
        self.pause = min(self.pause * 2, slowest)
        if now < self._wanted_until:
            self.wait = 0.0
        else:
            self.wait = _AWAY_INTERVAL if is_away else INTERVAL


class LiveTopicsWatch:
    """Keeps the topics of the live cluster up to date, in one thread. Thread-safe.

    Args:
        client: Returns the client of the live cluster: the same object until its settings change.
        report: Is called with the partitions whose leader or topic has changed, before anybody
            sees the new topics; and with none after other changes.
        stop: Once set, the thread ends.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        client: Callable[[], LiveClient],
        report: Callable[[Collection[TopicPartition]], None],
        stop: threading.Event,
        clock: Clock = monotonic,
    ) -> None:
        self._client, self._report, self._stop, self._clock = client, report, stop, clock
        self._log_away = AtMostEvery(_LOG_PAUSE)
        self._due = threading.Event()
        self._answered = threading.Condition()
        self._ended = 0
        """Number of requests that were answered or have failed."""
        self._is_asking = False
        self._changing = threading.Lock()
        """Held while `latest` is replaced: by the thread, or by a broker's own hint."""
        self.latest = LiveTopics()
        """The latest answer; without topics before the first one."""
        self.wanted_cluster_id: str | None = None
        """The archived cluster: other brokers are not asked for records."""
        self._doubts: dict[str, float] = {}
        """Topics that clients have missed, and when last: these are asked for by name."""
        self._unknown_since: dict[str, float] = {}
        """Those of them that no broker knows, and since when, in monotonic seconds."""
        self.answered_at: float | None = None
        """Monotonic second of the latest answer; None before the first one."""
        self._gone: set[str] = set()
        """Topics that no broker has known for 10 s, until a list of all topics has them again."""
        self._asked: Cluster | None = None
        self.thread = threading.Thread(target=self._run, name="endpoint-live", daemon=True)

    def start(self) -> None:
        """Ask for the topics, and start the thread. If the brokers are away, it asks them later.

        Raises:
            BrokerError: They refuse the login, or do not speak Kafka's protocol.
        """
        cluster = self._cluster(self._client())
        try:
            self._ask(cluster)
        except BrokerUnavailableError as error:
            self._report_away(error)
        finally:
            cluster.close()
        self.thread.start()

    def address_of(self, broker: BrokerId) -> Address | None:
        """Return the address of a broker; None if the cluster does not show it."""
        return self.latest.brokers.get(broker)

    def is_gone(self, topic: str) -> bool:
        """Whether the cluster surely does not have a topic: asked for it by its name, no broker has
        known it for 10 s. A broker that has just started does not know all topics.
        """
        if topic in self.latest.topics:
            return False
        if topic in self._gone:
            return True
        if topic not in self._doubts:
            self.renew()
        self._doubts[topic] = self._clock()
        return False

    def close(self) -> None:
        """End the thread; `stop` must be set. An attempt to connect may outlive it."""
        self._due.set()
        with self._answered:
            self._answered.notify_all()
        if self._asked is not None:
            self._asked.interrupt()
        if self.thread.is_alive():
            self.thread.join(_CLOSE_SECONDS)

    def renew(self, *, wait: float = 0.0) -> None:
        """Ask for the topics soon; wait up to `wait` seconds for the answer."""
        with self._answered:
            # The answer to a request that is in flight may be of a moment before this call.
            wanted = self._ended + (2 if self._is_asking else 1)
            self._due.set()
            if wait > 0 and not self._stop.is_set():
                self._answered.wait_for(lambda: self._ended >= wanted, wait)

    def learn_leaders(self, answers: Iterable[FetchedPartition]) -> None:
        """Take the leaders that a broker has named in place of itself (KIP-951), if they are newer
        than the known ones.
        """
        named = {
            answer.partition: answer.leader
            for answer in answers
            if answer.error_code and answer.leader is not None
        }
        if not named:
            return
        with self._changing:
            topics, moved = dict(self.latest.topics), []
            for tp, (leader, epoch) in named.items():
                topic, partition = topics.get(tp.topic), self.latest.partition(tp)
                if topic is None or partition is None or leader not in self.latest.brokers:
                    continue
                if epoch > partition.leader_epoch:
                    new = replace(partition, leader=leader, leader_epoch=epoch)
                    partitions = {**topic.partitions, tp.partition: new}
                    topics[tp.topic] = replace(topic, partitions=partitions)
                    moved.append(tp)
            if moved:
                self._show(replace(self.latest, topics=topics), moved)

    def expect_cluster(self, cluster_id: str | None) -> None:
        """Accept only the brokers of this cluster from now on; of any cluster for None."""
        with self._changing:
            self.wanted_cluster_id = cluster_id
            if self.is_of_another_cluster:
                self._show(LiveTopics(self.latest.cluster_id), list(self.latest.partitions()))

    @property
    def is_of_another_cluster(self) -> bool:
        """Whether the brokers are of another cluster than the archive."""
        known = {self.wanted_cluster_id, self.latest.cluster_id}
        return None not in known and len(known) > 1

    @property
    def mismatch(self) -> str:
        """The error text for brokers of another cluster."""
        return (
            f"the brokers are of cluster {self.latest.cluster_id}, and this archive is of cluster "
            f"{self.wanted_cluster_id}; name the brokers whose log dirs are archived, or the "
            "archive of these brokers"
        )

    def _cluster(self, client: LiveClient) -> Cluster:
        # One address after the other is tried: one that does not answer must leave time for the
        # next one.
        settings = replace(client.settings, connect_timeout=_CONNECT_TIMEOUT)
        return Cluster(settings, stop=self._stop, context=client.context)

    def _run(self) -> None:
        client = self._client()
        cluster, pace = self._cluster(client), Pace()
        self._asked = cluster
        while not self._stop.is_set():
            is_due = self._due.wait(pace.wait)
            is_wanted = pace.begin(self._clock(), is_due=is_due)
            self._due.clear()
            if self._stop.is_set():
                break
            with self._answered:
                self._is_asking = True
            is_changed, is_away = False, False
            try:
                if self._client() is not client:
                    client, before = self._client(), cluster
                    cluster = self._asked = self._cluster(client)
                    before.close()
                is_changed = self._ask_one(cluster, is_wanted=is_wanted)
            except BrokerError as error:
                self._report_away(error)
                self._unknown_since, self._gone = {}, set()  # nobody has confirmed it
                cluster.close()  # the brokers that it knows stay known
                is_away = True
            except SidetierError as error:  # such as a certificate that cannot be loaded
                log.warning("endpoint.live_topics_failed", error=str(error))
            except Exception:
                # Without this thread no client would find a new leader.
                log.exception("endpoint.live_topics_failed")
            with self._answered:
                self._ended += 1
                self._is_asking = False
                self._answered.notify_all()
            pace.end(self._clock(), is_changed=is_changed, is_away=is_away)
            self._stop.wait(pace.pause)
        cluster.close()

    def _ask_one(self, cluster: Cluster, *, is_wanted: bool) -> bool:
        """Ask as `_ask`. If somebody wants a change, and the broker shows none, ask another broker
        the next time: this one may lag behind, with ZooKeeper for long.
        """
        is_changed = self._ask(cluster)
        if is_wanted and not is_changed:
            cluster.close()
        return is_changed

    def _ask(self, cluster: Cluster) -> bool:
        """Ask for the topics; return whether a leader or a topic has changed."""
        metadata = cluster.metadata(None, timeout=_TIMEOUT)
        if not metadata.brokers:
            # With ZooKeeper, a broker that has just started knows no brokers and no topics yet.
            raise BrokerUnavailableError("the broker does not know its cluster yet")
        if self.wanted_cluster_id not in {None, metadata.cluster_id}:
            with self._changing:
                self._show(LiveTopics(metadata.cluster_id), list(self.latest.partitions()))
            raise BrokerUnavailableError(self.mismatch)
        now = self.answered_at = self._clock()
        shown = {name: topic for name, topic in metadata.topics.items() if not topic.is_internal}
        self._confirm_doubts(cluster, shown.keys() | metadata.refused.keys(), now)
        with self._changing:
            before = self.latest
            shown = {name: _newer(topic, before.topics.get(name)) for name, topic in shown.items()}
            counts = {name: (each.topic_id, len(each.partitions)) for name, each in shown.items()}
            answer = LiveTopics(
                metadata.cluster_id,
                shown,
                metadata.brokers,
                before.shape if before.shape == counts else counts,
            )
            if self.wanted_cluster_id not in {None, answer.cluster_id}:
                return False  # the archive has named its cluster meanwhile
            changed = answer.changed(before)
            if answer != before:
                self._show(answer, changed)
            return bool(changed)

    def _confirm_doubts(self, cluster: Cluster, shown: AbstractSet[str], now: float) -> None:
        """Ask by name for the topics that were missed, and are not shown.

        A broker leaves topics out that it may not describe, and those that it does not know yet.
        """
        self._gone -= shown
        self._doubts = {
            name: missed_at
            for name, missed_at in tuple(self._doubts.items())
            if name not in shown and now - missed_at < _DOUBT_SECONDS
        }
        doubts = sorted(self._doubts)
        if not doubts:
            self._unknown_since = {}
            return
        refused = cluster.metadata(doubts, timeout=_TIMEOUT).refused
        self._unknown_since = {
            name: self._unknown_since.get(name, now)
            for name in doubts
            if name in refused and refused[name].code == ErrorCode.unknown_topic_or_partition
        }
        for name, since in self._unknown_since.items():
            if now - since >= INTERVAL:
                self._gone.add(name)
                self._doubts.pop(name, None)

    def _show(self, now: LiveTopics, changed: Collection[TopicPartition]) -> None:
        """Show these topics; `_changing` must be held."""
        self._report(changed)
        self.latest = now
        # Those that were asked between report and change.
        self._report(changed)

    def _report_away(self, error: BrokerError) -> None:
        if failures := self._log_away.count():
            log.warning("endpoint.live_unavailable", error=str(error), failures=failures)


def _newer(topic: TopicMetadata, known: TopicMetadata | None) -> TopicMetadata:
    """Return a topic without leaders that are older than the known ones: brokers may lag behind.

    Without an id, it may be another topic of the same name, whose epochs begin anew.
    """
    if known is None or topic.topic_id is None or known.topic_id != topic.topic_id:
        return topic
    partitions = {
        number: max(partition, known.partitions.get(number, partition), key=_epoch_of)
        for number, partition in topic.partitions.items()
    }
    return replace(topic, partitions=partitions)


def _epoch_of(partition: PartitionMetadata) -> int:
    return partition.leader_epoch
