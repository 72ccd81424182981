"""The topics of the live cluster, their ids and leaders: asked again every few seconds, and at once
after a broker's answer that shows a change.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from sidetier.endpoint.live.client import LiveClient
from sidetier.endpoint.log_limits import AtMostEvery
from sidetier.segments.errors import BrokerError, BrokerUnavailableError, SidetierError
from sidetier.segments.offsets import UNKNOWN_EPOCH, BrokerId, LeaderEpoch, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger
from sidetier.wire.cluster import NO_LEADER, Cluster, PartitionMetadata, TopicMetadata
from sidetier.wire.settings import Address

log = logger()

INTERVAL: Final = 10.0
"""Seconds between two requests without a reason."""
_SHORTEST: Final = 0.1
"""Seconds between two requests, whatever the reasons are."""
_TIMEOUT: Final = 2.0
_LOG_PAUSE: Final = 60.0


@dataclass(frozen=True, slots=True)
class LiveTopics:
    """The topics of the live cluster, as one answer has shown them; without internal ones.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        topics: By name.
        by_id: The same by topic id.
        refused: Topics that the broker did not describe, although they may exist.
        brokers: The addresses of all brokers.
    """

    cluster_id: str | None = None
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    by_id: Mapping[UUID, TopicMetadata] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    brokers: Mapping[BrokerId, Address] = field(default_factory=dict)

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

    def is_same(self, other: "LiveTopics", tp: TopicPartition) -> bool:
        """Whether topic and leader of a partition are the same in both."""
        topic, known = self.topics.get(tp.topic), other.topics.get(tp.topic)
        if self is other:
            return True
        if topic is None or known is None or topic.topic_id != known.topic_id:
            return False
        return (self.leader(tp), self.epoch(tp)) == (other.leader(tp), other.epoch(tp))

    def ids(self, names: Collection[str]) -> Mapping[str, UUID]:
        """Return the ids of topics that have one, by name."""
        found = {name: self.topics[name].topic_id for name in names if name in self.topics}
        return {name: topic_id for name, topic_id in found.items() if topic_id is not None}

    def changed(self, before: "LiveTopics") -> list[TopicPartition]:
        """Return the partitions that have another leader, leader epoch or topic than before."""
        changed = []
        for name, known in before.topics.items():
            topic = self.topics.get(name)
            for number, partition in known.partitions.items():
                now = None if topic is None else topic.partitions.get(number)
                if (
                    topic is None
                    or now is None
                    or topic.topic_id != known.topic_id
                    or (now.leader, now.leader_epoch) != (partition.leader, partition.leader_epoch)
                ):
                    changed.append(TopicPartition(name, number))
        return changed


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
        self._first_at: float | None = None
        self._seen_at: dict[str, float] = {}
        self.thread = threading.Thread(target=self._run, name="endpoint-live", daemon=True)

    def start(self) -> None:
        """Ask for the topics, and start the thread. If the brokers are away, it asks them later.

        Raises:
            BrokerError: They refuse the login, or do not speak Kafka's protocol.
        """
        cluster = self._cluster()
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
        """Whether the cluster surely does not have a topic: no answer of the last 10 s has it.

        A broker that has just started does not know all topics, so that one answer is no proof.
        """
        latest, now = self.latest, self._clock()
        if self._first_at is None or topic in latest.topics or topic in latest.refused:
            return False
        return now - max(self._first_at, self._seen_at.get(topic, 0.0)) >= INTERVAL

    def close(self) -> None:
        """End the thread; `stop` must be set."""
        self._due.set()
        if self.thread.is_alive():
            self.thread.join()

    def renew(self, *, wait: float = 0.0) -> None:
        """Ask for the topics soon; wait up to `wait` seconds for the answer."""
        with self._answered:
            # The answer to a request that is in flight may be of a moment before this call.
            wanted = self._ended + (2 if self._is_asking else 1)
            self._due.set()
            if wait > 0:
                self._answered.wait_for(lambda: self._ended >= wanted, wait)

    def learn_leader(self, tp: TopicPartition, leader: BrokerId, epoch: LeaderEpoch) -> bool:
        """Take the leader that a broker has named in place of itself (KIP-951).

        Returns:
            Whether it is newer than the known one.
        """
        with self._changing:
            topic, partition = self.latest.topics.get(tp.topic), self.latest.partition(tp)
            if topic is None or partition is None or leader not in self.latest.brokers:
                return False
            if epoch <= partition.leader_epoch:
                return False
            moved = replace(partition, leader=leader, leader_epoch=epoch)
            topic = replace(topic, partitions={**topic.partitions, tp.partition: moved})
            self._show({**self.latest.topics, tp.topic: topic}, self.latest)
            return True

    def _cluster(self) -> Cluster:
        client = self._client()
        return Cluster(client.settings, stop=self._stop, context=client.context)

    def _run(self) -> None:
        cluster = self._cluster()
        while not self._stop.is_set():
            self._due.wait(INTERVAL)
            self._due.clear()
            if self._stop.is_set():
                break
            with self._answered:
                self._is_asking = True
            try:
                self._ask(cluster)
            except BrokerError as error:
                self._report_away(error)
                cluster.close()
                cluster = self._cluster_or(cluster)
            except SidetierError as error:
                log.warning("endpoint.live_topics_failed", error=str(error))
            except Exception:
                # Without this thread no client would find a new leader.
                log.exception("endpoint.live_topics_failed")
            with self._answered:
                self._ended += 1
                self._is_asking = False
                self._answered.notify_all()
            self._stop.wait(_SHORTEST)
        cluster.close()

    def _cluster_or(self, cluster: Cluster) -> Cluster:
        try:
            return self._cluster()
        except SidetierError as error:  # a certificate cannot be loaded
            log.warning("endpoint.live_topics_failed", error=str(error))
            return cluster

    def _ask(self, cluster: Cluster) -> None:
        metadata = cluster.metadata(None, timeout=_TIMEOUT)
        if not metadata.brokers:
            # With ZooKeeper, a broker that has just started knows no brokers and no topics yet.
            raise BrokerUnavailableError("the broker does not know its cluster yet")
        if self.wanted_cluster_id not in {None, metadata.cluster_id}:
            raise BrokerUnavailableError(
                f"the brokers are of cluster {metadata.cluster_id}, and the archive is of cluster "
                f"{self.wanted_cluster_id}"
            )
        now_at = self._clock()
        with self._changing:
            shown = {
                name: _newer(topic, self.latest.topics.get(name))
                for name, topic in metadata.topics.items()
                if not topic.is_internal
            }
            self._first_at = now_at if self._first_at is None else self._first_at
            self._seen_at |= dict.fromkeys(shown, now_at)
            answer = LiveTopics(
                metadata.cluster_id, refused=frozenset(metadata.refused), brokers=metadata.brokers
            )
            self._show(shown, answer)

    def _show(self, topics: Mapping[str, TopicMetadata], answer: LiveTopics) -> None:
        """Show these topics; all else is that of the answer."""
        by_id = {topic.topic_id: topic for topic in topics.values() if topic.topic_id is not None}
        before, now = self.latest, replace(answer, topics=topics, by_id=by_id)
        changed = now.changed(before)
        self._report(changed)
        if now != before:
            self.latest = now
            # Those that were asked between report and change.
            self._report(changed)

    def _report_away(self, error: BrokerError) -> None:
        if failures := self._log_away.count():
            log.warning("endpoint.live_unavailable", error=str(error), failures=failures)


def _newer(topic: TopicMetadata, known: TopicMetadata | None) -> TopicMetadata:
    """Return a topic without leaders that are older than the known ones: brokers may lag behind."""
    if known is None or known.topic_id != topic.topic_id:
        return topic
    partitions = {
        number: max(partition, known.partitions.get(number, partition), key=_epoch_of)
        for number, partition in topic.partitions.items()
    }
    return replace(topic, partitions=partitions)


def _epoch_of(partition: PartitionMetadata) -> int:
    return partition.leader_epoch
