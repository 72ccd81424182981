"""ZooKeeper nodes of Kafka brokers, and the leadership that they describe. No I/O.

Source: Kafka's `ZkData.scala`. Paths are relative to the chroot of `zookeeper.connect`.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sidetier.leadership.port import LeadershipView
from sidetier.segments.errors import LeadershipError
from sidetier.segments.json_text import parse_json
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition

TOPICS_PATH = "/brokers/topics"
CLUSTER_ID_PATH = "/cluster/id"

_TOPIC_PATH = re.compile(r"/brokers/topics/([^/]+)")
_STATE_PATH = re.compile(r"/brokers/topics/([^/]+)/partitions/([0-9]+)/state")


@dataclass(frozen=True, slots=True)
class TopicNode:
    """`/brokers/topics/<topic>`: replicas by partition, and the topic id (since Kafka 2.8)."""

    replicas: dict[int, frozenset[int]]
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class StateNode:
    """`…/partitions/<p>/state`: the leader (-1 for none) and the leader epoch."""

    leader: BrokerId
    leader_epoch: LeaderEpoch


def topic_path(topic: str) -> str:
    """Return the path of a topic's node."""
    return f"{TOPICS_PATH}/{topic}"


def state_path(partition: TopicPartition) -> str:
    """Return the path of a partition's state node."""
    return f"{TOPICS_PATH}/{partition.topic}/partitions/{partition.partition}/state"


def parse_path(path: str) -> str | TopicPartition | None:
    """Return the topic of a topic node, the partition of a state node, or None for other paths."""
    if state := _STATE_PATH.fullmatch(path):
        return TopicPartition(state[1], int(state[2]))
    if topic := _TOPIC_PATH.fullmatch(path):
        return topic[1]
    return None


def parse_topic(path: str, data: bytes) -> TopicNode:
    """Parse a topic's node. Raises LeadershipError."""
    value = _parse_object(path, data)
    try:
        replicas = {
            int(partition): frozenset(int(broker) for broker in brokers)
            for partition, brokers in value["partitions"].items()
        }
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise LeadershipError(f"ZooKeeper node {path} has no list of partitions") from error
    topic_id = value.get("topic_id")
    return TopicNode(replicas, topic_id if isinstance(topic_id, str) else None)


def parse_state(path: str, data: bytes) -> StateNode:
    """Parse a partition's state node. Raises LeadershipError."""
    value = _parse_object(path, data)
    try:
        return StateNode(BrokerId(int(value["leader"])), LeaderEpoch(int(value["leader_epoch"])))
    except (KeyError, TypeError, ValueError) as error:
        raise LeadershipError(f"ZooKeeper node {path} has no leader and leader epoch") from error


def parse_cluster_id(data: bytes) -> str:
    """Parse `/cluster/id`. Raises LeadershipError."""
    value = _parse_object(CLUSTER_ID_PATH, data)
    try:
        return str(value["id"])
    except KeyError as error:
        raise LeadershipError(f"ZooKeeper node {CLUSTER_ID_PATH} has no id") from error


def _parse_object(path: str, data: bytes) -> dict[str, Any]:
    try:
        value = parse_json(data)
    except ValueError as error:
        raise LeadershipError(f"ZooKeeper node {path} is not JSON") from error
    if not isinstance(value, dict):
        raise LeadershipError(f"ZooKeeper node {path} is not a JSON object")
    return value


class TopicTree:
    """The topics, and the state of the partitions that have a replica on our broker.

    Each method takes the content of one node and returns the paths to read because of it. The
    broker cannot lead partitions without a local replica, so their state is not read; a
    reassignment changes the topic's node first.
    """

    def __init__(self, broker: BrokerId) -> None:
        self._broker = broker
        self._topics: set[str] = set()
        self._topic_ids: dict[str, str] = {}
        self._hosted: dict[str, set[TopicPartition]] = {}
        self._leads: dict[TopicPartition, LeaderEpoch] = {}
        self.changes = 0
        """Number of changes so far that affect the view."""

    def listed(self, topics: Collection[str]) -> list[str]:
        """Take in the children of `/brokers/topics`; return the paths of new topics."""
        for topic in self._topics - set(topics):
            self.topic_read(topic, None)
        new = set(topics) - self._topics
        self._topics = set(topics)
        return [topic_path(topic) for topic in sorted(new)]

    def topic_read(self, topic: str, node: TopicNode | None) -> list[str]:
        """Take in a topic's node, None if missing; return the paths of new partitions' states."""
        if node is None:
            # So that `listed` returns the topic again if it is created again under this name.
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
        """Take in a partition's state; None if missing (not elected yet, or deleted)."""
        # The answer may be older than a reassignment that has moved the replica away.
        if node is not None and node.leader == self._broker and self.hosts(partition):
            self._set_epoch(partition, node.leader_epoch)
        else:
            self._set_epoch(partition, None)

    def hosts(self, partition: TopicPartition) -> bool:
        """Return whether the broker has a replica of the partition, so that its state matters."""
        return partition in self._hosted.get(partition.topic, ())

    def view(self) -> LeadershipView:
        """Return the view of the nodes read so far."""
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
