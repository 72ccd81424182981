"""The state of a real cluster is stored and restored to an empty one."""

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AclBinding as KafkaAcl
from confluent_kafka.admin import (
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from devtools.sandbox.kafka import KraftCluster
from sidetier.archive.objects.cluster_snapshots import read_cluster_state
from sidetier.config.uploader import ClusterSnapshotsConfig
from sidetier.leadership.cluster_state import KafkaClusterState
from sidetier.mirror.cluster_state.kafka_admin import KafkaClusterAdmin
from sidetier.mirror.cluster_state.restore import RestoredKind, restore_cluster_state
from sidetier.segments.cluster_state import (
    AclBinding,
    ClientQuota,
    ClusterState,
    CommittedOffset,
    GroupOffsets,
    QuotaEntity,
    SnapshotKind,
)
from sidetier.segments.cluster_state import ScramMechanism as StoredMechanism
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.cluster_snapshots import SnapshotWriter
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset as WireOffset
from sidetier.wire.requests import commit_offsets
from sidetier.wire.settings import ClientSettings
from tests.harness.clusters import KraftFactory
from tests.harness.daemons import LAYOUT, place_of
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_for, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ACL = AclBinding("TOPIC", "orders", "PREFIXED", "User:alice", "*", "READ", "ALLOW")
QUOTA = ClientQuota(
    (QuotaEntity("client-id", None), QuotaEntity("user", "alice")), {"producer_byte_rate": 1024.0}
)
THROTTLE = "leader.replication.throttled.rate"


def create_topics(admin: AdminClient) -> None:
    orders = NewTopic("orders", 2, 1, config={"retention.ms": "123456789"})
    for future in admin.create_topics([orders, NewTopic("lost", 1, 1)]).values():
        future.result(30)


def produce(servers: str, topic: str, partition: int, records: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(records):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(30) == 0


def commit(admin: AdminClient, group: str, *offsets: KafkaPartition) -> None:
    """Commit offsets. The first commit of a group is refused until its coordinator is available."""

    def done() -> bool:
        asked = ConsumerGroupTopicPartitions(group, list(offsets))
        (future,) = admin.alter_consumer_group_offsets([asked]).values()
        return all(item.error is None for item in future.result(30).topic_partitions)

    wait_until(done, 30, "the commit")


def make_state(servers: str) -> None:
    """Create topics, records, a group, an ACL, a SCRAM user and a broker config."""
    admin = AdminClient({"bootstrap.servers": servers})
    create_topics(admin)
    produce(servers, "orders", 0, 10)
    commit(
        admin,
        "billing",
        KafkaPartition("orders", 0, 7, metadata="note"),
        KafkaPartition("orders", 1, 0),
        KafkaPartition("lost", 0, 0),
    )
    binding = KafkaAcl(
        ResourceType.TOPIC,
        ACL.name,
        ResourcePatternType.PREFIXED,
        ACL.principal,
        ACL.host,
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for acl in admin.create_acls([binding]).values():
        acl.result(30)
    password = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    user = UserScramCredentialUpsertion("bob", password, b"secret-password")
    for changed in admin.alter_user_scram_credentials([user]).values():
        changed.result(30)
    assert KafkaClusterAdmin(servers, {}).set_quota(QUOTA) is None
    assert KafkaClusterAdmin(servers, {}).set_broker_config(1, THROTTLE, "1000000") is None


def taken(servers: str, store: FakeStorage) -> ClusterState:
    """The cluster state that a sidecar stores, read back."""
    source = KafkaClusterState(servers, {}, pause=lambda _: False)
    config = ClusterSnapshotsConfig()
    writer = SnapshotWriter(config, source, place_of(store), BrokerId(1), SYSTEM_CLOCK)

    def has_group() -> bool:  # the broker lists a new group late
        result = writer.take_turn()
        assert result.is_writer
        assert not result.problems
        offsets = read_cluster_state(store, LAYOUT).group_offsets
        return offsets is not None and bool(offsets.groups)

    wait_until(has_group, 30, "the group in a snapshot")
    return read_cluster_state(store, LAYOUT)


def test_state_of_one_cluster_is_restored_to_another(kraft_cluster: KraftFactory) -> None:
    source = kraft_cluster(properties=AUTHORIZER)
    make_state(source.bootstrap_servers)
    quotas = KafkaClusterAdmin(source.bootstrap_servers, {})
    wait_until(lambda: quotas.quotas().quotas, 30, "the quota")
    store = FakeStorage()
    state = taken(source.bootstrap_servers, store)
    source.kill()

    assert state.topics is not None
    orders = state.topics.topics["orders"]
    assert (orders.partitions, orders.replication_factor) == (2, 1)
    assert dict(orders.configs) == {"retention.ms": "123456789"}
    assert len(orders.topic_id or "") == 22
    assert state.acls is not None
    assert state.acls.bindings == (ACL,)
    assert state.quotas is not None
    assert state.quotas.quotas == (QUOTA,)
    assert state.scram_users is not None
    assert state.scram_users.users == {"bob": (StoredMechanism("SCRAM_SHA_256", 8192),)}
    assert state.broker_configs is not None
    assert state.broker_configs.brokers[1][THROTTLE] == "1000000"
    assert not any(b"secret-password" in data for data in store.contents().values())

    target = kraft_cluster(properties=AUTHORIZER)
    kafka = AdminClient({"bootstrap.servers": target.bootstrap_servers})
    for future in kafka.create_topics([NewTopic("orders", 2, 1)]).values():
        future.result(30)
    produce(target.bootstrap_servers, "orders", 0, 5)  # fewer than were committed
    admin = KafkaClusterAdmin(target.bootstrap_servers, {})

    def restore(*, dry_run: bool = False) -> dict[SnapshotKind, RestoredKind]:
        return {item.kind: item for item in restore_cluster_state(state, admin, dry_run=dry_run)}

    would = restore(dry_run=True)
    assert admin.acls().bindings == ()
    assert admin.group_offsets().groups == {}
    done = restore()
    assert done[SnapshotKind.GROUP_OFFSETS].skipped == [
        "group billing: lost-0 does not exist on this cluster"
    ]
    assert {kind: item.changed for kind, item in would.items()} == {
        kind: item.changed for kind, item in done.items()
    }
    offsets = done[SnapshotKind.GROUP_OFFSETS]
    assert "group billing: orders-0 at 5 (7 is outside of the log, [0, 5))" in offsets.changed
    assert "bob" in done[SnapshotKind.SCRAM_USERS].skipped[0]

    # A broker shows what the controller has taken in a little later.
    wait_until(lambda: admin.acls().bindings == (ACL,), 30, "the ACL")
    wait_until(lambda: admin.quotas().quotas == (QUOTA,), 30, "the quota")
    wait_until(lambda: admin.group_offsets().groups, 30, "the group")

    def has_config() -> bool:
        return admin.broker_configs().brokers.get(1, {}).get(THROTTLE) == "1000000"

    wait_until(has_config, 30, "the config of the broker")
    again = restore()
    assert not any(item.changed for item in again.values())
    committed = admin.group_offsets().groups["billing"]["orders"]
    assert {number: item.offset for number, item in committed.items()} == {0: 5, 1: 0}
    assert committed[0].metadata == "note\0"  # librdkafka has written it so


def test_commit_metadata_is_stored_as_written(kraft43: KraftCluster, topic: str) -> None:
    """Librdkafka is not asked for it: confluent-kafka reads beyond its end."""
    servers = kraft43.bootstrap_servers
    notes = [f"{number} ä".ljust(number + 5, ".") for number in range(0, 300, 3)]
    create_topic(servers, topic, partitions=len(notes))
    wanted = {
        TopicPartition(topic, at): WireOffset(Offset(at), metadata=note)
        for at, note in enumerate(notes)
    }
    with Cluster(ClientSettings.from_properties({"bootstrap.servers": servers})) as cluster:
        commit_offsets(cluster, topic, wanted)
    source = KafkaClusterState(servers, {}, pause=lambda _: False)

    def offsets() -> dict[int, CommittedOffset] | None:
        read = source.read(SnapshotKind.GROUP_OFFSETS, None, 0.0)
        assert isinstance(read.content, GroupOffsets)
        assert read.problem is None
        return dict(read.content.groups.get(topic, {}).get(topic, {})) or None

    assert wait_for(offsets, 30, "the group") == {
        at: CommittedOffset(at, note) for at, note in enumerate(notes)
    }
