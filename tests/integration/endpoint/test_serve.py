"""`sidetier serve` as a process, read by librdkafka as the broker that wrote the log would be."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sidetier.archive.objects.watermark import read_watermark
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.local import LocalStorage
from tests.harness import broker_segments
from tests.harness.broker_archive import store_broker_segments
from tests.harness.encryption import encrypting, encryption
from tests.harness.made_archive import MadeArchive, batches
from tests.harness.served_archive import Served, expected_rows, read_to_end, row_of, serving
from tests.harness.waiting import wait_for, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

LAYOUT = ArchiveLayout("test", 5)
DIRECTORIES = broker_segments.directories()


def _code(error: KafkaError | None) -> int:
    assert error is not None
    return error.code()


def place(directory: Path) -> tuple[str, int]:
    topic, _, partition = directory.name.rpartition("-")
    return topic, int(partition)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All fixtures, and a topic `grown` with the offsets 0 to 19."""
    root = tmp_path_factory.mktemp("serve")
    store = LocalStorage(root / "store")
    for directory in DIRECTORIES:
        store_broker_segments(store, LAYOUT, directory.name)
    grown = MadeArchive(store, LAYOUT)
    grown.segments(0, 20)
    with serving(root) as running:
        yield running


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: str(path.name))
def test_topics_equal_what_a_consumer_of_the_broker_read(
    served: Served, directory: Path, isolation: str
) -> None:
    topic, partition = place(directory)
    consumer = served.consumer(**{"isolation.level": isolation})
    try:
        at = TopicPartition(topic, partition, 0)
        consumer.assign([at])
        messages = read_to_end(consumer)
        _, end = consumer.get_watermark_offsets(at, timeout=10)
    finally:
        consumer.close()
    rows = expected_rows(directory, isolation, end)
    assert [row_of(message) for message in messages] == rows != []


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("one_batch", [False, True], ids=["large", "one_batch"])
@pytest.mark.parametrize("name", ["tx-0", "comp-gzip-0", "comp-zstd-0"])
def test_every_start_offset(served: Served, name: str, one_batch: bool, isolation: str) -> None:  # noqa: FBT001
    """From each offset of the transactional log; from some of the compressed ones.

    With one byte as limit, each Fetch returns one batch: the markers of a transaction then come in
    other answers than its records.
    """
    directory = next(path for path in DIRECTORIES if path.name == name)
    topic, partition = place(directory)
    settings: dict[str, Any] = {"isolation.level": isolation}
    if one_batch:
        settings |= {
            "fetch.max.bytes": 1000, "message.max.bytes": 1000, "max.partition.fetch.bytes": 1
        }  # fmt: skip
    consumer = served.consumer(**settings)
    try:
        at = TopicPartition(topic, partition, 0)
        consumer.assign([at])
        every = read_to_end(consumer)
        _, end = consumer.get_watermark_offsets(at, timeout=10)
        step = (5 if one_batch else 1) if topic == "tx" else 61
        rows = expected_rows(directory, isolation, end)
        assert [row_of(message) for message in every] == rows
        for start in range(1, end, step):
            consumer.incremental_unassign([at])
            at = TopicPartition(topic, partition, start)
            consumer.incremental_assign([at])
            offsets = [message.offset() for message in read_to_end(consumer)]
            assert offsets == [row["offset"] for row in rows if row["offset"] >= start], start
    finally:
        consumer.close()


def test_timestamps_and_watermarks(served: Served) -> None:
    directory = next(path for path in DIRECTORIES if path.name == "comp-zstd-0")
    rows = broker_segments.consumed(directory)
    consumer = served.consumer()
    try:
        asked = [TopicPartition("comp-zstd", 0, row["timestamp"]) for row in rows[:480:97]]
        for question in asked:
            (answer,) = consumer.offsets_for_times([question], timeout=10)
            first = next(row["offset"] for row in rows if row["timestamp"] >= question.offset)
            assert answer.offset == first
        assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10) == (0, 20)
    finally:
        consumer.close()


def test_metadata_and_the_refusal_of_producers_and_groups(served: Served) -> None:
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    listed = admin.list_topics(timeout=10)
    assert {place(path)[0] for path in DIRECTORIES} <= set(listed.topics)
    assert [f"{b.host}:{b.port}" for b in listed.brokers.values()] == [served.bootstrap]
    errors: list[int] = []
    producer = Producer({"bootstrap.servers": served.bootstrap, "message.timeout.ms": 10_000})
    producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(_code(error)))
    producer.flush(15)
    assert errors == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    consumer = served.consumer()
    try:
        consumer.subscribe(["orders"])
        message = wait_for(lambda: consumer.poll(0.2), 15, "an error")
        assert _code(message.error()) == KafkaError.GROUP_AUTHORIZATION_FAILED
    finally:
        consumer.close()


def test_a_growing_archive_wakes_a_long_poll_and_a_replaced_one_is_noticed(
    served: Served,
) -> None:
    """The consumer waits for up to 60 s in one Fetch; the archive grows meanwhile."""
    archive = MadeArchive(served.store, LAYOUT)
    consumer = served.consumer(
        **{
            "fetch.wait.max.ms": 60_000,
            "socket.timeout.ms": 70_000,
            "auto.offset.reset": "earliest",
        }
    )
    messages: list[Message] = []
    stop = Event()

    def read() -> None:
        while not stop.is_set():
            received = consumer.consume(100, 0.1)
            messages.extend(message for message in received if message.error() is None)

    try:
        consumer.assign([TopicPartition("orders", 0, 15)])
        reader = Thread(target=read, daemon=True)
        reader.start()
        wait_until(lambda: len(messages) == 5, 20, "the first records")
        archive.segment(20, batches(20, 40))
        archive.mark(20, 40)
        wait_until(lambda: len(messages) == 25, 20, "the records that were archived since")
        assert [message.offset() for message in messages] == list(range(15, 40))
        # An unclean election: the records from 20 on are replaced by others, and fewer.
        archive.segment(20, batches(20, 30, each=3))
        archive.mark(20, 30, leader_epoch=9)
        wait_until(lambda: "endpoint.archive_replaced" in served.log(), 20, "the event")
        assert [m.offset() for m in served.read("orders", offset=20)] == list(range(20, 30))
        stop.set()
        reader.join(10)
    finally:
        stop.set()
        consumer.close()
    assert read_watermark(served.store, LAYOUT.watermark_key(archive.tp)) is not None


def test_metrics_are_served(served: Served) -> None:
    served.read("orders")
    with urlopen(f"http://127.0.0.1:{served.metrics_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'sidetier_endpoint_requests_total{api="Fetch",error="none"}' in text
    assert 'sidetier_endpoint_request_seconds_bucket{api="Metadata"' in text
    assert "process_resident_memory_bytes" in text


@pytest.mark.parametrize("path", ["healthz", "readyz"])
def test_probes_are_answered(served: Served, path: str) -> None:
    with urlopen(f"http://127.0.0.1:{served.metrics_port}/{path}", timeout=10) as answer:
        assert answer.status == 200
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{served.metrics_port}/api/partitions", timeout=10)
    with urlopen(f"http://127.0.0.1:{served.metrics_port}/api/status", timeout=10) as answer:
        status = json.load(answer)
    assert status["ready"]
    assert status["topics"] == sum(store["topics"] for store in status["stores"]) > 0
    with urlopen(f"http://127.0.0.1:{served.metrics_port}/", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"


def test_a_half_encrypted_topic_is_served_from_files_and_from_memory(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path / "store")
    plain = MadeArchive(store, LAYOUT)
    plain.segment(0, batches(0, 20))
    MadeArchive(encrypting(store), LAYOUT).segment(20, batches(20, 40))
    plain.mark(20, 40)
    with serving(tmp_path, encryption=encryption(tmp_path)) as running:
        consumer = running.consumer()
        try:
            consumer.assign([TopicPartition("orders", 0, 0)])
            messages = read_to_end(consumer)
        finally:
            consumer.close()
    assert [message.offset() for message in messages] == list(range(40))
    assert [message.value() for message in messages] == [
        f"value-{offset}".encode() for offset in range(40)
    ]
