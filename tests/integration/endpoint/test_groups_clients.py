"""kafka-python, aiokafka and franz-go as members of groups with `--groups local`.

Each client reads half of the topic and commits; a second member of the group reads the rest.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from time import monotonic

import aiokafka
import kafka
import pytest

from devtools.sandbox.go import GoBuilder
from devtools.sandbox.kafka_clients import franz_go_reader
from tests.harness.ci import STALL_SECONDS
from tests.harness.group_reading import ALL, END, PARTITIONS, committed, store_topic
from tests.harness.record_lines import rows_of
from tests.harness.serve_process import ServeProcess, serve_process

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

HALF = len(ALL) // 2
_SECONDS = 60
DONE = dict.fromkeys(range(PARTITIONS), END)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    root = tmp_path_factory.mktemp("local")
    store_topic(root, "orders", "AAAAAAAAAAAAAAAAAAAAAQ")
    with serve_process(root, "--groups", "local") as running:
        yield running


def read_with_kafka_python(bootstrap: str, records: int) -> list[tuple[int, int]]:
    consumer = kafka.KafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap,
        group_id="kafka-python",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
    )
    read: list[tuple[int, int]] = []
    deadline = monotonic() + _SECONDS
    try:
        while len(read) < records:
            assert monotonic() < deadline, f"{len(read)} of {records} records"
            polled = consumer.poll(500, max_records=records - len(read))
            read += [(row.partition, row.offset) for rows in polled.values() for row in rows]
        consumer.commit()
    finally:
        consumer.close()
    return read


async def read_with_aiokafka(bootstrap: str, records: int) -> list[tuple[int, int]]:
    consumer = aiokafka.AIOKafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap,
        group_id="aiokafka",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
    )
    read: list[tuple[int, int]] = []
    await consumer.start()
    try:
        async with asyncio.timeout(_SECONDS):
            while len(read) < records:
                polled = await consumer.getmany(timeout_ms=500, max_records=records - len(read))
                read += [(row.partition, row.offset) for rows in polled.values() for row in rows]
            await consumer.commit()
    finally:
        await consumer.stop()
    return read


def test_kafka_python(local: ServeProcess) -> None:
    half, rest = (read_with_kafka_python(local.bootstrap, HALF) for _ in range(2))
    assert sorted(half + rest) == sorted(ALL)
    assert committed(local.bootstrap, "kafka-python") == DONE


def test_aiokafka(local: ServeProcess) -> None:
    half, rest = (asyncio.run(read_with_aiokafka(local.bootstrap, HALF)) for _ in range(2))
    assert sorted(half + rest) == sorted(ALL)
    assert committed(local.bootstrap, "aiokafka") == DONE


def test_franz_go(local: ServeProcess) -> None:
    with GoBuilder() as builder:
        program = franz_go_reader(builder)
    line = [str(program), local.bootstrap, "read_committed", "1048576", "group=franz-go"]

    def read(records: int) -> list[tuple[int, int]]:
        done = subprocess.run(
            [*line, f"orders:0:{records}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=90 + STALL_SECONDS,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        rows = rows_of(done.stdout)
        return [(tp.partition, row["offset"]) for tp, each in rows.items() for row in each]

    half, rest = read(HALF), read(len(ALL) - HALF)
    assert (len(half), len(rest)) == (HALF, len(ALL) - HALF)
    assert sorted(half + rest) == sorted(ALL)
    assert committed(local.bootstrap, "franz-go") == DONE
