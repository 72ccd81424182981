"""The commands of docs/disaster-recovery.md for disasters of one topic on a running cluster."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from devtools.sandbox.kafka import KafkaCluster
from sidetier.archive.objects.cluster_snapshots import read_cluster_state
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import ArchiveStore, file_store
from tests.harness.clusters import KraftFactory
from tests.harness.hydrating import HydrateCommands
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.markdown import ROOT, commands
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic, delete_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "disaster-recovery.md"
TOPIC, GROUP = "orders", "billing"
PARTITIONS = 4
WAIT = 120.0
LAYOUT = ArchiveLayout("test", 5)
Records = dict[int, dict[int, tuple[Any, ...]]]
"""What a consumer sees of each partition, by offset."""


def documented(section: str) -> list[list[str]]:
    """Arguments of each command under a heading of the page, in the page's order."""
    text = PAGE.read_text(encoding="utf-8")
    result = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert result is not None, section
    return commands(result[1], "sidetier")


@dataclass(frozen=True, slots=True)
class Runbook:
    """Run the page's commands with the sidecar's configuration."""

    commands: HydrateCommands
    times: Mapping[str, str]
    """The replacement for each time on the page."""

    def run(self, step: Sequence[str]) -> Any:  # noqa: ANN401 -- JSON
        """Run a command, which must succeed, and return its JSON."""
        words = [self.times.get(word, word) for word in step]
        at = words.index("--config")
        del words[at : at + 2]
        return self.commands.run(*words)


@dataclass(frozen=True, slots=True)
class Scene:
    """A broker with its sidecar."""

    cluster: KafkaCluster
    store: ArchiveStore
    directory: Path
    producer: Producer
    """Idempotent; it exists as long as the scene, and keeps its id and its sequence numbers."""

    @property
    def servers(self) -> str:
        return self.cluster.bootstrap_servers

    def produce(self, what: str, count: int) -> None:
        """Produce records with headers to each partition."""
        failed = list[KafkaError]()
        for number in range(count):
            self.producer.produce(
                TOPIC,
                f"{what} {number} ".encode() * 20,
                f"key-{number}",
                partition=number % PARTITIONS,
                headers=[("number", b"%d" % number)],
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            if number % 40 == 0:
                self.producer.flush(WAIT)
        assert self.producer.flush(WAIT) == 0
        assert not failed, f"{len(failed)} of {count} were not written: {failed[0]}"

    def archived(self) -> list[int]:
        """The archive end of each partition, once every closed segment is stored."""
        log_dir = self.cluster.log_dirs(1)[0]
        ends = [closed_end(log_dir / f"{TOPIC}-{number}") for number in range(PARTITIONS)]
        for number, end in enumerate(ends):
            assert end > 0, f"no segment of {TOPIC}-{number} is closed"
            wait_until_stored(self.store.objects, TOPIC, number, end, WAIT)
        return ends

    def commit(self, offset: int) -> None:
        with group_member(self.servers) as consumer:
            asked = [KafkaPartition(TOPIC, number, offset) for number in range(PARTITIONS)]
            consumer.commit(offsets=asked, asynchronous=False)

    def committed(self) -> list[int]:
        with group_member(self.servers) as consumer:
            asked = [KafkaPartition(TOPIC, number) for number in range(PARTITIONS)]
            return [item.offset for item in consumer.committed(asked, timeout=WAIT)]

    def goes_on(self) -> list[list[Any]]:
        """Records the group reads from its committed offsets."""
        result = consumed(self.servers, TOPIC)
        return [
            [record for at, record in result[number].items() if at >= offset]
            for number, offset in enumerate(self.committed())
        ]

    def wait_for_snapshot(self) -> None:
        """Wait until the snapshots contain the topic and the group's offsets."""
        store = open_plain(StorageEndpoint(f"file://{self.directory}/store"))
        expected = dict(enumerate(self.committed()))

        def is_there() -> bool:
            state = read_cluster_state(store, LAYOUT)
            if state.topics is None or state.group_offsets is None:
                return False
            known = state.group_offsets.groups.get(GROUP, {}).get(TOPIC, {})
            return TOPIC in state.topics.topics and expected == {
                number: item.offset for number, item in known.items()
            }

        wait_until(is_there, WAIT, "the snapshots", every=0.5)
        store.close()


@contextmanager
def group_member(servers: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": GROUP, "log_level": 0})
    yield consumer
    consumer.close()


@contextmanager
def archiving(cluster: KafkaCluster, directory: Path) -> Iterator[tuple[Scene, HydrateCommands]]:
    store = file_store(directory / "store")
    often = {"interval": "1s", "definitions_interval": "1s"}
    settings = merged(beside(cluster, store), {"uploader": {"cluster_snapshots": often}})
    with Sidecar(directory / "sidecar", settings, store) as sidecar:
        environment = {"PATH": "", **store.environment}
        properties = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5}
        yield (
            Scene(cluster, store, directory, Producer({**properties, "enable.idempotence": True})),
            HydrateCommands(directory, environment, str(sidecar.config)),
        )


def consumed(servers: str, topic: str) -> Records:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([KafkaPartition(topic, number, 0) for number in range(PARTITIONS)])
    result: Records = {number: {} for number in range(PARTITIONS)}
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(WAIT)
        assert message is not None, f"nothing comes of {topic}"
        number = message.partition() or 0
        if message.error() is not None:
            ended.add(number)
        else:
            seen = (message.key(), message.value(), message.headers(), message.timestamp())
            result[number][message.offset() or 0] = seen
    consumer.close()
    return result


def contents(records: Records) -> list[list[Any]]:
    """The records of each partition, without their offsets."""
    return [list(records[number].values()) for number in range(PARTITIONS)]


def begin_of_bad_records(servers: str) -> str:
    """The timestamp of the first bad record."""
    result = contents(consumed(servers, TOPIC))
    first = min(
        when[1] for item in result for _, value, _, when in item if value.startswith(b"bad")
    )
    return datetime.fromtimestamp(first / 1000, UTC).isoformat(timespec="milliseconds")


def below(records: Records, ends: Sequence[int]) -> Records:
    return {
        number: {offset: record for offset, record in item.items() if offset < ends[number]}
        for number, item in records.items()
    }


def test_topic_survives_its_deletion_and_bad_data(
    kraft_cluster: KraftFactory, tmp_path: Path
) -> None:
    cluster = kraft_cluster()
    create_topic(
        cluster.bootstrap_servers,
        TOPIC,
        partitions=PARTITIONS,
        configs=small_segments(size=10_000, retention_ms=-1),
    )
    with archiving(cluster, tmp_path) as (scene, run):
        scene.produce("good", 1200)
        ends = scene.archived()
        scene.commit(40)
        scene.wait_for_snapshot()
        good = contents(below(consumed(scene.servers, TOPIC), ends))

        # Deleted, and restored with other offsets.
        deleted = documented("A topic is deleted")
        assert [step[0] for step in deleted[:4]] == ["retire", "restore", "restore", "hydrate"]
        delete_topic(scene.servers, TOPIC)
        for step in deleted[:3]:
            Runbook(run, {}).run(step)
        assert contents(consumed(scene.servers, TOPIC)) == good
        assert scene.goes_on() == [records[40:] for records in good]

        # Bad records: restore the good ones to another topic, and one partition separately.
        scene.produce("bad", 400)
        scene.archived()
        cut = begin_of_bad_records(scene.servers)
        bad_data = Runbook(run, {"2026-11-22T10:00:00Z": cut})
        look, plan, clean = documented("Bad data was written")
        assert (look[0], plan[:2], clean[0]) == ("consume", ["hydrate", "plan"], "restore")
        assert all(item["left_out"] > 0 for item in bad_data.run(plan)["partitions"])
        (tmp_path / plan[2]).unlink()
        bad_data.run(clean)
        assert contents(consumed(scene.servers, "orders-clean")) == good
        (copied,) = [step for step in documented("A broker is lost") if step[0] == "restore"]
        Runbook(run, {}).run(copied)
        result = contents(consumed(scene.servers, "orders-found"))
        lost = int(copied[copied.index("--partition") + 1].rpartition("-")[2])
        assert result[lost][: len(good[lost])] == good[lost]
        assert not any(records for number, records in enumerate(result) if number != lost)

        # Deleted, and restored with the same offsets.
        scene.wait_for_snapshot()
        stood = scene.committed()
        ends = scene.archived()
        before = below(consumed(scene.servers, TOPIC), ends)
        delete_topic(scene.servers, TOPIC)
        for step in deleted[3:]:
            if step[1] == "place":
                cluster.stop()
            Runbook(run, {}).run(step)
            if step[1] == "place":
                cluster.start()
        assert below(consumed(scene.servers, TOPIC), ends) == before
        assert scene.committed() == stood
        # The producer continues with its old ID, and each record is written once.
        scene.produce("after", 400)
        scene.archived()
        records = contents(consumed(scene.servers, TOPIC))
        written = [value for record in records for _, value, *_ in record]
        assert sum(value.startswith(b"after ") for value in written) == 400
