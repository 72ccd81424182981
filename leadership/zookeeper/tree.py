"""What was read of ZooKeeper's tree so far, and what is to be read next; pure."""

from collections.abc import Collection
from types import MappingProxyType

from sidetier.leadership.port import LeadershipView
from sidetier.leadership.zookeeper.nodes import StateNode, TopicNode, state_path, topic_path
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition


class TopicTree:
    """The topics, and the state of those partitions that have a replica on our broker.

    Each method takes in what was read of one node, and returns the paths that must be read
    because of it. Partitions without a replica here cannot be led, so their state is left alone;
    a reassignment changes the topic's node first.
    """

    def __init__(self, broker: BrokerId) -> None:
        self._broker = broker
        self._topics: set[str] = set()
        self._topic_ids: dict[str, str] = {}
        self._hosted: dict[str, set[TopicPartition]] = {}
        self._leads: dict[TopicPartition, LeaderEpoch] = {}
        self.changes = 0
        """How often something was taken in that the view shows."""

    def listed(self, topics: Collection[str]) -> list[str]:
        """The children of `/brokers/topics`."""
        for topic in self._topics - set(topics):
            self.topic_read(topic, None)
        new = set(topics) - self._topics
        self._topics = set(topics)
        return [topic_path(topic) for topic in sorted(new)]

    def topic_read(self, topic: str, node: TopicNode | None) -> list[str]:
        """A topic's node; None where it is missing."""
        if node is None:
            self._topics.discard(topic)
        hosted = self._hosted_partitions(topic, node)
        before = self._hosted.get(topic, set())
        for partition in before - hosted:
            self._set_epoch(partition, None)
        self._hosted[topic] = hosted
        if not hosted:
            del self._hosted[topic]
        self._set_topic_id(topic, None if node is None else node.topic_id)
        return [state_path(partition) for partition in sorted(hosted - before)]

    def state_read(self, partition: TopicPartition, node: StateNode | None) -> None:
        """A partition's state; None where it is missing (not elected yet, or deleted)."""
        if node is not None and node.leader == self._broker and self.hosts(partition):
            self._set_epoch(partition, node.leader_epoch)
        else:
            self._set_epoch(partition, None)

    def hosts(self, partition: TopicPartition) -> bool:
        """Whether the partition's state is of interest."""
        return partition in self._hosted.get(partition.topic, ())

    def view(self) -> LeadershipView:
        """What is led, as read so far."""
        return LeadershipView(
            MappingProxyType(dict(self._leads)), MappingProxyType(dict(self._topic_ids)), known=True
        )

    def _set_epoch(self, partition: TopicPartition, epoch: LeaderEpoch | None) -> None:
        if self._leads.get(partition) == epoch:
            return
        self.changes += 1
        if epoch is None:
            del self._leads[partition]
        else:
            self._leads[partition] = epoch

    def _set_topic_id(self, topic: str, topic_id: str | None) -> None:
        if self._topic_ids.get(topic) == topic_id:
            return
        self.changes += 1
        if topic_id is None:
            del self._topic_ids[topic]
        else:
            self._topic_ids[topic] = topic_id

    def _hosted_partitions(self, topic: str, node: TopicNode | None) -> set[TopicPartition]:
        replicas = node.replicas if node is not None else {}
        return {
            TopicPartition(topic, partition)
            for partition, brokers in replicas.items()
            if self._broker in brokers
        }
