"""Sessions and credentials with a real ZooKeeper."""

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from devtools.sandbox.kafka import ZookeeperCluster
from sidetier.leadership.settings import ZookeeperSettings
from sidetier.segments.offsets import BrokerId, TopicPartition
from tests.harness.leadership import Follower, Followers, led_by, wait_for_agreement
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.topics import create_topic, delete_topic, leader_of, move_leader
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SHORT_SESSION, LONG_SESSION = 2.0, 30.0
"""The first expires during a test; the second outlasts every disconnection, also on a slow machine.
"""


@pytest.fixture
def proxy(zookeeper39: ZookeeperCluster) -> Iterator[TcpProxy]:
    host, _, port = zookeeper39.zookeeper_connect.partition("/")[0].partition(":")
    proxy = TcpProxy((host, int(port)))
    yield proxy
    proxy.close()


@pytest.fixture
def follower(
    request: pytest.FixtureRequest,
    zookeeper39: ZookeeperCluster,
    proxy: TcpProxy,
    followers: Followers,
    topic: str,
) -> Iterator[Follower]:
    """A source beside broker 1, which leads five of ten partitions, connected through the proxy;
    the parameter is the session timeout in seconds.
    """
    create_topic(zookeeper39.bootstrap_servers, topic, partitions=10, replicas=2)
    for broker_id in zookeeper39.broker_ids:
        bootstrap = zookeeper39.bootstrap_of(broker_id)
        wait_until(lambda: leader_of(bootstrap, topic, 9), 30, "the broker to know it")  # noqa: B023
    settings = ZookeeperSettings(
        BrokerId(1), f"{proxy.address}/kafka/eu", session_timeout=request.param
    )
    follower = followers.open("through the proxy", settings)
    wait_for_agreement([follower], zookeeper39.bootstrap_servers)
    yield follower
    delete_topic(zookeeper39.bootstrap_servers, topic)


def session_of(follower: Follower) -> int:
    client: KazooClient = follower.source._client._client  # type: ignore[attr-defined]
    assert client.client_id is not None
    return client.client_id[0]


def moved(follower: Follower, cluster: ZookeeperCluster, topic: str) -> TopicPartition:
    """Move the lead of one partition away from broker 1."""
    partition = next(tp for tp in sorted(follower.leads()) if tp.topic == topic)
    move_leader(cluster.bootstrap_servers, topic, partition.partition, 2)
    return partition


@pytest.mark.parametrize("follower", [SHORT_SESSION], indirect=True)
def test_expired_session_is_replaced_and_everything_is_read_again(
    zookeeper39: ZookeeperCluster, proxy: TcpProxy, follower: Follower, topic: str
) -> None:
    bootstrap, before, session = (
        zookeeper39.bootstrap_servers,
        follower.leads(),
        session_of(follower),
    )
    proxy.cut()
    partition = moved(follower, zookeeper39, topic)
    assert follower.leads() == before or not follower.views.last.known
    follower.views.wait_until_unknown(60)
    probe = KazooClient(zookeeper39.zookeeper_connect)
    probe.start()
    wait_until(
        lambda: f"0x{session:x}" not in probe.command(b"dump"),
        60,
        "ZooKeeper to expire the session",
    )
    probe.stop()
    probe.close()
    proxy.mend()
    follower.views.wait_for(before - {partition}, timeout=60)
    assert session_of(follower) != session
    wait_for_agreement([follower], bootstrap)
    # the watches of the new session work
    move_leader(bootstrap, topic, partition.partition, 1)
    follower.views.wait_for(before, timeout=60)
    assert follower.source.failure() is None


@pytest.mark.parametrize("follower", [LONG_SESSION], indirect=True)
def test_short_disconnection_keeps_the_session_and_misses_nothing(
    zookeeper39: ZookeeperCluster, proxy: TcpProxy, follower: Follower, topic: str
) -> None:
    before, session = follower.leads(), session_of(follower)
    delivered = len(follower.views.views)
    proxy.cut()
    partition = moved(follower, zookeeper39, topic)
    proxy.mend()
    follower.views.wait_for(before - {partition}, timeout=60)
    assert session_of(follower) == session
    # the broker may skip a leader epoch on the way: at most one more view
    news = follower.views.views[delivered:]
    assert all(view.known for view in news)
    assert all(view.leads.keys() >= before - {partition} for view in news)
    assert len(news) <= 2
    move_leader(zookeeper39.bootstrap_servers, topic, partition.partition, 1)
    follower.views.wait_for(before, timeout=60)


def test_nodes_behind_an_acl_need_the_credentials(
    zookeeper39: ZookeeperCluster, followers: Followers
) -> None:
    address = zookeeper39.zookeeper_connect.partition("/")[0]
    admin = KazooClient(address, auth_data=[("digest", "sidetier:right")])
    admin.start()
    acl = [make_digest_acl("sidetier", "right", all=True)]
    admin.create("/secured/brokers/topics", b"", acl, makepath=True)
    admin.create("/secured/brokers/topics/t", b'{"partitions":{"0":[1]}}', acl)
    state = b'{"leader":1,"leader_epoch":7}'
    admin.create("/secured/brokers/topics/t/partitions/0/state", state, acl, makepath=True)
    admin.stop()
    admin.close()
    right = followers.open(
        "right",
        ZookeeperSettings(BrokerId(1), f"{address}/secured", auth=(("digest", "sidetier:right"),)),
    )
    assert right.views.wait_for([TopicPartition("t", 0)]).leads == {TopicPartition("t", 0): 7}
    wrong = followers.open(
        "wrong",
        ZookeeperSettings(BrokerId(1), f"{address}/secured", auth=(("digest", "sidetier:no"),)),
    )
    topics = "/brokers/topics"
    wait_until(lambda: topics in wrong.views.last.unreadable, 30, "the refusal")
    assert f"{topics} cannot be read: NoAuthError" in wrong.views.last.unreadable[topics].error
    assert not wrong.views.last.known
    assert wrong.source.failure() is None  # the ACL may be corrected later


def test_cluster_with_another_id_is_refused(
    zookeeper39: ZookeeperCluster, followers: Followers
) -> None:
    connect = zookeeper39.zookeeper_connect
    follower = followers.open("other", ZookeeperSettings(BrokerId(1), connect, "another-id"))
    wait_until(follower.source.failure, 30, "the refusal")
    assert "the log dirs belong to cluster another-id" in str(follower.source.failure())
    assert led_by(zookeeper39.bootstrap_servers, 1) is not None
    assert follower.views.views == []
