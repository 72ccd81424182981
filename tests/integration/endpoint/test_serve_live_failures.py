"""`sidetier serve --live` while brokers, the store or the endpoint are away.

In CI with the oldest brokers; `make test-long` has all releases.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from devtools.sandbox.kafka import KafkaCluster
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import file_store
from tests.harness.live_log import OLDEST, Release, releases
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.serve_process import LAYOUT, ServeProcess, serve_process
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic, delete_records

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SENT, TRIMMED = 300, 150


@dataclass(slots=True)
class Reading:
    """A plain consumer that reads in its own thread."""

    bootstrap: str
    topic: str
    offsets: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        plain = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"g-{uuid4().hex[:6]}",
                "auto.offset.reset": "latest",  # a reset would skip, and show
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        plain.assign([TopicPartition(self.topic, 0, 0)])
        while not self.stop.is_set():
            message = plain.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.offsets.append(int(message.offset() or 0))
            elif error.code() not in {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT}:
                self.errors.append(error.str())
        plain.close()

    def wait_for(self, count: int, seconds: float = 120) -> None:
        """Wait until this number of records has come, each once and in order."""
        deadline = monotonic() + seconds
        while len(self.offsets) < count and monotonic() < deadline:
            threading.Event().wait(0.05)
        assert self.offsets[:count] == list(range(count)), (len(self.offsets), self.errors)
        assert not self.errors

    def end(self) -> None:
        self.stop.set()
        self.thread.join()


@dataclass(frozen=True, slots=True)
class Log:
    """A topic of three brokers, trimmed, with an endpoint over both halves."""

    topic: str
    cluster: KafkaCluster
    endpoint: ServeProcess
    store: Path

    def produce(self, first: int, count: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self.cluster.bootstrap_servers, "acks": "all", "linger.ms": 0}
        )
        for number in range(first, first + count):
            producer.produce(self.topic, str(number).encode() * 40, partition=0)
            if number % 10 == 9:
                producer.flush(60)
        assert producer.flush(60) == 0

    def leader(self) -> int:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers})
        return int(admin.list_topics(self.topic, 30).topics[self.topic].partitions[0].leader)


@pytest.fixture(scope="module", params=releases(OLDEST), ids=str)
def log(
    request: pytest.FixtureRequest,
    java: object,  # noqa: ARG001 - servers need it
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Log]:
    release: Release = request.param
    topic, root = f"live-{uuid4().hex[:6]}", tmp_path_factory.mktemp("live")
    store = file_store(root / "store")
    with release.cluster(tmp_path_factory.mktemp("kafka"), brokers=3) as cluster:
        configs = {**small_segments(release.version), "min.insync.replicas": "1"}
        create_topic(cluster.bootstrap_servers, topic, partitions=1, replicas=3, configs=configs)
        live = ("--live", cluster.bootstrap_servers, "--prefer", "broker")
        with serve_process(root, *live, store=store) as endpoint:
            log = Log(topic, cluster, endpoint, root / "store")
            leader = log.leader()
            bits = {"storage": {"prefix_entropy_bits": LAYOUT.bits}}
            settings = merged(beside(cluster, store, broker_id=leader, topics=[topic]), bits)
            with Sidecar(tmp_path_factory.mktemp("sidecar"), settings, store):
                log.produce(0, SENT)
                end = closed_end(cluster.log_dirs(leader)[0] / f"{topic}-0")
                wait_until_stored(store.objects, topic, 0, end)
                delete_records(cluster.bootstrap_servers, topic, 0, TRIMMED)
            yield log


def test_nothing_is_skipped_or_repeated_while_brokers_endpoint_and_store_go_and_come(
    log: Log,
) -> None:
    reading = Reading(log.endpoint.bootstrap, log.topic)
    reading.wait_for(SENT)
    count = SENT
    for stops in (log.cluster.kill_broker, log.cluster.stop_broker):
        leader = log.leader()
        stops(leader)
        log.produce(count, 30)
        count += 30
        reading.wait_for(count)
        log.cluster.start_broker(leader)
    log.endpoint.kill()
    log.produce(count, 30)
    count += 30
    log.endpoint.start()
    reading.wait_for(count)
    away = log.store.with_name("away")
    log.store.rename(away)
    try:
        log.produce(count, 30)
        count += 30
        reading.wait_for(count)
    finally:
        away.rename(log.store)
    reading.end()


def test_archived_records_are_served_while_all_brokers_are_away(log: Log) -> None:
    """The end of the archive is no end of the log then, and not out of range."""
    for number in log.cluster.brokers:
        log.cluster.kill_broker(number)
    reading = Reading(log.endpoint.bootstrap, log.topic)
    reading.wait_for(TRIMMED)
    threading.Event().wait(3)
    assert len(reading.offsets) < SENT + 30, "the active segment is on brokers alone"
    for number in log.cluster.brokers:
        log.cluster.start_broker(number, wait=False)  # none is ready before there is a quorum
    reading.wait_for(SENT)
    reading.end()
