"""Effects of each ZooKeeper node that is read."""

import pytest

from sidetier.leadership.zookeeper.tree import (
    StateNode,
    TopicNode,
    TopicTree,
    state_path,
    topic_path,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition

US, OTHER = BrokerId(1), BrokerId(2)
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
BOTH_HERE = TopicNode({0: frozenset({1, 2}), 1: frozenset({1})}, "AAAAAAAAAAAAAAAAAAAAAQ")


def state(leader: BrokerId, epoch: int = 0) -> StateNode:
    return StateNode(leader, LeaderEpoch(epoch))


@pytest.fixture
def tree() -> TopicTree:
    tree = TopicTree(US)
    assert tree.listed(["orders"]) == [topic_path("orders")]
    assert tree.topic_read("orders", BOTH_HERE) == [state_path(P0), state_path(P1)]
    tree.state_read(P0, state(US, 4))
    tree.state_read(P1, state(US, 5))
    return tree


def test_view_contains_the_partitions_led_by_this_broker(tree: TopicTree) -> None:
    view = tree.view()
    assert (view.known, view.leads) == (True, {P0: 4, P1: 5})
    assert view.topic_ids == {"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}


def test_only_new_topics_and_partitions_are_read(tree: TopicTree) -> None:
    assert tree.listed(["orders", "payments"]) == [topic_path("payments")]
    more = TopicNode({**BOTH_HERE.replicas, 2: frozenset({2}), 3: frozenset({1})}, None)
    assert tree.topic_read("orders", more) == [state_path(TopicPartition("orders", 3))]


@pytest.mark.parametrize("lost", [state(OTHER, 5), state(BrokerId(-1), 5), None])
def test_partition_with_another_leader_is_lost(tree: TopicTree, lost: StateNode | None) -> None:
    tree.state_read(P0, lost)
    assert tree.view().leads == {P1: 5}


def test_published_view_does_not_change(tree: TopicTree) -> None:
    view = tree.view()
    tree.state_read(P0, None)
    assert view.leads == {P0: 4, P1: 5}


def test_replica_that_moved_away_is_lost_and_read_again_when_it_returns(tree: TopicTree) -> None:
    assert tree.topic_read("orders", TopicNode({0: frozenset({2}), 1: frozenset({1})}, None)) == []
    assert tree.view().leads == {P1: 5}
    tree.state_read(P0, state(US, 6))
    assert tree.view().leads == {P1: 5}, "a late answer for a partition that is not here"
    assert tree.topic_read("orders", BOTH_HERE) == [state_path(P0)]


@pytest.mark.parametrize("by", ["listing", "topic"])
def test_deleted_topic_is_removed_and_read_again_when_recreated(tree: TopicTree, by: str) -> None:
    if by == "listing":
        tree.listed([])
    else:
        tree.topic_read("orders", None)
    view = tree.view()
    assert (view.leads, view.topic_ids) == ({}, {})
    assert tree.listed(["orders"]) == [topic_path("orders")]
    assert tree.topic_read("orders", BOTH_HERE) == [state_path(P0), state_path(P1)]


def test_node_that_does_not_affect_the_view_is_no_change(tree: TopicTree) -> None:
    before = tree.changes
    tree.topic_read("orders", BOTH_HERE)
    tree.state_read(P0, state(US, 4))
    tree.listed(["orders", "payments"])
    assert tree.changes == before
    tree.state_read(P0, state(US, 5))
    assert tree.changes == before + 1
