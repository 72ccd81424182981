"""Sources beside real brokers of every kind agree with the admin API through all changes."""

from statistics import median
from time import monotonic

import pytest
from confluent_kafka import KafkaError, KafkaException

from devtools.sandbox.kafka import KafkaCluster
from sidetier.segments.offsets import TopicPartition
from tests.harness.leadership import (
    Follower,
    Followers,
    epoch_on_disk,
    led_by,
    wait_for_agreement,
)
from tests.harness.topics import (
    add_partitions,
    create_topic,
    delete_topic,
    leader_of,
    move_leader,
)
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def usual(followers: list[Follower], broker_id: int) -> Follower:
    """The default kind of source beside a broker."""
    return next(follower for follower in followers if follower.broker_id == broker_id)


def created_again(bootstrap: str, topic: str) -> bool:
    """Create the topic; return False while its deletion is incomplete (slow with ZooKeeper)."""
    try:
        create_topic(bootstrap, topic, assignment=[[1, 2]])
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def test_two_hundred_partitions_are_followed_from_creation_to_deletion(
    cluster: KafkaCluster, followers: Followers, topic: str
) -> None:
    bootstrap = cluster.bootstrap_servers
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names[:2]:
        create_topic(bootstrap, name, partitions=40, replicas=2)
    opened = followers.beside(cluster)
    wait_for_agreement(opened, bootstrap)
    for name in names[2:]:
        create_topic(bootstrap, name, partitions=40, replicas=2)
    wait_for_agreement(opened, bootstrap)
    add_partitions(bootstrap, names[3], 80)
    wait_for_agreement(opened, bootstrap)
    shown = {tp for broker_id in cluster.broker_ids for tp in usual(opened, broker_id).leads()}
    assert sum(tp.topic in names for tp in shown) == 200
    delete_topic(bootstrap, names[0])
    delete_topic(bootstrap, names[3])
    wait_for_agreement(opened, bootstrap)
    assert {tp.topic for follower in opened for tp in follower.leads()} & set(names) == set(
        names[1:3]
    )
    for name in names[1:3]:
        delete_topic(bootstrap, name)


def test_recreated_topic_has_another_id(
    cluster: KafkaCluster, followers: Followers, topic: str
) -> None:
    bootstrap = cluster.bootstrap_servers
    create_topic(bootstrap, topic, assignment=[[1, 2]])
    follower = usual(followers.beside(cluster), 1)
    first = follower.wait_for_epoch(TopicPartition(topic, 0), lambda epoch: epoch >= 0)
    first_id = follower.views.last.topic_ids[topic]
    assert len(first_id) == 22
    assert first == 0
    delete_topic(bootstrap, topic)
    wait_until(lambda: created_again(bootstrap, topic), 30, "the deletion to be over")
    wait_until(
        lambda: (
            follower.views.last.topic_ids.get(topic, first_id) != first_id
            and TopicPartition(topic, 0) in follower.leads()
        ),
        30,
        "the new topic id",
    )
    delete_topic(bootstrap, topic)


def test_moved_leaders_are_followed_with_their_epochs(
    cluster: KafkaCluster, followers: Followers, topic: str
) -> None:
    bootstrap, partition = cluster.bootstrap_servers, TopicPartition(topic, 0)
    create_topic(bootstrap, topic, assignment=[[1, 2]])
    opened = followers.beside(cluster)
    one, two = usual(opened, 1), usual(opened, 2)
    before = one.wait_for_epoch(partition, lambda epoch: epoch >= 0)
    move_leader(bootstrap, topic, 0, 2)
    after = two.wait_for_epoch(partition, lambda epoch: epoch > before)
    wait_until(lambda: epoch_on_disk(cluster, 2, partition) == after, 30, "the broker's own epoch")
    wait_for_agreement(opened, bootstrap)
    assert partition not in one.leads()
    move_leader(bootstrap, topic, 0, 1)
    again = one.wait_for_epoch(partition, lambda epoch: epoch > after)
    assert epoch_on_disk(cluster, 1, partition) == again
    delete_topic(bootstrap, topic)


def test_elections_are_noticed_within_seconds(
    cluster: KafkaCluster, followers: Followers, topic: str
) -> None:
    bootstrap = cluster.bootstrap_servers
    create_topic(bootstrap, topic, assignment=[[1, 2]])
    partition = TopicPartition(topic, 0)
    opened = followers.beside(cluster)
    wait_for_agreement(opened, bootstrap)
    lags = []
    for leader in (2, 1, 2, 1, 2):
        move_leader(bootstrap, topic, 0, leader)  # returns when clients see it
        begun = monotonic()
        wait_until(lambda: partition in usual(opened, leader).leads(), 30, "the view")  # noqa: B023
        lags.append(monotonic() - begun)
    assert median(lags) < 1.0, lags
    delete_topic(bootstrap, topic)


def test_controlled_shutdown_and_restart_move_the_leads(
    cluster: KafkaCluster, followers: Followers, topic: str
) -> None:
    bootstrap, partition = cluster.bootstrap_servers, TopicPartition(topic, 0)
    create_topic(bootstrap, topic, assignment=[[2, 1]])
    opened = followers.beside(cluster)
    one, two = usual(opened, 1), usual(opened, 2)
    two.wait_for_epoch(partition, lambda epoch: epoch >= 0)
    cluster.stop_broker(2)
    one.wait_for_epoch(partition, lambda epoch: epoch > 0)
    wait_until(lambda: partition not in two.leads(), 30, "the stopped broker's sidecar to let go")
    cluster.start_broker(2)
    move_leader(bootstrap, topic, 0, 2)
    two.wait_for_epoch(partition, lambda epoch: epoch > 1)
    wait_for_agreement(opened, bootstrap)
    delete_topic(bootstrap, topic)


def test_killed_broker_loses_its_leads(
    cluster: KafkaCluster, followers: Followers, topic: str
) -> None:
    bootstrap, partition = cluster.bootstrap_servers, TopicPartition(topic, 0)
    create_topic(bootstrap, topic, assignment=[[2, 1]])
    opened = followers.beside(cluster)
    one, two = usual(opened, 1), usual(opened, 2)
    two.wait_for_epoch(partition, lambda epoch: epoch >= 0)
    cluster.kill_broker(2)
    one.wait_for_epoch(partition, lambda epoch: epoch > 0)

    # ZooKeeper has the new leader before the controller has informed the broker.
    def told() -> bool:
        return leader_of(cluster.bootstrap_of(1), topic, 0) == 1

    wait_until(told, 30, "the broker to know that it leads")
    cluster.start_broker(2)
    wait_for_agreement(opened, bootstrap)
    assert partition not in two.leads()
    assert led_by(bootstrap, 2) == two.leads()
    delete_topic(bootstrap, topic)
