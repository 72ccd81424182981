"""Changes of topics while a mirror runs, on real clusters."""

import json
import random
import signal
import subprocess
from collections.abc import Iterable, Sequence
from threading import Event
from typing import Self

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from devtools.sandbox.kafka import KraftCluster
from sidetier.mirror.cluster_state.kafka_admin import KafkaClusterAdmin
from sidetier.segments.cluster_state import AclBinding
from sidetier.segments.errors import KafkaApiError
from sidetier.wire.cluster import Cluster
from sidetier.wire.settings import ClientSettings
from sidetier.wire.topics import check_new_topic, topic_settings
from tests.harness.mirror_runs import WAIT, command, consumed, mirror, write
from tests.harness.topics import add_partitions, admin_of, create_topic, delete_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
KEPT = {"retention.ms": -1}


def values_of(servers: str, topic: str, partition: int = 0) -> list[bytes]:
    return [record[1] for record in consumed(servers, topic)[partition]]


def commit(servers: str, group: str, topic: str, offset: int) -> None:
    """Commit. The first commit of a cluster creates a topic and is refused until it exists."""
    admin = admin_of(servers)

    def done() -> bool:
        asked = ConsumerGroupTopicPartitions(group, [KafkaPartition(topic, 0, offset)])
        result = admin.alter_consumer_group_offsets([asked])[group].result(WAIT)
        return result.topic_partitions[0].error is None

    wait_until(done, WAIT, f"a commit of group {group}")


def committed(servers: str, group: str, topic: str) -> int:
    asked = ConsumerGroupTopicPartitions(group, [KafkaPartition(topic, 0)])
    admin = admin_of(servers)
    result = admin.list_consumer_group_offsets([asked])[group].result(WAIT)
    return int(result.topic_partitions[0].offset)


def require_refused(restart: Sequence[str], topic: str, target: str) -> None:
    """Require that the target, which has one broker, refuses a new copy before it is created."""
    with Cluster(ClientSettings.from_properties({"bootstrap.servers": target})) as asking:
        before = asking.metadata().topics.keys()
        code, copied, errors = mirror(restart, "--until-caught-up", "--replication-factor", "3")
        assert code == 3, errors
        assert "INVALID_REPLICATION_FACTOR" in copied["refused_topics"][topic]
        with pytest.raises(KafkaApiError, match="INVALID_CONFIG"):
            check_new_topic(asking, topic, 1, -1, {"retention.ms": "soon"}, is_replaced=True)
        effective = check_new_topic(asking, topic, 1, -1, {"retention.ms": "9"}, is_replaced=True)
        assert (effective["retention.ms"], effective["cleanup.policy"]) == ("9", "delete")
        assert effective["message.timestamp.type"] == "CreateTime"
        assert asking.metadata().topics.keys() == before


def test_recreated_topic_is_never_mixed_with_the_old_one(
    kraft43: KraftCluster, target: str, topic: str
) -> None:
    source = kraft43.bootstrap_servers
    other = f"{topic}.other"
    create_topic(source, topic, configs=KEPT)
    create_topic(source, other, configs=KEPT)
    write(source, topic, b"old 0", b"old 1")
    write(source, other, b"first")
    line = command(topic, f"{topic}.*", source, target)
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as running:
        wait_until(
            lambda: (
                {topic, other} <= admin_of(target).list_topics(timeout=WAIT).topics.keys()
                and len(values_of(target, topic)) == 2
            ),
            WAIT,
            "the old records on the target",
        )
        delete_topic(source, topic)
        create_topic(source, topic, configs=KEPT)
        # Beyond the old end: without the topic ID the mirror would continue at offset 2.
        write(source, topic, *(b"new %d" % row for row in range(5)))
        write(source, other, b"second")
        wait_until(lambda: len(values_of(target, other)) == 2, WAIT, "the other topic's record")
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=WAIT)
    assert running.returncode == 3, errors
    assert f"topic {topic}: it was deleted and created again on the source" in errors
    write(source, other, b"third")
    code, copied, errors = mirror(line, "--until-caught-up")
    assert (code, copied["records"]) == (3, 1), errors
    assert f"topic {topic}: it was deleted and created again on the source" in errors
    assert copied["refused_topics"].keys() == {topic}
    assert values_of(target, topic) == [b"old 0", b"old 1"]

    # A group with an offset in the old topic that is above the end of the new copy.
    commit(source, "billing", topic, 4)
    restart = (*line, "--on-recreate", "restart")
    require_refused(restart, topic, target)
    _, plan, errors = mirror(restart, "--dry-run")
    result = {item["source"]: item["deleted_first"] for item in plan["topics"]}
    assert result == {topic: True, other: False}, errors
    assert values_of(target, topic) == [b"old 0", b"old 1"]
    code, _, errors = mirror(restart, "--until-caught-up", "--translate-groups", "billing")
    assert code == 0, errors
    assert values_of(target, topic) == values_of(source, topic) == [b"new %d" % n for n in range(5)]
    assert committed(target, "billing", topic) == 4, errors
    code, copied, errors = mirror(restart, "--until-caught-up")
    assert (code, copied["records"]) == (0, 0), errors

    # Nothing is left of the former topic's offset map.
    newest = {row[0]: row[1] for row in consumed(target, f"sidetier-mirror-{topic}-offsets")[0]}
    left = [json.loads(key) for key, value in newest.items() if value is not None]
    with Cluster(ClientSettings.from_properties({"bootstrap.servers": target})) as asking:
        topic_id = asking.metadata([topic]).topics[topic].topic_id
    assert [key["topic_id"] for key in left if key["topic"] == topic] == [str(topic_id)]
    assert None in newest.values()

    # Manually: the progress of a topic is removed with the topic.
    delete_topic(target, topic)
    code, _, errors = mirror(line, "--until-caught-up")
    assert code == 0, errors
    assert values_of(target, topic) == values_of(source, topic)


class Workers:
    """Processes of one mirror, killed at the end of the context."""

    def __init__(self, line: Sequence[str], names: Iterable[str]) -> None:
        self._line = line
        self._running = {name: self._started(name) for name in names}

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        line = (*self._line, "--worker", name)
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_and_start(self, name: str) -> None:
        self._kill(name)
        self._running[name] = self._started(name)

    def _kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait(WAIT)

    def ended(self) -> dict[str, int]:
        codes = {name: worker.poll() for name, worker in self._running.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._running:
            self._kill(name)


def test_workers_that_are_killed_while_a_copy_is_made_again_mix_and_lose_nothing(
    kraft43: KraftCluster, target: str, topic: str
) -> None:
    """At any of its steps: before the former copy is deleted, before the new one is created, and
    while the partitions are reassigned.
    """
    source, dice, names = kraft43.bootstrap_servers, random.Random(1), ("a", "b")
    line = (*command(topic, topic, source, target), "--on-recreate", "restart")
    line = (*line, "--session-timeout", "6s")

    def fill(kind: bytes, count: int) -> None:
        create_topic(source, topic, partitions=3, configs=KEPT)
        for number in range(3):
            write(source, topic, *(b"%s %d" % (kind, n) for n in range(count)), partition=number)

    def is_copied() -> bool:
        if topic not in admin_of(target).list_topics(timeout=WAIT).topics:
            return False
        return consumed(source, topic) == consumed(target, topic)

    fill(b"old", 20)
    with Workers(line, names) as workers:
        wait_until(is_copied, WAIT, "the old records on the target")
        delete_topic(source, topic)
        fill(b"new", 30)
        for _ in range(8):
            Event().wait(dice.uniform(0.8, 4.0))  # a worker looks at the topics when it starts
            workers.kill_and_start(dice.choice(names))
        wait_until(is_copied, 2 * WAIT, "the new records on the target, and no others")
        assert workers.ended() == {}
    code, copied, errors = mirror(line, "--until-caught-up")
    assert (code, copied["records"]) == (0, 0), errors
    assert is_copied()


def set_on(servers: str, topic: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client = admin_of(servers)
    for future in client.incremental_alter_configs([wanted]).values():
        future.result(WAIT)


def write_batch(servers: str, topic: str, codec: str, *values: bytes) -> None:
    """Write all records in one batch."""
    settings = {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 1000}
    large = {"batch.size": 4_000_000, "message.max.bytes": 4_000_000}
    producer = Producer({**settings, **large, "batch.num.messages": len(values)})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT) == 0


def test_one_topic_never_stops_another(kraft43: KraftCluster, target: str, topic: str) -> None:
    """A topic that the target refuses, and a record that it does not take, are left out."""
    source = kraft43.bootstrap_servers
    kinds = ("foreign", "append", "large", "repacked", "plain")
    foreign, append, large, repacked, plain = (f"{topic}.{kind}" for kind in kinds)
    takes_more = KEPT | {"max.message.bytes": 4_000_000}
    for name in (foreign, plain):
        create_topic(source, name, configs=KEPT)
    create_topic(source, append, configs=KEPT | {"message.timestamp.type": "LogAppendTime"})
    for name in (large, repacked):
        create_topic(source, name, configs=takes_more)
    for name in (foreign, append, large, repacked, plain):
        write(source, name, b"first")
    create_topic(target, foreign, configs=KEPT)
    write(target, foreign, b"was there")

    line = command(topic, f"{topic}.*", source, target)
    code, plan, errors = mirror(line, "--dry-run")
    problems = {item["source"]: item["problem"] for item in plan["topics"]}
    assert code == 2, errors
    assert "has records" in problems.pop(foreign)
    assert set(problems.values()) == {None}
    code, copied, errors = mirror(line, "--until-caught-up")
    assert code == 3, errors
    assert copied["refused_topics"].keys() == {foreign}
    assert f"topic {foreign} on the target has records" in errors
    assert values_of(target, foreign) == [b"was there"]
    for name in (append, large, repacked, plain):
        assert values_of(target, name) == [b"first"]
    # The copy of a topic with LogAppendTime keeps the timestamps of the source's broker.
    ((_, _, _, copied_at),), ((_, _, _, appended_at),) = (
        consumed(servers, append)[0] for servers in (target, source)
    )
    assert copied_at[1] == appended_at[1]

    # One copy takes smaller batches now; the brokers of the other decompress them, and so have a
    # limit that the size of the batch does not show.
    set_on(target, large, max_message_bytes="1000000")
    set_on(target, repacked, max_message_bytes="1000000", compression_type="uncompressed")
    for name, codec in ((large, "none"), (repacked, "gzip")):
        write_batch(source, name, codec, *(b"%d" % row * 50_000 for row in range(30)))
    write_batch(source, large, "none", b"x" * 1_500_000)
    for name in (large, plain):
        write(source, name, b"last")
    code, copied, errors = mirror(line, "--until-caught-up")
    assert code == 3, errors
    assert values_of(target, plain) == [b"first", b"last"]
    assert values_of(target, repacked) == values_of(source, repacked)
    assert values_of(target, large) == values_of(source, large)[:31]
    (reason,) = copied["left_out_partitions"].values()
    assert f"{large}-0 is not copied from offset 31 on: the record at offset 31 is a " in reason
    assert "Raise max.message.bytes of that topic to at least 15000" in reason

    set_on(target, large, max_message_bytes="2000000")
    code, copied, errors = mirror(line, "--until-caught-up", "--accept-target-records")
    assert code == 0, errors
    assert values_of(target, large) == values_of(source, large)
    write(source, foreign, b"later")
    code, _, errors = mirror(line, "--until-caught-up")
    assert code == 0, errors
    assert values_of(target, foreign) == [b"was there", b"first", b"later"]


def test_partitions_are_added_to_the_copy(kraft43: KraftCluster, target: str, topic: str) -> None:
    source = kraft43.bootstrap_servers
    create_topic(source, topic, partitions=1, configs=KEPT)
    write(source, topic, b"before the mirror")
    line = command(topic, topic, source, target, "--from", "end")
    assert mirror(line, "--until-caught-up")[0] == 0
    add_partitions(source, topic, 3)
    write(source, topic, b"added", partition=2)
    code, _, errors = mirror(line, "--until-caught-up", "--on-new-partitions", "refuse")
    assert code == 2
    assert f"topic {topic} has 3 partitions and {topic} on the target 1" in errors
    code, _, errors = mirror(line, "--until-caught-up")
    assert code == 0, errors
    # An added partition is copied from its beginning, also with --from end.
    assert consumed(target, topic) == {2: consumed(source, topic)[2]}


def acl(topic: str, operation: str) -> AclBinding:
    return AclBinding("TOPIC", topic, "LITERAL", "User:ANONYMOUS", "*", operation, "ALLOW")


def test_acls_and_settings_are_copied_and_a_missing_permission_is_named(
    target: str, topic: str
) -> None:
    """One cluster is both source and target."""
    servers, copy = target, f"copy.{topic}"
    create_topic(servers, topic, configs=KEPT)
    write(servers, topic, b"one", b"two")
    admin = KafkaClusterAdmin(servers, {})
    assert admin.create_acls([acl(topic, "ALL")]) == {}
    line = command(topic, topic, servers, servers, "--rename", r"(.*)=copy.\1", "--until-caught-up")
    options = ("--copy-acls", "--copy-settings", "sync")

    # The copy only gets READ, which is not enough for the mirror itself.
    code, _, errors = mirror(line, *options)
    assert code == 3, errors
    assert "TOPIC_AUTHORIZATION_FAILED (29): the principal needs DescribeConfigs on the" in errors
    assert [item for item in admin.acls().bindings if item.name == copy] == [acl(copy, "READ")]

    assert admin.create_acls([acl(copy, "ALL")]) == {}
    set_on(servers, topic, retention_ms="99999999999")
    code, _, errors = mirror(line, *options)
    assert code == 0, errors
    assert consumed(servers, copy) == consumed(servers, topic)
    with Cluster(ClientSettings.from_properties({"bootstrap.servers": servers})) as asking:
        settings = topic_settings(asking, [topic, copy], only_set=True)
    assert settings[copy] == settings[topic] == {"retention.ms": "99999999999"}
