"""kafka-python and aiokafka read all fixtures, as consumers of the broker did."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import aiokafka
import kafka
import pytest

from tests.harness import broker_segments
from tests.harness.served_archive import Served, expected_rows, text_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

DIRECTORIES = broker_segments.directories()
_SECONDS = 60
ISOLATION = pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
ONE_BATCH = {"max_partition_fetch_bytes": 1}
"""Each Fetch returns one batch: the markers of transactions come in answers of their own."""


def _row(record: Any) -> dict[str, Any]:  # noqa: ANN401 - a record of either client
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": ("CreateTime", "LogAppendTime")[record.timestamp_type],
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": [[key, text_of(value)] for key, value in record.headers],
    }


def _place(directory: Path) -> tuple[str, int]:
    topic, _, partition = directory.name.rpartition("-")
    return topic, int(partition)


def read_with_kafka_python(
    served: Served, topic: str, partition: int, end: int, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    tp = kafka.TopicPartition(topic, partition)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=served.bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        check_crcs=True,
        fetch_max_wait_ms=100,
        **settings,
    )
    rows: list[dict[str, Any]] = []
    try:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        deadline = monotonic() + _SECONDS
        while consumer.position(tp) < end:
            assert monotonic() < deadline, f"no end after {len(rows)} records"
            rows += [_row(r) for r in consumer.poll(1000, max_records=1000).get(tp, [])]
    finally:
        consumer.close()
    return rows


async def read_with_aiokafka(
    served: Served, topic: str, partition: int, end: int, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    tp = aiokafka.TopicPartition(topic, partition)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=served.bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        check_crcs=True,
        fetch_max_wait_ms=100,
        **settings,
    )
    rows: list[dict[str, Any]] = []
    consumer.assign([tp])
    await consumer.start()
    try:
        consumer.seek(tp, 0)
        deadline = monotonic() + _SECONDS
        while await consumer.position(tp) < end:
            assert monotonic() < deadline, f"no end after {len(rows)} records"
            rows += [_row(r) for r in (await consumer.getmany(tp, timeout_ms=1000)).get(tp, [])]
    finally:
        await consumer.stop()
    return rows


@ISOLATION
@pytest.mark.parametrize("settings", [{}, ONE_BATCH], ids=["large", "one_batch"])
def test_kafka_python(served_fixtures: Served, settings: dict[str, Any], isolation: str) -> None:
    for directory in DIRECTORIES:
        topic, partition = _place(directory)
        end = served_fixtures.end(topic, partition, isolation)
        rows = read_with_kafka_python(
            served_fixtures, topic, partition, end, {"isolation_level": isolation, **settings}
        )
        assert rows == expected_rows(directory, isolation, end) != [], directory.name


@ISOLATION
@pytest.mark.parametrize("settings", [{}, ONE_BATCH], ids=["large", "one_batch"])
def test_aiokafka(served_fixtures: Served, settings: dict[str, Any], isolation: str) -> None:
    for directory in DIRECTORIES:
        topic, partition = _place(directory)
        end = served_fixtures.end(topic, partition, isolation)
        rows = asyncio.run(
            read_with_aiokafka(
                served_fixtures, topic, partition, end, {"isolation_level": isolation, **settings}
            )
        )
        assert rows == expected_rows(directory, isolation, end) != [], directory.name
