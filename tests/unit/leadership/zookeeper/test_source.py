"""The ZooKeeper source over a tree in memory."""

from collections.abc import Iterator

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError

from sidetier.leadership.settings import ZookeeperSettings
from sidetier.leadership.zookeeper import source as zookeeper
from sidetier.leadership.zookeeper.client import Session
from sidetier.leadership.zookeeper.source import ZookeeperLeadership
from sidetier.leadership.zookeeper.tree import TOPICS_PATH, state_path, topic_path
from sidetier.segments.errors import ConfigurationError, LeadershipError
from sidetier.segments.offsets import BrokerId, TopicPartition
from tests.harness.fake_leadership import FakeTree, ViewRecorder
from tests.harness.waiting import wait_until

SETTINGS = ZookeeperSettings(BrokerId(1), "zk:2181/kafka", "dK5Hq", session_timeout=0.3)
ORDERS, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def tree() -> FakeTree:
    tree = FakeTree()
    tree.nodes["/cluster/id"] = b'{"version":"1","id":"dK5Hq"}'
    tree.create_topic("orders", {0: 1, 1: 2})
    return tree


@pytest.fixture
def views() -> ViewRecorder:
    return ViewRecorder()


@pytest.fixture
def source(tree: FakeTree, views: ViewRecorder) -> Iterator[ZookeeperLeadership]:
    source = ZookeeperLeadership(SETTINGS, client=tree)
    source.start(views)
    yield source
    source.stop()


@pytest.fixture
def bootstrapped(source: ZookeeperLeadership, tree: FakeTree, views: ViewRecorder) -> None:
    tree.session(Session.CONNECTED)
    views.wait_for([ORDERS])
    assert source.failure() is None


@pytest.mark.usefixtures("bootstrapped")
def test_first_view_is_complete(views: ViewRecorder) -> None:
    assert len(views.views) == 1


@pytest.mark.usefixtures("bootstrapped")
def test_elections_are_followed(tree: FakeTree, views: ViewRecorder) -> None:
    tree.elect(SECOND, 1, epoch=3)
    assert views.wait_for([ORDERS, SECOND]).leads == {ORDERS: 0, SECOND: 3}
    tree.elect(ORDERS, 2, epoch=1)
    views.wait_for([SECOND])
    tree.elect(ORDERS, 1, epoch=2)
    assert views.wait_for([ORDERS, SECOND]).leads[ORDERS] == 2


@pytest.mark.usefixtures("bootstrapped")
def test_created_and_deleted_topics_are_followed(tree: FakeTree, views: ViewRecorder) -> None:
    tree.create_topic("payments", {0: 1, 1: 1}, topic_id=None)
    payments = [TopicPartition("payments", number) for number in (0, 1)]
    assert views.wait_for([ORDERS, *payments]).topic_ids.keys() == {"orders"}
    tree.delete_topic("orders")
    views.wait_for(payments)
    tree.create_topic("orders", {0: 1})
    views.wait_for([ORDERS, *payments])


@pytest.mark.usefixtures("bootstrapped")
def test_state_of_an_added_partition_may_appear_later(tree: FakeTree, views: ViewRecorder) -> None:
    added = TopicPartition("orders", 2)
    tree.put(topic_path("orders"), b'{"partitions":{"0":[1],"1":[2],"2":[1]}}')
    wait_until(lambda: state_path(added) in tree.reads, 5, "the missing state to be looked for")
    tree.elect(added, 1)
    views.wait_for([ORDERS, added])


@pytest.mark.usefixtures("bootstrapped")
def test_states_of_partitions_without_a_replica_here_are_not_read(
    tree: FakeTree, views: ViewRecorder
) -> None:
    tree.create_topic("elsewhere", dict.fromkeys(range(100), 2), replicas=(2, 3))
    tree.elect(SECOND, 1)
    views.wait_for([ORDERS, SECOND])
    assert not [path for path in tree.reads if "elsewhere/partitions" in path]


@pytest.mark.usefixtures("source")
def test_thousands_of_partitions_are_followed(tree: FakeTree, views: ViewRecorder) -> None:
    tree.create_topic("many", dict.fromkeys(range(3000), 1))
    tree.session(Session.CONNECTED)
    views.wait_for([ORDERS, *(TopicPartition("many", n) for n in range(3000))])
    assert len(views.views) == 1


@pytest.mark.usefixtures("bootstrapped")
def test_short_disconnection_publishes_only_the_changes(
    tree: FakeTree, views: ViewRecorder
) -> None:
    tree.session(Session.SUSPENDED)
    tree.elect(SECOND, 1)
    tree.session(Session.CONNECTED)
    views.wait_for([ORDERS, SECOND])
    assert len(views.views) == 2


@pytest.mark.usefixtures("bootstrapped")
def test_expired_session_is_replaced_without_an_unknown_view(
    tree: FakeTree, views: ViewRecorder
) -> None:
    tree.session(Session.SUSPENDED, Session.LOST, Session.CONNECTED)
    tree.elect(ORDERS, 2)
    views.wait_for([])
    assert all(view.known for view in views.views)
    tree.elect(ORDERS, 1, epoch=2)
    views.wait_for([ORDERS])


@pytest.mark.usefixtures("bootstrapped")
def test_long_disconnection_makes_the_view_unknown(tree: FakeTree, views: ViewRecorder) -> None:
    tree.session(Session.SUSPENDED)
    assert views.last.leads == {ORDERS: 0}
    views.wait_until_unknown()
    assert views.last.leads == {}
    tree.session(Session.LOST, Session.CONNECTED)
    views.wait_for([ORDERS])


@pytest.mark.usefixtures("bootstrapped")
def test_answers_of_an_earlier_connection_are_dropped(
    tree: FakeTree, views: ViewRecorder, source: ZookeeperLeadership
) -> None:
    tree.refused, tree.refusal = {state_path(ORDERS)}, ConnectionLoss()
    tree.session(Session.SUSPENDED, Session.CONNECTED, Session.SUSPENDED)
    tree.refused = set()
    tree.session(Session.CONNECTED)
    tree.elect(SECOND, 1)
    views.wait_for([ORDERS, SECOND])
    assert source.failure() is None


@pytest.mark.usefixtures("bootstrapped")
def test_late_answer_of_an_earlier_connection_does_not_replace_a_newer_one(
    tree: FakeTree, views: ViewRecorder
) -> None:
    """It names a leader that has lost an election since."""
    tree.withheld = {state_path(SECOND)}
    tree.elect(SECOND, 1, epoch=1)
    wait_until(lambda: tree.reads.count(state_path(SECOND)) == 2, 5, "the state to be asked for")
    tree.withheld = set()
    tree.session(Session.SUSPENDED)
    tree.elect(SECOND, 2, epoch=2)
    tree.session(Session.CONNECTED)
    wait_until(lambda: tree.reads.count(state_path(SECOND)) == 3, 5, "the state to be read again")
    tree.answer_late()
    tree.elect(ORDERS, 1, epoch=5)
    wait_until(lambda: views.views[-1].leads.get(ORDERS) == 5, 5, "the view behind it")
    assert views.views[-1].leads.keys() == {ORDERS}


def test_cluster_without_brokers_is_waited_for(
    tree: FakeTree, views: ViewRecorder, source: ZookeeperLeadership
) -> None:
    tree.nodes.clear()
    tree.session(Session.CONNECTED)
    views.wait_for([])
    tree.create_topic("orders", {0: 1})
    tree._fire(TOPICS_PATH)
    views.wait_for([ORDERS])
    assert source.failure() is None


def test_refused_credentials_are_a_failure(tree: FakeTree, source: ZookeeperLeadership) -> None:
    tree.session(Session.REFUSED)
    wait_until(source.failure, 5, "the failure")
    assert isinstance(source.failure(), LeadershipError)
    assert "zk:2181/kafka rejects the credentials" in str(source.failure())


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read an unreadable node again after 20 ms instead of one second."""
    monkeypatch.setattr(zookeeper, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(zookeeper, "_LONGEST_PAUSE", 0.1)


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize("path", [topic_path("bad"), state_path(TopicPartition("bad", 0))])
@pytest.mark.parametrize("garbage", [None, b"{}", b"\xff", b'{"leader":"x","partitions":[]}'])
def test_unreadable_node_affects_only_its_own_topic(
    tree: FakeTree,
    views: ViewRecorder,
    source: ZookeeperLeadership,
    path: str,
    garbage: bytes | None,
) -> None:
    bad = TopicPartition("bad", 0)
    tree.create_topic("bad", {0: 1})
    sound = tree.nodes[path]
    if garbage is None:
        tree.refused, tree.refusal = {path}, NoAuthError()
    else:
        tree.nodes[path] = garbage
    tree.session(Session.CONNECTED)
    views.wait_for([ORDERS])
    wait_until(lambda: views.last.unreadable.get(path), 5, "the node to be told of")
    wait_until(lambda: views.last.unreadable[path].failures > 2, 5, "further tries")
    tree.elect(SECOND, 1)
    views.wait_for([ORDERS, SECOND])
    assert source.failure() is None
    tree.refused, tree.nodes[path] = set(), sound
    views.wait_for([ORDERS, SECOND, bad])
    wait_until(lambda: not views.last.unreadable, 5, "the node to be read")


@pytest.mark.usefixtures("_short_pauses", "bootstrapped")
def test_last_state_counts_while_a_state_node_is_unreadable(
    tree: FakeTree, views: ViewRecorder
) -> None:
    path = state_path(ORDERS)
    tree.put(path, b"garbage")
    wait_until(lambda: path in views.last.unreadable, 5, "the node to be told of")
    assert views.last.leads == {ORDERS: 0}
    tree.elect(ORDERS, 2, epoch=1)
    views.wait_for([])


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize("path", [TOPICS_PATH, "/cluster/id"])
def test_view_is_unknown_without_the_list_of_topics(
    tree: FakeTree, views: ViewRecorder, source: ZookeeperLeadership, path: str
) -> None:
    tree.refused, tree.refusal = {path}, NoAuthError()
    tree.session(Session.CONNECTED)
    wait_until(lambda: path in views.last.unreadable, 5, "the node to be told of")
    assert not views.last.known
    tree.refused = set()
    views.wait_for([ORDERS])
    assert source.failure() is None


def test_another_cluster_is_a_failure(
    tree: FakeTree, views: ViewRecorder, source: ZookeeperLeadership
) -> None:
    tree.nodes["/cluster/id"] = b'{"version":"1","id":"another"}'
    tree.session(Session.CONNECTED)
    wait_until(source.failure, 5, "the failure")
    assert isinstance(source.failure(), ConfigurationError)
    assert "has cluster another, but the log dirs belong to cluster dK5Hq" in str(source.failure())
    assert views.views == []
