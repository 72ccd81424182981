"""The metadata log of real KRaft brokers: rolled, snapshotted, cleaned, truncated, and with an
uncommitted tail.
"""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

from devtools.sandbox.kafka import KafkaCluster, KraftCluster
from sidetier.leadership.kraft.metadata_log import MetadataFiles, MetadataLog, parse_files
from sidetier.leadership.kraft.source import KraftLeadership
from sidetier.leadership.settings import KraftSettings
from sidetier.segments.offsets import BrokerId, TopicPartition
from tests.harness.leadership import (
    Follower,
    Followers,
    Onlooker,
    led_by,
    metadata_directory,
    quorum_leader,
    settings_of,
    wait_for_agreement,
)
from tests.harness.topics import admin_of, create_topic, delete_topic, move_leader
from tests.harness.waiting import wait_for, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def files_of(cluster: KraftCluster, broker_id: int) -> MetadataFiles:
    return parse_files(path.name for path in metadata_directory(cluster, broker_id).iterdir())


# The broker cleans its metadata log once a minute.
@pytest.mark.timeout(180)
def test_rolled_snapshotted_and_cleaned_log_is_followed(
    combined43: KraftCluster, onlooker: Onlooker, topic: str
) -> None:
    bootstrap = combined43.bootstrap_servers
    create_topic(bootstrap, topic, partitions=10, replicas=2)

    def churned() -> bool:
        move_leader_around(bootstrap, topic)
        begun, now = onlooker.begun, files_of(combined43, 1)
        return (
            now.logs[-1] > begun.logs[-1]
            and now.snapshots[-1:] > begun.snapshots[-1:]
            and now.logs[0] > begun.logs[0]
        )

    wait_until(churned, 90, "the metadata log to be rolled, snapshotted and cleaned")
    wait_for_agreement([onlooker.follower], bootstrap)
    assert reader_of(onlooker.follower).reloads == 1, "who keeps up never needs a snapshot"
    fresh = MetadataLog(metadata_directory(combined43, 1))
    fresh.poll()
    assert fresh.image.leads(BrokerId(1)) == onlooker.follower.views.last.leads
    assert fresh.image.topic_ids() == onlooker.follower.views.last.topic_ids
    delete_topic(bootstrap, topic)


def reader_of(follower: Follower) -> MetadataLog:
    assert isinstance(follower.source, KraftLeadership)
    assert follower.source._follower is not None
    return follower.source._follower._log_file


def move_leader_around(bootstrap: str, topic: str) -> None:
    """Run one election, alternating between two brokers."""
    replicas = admin_of(bootstrap).list_topics(topic, timeout=60).topics[topic].partitions[0]
    other = next(broker for broker in replicas.replicas if broker != replicas.leader)
    move_leader(bootstrap, topic, 0, other)


def test_truncated_tail_is_reverted(split39: KraftCluster, topic: str, tmp_path: Path) -> None:
    bootstrap = split39.bootstrap_servers
    create_topic(bootstrap, topic, assignment=[[1]])
    real, copied = metadata_directory(split39, 1), tmp_path / "__cluster_metadata-0"
    begun = MetadataLog(real)
    begun.poll()
    before = begun.image.leads(BrokerId(1))
    size = {path.name: path.stat().st_size for path in real.glob("*.log")}
    create_topic(bootstrap, f"{topic}-ghost", assignment=[[1]])
    wait_until(lambda: begun.poll() and len(begun.image.leads(BrokerId(1))) > len(before), 30, "it")
    shutil.copytree(real, copied)
    log = MetadataLog(copied)
    log.poll()
    assert TopicPartition(f"{topic}-ghost", 0) in log.image.leads(BrokerId(1))
    for path in copied.glob("*.log"):
        with path.open("r+b") as file:
            file.truncate(size[path.name])
    assert log.poll()
    assert log.image.leads(BrokerId(1)) == before
    for name in (topic, f"{topic}-ghost"):
        delete_topic(bootstrap, name)


@pytest.mark.parametrize("cluster", ["combined43", "split39"], indirect=True)
def test_view_of_a_paused_broker_is_valid_for_a_limited_time(
    cluster: KafkaCluster, followers: Followers, topic: str
) -> None:
    assert isinstance(cluster, KraftCluster)
    bootstrap, partition = cluster.bootstrap_servers, TopicPartition(topic, 0)
    create_topic(bootstrap, topic, assignment=[[2]])
    settings = KraftSettings(
        BrokerId(2),
        None,
        cluster.bootstrap_of(2),
        poll_interval=0.5,
        request_timeout=1.0,
        stale_after=2.0,
    )
    follower = followers.open("impatient", settings)
    wait_until(lambda: partition in follower.leads(), 30, "the lead")
    cluster.pause_broker(2)
    try:
        # Unknown or lost: librdkafka may use another broker by then, which reports the loss.
        wait_until(lambda: partition not in follower.leads(), 30, "the lead to be let go")
        assert follower.source.failure() is None
    finally:
        cluster.resume_broker(2)
    wait_until(lambda: follower.views.last.known, 60, "the broker to answer again")
    wait_until(lambda: follower.leads() == led_by(bootstrap, 2), 30, "the broker to be taken back")
    delete_topic(bootstrap, topic)


def test_another_cluster_is_refused(
    combined43: KraftCluster, split39: KraftCluster, followers: Followers
) -> None:
    settings = KraftSettings(
        BrokerId(1),
        combined43.metadata_log_dir(1),
        split39.bootstrap_of(1),
        combined43.cluster_id,
    )
    follower = followers.open("astray", settings)
    wait_until(follower.source.failure, 60, "the refusal")
    assert f"belong to cluster {combined43.cluster_id}" in str(follower.source.failure())
    assert follower.views.views == []


def test_uncommitted_tail_of_the_log_is_never_shown_as_led(
    combined43: KraftCluster, followers: Followers, topic: str
) -> None:
    """A controller without a quorum writes a topic that no other node receives; then another
    controller is elected.
    """
    active = wait_for(lambda: active_controller(combined43), 60, "a controller")
    others = [broker_id for broker_id in combined43.broker_ids if broker_id != active]
    ghost = TopicPartition(topic, 0)
    both = followers.open("both", settings_of(combined43, active)["both"])
    log_only = followers.open("log", settings_of(combined43, active)["log"])
    wait_for_agreement([both, log_only], combined43.bootstrap_servers)
    for broker_id in others:
        combined43.pause_broker(broker_id)
    try:
        write_ghost(combined43, active, topic)
        wait_until(lambda: ghost in log_only.leads(), 30, "the ghost on the disk")
        combined43.kill_broker(active)
    finally:
        for broker_id in others:
            combined43.resume_broker(broker_id)
    bootstrap = ",".join(map(combined43.bootstrap_of, others))
    wait_until(lambda: active_controller(combined43, others) in others, 40, "another controller")
    combined43.start_broker(active)
    wait_until(lambda: ghost not in log_only.leads(), 30, "the ghost to vanish")
    wait_for_agreement([both, log_only], combined43.bootstrap_servers)
    assert topic not in admin_of(bootstrap).list_topics(timeout=60).topics
    assert all(ghost not in view.leads for view in both.views.views)


def active_controller(cluster: KraftCluster, nodes: list[int] | None = None) -> int | None:
    """The controller that all of these nodes agree on."""
    named = {
        quorum_leader(cluster.metadata_log_dir(broker_id))
        for broker_id in nodes or cluster.broker_ids
    }
    leader = named.pop()
    return leader if not named and leader is not None and leader > 0 else None


def write_ghost(cluster: KraftCluster, active: int, topic: str) -> None:
    """Let the active controller append a topic once the other nodes no longer fetch."""
    directory = metadata_directory(cluster, active)

    def size() -> int:
        return sum(path.stat().st_size for path in directory.glob("*.log"))

    # Fetches waiting at the controller are answered with the next no-op records, which come every
    # 500 ms: after the second one no node is left to receive the topic.
    for _ in range(2):
        before = size()
        wait_until(lambda: size() > before, 30, "a no-op record")  # noqa: B023
    admin = admin_of(cluster.bootstrap_of(active))
    # A client sends this to the broker that is named as controller: with KRaft any broker, in turn.
    wait_until(
        lambda: admin.list_topics(timeout=60).controller_id == active, 30, "the right address"
    )
    created = admin.create_topics([NewTopic(topic, 1, replica_assignment=[[active]])])[topic]
    wait_until(lambda: topic.encode() in newest_log(directory), 30, "the ghost to be written")
    with suppress(Exception):
        created.cancel()


def newest_log(directory: Path) -> bytes:
    return max(directory.glob("*.log")).read_bytes()
