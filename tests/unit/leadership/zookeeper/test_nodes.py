"""ZooKeeper nodes: contents written by brokers, and refused contents."""

import pytest

from sidetier.leadership.zookeeper.tree import (
    StateNode,
    TopicNode,
    parse_cluster_id,
    parse_path,
    parse_state,
    parse_topic,
    state_path,
    topic_path,
)
from sidetier.segments.errors import LeadershipError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition

ORDERS = TopicPartition("orders-eu.v1", 12)


def test_topic_node_of_kafka_3_9_is_read() -> None:
    node = parse_topic(
        "/brokers/topics/t",
        b'{"removing_replicas":{},"partitions":{"1":[2,1],"0":[1,2]},'
        b'"topic_id":"r4lXwFeOQXyJb1oPZ6wsbQ","adding_replicas":{},"version":3}',
    )
    assert node == TopicNode({0: frozenset({1, 2}), 1: frozenset({1, 2})}, "r4lXwFeOQXyJb1oPZ6wsbQ")


def test_topic_node_of_an_old_broker_has_no_id() -> None:
    node = parse_topic("/brokers/topics/t", b'{"version":1,"partitions":{"0":[7]}}')
    assert node == TopicNode({0: frozenset({7})}, None)


def test_state_node_is_read() -> None:
    data = b'{"controller_epoch":3,"leader":-1,"version":1,"leader_epoch":9,"isr":[1]}'
    assert parse_state("/s", data) == StateNode(BrokerId(-1), LeaderEpoch(9))


def test_cluster_id_node_is_read() -> None:
    assert parse_cluster_id(b'{"version":"1","id":"dK5Hq"}') == "dK5Hq"


def test_path_names_its_topic_or_partition() -> None:
    assert parse_path(topic_path("orders-eu.v1")) == "orders-eu.v1"
    assert parse_path(state_path(ORDERS)) == ORDERS
    assert parse_path("/brokers/topics") is None
    assert parse_path("/cluster/id") is None
    assert parse_path("/brokers/topics/t/partitions") is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xfe", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"{}", "has no list of partitions"),
        (b'{"partitions":[0]}', "has no list of partitions"),
        (b'{"partitions":{"x":[0]}}', "has no list of partitions"),
        (b'{"partitions":{"0":5}}', "has no list of partitions"),
    ],
)
def test_error_for_a_malformed_topic_node_names_its_path(data: bytes, text: str) -> None:
    with pytest.raises(LeadershipError, match=f"^ZooKeeper node /brokers/topics/t {text}$"):
        parse_topic("/brokers/topics/t", data)


@pytest.mark.parametrize("data", [b"{}", b'{"leader":1}', b'{"leader":"x","leader_epoch":1}'])
def test_error_for_a_malformed_state_node_names_its_path(data: bytes) -> None:
    with pytest.raises(
        LeadershipError, match=r"^ZooKeeper node /s has no leader and leader epoch$"
    ):
        parse_state("/s", data)


def test_cluster_node_without_an_id_is_refused() -> None:
    with pytest.raises(LeadershipError, match=r"^ZooKeeper node /cluster/id has no id$"):
        parse_cluster_id(b"{}")
