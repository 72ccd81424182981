"""ZooKeeper nodes of Kafka brokers: their paths and contents.

Source: Kafka's `ZkData.scala`. Paths are relative to the chroot of `zookeeper.connect`.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from sidetier.segments.errors import LeadershipError
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
        value = json.loads(data)
    except ValueError as error:
        raise LeadershipError(f"ZooKeeper node {path} is not JSON") from error
    if not isinstance(value, dict):
        raise LeadershipError(f"ZooKeeper node {path} is not a JSON object")
    return value
