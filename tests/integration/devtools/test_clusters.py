"""Real clusters start, transfer a record, survive the tests' operations, and leave no process."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from devtools.sandbox.kafka import KafkaCluster, KraftCluster, ZookeeperCluster
from sidetier.brokers.errors import LocalServerError, ServerDiedError
from sidetier.brokers.kafka import KAFKA_3_9
from tests.harness.clusters import KraftFactory, ZookeeperFactory
from tests.harness.records import seeded_records
from tests.harness.topics import (
    add_partitions,
    create_topic,
    delete_records,
    delete_topic,
    leader_of,
    move_leader,
    produce,
    watermark_offsets,
)
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

EXIT_CODE_AFTER_SIGTERM = 128 + 15  # exit code of a JVM once its shutdown hooks have run


def values_of(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(count, timeout=30)
        return [message.value() for message in messages]
    finally:
        consumer.close()


def assert_carries_records(cluster: KafkaCluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    records = list(seeded_records(seed=7, count=20))
    assert produce(cluster.bootstrap_servers, topic, records) == 20
    assert values_of(cluster.bootstrap_servers, topic, 20) == [record.value for record in records]


def test_kraft_43_transfers_records(kraft43: KraftCluster, topic: str) -> None:
    assert_carries_records(kraft43, topic)
    assert (kraft43.log_dirs(1)[0] / f"{topic}-0").is_dir()
    assert (kraft43.metadata_log_dir(1) / "__cluster_metadata-0").is_dir()


def test_kraft_39_transfers_records(kraft39: KraftCluster, topic: str) -> None:
    assert_carries_records(kraft39, topic)


def test_zookeeper_39_transfers_records(zk39: ZookeeperCluster, topic: str) -> None:
    assert_carries_records(zk39, topic)
    assert zk39.zookeeper_connect.endswith("/kafka")


def test_harness_changes_topics_as_documented(kraft43: KraftCluster, topic: str) -> None:
    bootstrap = kraft43.bootstrap_servers
    create_topic(bootstrap, topic, partitions=1, configs={"segment.ms": 60_000})
    add_partitions(bootstrap, topic, 3)
    produce(bootstrap, topic, seeded_records(1, 50), partition=2)
    assert watermark_offsets(bootstrap, topic, 2) == (0, 50)
    delete_records(bootstrap, topic, 2, before=10)
    assert watermark_offsets(bootstrap, topic, 2) == (10, 50)
    delete_topic(bootstrap, topic)
    assert leader_of(bootstrap, topic, 0) is None


@pytest.mark.slow
def test_brokers_and_controllers_can_move_leads_be_killed_and_restart(
    kraft_cluster: KraftFactory, topic: str
) -> None:
    cluster = kraft_cluster(
        brokers=2,
        controllers=1,
        log_dirs=2,
        properties={"metadata.log.dir": "{directory}/metadata"},
    )
    bootstrap = cluster.bootstrap_servers
    create_topic(bootstrap, topic, assignment=[[1, 2]])
    move_leader(bootstrap, topic, 0, 2)
    cluster.kill_broker(2)
    wait_until(
        lambda: leader_of(cluster.bootstrap_of(1), topic, 0) == 1, 30, "broker 1 to take over"
    )
    cluster.start_broker(2)
    assert [path.name for path in cluster.log_dirs(1)] == ["data-1", "data-2"]
    assert (cluster.metadata_log_dir(2) / "__cluster_metadata-0").is_dir()


@pytest.mark.slow
def test_killed_broker_with_zookeeper_restarts(
    zookeeper_cluster: ZookeeperFactory, topic: str
) -> None:
    cluster = zookeeper_cluster(properties={"zookeeper.session.timeout.ms": 3000})
    create_topic(cluster.bootstrap_servers, topic)
    cluster.kill_broker(1)
    cluster.start_broker(1)
    wait_until(
        lambda: leader_of(cluster.bootstrap_servers, topic, 0) == 1, 30, "broker 1 to lead again"
    )


@pytest.mark.slow
def test_stopped_cluster_leaves_no_process_and_restarts(tmp_path: Path, topic: str) -> None:
    cluster = KraftCluster(tmp_path / "kafka", brokers=1)
    with cluster:
        create_topic(cluster.bootstrap_servers, topic)
        pid = cluster.process_of(1).pid
        cluster.stop()
        assert not Path(f"/proc/{pid}").exists()
        assert cluster.process_of(1).returncode == EXIT_CODE_AFTER_SIGTERM
        cluster.start()
        wait_until(
            lambda: leader_of(cluster.bootstrap_servers, topic, 0) == 1, 30, "broker 1 to lead"
        )
        pid = cluster.process_of(1).pid
    assert not Path(f"/proc/{pid}").exists()


def test_broker_that_ends_at_its_start_gives_the_reason(
    zookeeper_cluster: ZookeeperFactory,
) -> None:
    with pytest.raises(ServerDiedError, match=r"(?s)node 1 ended.*num\.io\.threads"):
        zookeeper_cluster(properties={"num.io.threads": 0})


def test_setting_that_kraft_refuses_is_named(kraft_cluster: KraftFactory) -> None:
    with pytest.raises(
        LocalServerError, match=r"(?s)node 1 could not be formatted.*num\.io\.threads"
    ):
        kraft_cluster(KAFKA_3_9, properties={"num.io.threads": 0})
