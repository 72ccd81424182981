"""`sidetier serve` over an S3 server that is also away, slow, or returns damaged data."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from devtools.sandbox.s3server import S3Server
from sidetier.segments import offsets
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.s3 import S3Storage
from tests.harness import broker_segments, s3_proxy
from tests.harness.archive_objects import s3_store
from tests.harness.broker_archive import store_broker_segments
from tests.harness.large_topic import EACH, slow_clients, store_large
from tests.harness.s3 import new_bucket
from tests.harness.s3_proxy import S3Proxy
from tests.harness.served_archive import Served, expected_rows, read_to_end, row_of, serving
from tests.harness.stores import s3_settings
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

MEMORY = 16 << 20
BLOCKS = MEMORY * 3 // 4
"""The part of the memory that is for blocks of segments."""
SEGMENTS = 10
"""Segments of the topic `large`: 40 MiB."""
LAYOUT = ArchiveLayout("test", 5)
DIRECTORIES = broker_segments.directories()
NONE = broker_segments.ROOT / "comp-none-0"
_END = broker_segments.end_of_closed(NONE)
FAULTY = ("away", "slow", "cut", "damaged")
"""Topics with the records of `comp-none`, each for one test: what was read once is in memory."""


@dataclass(frozen=True, slots=True)
class OverS3:
    """An endpoint, and the proxy between it and the S3 server."""

    served: Served
    proxy: S3Proxy


@pytest.fixture(scope="module")
def over_s3(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverS3]:
    bucket = new_bucket(s3_server)
    store = S3Storage(bucket.name, "", s3_settings(bucket))
    for directory in DIRECTORIES:
        store_broker_segments(store, LAYOUT, directory.name)
    for topic in FAULTY:
        tp = offsets.TopicPartition(topic, 0)
        store_broker_segments(store, LAYOUT, NONE.name, tp)
    store_large(store, LAYOUT, SEGMENTS)
    root = tmp_path_factory.mktemp("serve")
    with S3Proxy(s3_server.port) as proxy:
        archive = s3_store(bucket, proxy.url)
        retry = {"attempts": 2, "first_delay": "50ms"}
        with serving(root, "--memory", f"{MEMORY >> 20}MiB", store=archive, retry=retry) as served:
            yield OverS3(served, proxy)


@pytest.fixture(autouse=True)
def _healed(over_s3: OverS3) -> Iterator[None]:
    yield
    over_s3.proxy.heal()


def _damaged_log(topic: str) -> s3_proxy.Rule:
    """Return a rule that damages each range that is read of the segments of a topic."""

    def rule(method: str, key: str) -> s3_proxy.Fault | None:
        return _damaged if method == "GET" and key.endswith(".log") and topic in key else None

    return rule


def _damaged(handler: s3_proxy._Handler) -> None:
    """Pass the answer on with another byte before the last one.

    At the end of a segment that is the last byte of a value; the number of headers follows.
    """
    answer, body = handler.forward()
    handler.record(answer.status)
    handler.send_head(answer, body)
    handler.wfile.write(body[:-2] + bytes([body[-2] ^ 0xFF]) + body[-1:])


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_topics_equal_what_a_consumer_of_the_broker_read(over_s3: OverS3, isolation: str) -> None:
    for directory in DIRECTORIES:
        topic, _, partition = directory.name.rpartition("-")
        settings = {"isolation.level": isolation}
        messages = over_s3.served.read(topic, int(partition), settings=settings)
        end = over_s3.served.end(topic, int(partition), isolation)
        rows = expected_rows(directory, isolation, end)
        assert [row_of(message) for message in messages] == rows != []


def _read(over_s3: OverS3, topic: str) -> list[int]:
    return [message.offset() or 0 for message in over_s3.served.read(topic)]


def _expected() -> list[int]:
    return [row["offset"] for row in expected_rows(NONE, "read_uncommitted", _END)]


def _away_then_read(over_s3: OverS3, topic: str, fault: s3_proxy.Fault) -> list[int]:
    """Read a topic from a store that fails until the endpoint has answered with an error."""
    consumer = over_s3.served.consumer()
    try:
        over_s3.proxy.misbehave(lambda _method, key: fault if topic in key else None)
        consumer.assign([TopicPartition(topic, 0, 0)])
        consumer.poll(0)
        wait_until(lambda: _failures(over_s3, topic), 60, "an error of the store")
        over_s3.proxy.heal()
        return [message.offset() or 0 for message in read_to_end(consumer)]
    finally:
        consumer.close()


def _failures(over_s3: OverS3, topic: str) -> bool:
    lines = over_s3.served.log().splitlines()
    return any("endpoint.store_failed" in line and topic in line for line in lines)


def test_a_store_that_is_away(over_s3: OverS3) -> None:
    """The client gets retriable errors, and reads on once the store answers again."""
    unavailable = s3_proxy.answer(503, "ServiceUnavailable")
    assert _away_then_read(over_s3, "away", unavailable) == _expected()


def test_a_store_that_breaks_connections(over_s3: OverS3) -> None:
    assert _away_then_read(over_s3, "cut", s3_proxy.cut_answer) == _expected()


def test_a_slow_store(over_s3: OverS3) -> None:
    """Each request takes half a second longer, and the first reads of records take 4 s."""
    slow = s3_proxy.first(3, s3_proxy.late(4.0), method="GET", part=".log")

    def rule(method: str, key: str) -> s3_proxy.Fault | None:
        return slow(method, key) or s3_proxy.late(0.5)

    over_s3.proxy.misbehave(rule)
    assert _read(over_s3, "slow") == _expected()


def test_clients_detect_damaged_records(over_s3: OverS3) -> None:
    """The endpoint does not check CRCs. Without `check.crcs`, librdkafka returns the record."""
    over_s3.proxy.misbehave(_damaged_log("damaged"))
    with pytest.raises(KafkaException) as raised:
        over_s3.served.read("damaged")
    assert raised.value.args[0].code() == KafkaError._BAD_MSG
    unchecked = over_s3.served.read("damaged", settings={"check.crcs": False})
    values = [row_of(message) for message in unchecked]
    rows = expected_rows(NONE, "read_uncommitted", _END)
    assert len(values) == len(rows)
    assert values != rows


def test_slow_clients_take_the_configured_memory_only(over_s3: OverS3) -> None:
    """They ask for more than twice the memory, and read nothing; later clients are served again."""
    served = over_s3.served
    assert len(served.read("large")) == SEGMENTS * EACH
    before = served.resident_bytes()
    # Two places of each segment: an answer waits for the block of its first batch only.
    with slow_clients(served, range(0, SEGMENTS * EACH, EACH // 2)):
        wait_until(
            lambda: (
                served.metric("sidetier_endpoint_connections") >= 2 * SEGMENTS
                and served.metric("sidetier_endpoint_block_bytes") > 0.9 * BLOCKS
            ),
            60,
            "the slow clients to hold the memory",
        )
        held = served.metric("sidetier_endpoint_block_bytes")
        grown = served.resident_bytes() - before
    assert held <= BLOCKS
    assert grown < MEMORY, f"{grown >> 20} MiB"
    assert len(served.read("large")) == SEGMENTS * EACH
