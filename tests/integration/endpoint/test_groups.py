"""Consumer groups through `sidetier serve`, with librdkafka, Kafka's Java client and a real broker.

The topics of the live cluster are empty: every record that a client gets is from the archive.
"""

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client import CollectorRegistry

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.ports import HOST, free_port
from sidetier.endpoint.groups.coordinator import GroupCoordinator
from sidetier.endpoint.groups.expiry import GroupExpiry
from sidetier.endpoint.groups.stored_offsets import GroupObjects
from sidetier.endpoint.metrics import GroupMetrics
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.s3 import S3Storage
from tests.harness.archive_objects import s3_store
from tests.harness.group_reading import ALL, END, PARTITIONS, commit, committed, read, store_topic
from tests.harness.java_clients import subscribe_with_java
from tests.harness.s3 import S3Bucket
from tests.harness.serve_process import ServeProcess, serve_process
from tests.harness.stores import s3_settings
from tests.harness.waiting import wait_for, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PROTOCOLS = ["classic", "consumer"]


def share(members: Sequence[Consumer]) -> list[int]:
    """Poll all members until they share all partitions, and return how many each one has."""

    def is_shared() -> bool:
        for member in members:
            member.poll(0.05)
        return sum(len(member.assignment()) for member in members) == PARTITIONS and all(
            member.assignment() for member in members
        )

    wait_until(is_shared, 60, "an assignment for each member")
    return sorted(len(member.assignment()) for member in members)


def use_in_turn(endpoint: ServeProcess, group: str, **settings: Any) -> None:  # noqa: ANN401
    """Read half of the topic, and the rest with another consumer."""
    first = endpoint.member(group, **settings)
    first.subscribe(["orders"])
    half = read(first, 60)
    commit(first)
    assert {f"{b.host}:{b.port}" for b in first.list_topics(timeout=10).brokers.values()} == {
        endpoint.bootstrap
    }
    first.close()
    second = endpoint.member(group, **settings)
    second.subscribe(["orders"])
    rest = read(second, 60)
    commit(second)
    second.close()
    assert sorted(half + rest) == sorted(ALL)
    assert committed(endpoint.bootstrap, group) == dict.fromkeys(range(PARTITIONS), END)


def rebalance(endpoint: ServeProcess, group: str, **settings: Any) -> None:  # noqa: ANN401
    """Share the topic between two members, and give it back to the first."""
    members = [endpoint.member(group, **settings) for _ in range(2)]
    members[0].subscribe(["orders"])
    assert share(members[:1]) == [PARTITIONS]
    members[1].subscribe(["orders"])
    assert share(members) == [1, 2]
    members[1].close()
    assert share(members[:1]) == [PARTITIONS]
    members[0].close()


# An own coordinator


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    root = tmp_path_factory.mktemp("local")
    store_topic(root, "orders")
    with serve_process(root, "--groups", "local") as running:
        yield running


def test_local_offsets_resume(local: ServeProcess) -> None:
    use_in_turn(local, "resume")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_local_members_rebalance(local: ServeProcess, strategy: str) -> None:
    rebalance(local, strategy, **{"partition.assignment.strategy": strategy})


def test_local_offsets_are_reset_by_an_administrator(local: ServeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": local.bootstrap})
    wanted = ConsumerGroupTopicPartitions(
        "reset", [TopicPartition("orders", number, 30 + number) for number in range(PARTITIONS)]
    )
    (answer,) = admin.alter_consumer_group_offsets([wanted]).values()
    answer.result(20)
    member = local.member("reset")
    member.subscribe(["orders"])
    assert set(read(member, 27)) == {each for each in ALL if each[1] >= 30 + each[0]}
    member.close()


def test_local_groups_have_no_consumer_protocol(local: ServeProcess) -> None:
    """The member gets a fatal error: with an unlisted request, librdkafka would wait for ever."""
    member = local.member("new", **{"group.protocol": "consumer"})
    try:
        member.subscribe(["orders"])
        message = wait_for(lambda: member.poll(0.2), 20, "an error")
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._FATAL
        assert "API version not supported" in error.str()
    finally:
        member.close()


def test_local_with_java(local: ServeProcess, tmp_path: Path) -> None:
    offsets = subscribe_with_java(local.bootstrap, "java", "orders", len(ALL), tmp_path)
    assert {(number, each) for number, rows in offsets.items() for each in rows} == ALL
    assert committed(local.bootstrap, "java") == dict.fromkeys(range(PARTITIONS), END)


def test_local_groups_are_listed_and_described(local: ServeProcess) -> None:
    member = local.member("described", **{"group.instance.id": "i"})
    member.subscribe(["orders"])
    share([member])
    admin = AdminClient({"bootstrap.servers": local.bootstrap})
    listed = admin.list_consumer_groups().result(20)
    assert "described" in {group.group_id for group in listed.valid or []}
    described = admin.describe_consumer_groups(["described"])["described"].result(20)
    assert described.state.name == "STABLE"
    (row,) = described.members
    assert (row.group_instance_id, len(row.assignment.topic_partitions)) == ("i", PARTITIONS)
    member.close()


def test_local_group_after_a_kill_of_the_endpoint(tmp_path: Path) -> None:
    """The consumer joins again, commits, and nothing that it had committed is read twice."""
    store_topic(tmp_path, "orders")
    with serve_process(tmp_path, "--groups", "local") as endpoint:
        member = endpoint.member("g", **{"session.timeout.ms": 6000})
        member.subscribe(["orders"])
        before = read(member, 60)
        commit(member)
        done = committed(endpoint.bootstrap, "g")
        assert sum(done.values()) == 60
        endpoint.kill()
        endpoint.start()
        assert committed(endpoint.bootstrap, "g") == done
        rest = read(member, 60)

        def has_committed_all() -> bool:
            # The records may all have been fetched before the kill. Then the member learns only
            # from its next heartbeat that it must join again, which it does while it is polled,
            # and it reads again from the committed offsets.
            rest.extend(
                (message.partition() or 0, message.offset() or 0)
                for message in member.consume(100, 0.2)
                if message.error() is None
            )
            with suppress(KafkaException):
                member.commit(asynchronous=False)
            return committed(endpoint.bootstrap, "g") == dict.fromkeys(range(PARTITIONS), END)

        wait_until(has_committed_all, 40, "a commit of all records", every=0.2)
        member.close()
        assert set(before + rest) == ALL
        assert all(offset >= done.get(partition, 0) for partition, offset in rest)
        assert committed(endpoint.bootstrap, "g") == dict.fromkeys(range(PARTITIONS), END)
        assert endpoint.count("endpoint.group_lost") == 0


def test_local_offsets_of_a_topic_that_was_created_again(tmp_path: Path) -> None:
    """A group that has read the deleted topic to its end reads all of the new one."""
    store_topic(tmp_path, "orders", "AAAAAAAAAAAAAAAAAAAAAQ")
    with serve_process(tmp_path, "--groups", "local") as endpoint:
        member = endpoint.member("g")
        member.subscribe(["orders"])
        read(member, len(ALL))
        commit(member)
        member.close()
        store_topic(tmp_path, "orders", "AAAAAAAAAAAAAAAAAAAAAg")
        wait_until(
            lambda: committed(endpoint.bootstrap, "g") == {}, 30, "the new topic id", every=0.5
        )
        member = endpoint.member("g")
        member.subscribe(["orders"])
        assert set(read(member, len(ALL))) == ALL
        member.close()
        assert endpoint.count("endpoint.committed_offsets_ignored") == 1


def test_local_groups_in_an_s3_bucket(s3_bucket: S3Bucket, tmp_path: Path) -> None:
    """An endpoint notices that another one has taken the group, although it stores nothing."""
    store_topic(S3Storage(s3_bucket.name, "", s3_settings(s3_bucket)), "orders")
    store = s3_store(s3_bucket)
    other = tmp_path / "other"
    other.mkdir()
    with (
        serve_process(tmp_path, "--groups", "local", store=store) as first,
        serve_process(
            other, "--groups", "local", "--group-retention", "forever", store=store
        ) as second,
    ):
        use_in_turn(first, "g")
        assert store.objects.read("_sidetier/test/groups/g.json") is not None
        member = second.member("g")
        member.assign([TopicPartition("orders", 0, 5)])
        read(member, 5)
        commit(member)
        member.close()
        expected = {**dict.fromkeys(range(PARTITIONS), END), 0: 10}
        wait_until(
            lambda: committed(first.bootstrap, "g") == expected,
            20, "the offsets of the second endpoint", every=0.5,
        )  # fmt: skip
        assert first.count("endpoint.group_lost") == 1
    expire_groups(S3Storage(s3_bucket.name, "", s3_settings(s3_bucket)))
    left = {key for key in store.objects.listing() if "/groups/" in key}
    assert left == {"_sidetier/test/groups/clock"}


def expire_groups(store: S3Storage) -> None:
    """Delete all groups, as an endpoint deletes those that nobody has used for long."""
    with ThreadPoolExecutor(1) as pool:
        objects = GroupObjects(store, ArchiveLayout("test", 0), "x", "host", pool)
        coordinator = GroupCoordinator(objects, GroupMetrics(CollectorRegistry()))
        GroupExpiry(objects, coordinator, retention=-86_400.0).run_once()


# A live cluster


@dataclass(frozen=True, slots=True)
class Live:
    """A live cluster: its listener with a login, and the properties of a client of it."""

    kafka: KraftCluster
    login: str
    properties: Path


@pytest.fixture(scope="module")
def live(
    java: object,  # noqa: ARG001 - without Java the tests are skipped
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Live]:
    """A broker with a second listener that requires a login, as the relay uses it."""
    port = free_port()
    properties = {
        "listeners": f"LOGIN://{HOST}:{port}",
        "advertised.listeners": f"LOGIN://{HOST}:{port}",
        "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'user_endpoint="endpoint-secret";'
        ),
    }
    directory = tmp_path_factory.mktemp("live")
    with KraftCluster(directory, properties=properties) as kafka:
        (directory / "client.properties").write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            "sasl.username=endpoint\nsasl.password=endpoint-secret\n"
        )
        yield Live(kafka, f"{HOST}:{port}", directory / "client.properties")


@pytest.fixture(scope="module")
def relay(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """An archive of `orders`, with its topic id, and of `archived`, which is not live any more."""
    admin = AdminClient({"bootstrap.servers": live.kafka.bootstrap_servers})
    admin.create_topics([NewTopic("orders", PARTITIONS, 1)])["orders"].result(20)
    (described,) = admin.describe_topics(TopicCollection(["orders"])).values()
    topic_id = described.result(20).topic_id
    root = tmp_path_factory.mktemp("relay")
    raw = topic_id.get_most_significant_bits().to_bytes(8, signed=True)
    raw += topic_id.get_least_significant_bits().to_bytes(8, signed=True)
    store_topic(root, "orders", base64.urlsafe_b64encode(raw).decode().rstrip("="))
    store_topic(root, "archived")
    options = ("--groups", f"relay={live.login}", "--groups-properties", str(live.properties))
    with serve_process(root, *options) as running:
        yield running


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_relayed_offsets_resume_and_are_in_the_live_cluster(
    relay: ServeProcess, live: Live, protocol: str
) -> None:
    group = f"resume-{protocol}"
    use_in_turn(relay, group, **{"group.protocol": protocol})
    assert committed(live.kafka.bootstrap_servers, group) == dict.fromkeys(range(PARTITIONS), END)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_relayed_members_rebalance(relay: ServeProcess, protocol: str) -> None:
    rebalance(relay, f"rebalance-{protocol}", **{"group.protocol": protocol})


def test_relay_with_java(relay: ServeProcess, tmp_path: Path) -> None:
    offsets = subscribe_with_java(
        relay.bootstrap, "java", "orders", len(ALL), tmp_path, protocol="consumer"
    )
    assert {(number, each) for number, rows in offsets.items() for each in rows} == ALL


def test_a_topic_that_is_not_live_is_read_but_not_committed(relay: ServeProcess) -> None:
    member = relay.member("missing")
    member.subscribe(["archived"])
    assert set(read(member, len(ALL))) == ALL
    with pytest.raises(KafkaException) as raised:
        member.commit(asynchronous=False)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    member.close()
    assert relay.count("endpoint.relay_topic_missing") == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_restart_of_the_broker_in_the_middle_of_a_group(
    relay: ServeProcess, live: Live, protocol: str
) -> None:
    group = f"restart-{protocol}"
    member = relay.member(group, **{"group.protocol": protocol})
    member.subscribe(["orders"])
    before = read(member, 60)
    commit(member)
    done = committed(relay.bootstrap, group)
    live.kafka.kill_broker(1)
    wait_until(lambda: _fails_to_commit(member), 20, "a commit that fails")
    live.kafka.start_broker(1)
    rest = read(member, 60, seconds=90)
    commit(member)
    assert set(before + rest) == ALL
    assert all(offset >= done.get(partition, 0) for partition, offset in rest)
    wait_until(
        lambda: committed(relay.bootstrap, group) == dict.fromkeys(range(PARTITIONS), END),
        20, "the commits", every=0.5,
    )  # fmt: skip
    member.close()


def _fails_to_commit(member: Consumer) -> bool:
    try:
        member.commit(asynchronous=False)
    except KafkaException:
        return True
    return False
