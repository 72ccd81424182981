"""`sidetier restore` from a real S3 server to a real cluster: killed, in ranges, from folders."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from devtools.sandbox.kafka import KraftCluster
from sidetier.archive.objects.cluster_snapshots import content_json, encode_snapshot
from sidetier.archive.objects.quarantine import (
    MoveKind,
    MovePlan,
    encode_plan,
    quarantine_name,
)
from sidetier.segments.cluster_state import CommittedOffset, GroupOffsets, SnapshotKind
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from tests.harness.archive_objects import s3_store
from tests.harness.encryption import count_logs, encryption
from tests.harness.local_segments import small_segments
from tests.harness.mirror_runs import consumed_at
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import beside, merged
from tests.harness.stored_tails import store_tails
from tests.harness.topics import admin_of, create_topic, delete_records
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
START_MS = 1_500_000_000_000
WAIT = 120.0
Record = tuple[int, Any]
"""Source offset or target offset, and what a consumer sees of the record."""


@dataclass
class Commands:
    """`sidetier` in separate processes, with the configuration of the archived cluster."""

    file: Path
    environment: Mapping[str, str]

    def line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sidetier.cli", "--config", str(self.file), *arguments]

    def run(self, *arguments: str, code: int = 0) -> tuple[Any, str]:
        """Run a command with this exit code; return its JSON and its errors."""
        done = subprocess.run(
            [*self.line(*arguments), "--output", "json"],
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
            env=dict(self.environment),
        )
        assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
        return json.loads(done.stdout) if done.stdout else None, done.stderr


def write_transactions(servers: str, topic: str, transactions: int) -> None:
    """Write transactions; every third is aborted, and the last one is committed."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(WAIT)
    for number in range(transactions):
        producer.begin_transaction()
        for row in range(40):
            producer.produce(
                topic,
                b"%d-%d " % (number, row) + b"." * 80,
                key=b"%d" % (row % 5),
                headers=[("row", b"%d" % row), ("empty", None)],
                partition=row % 2,
                timestamp=START_MS + number,
            )
        producer.flush(WAIT)
        if number % 3 == 0:
            producer.abort_transaction(WAIT)
        else:
            producer.commit_transaction(WAIT)


def contents(records: dict[int, list[Record]], start: int = 0, end: int = 10**9) -> Any:  # noqa: ANN401
    """The records of a range of offsets, without their offsets."""
    return {
        number: [seen for offset, seen in record if start <= offset < end]
        for number, record in records.items()
    }


def committed(servers: str, group: str, tp: TopicPartition) -> int:
    asked = ConsumerGroupTopicPartitions(group, [KafkaPartition(*tp)])
    admin = admin_of(servers)  # kept while its future is waited for
    result = admin.list_consumer_group_offsets([asked])[group].result(WAIT)
    return int(result.topic_partitions[0].offset)


def store_group_offset(bucket: S3Bucket, group: str, tp: TopicPartition, offset: int) -> None:
    """Store a cluster snapshot as a sidecar does."""
    kind = SnapshotKind.GROUP_OFFSETS
    content = GroupOffsets({group: {tp.topic: {tp.partition: CommittedOffset(offset)}}})
    bucket.client.put_object(
        Bucket=bucket.name,
        Key=ArchiveLayout("test", 5).cluster_snapshot_key(kind, START_MS, 1),
        Body=encode_snapshot(kind, "test", START_MS, 1, content_json(content)),
    )


def put_into_quarantine(bucket: S3Bucket, tp: TopicPartition, divergence_offset: int) -> str:
    """Copy the segments from the one with the divergence on to a quarantine folder, as a sidecar
    does; return its name.
    """
    layout = ArchiveLayout("test", 5)
    prefix = layout.partition_prefix(tp)
    listed = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix)["Contents"]
    keys = [row["Key"] for row in listed]
    bases = sorted({int(key.removeprefix(prefix)[:20]) for key in keys if key.endswith(".log")})
    first = max(base for base in bases if base <= divergence_offset)
    name = quarantine_name(Offset(divergence_offset), LeaderEpoch(9))
    target = f"{layout.quarantine_prefix(tp)}{name}/"
    plan = MovePlan(
        MoveKind.QUARANTINE,
        tp,
        target,
        Offset(divergence_offset),
        kept=BaseOffset(bases[0]),
        reason="test",
    )
    for key in keys:
        file = key.removeprefix(prefix)
        if file[:20].isdecimal() and int(file[:20]) >= first:
            bucket.client.copy_object(
                Bucket=bucket.name,
                Key=target + file,
                CopySource={"Bucket": bucket.name, "Key": key},
            )
    bucket.client.put_object(Bucket=bucket.name, Key=f"{target}plan.json", Body=encode_plan(plan))
    return name


def test_archive_is_restored_once_and_verified(  # noqa: PLR0915 -- one archive for all of it
    kraft43: KraftCluster, s3_bucket: S3Bucket, topic: str, tmp_path: Path
) -> None:
    servers = kraft43.bootstrap_servers
    create_topic(servers, topic, partitions=2, configs=small_segments(size=10_000, retention_ms=-1))
    write_transactions(servers, topic, 30)
    store = s3_store(s3_bucket)
    file = tmp_path / "sidetier.yaml"
    settings = beside(kraft43, store)
    file.write_text(yaml.safe_dump(settings))
    commands = Commands(file, {**os.environ, **store.environment})
    commands.run("backfill", "--topic", topic)
    # The second half of the archive is encrypted.
    write_transactions(servers, topic, 30)
    encrypted = {"storage": {"encryption": encryption(tmp_path)}}
    file.write_text(yaml.safe_dump(merged(settings, encrypted)))
    commands.run("backfill", "--topic", topic)
    plain_logs, encrypted_logs = count_logs(store.objects)
    assert min(plain_logs, encrypted_logs) > 1
    source = consumed_at(servers, topic)
    # The archive may end within a transaction whose end the sidecar has not seen.
    restore = ("restore", "--topic", topic, "--open-transactions", "abort")

    _, errors = commands.run(*restore, code=2)
    assert "its sidecars would archive the restored records again" in errors

    # Killed in the middle, and run again.
    copy = f"copy.{topic}"
    whole = (*restore, "--name", topic, "--rename", f"{topic}={copy}")
    planned, _ = commands.run(*whole, "--dry-run", "--open-transactions", "leave-out")
    ends = {item["partition"]: item["end"] for item in planned["partitions"]}
    assert min(ends.values()) > 600, "too little is archived for the test"
    slow = subprocess.Popen(
        commands.line(*whole, "--max-rate", "20KiB", "--transaction-bytes", "10KiB"),
        env=dict(commands.environment),
        stderr=subprocess.PIPE,
    )
    group = f"sidetier-restore-{topic}"
    wait_until(
        lambda: committed(servers, group, TopicPartition(copy, 0)) > 200 or slow.poll() is not None,
        WAIT,
        "some committed records",
    )
    slow.kill()
    _, said = slow.communicate()
    assert slow.returncode == -signal.SIGKILL, said
    reached = committed(servers, group, TopicPartition(copy, 0))
    assert reached < ends[0]
    done, _ = commands.run(*whole)
    expected = {number: contents(source, 0, end)[number] for number, end in ends.items()}
    assert contents(consumed_at(servers, copy)) == expected
    assert [item["verified"] for item in done["partitions"]] == [
        {"records": len(expected[number]), "problems": []} for number in (0, 1)
    ]
    assert 0 < done["records"] < sum(map(len, expected.values()))
    again, _ = commands.run(*whole)
    assert (again["records"], again["transactions"]) == (0, 0)

    # Foreign records are never mixed with restored ones.
    _, errors = commands.run(*restore, "--name", "another", "--rename", f"{topic}={copy}", code=2)
    assert "offsets that are not of this restore" in errors

    # A group continues at the record that it would have read next.
    read_next, seen = source[0][100]
    store_group_offset(s3_bucket, "billing", TopicPartition(topic, 0), read_next)
    set_to, _ = commands.run(
        *("restore", "translate-offsets", "--name", topic, "--group", "billing")
    )
    assert set_to["dry_run"] is False
    there = committed(servers, "billing", TopicPartition(copy, 0))
    assert next(item for offset, item in consumed_at(servers, copy)[0] if offset >= there) == seen

    # A record missing on the target is found.
    delete_records(servers, copy, 1, 10)
    different, _ = commands.run(*whole, code=3)
    assert different["partitions"][0]["verified"]["problems"] == []
    assert len(different["partitions"][1]["verified"]["problems"]) == 1

    # A range that begins and ends within batches.
    part = f"part.{topic}"
    commands.run(
        *("restore", "--name", part, "--partition", f"{topic}-1"),
        *("--rename", f"{topic}={part}", "--from", "105", "--to", "333"),
    )
    result = contents(consumed_at(servers, part))
    assert result.get(0, []) == []
    assert result[1] == contents(source, 105, 333)[1]

    # The records of the active segments, in encrypted tail packs. The last transactions are open.
    both = merged(settings, encrypted)
    tails = store_tails(tmp_path / "sidecar", both, store, servers, topic, 2)
    tailed = f"tailed.{topic}"
    with_tail = (*restore, "--with-tail", "--name", tailed, "--rename", f"{topic}={tailed}")
    told, _ = commands.run(*with_tail)
    assert [item["safe_up_to"] for item in told["partitions"]] == tails
    assert all(item["archive_end"] < item["safe_up_to"] for item in told["partitions"])
    assert contents(consumed_at(servers, tailed)) == contents(source)
    again, _ = commands.run(*with_tail)
    assert (again["records"], again["transactions"]) == (0, 0)
    _, errors = commands.run(*with_tail, "--from-quarantine", code=2)
    assert "a tail follows the live archive" in errors

    # A quarantine folder, and a retired archive.
    divergence_offset = ends[0] - 100  # within a batch, perhaps
    name = put_into_quarantine(s3_bucket, TopicPartition(topic, 0), divergence_offset)
    kept = f"kept.{topic}"
    commands.run(
        *(*restore, "--name", kept, "--rename", f"{topic}={kept}", "--from-quarantine", name)
    )
    assert contents(consumed_at(servers, kept)) == {
        0: contents(source, divergence_offset, ends[0])[0]
    }
    commands.run("retire", topic, "--offline")
    old = f"old.{topic}"
    commands.run(
        *(*restore, "--name", old, "--from-retired"),
        *("--rename", f"{topic}={old}"),
    )
    # With the tail, which `retire` has promoted before.
    assert contents(consumed_at(servers, old)) == contents(source)
