"""Clients that read slowly or not at all, many connections, and topics that are recreated."""

import socket
import struct
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Event, Thread
from uuid import uuid4

import pytest
from confluent_kafka import Message, TopicPartition

from sidetier.segments import offsets
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.local import LocalStorage
from sidetier.wire.protocol import ApiKey, encode_header
from tests.harness.endpoint import RawClient
from tests.harness.large_topic import EACH, slow_clients, store_large
from tests.harness.made_archive import MadeArchive, batches
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.served_archive import Served, serving
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LAYOUT = ArchiveLayout("test", 5)
MIB = 1 << 20
CONNECTIONS = 10_000
AT_ONCE = 500
SLOW = 50
RECORDS = 256


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The topic `large`, with 16 MiB of records, and `again`, with the offsets 0 to 29."""
    root = tmp_path_factory.mktemp("serve")
    store = LocalStorage(root / "store")
    store_large(store, LAYOUT, RECORDS // EACH)
    again = MadeArchive(store, LAYOUT, offsets.TopicPartition("again", 0))
    again.segment(0, batches(0, 30))
    again.mark(0, 30, topic_id=_topic_id())
    with serving(root) as running:
        yield running


def _topic_id() -> str:
    return urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


def test_slow_readers_delay_nobody_and_take_no_memory(served: Served) -> None:
    """50 clients ask for 4 MiB each, five times, and read nothing of it."""
    assert len(served.read("large")) == RECORDS
    before = served.resident_bytes()
    with slow_clients(served, [0] * SLOW):
        assert [message.offset() for message in served.read("large")] == list(range(RECORDS))
        grown = served.resident_bytes() - before
    assert grown < 32 * MIB, f"{grown / MIB:.0f} MiB"
    wait_until(lambda: _open_connections(served) == 0, 30, "the end of their connections")


def _open_connections(served: Served) -> float:
    return served.metric("sidetier_endpoint_connections")


def test_many_connections(served: Served) -> None:
    """10,000 connections in turn, 500 at a time, and each with a request."""
    with RawClient(served.address) as client:
        client.request(ApiKey.API_VERSIONS, 0)
    _connect(served)
    before = served.resident_bytes()
    for _ in range(CONNECTIONS // AT_ONCE - 1):
        _connect(served)
    grown = served.resident_bytes() - before
    assert grown < 16 * MIB, f"{grown / MIB:.0f} MiB"
    assert served.metric("sidetier_endpoint_accepted_connections_total") >= CONNECTIONS
    assert [message.offset() for message in served.read("large")] == list(range(RECORDS))


def _connect(served: Served) -> None:
    request = encode_header(ApiKey.API_VERSIONS, 0, 1, "many")
    frame = struct.pack(">i", len(request)) + request
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(served.address, 60))
            for _ in range(AT_ONCE)
        ]
        for connection in opened:
            connection.sendall(frame)
        for connection in opened:
            assert len(connection.recv(4)) == 4
    wait_until(lambda: _open_connections(served) == 0, 60, "the end of the connections")


def test_a_recreated_topic(served: Served) -> None:
    """The archive of the deleted topic is retired; the new topic has other records, and fewer."""
    archive = MadeArchive(served.store, LAYOUT, offsets.TopicPartition("again", 0))
    consumer = served.consumer(**{"auto.offset.reset": "earliest"})
    messages: list[Message] = []
    stop = Event()

    def read() -> None:
        while not stop.is_set():
            received = consumer.consume(100, 0.1)
            messages.extend(message for message in received if message.error() is None)

    reader = Thread(target=read, daemon=True)
    try:
        consumer.assign([TopicPartition("again", 0, 0)])
        reader.start()
        wait_until(lambda: len(messages) == 30, 30, "the records of the old topic")
        archive.lose(0)
        served.store.delete_object(LAYOUT.watermark_key(archive.tp))
        values = [MadeRecord(offset, value=b"new") for offset in range(10)]
        archive.segment(0, [MadeBatch(tuple(values))])
        archive.mark(0, 10, topic_id=_topic_id())
        wait_until(lambda: len(messages) == 40, 60, "the records of the new topic")
    finally:
        stop.set()
        reader.join(10)
        consumer.close()
    old, new = messages[:30], messages[30:]
    assert [message.value() for message in old] == [b"value-%d" % number for number in range(30)]
    assert [(message.offset(), message.value()) for message in new] == [
        (number, b"new") for number in range(10)
    ]
