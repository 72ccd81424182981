"""Spark's own Kafka source and MirrorMaker 2 read from the endpoint: the archive alone, and one log
with brokers of Kafka 2.8 with ZooKeeper (`make test-long`: with each release).
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

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
from tests.harness.live_log import OLDEST, LiveLog, Release, live_log, read, releases
from tests.harness.served_archive import Served, expected_rows, row_of
from tests.harness.spark import SparkDriver, spark_driver
from tests.harness.topics import watermark_offsets

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

DIRECTORIES = broker_segments.directories()
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ORDERS, PAID = TopicPartition("orders", 0), TopicPartition("paid", 0)
"""The second one has transactions."""
LEVELS = ("read_committed", "read_uncommitted")
GROUP = "orders-app"

Rows = dict[TopicPartition, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def spark(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:  # noqa: ARG001
    with spark_driver(SPARK_4, tmp_path_factory.mktemp("spark")) as driver:
        yield driver


def _place(directory: Path) -> TopicPartition:
    topic, _, partition = directory.name.rpartition("-")
    return TopicPartition(topic, int(partition))


def _read_with_spark(
    spark: SparkDriver, bootstrap: str, isolation: str, topics: str, into: Path | None
) -> list[tuple[str, int, dict[str, Any]]]:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": isolation,
        "subscribe": topics,
        "startingOffsets": "earliest",
    }
    folder = None if into is None else str(into)
    rows: list[dict[str, Any]] = spark.call(spark_jobs.kafka_rows, options=options, into=folder)
    return [_row(row) for row in rows]


def _row(row: dict[str, Any]) -> tuple[str, int, dict[str, Any]]:
    kind = ("CreateTime", "LogAppendTime")[row["timestampType"]]
    fields = ("offset", "timestamp", "key", "value", "headers")
    plain = {name: row[name] for name in fields}
    return row["topic"], row["partition"], {**plain, "timestamp_type": kind}


def _rows_for_spark(expected: Rows) -> list[tuple[str, int, dict[str, Any]]]:
    return [
        (tp.topic, tp.partition, {**row, "headers": row["headers"] or None})
        for tp in sorted(expected)
        for row in expected[tp]
    ]


def test_spark_reads_the_archive(
    spark: SparkDriver, served_fixtures: Served, tmp_path: Path
) -> None:
    topics = ",".join(_place(directory).topic for directory in DIRECTORIES)
    isolation = "read_committed"
    rows = _read_with_spark(spark, served_fixtures.bootstrap, isolation, topics, tmp_path)
    expected = {
        _place(directory): expected_rows(
            directory, isolation, served_fixtures.end(*_place(directory), isolation)
        )
        for directory in DIRECTORIES
    }
    assert rows == _rows_for_spark(expected)


@dataclass(slots=True)
class Seam:
    """A live log, and the records that its brokers have deleted, by isolation level."""

    log: LiveLog
    deleted: dict[str, Rows] = field(default_factory=lambda: {level: {} for level in LEVELS})

    def write_orders(self) -> None:
        """Send records in each codec, with keys and headers, and without values."""
        contents = random.Random(1)
        for codec in CODECS:
            producer = Producer({"bootstrap.servers": self.log.brokers, "compression.type": codec})
            for number in range(60):
                producer.produce(
                    ORDERS.topic,
                    None if number % 11 == 0 else contents.randbytes(700),
                    str(number % 7).encode(),
                    partition=0,
                    headers=[("n", str(number).encode()), ("none", None)] if number % 3 else None,
                )
                if number % 10 == 9:
                    producer.flush(60)
            assert producer.flush(60) == 0

    def write_payments(self) -> None:
        """Send transactions; every third one is aborted."""
        settings = {"bootstrap.servers": self.log.brokers, "transactional.id": PAID.topic}
        producer = Producer(settings)
        producer.init_transactions(60)
        for number in range(12):
            producer.begin_transaction()
            for row in range(20):
                value = f"{number}-{row}".encode() * 80
                producer.produce(PAID.topic, value, partition=0)
                if row % 6 == 5:
                    producer.flush(60)
            if number % 3:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)

    def delete(self, tp: TopicPartition, before: int) -> None:
        """Let the broker delete records that are archived."""
        for level, deleted in self.deleted.items():
            rows = [row for row in _consumed(self.log.brokers, tp, level) if row["offset"] < before]
            deleted.setdefault(tp, []).extend(rows)
        self.log.delete(tp.topic, tp.partition, before)

    def rows(self, level: str) -> Rows:
        """Return what consumers of the brokers have received, also of what is deleted now."""
        return {
            tp: [*rows, *_consumed(self.log.brokers, tp, level)]
            for tp, rows in self.deleted[level].items()
        }


def _consumed(bootstrap: str, tp: TopicPartition, isolation: str) -> list[dict[str, Any]]:
    """Return all records of a partition, from its start to its present end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "expected",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    low, _ = consumer.get_watermark_offsets(KafkaPartition(*tp), 60)
    consumer.assign([KafkaPartition(*tp, low)])
    rows: list[dict[str, Any]] = []
    while True:
        message = consumer.poll(60)
        assert message is not None, f"no end after {len(rows)} records"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            break
        rows.append(row_of(message))
    consumer.close()
    return rows


@pytest.fixture(scope="module", params=releases(OLDEST), ids=str)
def seam(
    request: pytest.FixtureRequest,
    java: Java,  # noqa: ARG001 - servers need it
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Seam]:
    """Both topics, with a log start within each, and within a transaction."""
    release: Release = request.param
    topics = {ORDERS.topic: 1, PAID.topic: 1}
    with live_log(tmp_path_factory.mktemp("live"), release, topics) as log:
        seam = Seam(log)
        seam.write_orders()
        seam.write_payments()
        for tp in (ORDERS, PAID):
            seam.delete(tp, log.archived(*tp) // 2 + 5)
        yield seam


def test_spark_reads_over_the_seam(spark: SparkDriver, seam: Seam, tmp_path: Path) -> None:
    """In batches, and in a stream whose position the brokers delete between two queries."""
    topics, endpoint = f"{ORDERS.topic},{PAID.topic}", seam.log.endpoint.bootstrap
    rows = _read_with_spark(spark, endpoint, "read_uncommitted", topics, None)
    assert rows == _rows_for_spark(seam.rows("read_uncommitted"))
    rows = _read_with_spark(spark, endpoint, "read_committed", topics, tmp_path)
    assert rows == _rows_for_spark(seam.rows("read_committed"))
    end = watermark_offsets(seam.log.brokers, ORDERS.topic)[1]
    seam.write_orders()
    archived = seam.log.archived(*ORDERS)
    assert archived > end + 20
    seam.delete(ORDERS, archived)
    rows = _read_with_spark(spark, endpoint, "read_committed", topics, tmp_path)
    assert rows == _rows_for_spark(seam.rows("read_committed"))


def test_mirror_maker_copies_over_the_seam(seam: Seam, java: Java, tmp_path: Path) -> None:
    """With the committed offsets of groups. Source and target are one cluster here."""
    application = seam.log.consumer(GROUP, auto_offset_reset="earliest")
    application.subscribe([ORDERS.topic])
    expected = seam.rows("read_committed")
    assert len(read(application, len(expected[ORDERS]))) == len(expected[ORDERS])
    application.commit(asynchronous=False)
    application.close()
    target = seam.log.brokers
    config = tmp_path / "mm2.properties"
    write_properties(config, _mirror_maker(seam.log.endpoint.bootstrap, target))
    flags = [*JVM_FLAGS, *logging_flags(tmp_path, log4j2=True)]
    command = [java.program, *flags, "-cp", class_path(jars_of(MIRROR_MAKER))]
    command += ["org.apache.kafka.connect.mirror.MirrorMaker", config]
    process = ManagedProcess(
        Command("MirrorMaker 2", list(map(str, command)), tmp_path / "mirror-maker.log")
    )
    copy = KafkaPartition(f"archive.{ORDERS.topic}", 0)
    members = Consumer({"bootstrap.servers": target, "group.id": GROUP})
    try:
        process.start()
        process.wait_until(
            lambda: (
                all(_copied(target, tp) >= len(rows) for tp, rows in expected.items())
                and members.committed([copy], 60)[0].offset > 0
            ),
            200 + STALL_SECONDS,
        )
    finally:
        process.kill()  # a clean stop takes up to half a minute
    for tp, rows in expected.items():
        copied = _consumed(target, TopicPartition(f"archive.{tp.topic}", 0), "read_committed")
        assert list(map(_contents, copied)) == list(map(_contents, rows)), tp
    # The offsets are the same, because no transaction has left markers.
    assert members.committed([copy], 60)[0].offset <= expected[ORDERS][-1]["offset"] + 1
    members.close()


def _contents(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "offset"}


def _copied(target: str, tp: TopicPartition) -> int:
    try:
        return watermark_offsets(target, f"archive.{tp.topic}")[1]
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
        "archive->target.topics": f"{ORDERS.topic}|{PAID.topic}",
        "archive->target.groups": GROUP,
        "target->archive.enabled": "false",
        "offset-syncs.topic.location": "target",
        "sync.topic.acls.enabled": "false",
        "sync.topic.configs.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "archive->target.consumer.isolation.level": "read_committed",
        "archive->target.consumer.auto.offset.reset": "earliest",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://{HOST}:{free_port()}",
        "replication.factor": "1",
        **{f"{name}.replication.factor": "1" for name in names},
    }
