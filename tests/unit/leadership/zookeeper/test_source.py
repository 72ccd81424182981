"""The ZooKeeper source over a tree in memory."""

from collections.abc import Iterator

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError

from sidetier.leadership.settings import ZookeeperSettings
from sidetier.leadership.zookeeper.client import Session
from sidetier.leadership.zookeeper.nodes import TOPICS_PATH, state_path, topic_path
from sidetier.leadership.zookeeper.source import ZookeeperLeadership
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
def test_the_first_view_is_whole(views: ViewRecorder) -> None:
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
def test_topics_come_and_go(tree: FakeTree, views: ViewRecorder) -> None:
    tree.create_topic("payments", {0: 1, 1: 1}, topic_id=None)
    payments = [TopicPartition("payments", number) for number in (0, 1)]
    assert views.wait_for([ORDERS, *payments]).topic_ids.keys() == {"orders"}
    tree.delete_topic("orders")
    views.wait_for(payments)
    tree.create_topic("orders", {0: 1})
    views.wait_for([ORDERS, *payments])


@pytest.mark.usefixtures("bootstrapped")
def test_partitions_are_added_and_their_state_comes_later(
    tree: FakeTree, views: ViewRecorder
) -> None:
    added = TopicPartition("orders", 2)
    tree.put(topic_path("orders"), b'{"partitions":{"0":[1],"1":[2],"2":[1]}}')
    wait_until(lambda: state_path(added) in tree.reads, 5, "the missing state to be looked for")
    tree.elect(added, 1)
    views.wait_for([ORDERS, added])


@pytest.mark.usefixtures("bootstrapped")
def test_states_of_partitions_that_are_elsewhere_are_left_alone(
    tree: FakeTree, views: ViewRecorder
) -> None:
    tree.create_topic("elsewhere", dict.fromkeys(range(100), 2), replicas=(2, 3))
    tree.elect(SECOND, 1)
    views.wait_for([ORDERS, SECOND])
    assert not [path for path in tree.reads if "elsewhere/partitions" in path]


@pytest.mark.usefixtures("source")
def test_thousands_of_partitions(tree: FakeTree, views: ViewRecorder) -> None:
    tree.create_topic("many", dict.fromkeys(range(3000), 1))
    tree.session(Session.CONNECTED)
    views.wait_for([ORDERS, *(TopicPartition("many", n) for n in range(3000))])
    assert len(views.views) == 1


@pytest.mark.usefixtures("bootstrapped")
def test_a_short_break_shows_only_what_changed_meanwhile(
    tree: FakeTree, views: ViewRecorder
) -> None:
    tree.session(Session.SUSPENDED)
    tree.elect(SECOND, 1)
    tree.session(Session.CONNECTED)
    views.wait_for([ORDERS, SECOND])
    assert len(views.views) == 2


@pytest.mark.usefixtures("bootstrapped")
def test_a_lost_session_is_replaced_without_a_gap(tree: FakeTree, views: ViewRecorder) -> None:
    tree.session(Session.SUSPENDED, Session.LOST, Session.CONNECTED)
    tree.elect(ORDERS, 2)
    views.wait_for([])
    assert all(view.known for view in views.views)
    tree.elect(ORDERS, 1, epoch=2)
    views.wait_for([ORDERS])


@pytest.mark.usefixtures("bootstrapped")
def test_a_long_break_makes_the_view_unknown(tree: FakeTree, views: ViewRecorder) -> None:
    tree.session(Session.SUSPENDED)
    assert views.last.leads == {ORDERS: 0}
    views.wait_until_unknown()
    assert views.last.leads == {}
    tree.session(Session.LOST, Session.CONNECTED)
    views.wait_for([ORDERS])


@pytest.mark.usefixtures("bootstrapped")
def test_answers_over_an_earlier_connection_are_dropped(
    tree: FakeTree, views: ViewRecorder, source: ZookeeperLeadership
) -> None:
    tree.refused, tree.refusal = {state_path(ORDERS)}, ConnectionLoss()
    tree.session(Session.SUSPENDED, Session.CONNECTED, Session.SUSPENDED)
    tree.refused = set()
    tree.session(Session.CONNECTED)
    tree.elect(SECOND, 1)
    views.wait_for([ORDERS, SECOND])
    assert source.failure() is None


def test_a_cluster_that_never_saw_a_broker_is_waited_for(
    tree: FakeTree, views: ViewRecorder, source: ZookeeperLeadership
) -> None:
    tree.nodes.clear()
    tree.session(Session.CONNECTED)
    views.wait_for([])
    tree.create_topic("orders", {0: 1})
    tree._fire(TOPICS_PATH)
    views.wait_for([ORDERS])
    assert source.failure() is None


@pytest.mark.parametrize(
    ("session", "refused", "text"),
    [
        (Session.REFUSED, None, "zk:2181/kafka refuses the credentials"),
        (Session.CONNECTED, topic_path("orders"), "node /brokers/topics/orders cannot be read"),
    ],
)
def test_what_no_time_heals_is_a_failure(
    session: Session,
    refused: str | None,
    text: str,
    tree: FakeTree,
    source: ZookeeperLeadership,
) -> None:
    tree.refused, tree.refusal = {refused or ""}, NoAuthError()
    tree.session(session)
    wait_until(source.failure, 5, "the failure")
    assert isinstance(source.failure(), LeadershipError)
    assert text in str(source.failure())


def test_another_cluster_is_a_failure(
    tree: FakeTree, views: ViewRecorder, source: ZookeeperLeadership
) -> None:
    tree.nodes["/cluster/id"] = b'{"version":"1","id":"another"}'
    tree.session(Session.CONNECTED)
    wait_until(source.failure, 5, "the failure")
    assert isinstance(source.failure(), ConfigurationError)
    assert "holds cluster another, but the log dirs belong to cluster dK5Hq" in str(
        source.failure()
    )
    assert views.views == []
