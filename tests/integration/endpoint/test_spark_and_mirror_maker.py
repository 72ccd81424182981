"""Spark's own Kafka source and MirrorMaker 2 read from the endpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from devtools.sandbox.kafka_clients import MIRROR_MAKER
from devtools.sandbox.spark import SPARK_4
from sidetier.brokers.jars import class_path, jars_of
from sidetier.brokers.java import Java
from sidetier.brokers.kafka import JVM_FLAGS, logging_flags, write_properties
from sidetier.brokers.ports import HOST, free_port
from sidetier.brokers.processes import Command, ManagedProcess
from sidetier.segments.offsets import TopicPartition
from tests.harness import broker_segments, spark_jobs
from tests.harness.ci import STALL_SECONDS
from tests.harness.clusters import KraftFactory
from tests.harness.mirror_runs import consumed
from tests.harness.served_archive import Served, expected_rows, text_of
from tests.harness.spark import SparkDriver, spark_driver
from tests.harness.topics import watermark_offsets

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

DIRECTORIES = broker_segments.directories()
MIRRORED = ("tx", "comp-zstd", "headers-nulls", "compacted")


def _place(directory: Path) -> TopicPartition:
    topic, _, partition = directory.name.rpartition("-")
    return TopicPartition(topic, int(partition))


@pytest.fixture(scope="module")
def spark(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:  # noqa: ARG001
    with spark_driver(SPARK_4, tmp_path_factory.mktemp("spark")) as driver:
        yield driver


@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_spark(spark: SparkDriver, served_fixtures: Served, isolation: str, stream: bool) -> None:  # noqa: FBT001
    options = {
        "kafka.bootstrap.servers": served_fixtures.bootstrap,
        "kafka.isolation.level": isolation,
        "subscribe": ",".join(_place(directory).topic for directory in DIRECTORIES),
        "startingOffsets": "earliest",
    }
    rows: list[dict[str, Any]] = spark.call(spark_jobs.kafka_rows, options=options, stream=stream)
    expected = {
        _place(directory): expected_rows(
            directory, isolation, served_fixtures.end(*_place(directory), isolation)
        )
        for directory in DIRECTORIES
    }
    assert [_row(row) for row in rows] == [
        (tp.topic, tp.partition, {**row, "headers": row["headers"] or None})
        for tp in sorted(expected)
        for row in expected[tp]
    ]


def _row(row: dict[str, Any]) -> tuple[str, int, dict[str, Any]]:
    kind = ("CreateTime", "LogAppendTime")[row["timestampType"]]
    fields = ("offset", "timestamp", "key", "value", "headers")
    plain = {name: row[name] for name in fields}
    return row["topic"], row["partition"], {**plain, "timestamp_type": kind}


def test_mirror_maker(
    served_fixtures: Served, kraft_cluster: KraftFactory, java: Java, tmp_path: Path
) -> None:
    """It needs its offset-syncs topic in the target, and no copies of permissions."""
    # The records are years old.
    target = kraft_cluster(properties={"log.retention.ms": -1}).bootstrap_servers
    config = tmp_path / "mm2.properties"
    write_properties(config, _mirror_maker(served_fixtures.bootstrap, target))
    flags = [*JVM_FLAGS, *logging_flags(tmp_path, log4j2=True)]
    command = [java.program, *flags, "-cp", class_path(jars_of(MIRROR_MAKER))]
    command += ["org.apache.kafka.connect.mirror.MirrorMaker", config]
    process = ManagedProcess(
        Command("MirrorMaker 2", list(map(str, command)), tmp_path / "mirror-maker.log")
    )
    expected = {
        topic: expected_rows(
            broker_segments.ROOT / f"{topic}-0",
            "read_committed",
            served_fixtures.end(topic, 0, "read_committed"),
        )
        for topic in MIRRORED
    }
    try:
        process.start()
        process.wait_until(
            lambda: all(_copied(target, topic) >= len(rows) for topic, rows in expected.items()),
            200 + STALL_SECONDS,
        )
    finally:
        process.kill()  # a clean stop takes up to half a minute
    for topic, rows in expected.items():
        copied = [
            (text_of(key), text_of(value), [[k, text_of(v)] for k, v in headers or []], timestamp)
            for key, value, headers, (_, timestamp) in consumed(target, f"archive.{topic}")[0]
        ]
        assert copied == [
            (row["key"], row["value"], row["headers"], row["timestamp"]) for row in rows
        ], topic


def _copied(target: str, topic: str) -> int:
    try:
        return watermark_offsets(target, f"archive.{topic}")[1]
    except KafkaException:  # the topic does not exist yet
        return 0


def _mirror_maker(source: str, target: str) -> dict[str, str]:
    names = (
        *("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"),
        *("offset.storage", "status.storage", "config.storage"),
    )
    return {
        "clusters": "archive, target",
        "archive.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        "archive->target.enabled": "true",
        "archive->target.topics": "|".join(MIRRORED),
        "target->archive.enabled": "false",
        "offset-syncs.topic.location": "target",
        "sync.topic.acls.enabled": "false",
        "sync.group.offsets.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "archive->target.consumer.isolation.level": "read_committed",
        "archive->target.consumer.auto.offset.reset": "earliest",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://{HOST}:{free_port()}",
        "replication.factor": "1",
        **{f"{name}.replication.factor": "1" for name in names},
    }
