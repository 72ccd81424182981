"""Local retention on a real broker: disk is freed, and every record can still be read."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from devtools.sandbox.kafka import KraftCluster
from sidetier import TieredConsumer
from sidetier.cli.main import run
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import ArchiveStore, s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, log_bases, small_segments, wait_until_gone
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import Settings, Sidecar, beside, merged
from tests.harness.topics import create_topic

pytestmark = pytest.mark.integration

RECORDS = 300
SECONDS = 60.0


def with_retention(settings: Settings, topic: str, **local: object) -> Settings:
    local = {"topics": [topic], "bytes": 0, "interval": "1s", **local}
    return merged(settings, {"retention": {"local": local}})


def log_start(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    finally:
        consumer.close()
    return int(low)


def size_of(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(directory) if "log" in entry.name)


def test_sidecar_frees_disk_and_all_records_can_be_read(
    kraft43: KraftCluster, topic: str, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    bootstrap, store = kraft43.bootstrap_servers, s3_store(s3_bucket)
    create_topic(bootstrap, topic, configs=small_segments(file_delete_delay_ms=100))
    ledger = Ledger()
    ledger.produce(bootstrap, topic, RECORDS)
    directory = kraft43.log_dirs(1)[0] / f"{topic}-0"
    end, before = closed_end(directory), size_of(directory)
    assert end > RECORDS // 2
    settings = with_retention(beside(kraft43, store, topics=[topic]), topic)
    with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
        wait_until_gone(directory, end, SECONDS)
        sidecar.wait_for_event("local_retention.trimmed", log_start_offset=end)
        freed = sum(event["bytes"] for event in sidecar.seen("local_retention.trimmed"))
        metric = "sidetier_local_retention_trimmed_bytes_total"
        assert sidecar.metric(metric, topic=topic) == freed
        assert size_of(directory) <= before - freed
        assert sidecar.stop() == 0
    assert log_bases(directory) == [end]
    assert log_start(bootstrap, topic) == end
    assert plain_consumer_begins_at(bootstrap, topic, "earliest") == end
    assert plain_consumer_begins_at(bootstrap, topic, "error") is None
    assert read_tiered(bootstrap, topic, sidecar.config, store) == [
        (offset, record.value) for offset, record in sorted(ledger.records[topic, 0].items())
    ]


def plain_consumer_begins_at(bootstrap: str, topic: str, reset: str) -> int | None:
    """Return the first offset that a consumer at offset 0 gets; None for an out-of-range error."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "plain",
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(SECONDS)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._AUTO_OFFSET_RESET, error
            return None
        return message.offset()
    finally:
        consumer.close()


def read_tiered(
    bootstrap: str, topic: str, config: Path, store: ArchiveStore
) -> list[tuple[int | None, bytes | str | None]]:
    """Read the whole topic by a TieredConsumer."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"tiered-{topic}",
        "auto.offset.reset": "earliest",
        "tiered.storage.mode": "KAFKA_PREFERRED",
        "tiered.storage.config": str(config),
    }
    read: list[tuple[int | None, bytes | str | None]] = []
    with pytest.MonkeyPatch.context() as environment:
        for name, value in store.environment.items():
            environment.setenv(name, value)
        with TieredConsumer(settings) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while len(read) < RECORDS:
                message = consumer.poll(SECONDS)
                assert message is not None, f"nothing behind {read[-1:]}"
                assert message.error() is None, message.error()
                read.append((message.offset(), message.value()))
    return read


def test_command_shows_and_makes_a_pass(  # noqa: PLR0915 -- an archive takes long to set up
    kraft43: KraftCluster,
    topic: str,
    tmp_path: Path,
    s3_bucket: S3Bucket,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap, store = kraft43.bootstrap_servers, s3_store(s3_bucket)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    create_topic(bootstrap, topic, configs=small_segments(file_delete_delay_ms=100))
    directory = kraft43.log_dirs(1)[0] / f"{topic}-0"
    settings = beside(kraft43, store, topics=[topic])
    retention = with_retention(settings, topic, age="1h", bytes=0)
    config = tmp_path / "trim.yaml"
    config.write_text(json.dumps(retention))

    def command(*arguments: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        capsys.readouterr()
        line = ["--config", str(config), *arguments, "--output", "json"]
        assert run(line) in codes, capsys.readouterr().err
        result = json.loads(capsys.readouterr().out)
        assert isinstance(result, dict)
        return result

    def trim(*arguments: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        return command("trim", *arguments, codes=codes)

    def explained() -> dict[str, Any]:
        answer = command("explain", topic, "0", "0")
        decision = answer["local_retention"]["decision"]
        assert isinstance(decision, dict)
        return decision

    def unproven() -> str:
        [partition] = trim("--dry-run", codes=(3,))["partitions"]
        assert (partition["log_start_offset"], partition["reason"]) == (
            first[1],
            "object_unverified",
        )
        return str(partition["text"])

    ledger, producer = Ledger(), transactional_producer(bootstrap, topic)
    with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
        ledger.produce(bootstrap, topic, RECORDS)
        begun = begin_transaction(producer, topic)
        ledger.produce(bootstrap, topic, RECORDS)
        wait_until_stored(store.objects, topic, 0, closed_end(directory))
        [undecided] = trim("--dry-run")["partitions"]
        below = [base for base in log_bases(directory) if base <= begun]
        assert (undecided["log_start_offset"], undecided["reason"]) == (
            below[-1],
            "transaction_open",
        )
        producer.commit_transaction()
        ledger.produce(bootstrap, topic, RECORDS)
        end, first = closed_end(directory), log_bases(directory)
        wait_until_stored(store.objects, topic, 0, end)
        assert sidecar.stop() == 0
    commit(bootstrap, topic, "slow", 5)

    second, third = (log_object(s3_bucket, topic, base) for base in first[1:3])
    second.put(other_bytes(second.data))
    assert "its bytes do not have the checksum of the upload" in unproven()
    second.put(other_bytes(second.data), ChecksumAlgorithm="CRC64NVME")
    assert "the store's own checksum" in unproven()
    second.put(second.data)
    second.copy_from(third)
    assert "another segment is stored in its place" in unproven()
    second.put(second.data)

    shown = trim("--dry-run")
    [partition] = shown["partitions"]
    assert (partition["log_start_offset"], partition["reason"]) == (end, None)
    assert shown["groups_behind"] == [
        {
            "group": "slow",
            "topic": topic,
            "partition": 0,
            "committed_offset": 5,
            "log_start_offset": end,
            "skipped_offsets": end - 5,
        }
    ]
    row = {"group": "slow", "topic": topic, "partitions": 1, "skipped_offsets": end - 5}
    assert shown["groups"] == [{**row, "members": []}]
    assert explained() == partition
    found = command("doctor", codes=(0, 3))["findings"]
    [permitted] = [finding for finding in found if finding["check"] == "local retention"]
    assert permitted["level"] == "ok", permitted
    [behind] = [finding for finding in found if finding["check"] == "consumer groups"]
    assert f"group slow (members: none) has not committed {end - 5} offsets" in behind["found"]
    assert log_bases(directory) == first, "a dry run deletes nothing"
    assert run(["--config", str(config), "trim", "--dry-run"]) == 0
    assert "would be deleted from 1 of the 1 partitions" in capsys.readouterr().out

    config.write_text(json.dumps(with_retention(settings, topic, protect_groups=["slow"])))
    [held] = trim()["partitions"]
    assert (held["log_start_offset"], held["reason"]) == (0, "group_behind")
    assert explained() == held
    assert run(["--config", str(config), "explain", topic, "0", "0"]) == 0
    assert "group slow has committed offset 5, and is protected" in capsys.readouterr().out
    assert log_bases(directory) == first

    config.write_text(json.dumps(retention))
    assert trim()["bytes"] == shown["bytes"]
    assert log_start(bootstrap, topic) == end
    wait_until_gone(directory, end, SECONDS)
    assert trim()["partitions"] == []
    assert command("explain", topic, "0", "0")["local_retention"] == {"decision": None}
    config.write_text(json.dumps(settings))
    assert run(["--config", str(config), "trim"]) == 2


def transactional_producer(bootstrap: str, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(SECONDS)
    return producer


def begin_transaction(producer: Producer, topic: str) -> int:
    """Send a record in a new transaction, and return its offset."""
    offsets: list[int | None] = []
    producer.begin_transaction()
    producer.produce(
        topic, b"x", partition=0, on_delivery=lambda _, message: offsets.append(message.offset())
    )
    assert producer.flush(SECONDS) == 0
    [offset] = offsets
    assert offset is not None
    return offset


@dataclass(frozen=True, slots=True)
class LogObject:
    """A stored `.log`, and a program that replaces its bytes and keeps its metadata."""

    bucket: S3Bucket
    key: str
    data: bytes
    metadata: dict[str, str]

    def put(self, data: bytes, **options: Any) -> None:  # noqa: ANN401 - options of boto3
        self.bucket.client.put_object(
            Bucket=self.bucket.name, Key=self.key, Body=data, Metadata=self.metadata, **options
        )

    def copy_from(self, other: "LogObject") -> None:
        source = f"{other.bucket.name}/{other.key}"
        self.bucket.client.copy_object(Bucket=self.bucket.name, Key=self.key, CopySource=source)


def log_object(bucket: S3Bucket, topic: str, base: int) -> LogObject:
    rows = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
    [key] = [row["Key"] for row in rows if row["Key"].endswith(f"{topic}-0/{base:020d}.log")]
    answer = bucket.client.get_object(Bucket=bucket.name, Key=key)
    return LogObject(bucket, key, answer["Body"].read(), answer["Metadata"])


def other_bytes(data: bytes) -> bytes:
    return bytes([*data[:-1], data[-1] ^ 1])


def commit(bootstrap: str, topic: str, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()
