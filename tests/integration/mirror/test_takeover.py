"""Groups and progress are moved to a copy, on a real cluster that is its own target."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from devtools.sandbox.kafka import KraftCluster
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset, commit_offsets
from sidetier.wire.settings import ClientSettings
from tests.harness.archive_objects import file_store
from tests.harness.mirror_runs import WAIT, values_from
from tests.harness.sidecar import beside
from tests.harness.topics import admin_of, create_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
KEPT = {"retention.ms": -1}
START_MS = 1_700_000_000_000


def run(servers: str, *arguments: str, code: int = 0) -> tuple[Any, str]:
    """Run a mirror command within one cluster; return its JSON and its log."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sidetier.cli", "mirror", *arguments, "-o", "json"),
            *("--source", f"bootstrap.servers={servers}"),
            *("--target", f"bootstrap.servers={servers}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
    return json.loads(done.stdout or "{}"), done.stderr


def commit(servers: str, group: str, topic: str, offset: int) -> None:
    with Cluster(ClientSettings.from_properties({"bootstrap.servers": servers})) as cluster:
        at = {TopicPartition(topic, 0): CommittedOffset(Offset(offset))}
        commit_offsets(cluster, group, at)


def committed(servers: str, group: str, topic: str) -> int:
    admin = admin_of(servers)
    asked = ConsumerGroupTopicPartitions(group, [KafkaPartition(topic, 0)])
    result = admin.list_consumer_group_offsets([asked])[group].result(WAIT).topic_partitions[0]
    return int(result.offset)


def produce(servers: str, topic: str, numbers: Sequence[int]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        producer.produce(topic, b"%d" % number, b"key", timestamp=START_MS + number)
    assert producer.flush(WAIT) == 0


def test_groups_follow_the_mirror_and_survive_the_loss_of_its_map(
    kraft43: KraftCluster, topic: str, tmp_path: Path
) -> None:
    servers, copy = kraft43.bootstrap_servers, f"copy.{topic}"
    create_topic(servers, topic, configs=KEPT)
    file = tmp_path / "sidetier.yaml"
    file.write_text(yaml.safe_dump(beside(kraft43, file_store(tmp_path / "store"))))
    mirror = (
        *("--name", topic, "--topic", topic, "--rename", r"(.*)=copy.\1"),
        *("--config", str(file), "--until-caught-up", "--transaction-interval", "50ms"),
    )
    for group, offset in (("follows", 70), ("later", 30)):
        commit(servers, f"{group}-{topic}", topic, offset)
    for first in (0, 60):  # the second run's records come after the marker of the first
        produce(servers, topic, range(first, first + 60))
        run(servers, *mirror, "--translate-groups", "follows-.*")
    result = committed(servers, f"follows-{topic}", copy)
    assert values_from(servers, copy, result) == [b"%d" % number for number in range(70, 120)]
    assert committed(servers, f"later-{topic}", copy) < 0

    admin = admin_of(servers)
    for future in admin.delete_topics([f"sidetier-mirror-{topic}-offsets"]).values():
        future.result(WAIT)
    translate = ("translate-offsets", "--name", topic, "--groups", f".*-{topic}")
    _, errors = run(servers, *translate, code=2)
    assert "does not exist on the target" in errors
    translated, _ = run(servers, *translate, "--config", str(file))
    assert {
        item["group"].removesuffix(f"-{topic}"): item["partitions"][0]["outcome"]
        for item in translated["groups"]
    } == {"follows": "unchanged", "later": "set"}
    result = committed(servers, f"later-{topic}", copy)
    assert values_from(servers, copy, result) == [b"%d" % number for number in range(30, 120)]


def test_a_mirror_continues_exactly_where_another_program_has_stopped(
    kraft43: KraftCluster, topic: str
) -> None:
    """The old program has produced 60 records and committed the offset of the 40th."""
    servers, copy, group = kraft43.bootstrap_servers, f"copy.{topic}", f"copier-{topic}"
    for name in (topic, copy):
        create_topic(servers, name, configs=KEPT)
    produce(servers, topic, range(100))
    produce(servers, copy, range(60))
    copier = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    copier.subscribe([topic])
    wait_until(lambda: copier.poll(1.0) is not None, WAIT, "a record of the copier")
    copier.commit(offsets=[KafkaPartition(topic, 0, 39)], asynchronous=False)
    adopt = (
        *("adopt", "--name", topic, "--group", group, "--committed", "last-record"),
        *("--topic", topic, "--rename", r"(.*)=copy.\1"),
    )
    _, errors = run(servers, *adopt, code=2)
    assert "has members" in errors
    copier.close()

    planned, _ = run(servers, *adopt, "--dry-run")
    (partition,) = planned["partitions"]
    assert (partition["committed_next_offset"], partition["progress"]) == (40, 60)
    assert partition["verdict"] == "verified"
    assert committed(servers, f"sidetier-mirror-{topic}", copy) < 0
    assert run(servers, *adopt)[0]["partitions_written"] == 1
    assert run(servers, *adopt)[0]["partitions_written"] == 0
    mirror = ("--name", topic, "--topic", topic, "--rename", r"(.*)=copy.\1", "--until-caught-up")
    assert run(servers, *mirror)[0]["records"] == 40
    assert values_from(servers, copy) == values_from(servers, topic)
    other, _ = run(servers, *adopt, "--compare", "0", code=2)
    assert other == {}
