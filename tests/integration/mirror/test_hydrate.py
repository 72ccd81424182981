"""A cluster of three brokers is lost, and restored with the commands of docs/hydrate.md: of two
topics to the last record, because their active segments are in tail packs.
"""

import json
import random
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import OFFSET_STORED, Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from devtools.sandbox.kafka import KafkaCluster
from sidetier.archive.objects.cluster_snapshots import read_cluster_state
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import ArchiveStore, file_store
from tests.harness.clusters import KraftFactory
from tests.harness.hydrating import HydrateCommands, documented_steps
from tests.harness.java_clients import GroupRead, read_with_java
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.schema_registry import serving
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import (
    admin_of,
    alter_topic,
    create_topic,
    leader_of,
    move_leader,
    watermark_offsets,
)
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LONG_AGO_MS = 1_500_000_000_000
WAIT = 120.0
REPLICATED = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
PLAIN, EXPIRED, TX, SCHEMAS, TYPED = "plain", "expired", "tx", "_schemas", "typed"
TOPICS = {SCHEMAS: 1, EXPIRED: 1, PLAIN: 3, TX: 2, TYPED: 1}
WITH_TAIL = {"interval": "1s", "topics": [TX, TYPED]}

Record = tuple[bytes | None, bytes | None, int]
"""Key, value, and timestamp in ms."""
Records = dict[int, Record]
"""By offset."""


def producer_of(servers: str, **more: object) -> Producer:
    return Producer({"bootstrap.servers": servers, "linger.ms": 5, "log_level": 0, **more})


def write_plain(servers: str, first: int, end: int) -> None:
    """Write records with old timestamps, headers and nulls to every partition, idempotently."""
    codec = {"compression.type": "lz4", "enable.idempotence": True}
    producer = producer_of(servers, **codec)
    noise = random.Random(first)
    for number in range(first, end):
        value = f"value {number} {noise.randbytes(300).hex()}".encode()
        producer.produce(
            PLAIN,
            None if number % 50 == 0 else value,
            f"key-{number % 7}".encode(),
            partition=number % TOPICS[PLAIN],
            timestamp=LONG_AGO_MS + number,
            headers=[("n", str(number).encode()), ("nothing", None)],
        )
        producer.produce(EXPIRED, value, timestamp=LONG_AGO_MS + number)
        producer.poll(0)
        if number % 30 == 0:
            producer.flush(WAIT)  # many small batches
    assert producer.flush(WAIT) == 0


def write_transactions(servers: str, name: str, commits: Sequence[bool]) -> None:
    """Write transactions over both partitions; the values name their outcomes."""
    producer = producer_of(servers, **{"transactional.id": name})
    producer.init_transactions(WAIT)
    for commit in commits:
        producer.begin_transaction()
        for number in range(40):
            value = f"{'committed' if commit else 'aborted'} {number} ".encode() * 60
            producer.produce(TX, value, partition=number % TOPICS[TX])
        producer.flush(WAIT)
        if commit:
            producer.commit_transaction(WAIT)
        else:
            producer.abort_transaction(WAIT)


def write_open_transaction(servers: str) -> Producer:
    """Write a transaction that never ends; the caller must keep the producer."""
    # Not aborted by the coordinator before the cluster is lost.
    patience = {"transaction.timeout.ms": 600_000}
    producer = producer_of(servers, **{"transactional.id": "left open", **patience})
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(TX, b"open " * 20, partition=0)
    producer.flush(WAIT)
    return producer


def user_schema(*names: str) -> str:
    fields = [{"name": name, "type": "string", "default": ""} for name in names]
    return json.dumps({"type": "record", "name": "User", "fields": fields})


CONTEXT = SerializationContext(TYPED, MessageField.VALUE)
SCHEMA_VERSIONS = (user_schema("name"), user_schema("name", "city"))


def user(number: int) -> dict[str, str]:
    """A record's value; every second one has the field of the second version."""
    city = {"city": f"city {number}"} if number % 2 else {}
    return {"name": f"user {number} " * 20, **city}


def write_typed(servers: str) -> None:
    """Write records in Confluent's wire format, and the registry's schema topic, which also has
    keys that are overwritten repeatedly.
    """
    producer = producer_of(servers)
    with serving() as registry:
        client = SchemaRegistryClient({"url": registry.url})
        serializers = [AvroSerializer(client, schema) for schema in SCHEMA_VERSIONS]
        for number in range(400):
            producer.produce(TYPED, serializers[number % 2](user(number), CONTEXT))
            if number % 20 == 0:
                producer.flush(WAIT)
        for key, value in registry.records:
            producer.produce(SCHEMAS, value, key)
    assert len(registry.records) == len(SCHEMA_VERSIONS)
    for number in range(300):
        again = json.dumps({"keytype": "NOOP", "magic": number % 20}).encode()
        producer.produce(SCHEMAS, f"{number} ".encode() * 100, again)
        if number % 20 == 0:
            producer.flush(WAIT)
    assert producer.flush(WAIT) == 0


def check_registry(servers: str, end: int) -> None:
    """Assert that a registry started on the restored topic knows each record's schema and
    continues.
    """
    kept = [(key, value) for key, value, _ in everything(servers, SCHEMAS)[0].values()]
    with serving() as registry:
        registry.load((key, value) for key, value in kept if key and value)
        client = SchemaRegistryClient({"url": registry.url})
        decode = AvroDeserializer(client)
        seen = [decode(value, CONTEXT) for _, value, _ in everything(servers, TYPED)[0].values()]
        assert seen == [user(number) for number in range(end)]
        later = Schema(user_schema("name", "city", "country"), "AVRO")
        assert client.register_schema(f"{TYPED}-value", later) == len(SCHEMA_VERSIONS) + 1


def consumer_of(servers: str, group: str, **more: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "log_level": 0,
            **more,
        }
    )


def read_to_end(consumer: Consumer, partitions: Sequence[KafkaPartition]) -> list[Records]:
    """All records from these positions on; no partition is written meanwhile."""
    result: list[Records] = [{} for _ in partitions]
    consumer.assign(list(partitions))
    left = {partition.partition: number for number, partition in enumerate(partitions)}
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(WAIT)
        assert message is not None, f"nothing comes from {partitions}"
        number = left[message.partition() or 0]
        if message.error() is not None:
            ended.add(number)
        else:
            record = (message.key(), message.value(), message.timestamp()[1])
            result[number][message.offset() or 0] = record
    consumer.close()
    return result


def everything(servers: str, topic: str, **more: object) -> list[Records]:
    starts = [KafkaPartition(topic, number, 0) for number in range(TOPICS[topic])]
    return read_to_end(
        consumer_of(servers, "test", **{"auto.offset.reset": "earliest", **more}), starts
    )


@contextmanager
def sidecars(
    cluster: KafkaCluster, store: ArchiveStore, directory: Path
) -> Iterator[Sequence[Sidecar]]:
    """A sidecar beside each broker, with cluster snapshots every second."""
    often = {"interval": "1s", "definitions_interval": "1s"}
    more = {
        "topics": {"compacted": "as_closed"},
        "uploader": {"cluster_snapshots": often, "tail": WITH_TAIL},
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Sidecar(
                    directory / f"sidecar-{broker}",
                    merged(beside(cluster, store, broker_id=broker), more),
                    store,
                )
            )
            for broker in cluster.broker_ids
        ]


def commit(servers: str, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    consumer = consumer_of(servers, group)
    consumer.commit(
        offsets=[KafkaPartition(*tp, offset) for tp, offset in offsets.items()], asynchronous=False
    )
    consumer.close()


def committed(servers: str, group: str, topic: str) -> dict[int, int]:
    consumer = consumer_of(servers, group)
    asked = [KafkaPartition(topic, number) for number in range(TOPICS[topic])]
    result = consumer.committed(asked, timeout=WAIT)
    consumer.close()
    return {item.partition: item.offset for item in result if item.offset >= 0}


def wait_for_snapshot(store: Path, groups: set[str]) -> None:
    """Wait until the snapshots contain these groups and the retention of the topic EXPIRED."""
    layout = ArchiveLayout("test", 5)
    opened = open_plain(StorageEndpoint(f"file://{store}"))

    def is_there() -> bool:
        state = read_cluster_state(opened, layout)
        if state.topics is None or state.group_offsets is None:
            return False
        known = state.topics.topics.get(EXPIRED)
        return (
            known is not None
            and known.configs.get("retention.ms") == "1000"
            and groups <= state.group_offsets.groups.keys()
        )

    wait_until(is_there, WAIT, "the snapshots", every=0.5)
    opened.close()


def fill(old: KafkaCluster) -> Producer:
    """Produce to all topics, with higher leader epochs from the middle of `plain` on."""
    servers = old.bootstrap_servers
    for topic, partitions in TOPICS.items():
        lazy = {"cleanup_policy": "compact", "min_compaction_lag_ms": 10**12}
        configs = small_segments(**(lazy if topic == SCHEMAS else {"retention_ms": -1}))
        create_topic(servers, topic, partitions=partitions, replicas=3, configs=configs)
    write_plain(servers, 0, 200)
    write_transactions(servers, "one", [True, False, True])
    first = leader_of(servers, PLAIN, 0)
    others = [broker for broker in old.broker_ids if broker != first]
    for broker in others * 2:
        move_leader(servers, PLAIN, 0, broker)
    write_plain(servers, 200, 1200)
    write_typed(servers)
    left_open = write_open_transaction(servers)
    write_transactions(servers, "two", [True, False, True, True] * 2)
    return left_open


def archive_ends(old: KafkaCluster, store: ArchiveStore) -> dict[tuple[str, int], int]:
    """The end of each archive, once every closed segment is stored."""
    ends = {}
    for topic, partitions in TOPICS.items():
        for number in range(partitions):
            leader = leader_of(old.bootstrap_servers, topic, number)
            assert leader is not None
            end = closed_end(old.log_dirs(leader)[0] / f"{topic}-{number}")
            assert end > 0, f"no segment of {topic}-{number} is closed"
            wait_until_stored(store.objects, topic, number, end)
            ends[topic, number] = end
    return ends


def safe_ends(old: KafkaCluster, running: Sequence[Sidecar]) -> dict[tuple[str, int], int]:
    """The end of each log that has a tail, once all of it is safe."""
    ends = {
        (topic, number): watermark_offsets(old.bootstrap_servers, topic, number)[1]
        for topic in WITH_TAIL["topics"]
        for number in range(TOPICS[topic])
    }

    def all_are_safe() -> bool:
        rows = [row for sidecar in running for row in sidecar.partitions()]
        safe = {(row["topic"], row["partition"]): row["safe_to"] for row in rows}
        return all(safe.get(tp) == end for tp, end in ends.items())

    wait_until(all_are_safe, WAIT, "the tails", every=0.5)
    return ends


def expire(old: KafkaCluster, store: ArchiveStore) -> int:
    """Set a retention that deletes every record of EXPIRED; return the end of its archive."""
    alter_topic(old.bootstrap_servers, EXPIRED, {"retention.ms": "1000"})

    def is_empty() -> bool:
        start, end = watermark_offsets(old.bootstrap_servers, EXPIRED)
        return start == end

    wait_until(is_empty, WAIT, "retention", every=0.5)
    end = watermark_offsets(old.bootstrap_servers, EXPIRED)[1]
    wait_until_stored(store.objects, EXPIRED, 0, end)
    return end


def below(
    found: Sequence[Records], topic: str, ends: Mapping[tuple[str, int], int]
) -> list[Records]:
    return [
        {offset: record for offset, record in records.items() if offset < ends[topic, number]}
        for number, records in enumerate(found)
    ]


def place_on(
    commands: HydrateCommands, step: Sequence[str], new: KafkaCluster, *brokers: int
) -> list[Any]:
    """Place segments on these hosts one after the other, without any problem."""
    placed = []
    for broker in brokers:
        done = commands.run(*step, "--log-dir", str(new.log_dirs(broker)[0]))["partitions"]
        assert all(item["problem"] is None for item in done), done
        placed += done
    return placed


def kill_in_the_middle(commands: HydrateCommands, log_dir: Path, *line: str) -> None:
    """Kill the command with SIGKILL while `place` writes segments."""
    with commands.start(*line, "--log-dir", str(log_dir), "--max-rate", "20KiB") as slow:
        wait_until(
            lambda: any(log_dir.glob("*-delete/*.log")) or slow.poll() is not None,
            WAIT,
            "a staged segment",
        )
        slow.kill()
        _, said = slow.communicate()
        assert slow.returncode == -signal.SIGKILL, said


@dataclass(frozen=True, slots=True)
class Lost:
    """What is left of the lost cluster: the archive, and what consumers have read from it.

    Attributes:
        ends: The end of archive and tail of each partition.
        plain: The records of PLAIN below that offset.
        tx: The records of TX below that offset, of all transactions.
        java: What the group `java` has read and committed.
    """

    store: ArchiveStore
    ends: Mapping[tuple[str, int], int]
    plain: list[Records]
    tx: list[Records]
    java: GroupRead


def lose_a_cluster(kraft_cluster: KraftFactory, directory: Path) -> Lost:
    """Create a cluster with lagging groups, archive it with sidecars, and delete it completely."""
    old = kraft_cluster(brokers=3, properties=REPLICATED)
    servers = old.bootstrap_servers
    store = file_store(directory / "store")
    left_open = fill(old)
    java = read_with_java(servers, "java", PLAIN, 450, directory)
    assert max(epoch for _, epoch in java.committed.values()) >= 4
    with sidecars(old, store, directory) as running:
        ends = archive_ends(old, store)
        archived = {topic: ends[topic, 0] for topic in WITH_TAIL["topics"]}
        ends |= safe_ends(old, running)
        assert all(ends[topic, 0] > end for topic, end in archived.items())
        ends[EXPIRED, 0] = expire(old, store)
        commit(servers, "lagging", {(TX, 0): 30, (TX, 1): 50})
        _, live_end = watermark_offsets(servers, PLAIN, 0)
        assert live_end > ends[PLAIN, 0]
        commit(servers, "ahead", {(PLAIN, 0): live_end})
        plain = below(everything(servers, PLAIN), PLAIN, ends)
        uncommitted = {"isolation.level": "read_uncommitted"}
        tx = below(everything(servers, TX, **uncommitted), TX, ends)
        wait_for_snapshot(directory / "store", {"java", "lagging", "ahead"})
        old.kill()
        for sidecar in running:
            sidecar.kill()
    shutil.rmtree(old.directory)
    del left_open
    config = {
        "cluster": {"name": "test"},
        "log_dirs": [str(directory / "none")],
        "storage": dict(store.settings),
    }
    (directory / "old-cluster.yaml").write_text(yaml.safe_dump(config))
    return Lost(store, ends, plain, tx, java)


def place_everything(
    commands: HydrateCommands, steps: Mapping[str, Sequence[str]], new: KafkaCluster
) -> None:
    """Place all segments between stop and start of the brokers; one `place` is killed, and one host
    left out.
    """
    first_dir = new.log_dirs(1)[0]
    assert "stop it first" in commands.refused(*steps["place"], "--log-dir", str(first_dir))
    new.stop()
    kill_in_the_middle(commands, first_dir, *steps["place"])
    placed = place_on(commands, steps["place"], new, 1, 2)
    new.start()
    assert "was `sidetier hydrate place` run on its broker's host?" in commands.refused(
        *steps["replicate"]
    )
    new.stop_broker(3)
    placed += place_on(commands, steps["place"], new, 3)
    assert len(placed) == sum(TOPICS.values())
    assert all(item["already"] for item in place_on(commands, steps["place"], new, 3))
    new.start_broker(3)


def replicate(commands: HydrateCommands, step: Sequence[str], servers: str) -> None:
    """Replicate; the first run is killed once replicas are assigned, and repeated."""
    with commands.start(*step) as killed:
        wait_until(lambda: is_assigned(servers) or killed.poll() is not None, WAIT, "replicas")
        killed.kill()
    commands.run(*step)
    assert not commands.run(*step)["aborted_transactions"]
    described = admin_of(servers).list_topics(timeout=WAIT).topics
    assert all(
        len(partition.isrs) == 3
        for topic in TOPICS
        for partition in described[topic].partitions.values()
    )


def is_assigned(servers: str) -> bool:
    """Return whether a partition has been assigned more replicas."""
    described = admin_of(servers).list_topics(timeout=WAIT).topics
    return any(
        len(partition.replicas) > 1
        for topic in TOPICS
        for partition in described[topic].partitions.values()
    )


def check_records(servers: str, lost: Lost) -> list[Records]:
    """Compare with the consumer output of the lost cluster; return the present output of TX."""
    assert below(everything(servers, PLAIN), PLAIN, lost.ends) == lost.plain
    seen = everything(servers, TX)
    for number, records in enumerate(seen):
        of_committed = {
            offset: record
            for offset, record in lost.tx[number].items()
            if (record[1] or b"").startswith(b"committed")
        }
        assert records == of_committed  # the tail has the last markers
    return seen


@pytest.mark.timeout(900)
def test_lost_cluster_is_restored(kraft_cluster: KraftFactory, tmp_path: Path) -> None:
    lost = lose_a_cluster(kraft_cluster, tmp_path)
    commands = HydrateCommands(tmp_path, {"PATH": "", **lost.store.environment})
    new = kraft_cluster(brokers=3, properties=REPLICATED)
    servers = new.bootstrap_servers
    steps = documented_steps(servers)
    assert list(steps) == ["plan", "prepare", "place", "replicate", "verify", "finish"]
    # The last pack is some seconds old.
    assert "the cluster may be alive" in commands.refused(*steps["plan"])
    planned = commands.run(*steps["plan"], "--tail")["partitions"]
    assert {(item["topic"], item["partition"]): item["end"] for item in planned} == lost.ends
    commands.run(*steps["prepare"])
    commands.run(*steps["prepare"])  # safe to repeat
    place_everything(commands, steps, new)
    assert "run `sidetier hydrate replicate` first" in commands.refused(*steps["finish"])
    replicate(commands, steps["replicate"], servers)
    verified = commands.run(*steps["verify"])["partitions"]
    assert {item["compared"] for item in verified} == {"bytes"}
    (tx,) = [item for item in verified if item["partition"] == f"{TX}-0"]
    assert 0 < tx["committed_records"] < tx["records"]
    assert commands.run(*steps["finish"])["refused_configs"] == {}
    assert not any(item["changed"] for item in commands.run(*steps["finish"])["restored"])

    seen = check_records(servers, lost)
    check_registry(servers, lost.ends[TYPED, 0])
    assert committed(servers, "lagging", TX) == {0: 30, 1: 50}
    assert committed(servers, "ahead", PLAIN) == {0: lost.ends[PLAIN, 0]}
    read = {number: offset for number, (offset, _) in lost.java.committed.items()}
    rest = sum(lost.ends[PLAIN, number] - offset for number, offset in read.items())
    after = read_with_java(servers, "java", PLAIN, rest // 2, tmp_path)

    leader = leader_of(servers, PLAIN, 0)
    assert leader is not None
    new.kill_broker(leader)
    wait_until(lambda: leader_of(servers, PLAIN, 0) not in {leader, None}, WAIT, "another leader")
    last = read_with_java(servers, "java", PLAIN, rest - after.records, tmp_path)
    for number, offset in read.items():
        given = after.offsets.get(number, []) + last.offsets.get(number, [])
        assert given == list(range(offset, lost.ends[PLAIN, number]))
    positions = [KafkaPartition(TX, number, OFFSET_STORED) for number in (0, 1)]
    went_on = read_to_end(consumer_of(servers, "lagging"), positions)
    for number, position in enumerate((30, 50)):
        assert went_on[number] == {
            offset: record for offset, record in seen[number].items() if offset >= position
        }
    # An idempotent producer continues at the end; retention has deleted one topic by now.
    verified = commands.run(*steps["verify"], "--produce", TX, code=3)
    assert verified["problems"] == []
    (differs,) = [item for item in verified["partitions"] if item["problems"]]
    assert differs["partition"] == f"{EXPIRED}-0"
    assert "the log starts at offset" in differs["problems"][0]
