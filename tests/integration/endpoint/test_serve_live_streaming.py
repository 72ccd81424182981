"""Kafka Streams and Kafka Connect read over the seam through `sidetier serve --live`, and write to
the brokers, with the settings of docs/serve-clients.md.

The records that they need are in the archive alone, so a consumer of the brokers would fail here.
`make test-long` has all releases of brokers, Kafka Streams 3.9.2, and Flink.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from sidetier.brokers.java import Java
from sidetier.brokers.kafka import KAFKA_3_9, KAFKA_4_3
from sidetier.brokers.processes import ManagedProcess
from tests.harness.ci import STALL_SECONDS
from tests.harness.endpoint import write_users
from tests.harness.live_log import NEWEST, OLDEST, LiveLog, Release, live_log, releases
from tests.harness.markdown import blocks, text_of
from tests.harness.streaming import ConnectWorker, flink_job, streams_applications
from tests.harness.topics import create_topic, watermark_offsets
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PAGE = text_of(Path("docs/serve-clients.md"))
ORDERS, RATES, PRICES = "orders", "rates", "prices"
PARTITIONS = {ORDERS: 2, RATES: 2, PRICES: 1}
KEYS = tuple(f"k{number}" for number in range(10))
PLAIN, EXACT, FLINK = "plain", "exact", "flink"
DEAD = "dead-"
STALL_AT = 475
"""The order at which the application stops when it is about to be killed."""
ROUNDS = 8
"""How often all keys of a table are updated, before half of them are."""
TRANSACTION = 50
"""Number of records of a transaction, in both partitions."""
SECONDS = 120 + STALL_SECONDS

READER = {
    "password": "secret",
    # What docs/serve-clients.md says that they need, and no more.
    "topics": [*PARTITIONS, "plain-bucket-repartition", "exact-KSTREAM-*"],
    "groups": [PLAIN, EXACT, FLINK, "connect-first", "connect-second"],
}
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="reader" password="secret";',
}

Values = dict[str, list[str]]
"""Values in their order, by key."""


@dataclass(frozen=True, slots=True)
class Order:
    """A record of the topic; one of an aborted transaction is not `is_committed`."""

    number: int
    is_committed: bool = True

    @property
    def key(self) -> str:
        return KEYS[self.number * 7 % len(KEYS)]

    @property
    def is_json(self) -> bool:
        return self.number % 50 != 7

    @property
    def text(self) -> str:
        return f"{self.number:04d} {'x' * 600}"

    @property
    def value(self) -> str:
        return f'"{self.text}"' if self.is_json else f'"{self.text}'


@dataclass(slots=True)
class Writer:
    """Sends records to the brokers, and knows what the applications must make of them."""

    brokers: str
    orders: list[Order] = field(default_factory=list)
    rates: dict[str, str] = field(default_factory=dict)
    prices: dict[str, str] = field(default_factory=dict)
    joined: Values = field(default_factory=dict)

    def send_table(self, topic: str, first: int) -> None:
        """Update all keys, and then the second half of them, so that the first half is trimmed.

        `first` is the number in the first values.
        """
        table = {RATES: self.rates, PRICES: self.prices}[topic]
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 0})
        for number in range(3 * ROUNDS):
            for key in KEYS if number < ROUNDS else KEYS[5:]:
                table[key] = f"{topic}{first + number}"
                send(producer, topic, key, f"{table[key]} {'y' * 900}")
            producer.flush(60)
        assert producer.flush(60) == 0

    def send_orders(self, first: int, count: int) -> None:
        """Send transactions, of which the second one is aborted."""
        settings = {"bootstrap.servers": self.brokers, "transactional.id": ORDERS, "linger.ms": 0}
        producer = Producer(settings)
        producer.init_transactions(60)
        kept = [Order(number) for number in range(first, first + count)]
        lost = [Order(9000 + number, is_committed=False) for number in range(first, first + 20)]
        rows = [kept[at : at + TRANSACTION] for at in range(0, count, TRANSACTION)]
        for orders in (*rows[:1], lost, *rows[1:]):
            producer.begin_transaction()
            for order in orders:
                send(producer, ORDERS, order.key, order.value)
                if order.number % 10 == 9:
                    producer.flush(60)
            producer.flush(60)
            if orders is lost:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
            self.orders += orders
        for order in kept:
            row = "|".join((f"{order.number:04d}", self.rates[order.key], self.prices[order.key]))
            self.joined.setdefault(order.key, []).append(row)

    def values(
        self,
        value_of: Callable[[Order], str],
        key_of: Callable[[Order], str] = lambda order: order.key,
        *,
        also_aborted: bool = False,
        where: Callable[[Order], bool] = lambda _: True,
    ) -> Values:
        """Return something of each order, by key."""
        found: Values = {}
        for order in self.orders:
            if (order.is_committed or also_aborted) and where(order):
                found.setdefault(key_of(order), []).append(value_of(order))
        return found

    def outputs(self) -> dict[str, Values]:
        """Return what must be in each output topic.

        The plain application reads uncommitted records, which is the default of Kafka Streams.
        """
        every = self.values(lambda order: order.value.upper(), also_aborted=True)
        buckets = self.values(str, lambda order: f"b{order.number % 3}", also_aborted=True)
        digits = self.values(lambda order: order.text[:4], lambda order: order.text[3])
        return {
            "plain-upper": every,
            "plain-counts": counted(every),
            "plain-buckets": counted(buckets),
            "exact-joined": self.joined,
            "exact-counts": counted(self.values(str)),
            FLINK: {
                digit: [f"{digit} {number} {count}" for count, number in enumerate(numbers, 1)]
                for digit, numbers in digits.items()
            },
        }


def send(producer: Producer, topic: str, key: str, value: str) -> None:
    producer.produce(topic, value, key, KEYS.index(key) % PARTITIONS[topic])


def counted(values: Values) -> Values:
    """Return the counts that a table of these values has one after the other."""
    return {key: [str(each + 1) for each in range(len(row))] for key, row in values.items()}


def sent_to(log: LiveLog, topic: str, isolation: str = "read_committed") -> Values:
    """Return all values that the brokers have of a topic with one partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": log.brokers,
            "group.id": "outputs",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: Values = {}
    while True:
        message = consumer.poll(60)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            break
        found.setdefault((message.key() or b"").decode(), []).append(
            (message.value() or b"").decode()
        )
    consumer.close()
    return found


def has_sent_last(log: LiveLog) -> bool:
    """Whether a transaction, which is open, has the join of the order at which it stops."""
    sent = sent_to(log, "exact-joined", "read_uncommitted").values()
    return any(value.startswith(f"{STALL_AT:04d}|") for row in sent for value in row)


def has_sent(log: LiveLog, topic: str, count: int) -> bool:
    return number_of(sent_to(log, topic)) >= count


def number_of(values: Values) -> int:
    return sum(map(len, values.values()))


def positions(log: LiveLog, group: str) -> list[int]:
    """Return what a group has committed in the live cluster, by partition."""
    consumer = Consumer({"bootstrap.servers": log.brokers, "group.id": group})
    wanted = [TopicPartition(ORDERS, number) for number in range(PARTITIONS[ORDERS])]
    committed = [each.offset for each in consumer.committed(wanted, 60)]
    consumer.close()
    return committed


def bounds(log: LiveLog) -> list[tuple[int, int]]:
    """Return the log start and the end of each partition."""
    return [watermark_offsets(log.brokers, ORDERS, each) for each in range(PARTITIONS[ORDERS])]


def is_at_end(log: LiveLog, group: str) -> bool:
    """Whether a group has committed the ends of all partitions, or the markers before them."""
    both = zip(positions(log, group), bounds(log), strict=True)
    return all(position >= end - 1 for position, (_, end) in both)


def trim(log: LiveLog, *topics: str) -> None:
    """Let the broker delete archived records: all that a table has of some keys, and, as local
    retention does, no record of a transaction whose end is not archived.
    """
    for topic in topics:
        for partition in range(PARTITIONS[topic]):
            end = log.archived(topic, partition)
            if topic == ORDERS:
                end -= TRANSACTION
            assert end > ROUNDS * len(KEYS) // PARTITIONS[topic]
            log.delete(topic, partition, end)


def documented(language: str, beginning: str, log: LiveLog) -> str:
    """Return the only block of the page that begins like this, with the real addresses."""
    texts = [each.text for each in blocks(PAGE, language) if each.text.startswith(beginning)]
    assert len(texts) == 1
    text = texts[0].replace("broker-1:9092", log.brokers)
    for address in ("kafka-log.example:9092", "archive.example:9092"):
        text = text.replace(address, log.endpoint.bootstrap)
    return text


def properties_of(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def login(prefix: str = "") -> dict[str, str]:
    """Return the settings of a login at the endpoint; the brokers need none."""
    return {f"{prefix}{name}": value for name, value in LOGIN.items()}


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the brokers, and of Kafka Streams.

    The long test also has a job of Flink, and kills the endpoint.
    """

    release: Release
    streams: str
    is_long: bool

    def __str__(self) -> str:
        return f"{self.release}-streams-{self.streams}"


def versions() -> list[Versions]:
    """Return the newest versions; with SERVE_LIVE_RELEASES=all, all brokers in the long test, and
    the oldest and the newest ones with the older Kafka Streams, too.
    """
    brokers = releases(NEWEST)
    is_all = len(brokers) > 1
    old = (OLDEST, NEWEST) if is_all else ()
    return [
        *(Versions(release, KAFKA_4_3, is_long=is_all) for release in brokers),
        *(Versions(release, KAFKA_3_9, is_long=False) for release in old),
    ]


@dataclass(slots=True)
class Programs:
    """The applications and the worker, which are killed and started again."""

    log: LiveLog
    root: Path
    versions: Versions
    running: list[ManagedProcess] = field(default_factory=list)

    @property
    def stalled(self) -> Path:
        return self.root / "stalled"

    def file(self, connector: str) -> Path:
        return self.root / connector

    def start_streams(self, *, stalls: bool) -> None:
        """Start both applications; one of them may stop within a transaction."""
        plain = {
            **properties_of(documented("properties", "bootstrap.servers=broker-1", self.log)),
            "application.id": PLAIN,
            "auto.offset.reset": "earliest",
            "commit.interval.ms": "200",
            "statestore.cache.max.bytes": "0",
            "repartition.purge.interval.ms": "200",
            "replication.factor": "1",
            # One that comes back is known at once, and one that is slow keeps its partitions.
            "main.consumer.group.instance.id": "one",
            **login("main.consumer."),
        }
        exact = {
            **plain,
            **properties_of(documented("properties", "restore.consumer.bootstrap", self.log)),
            **login("restore.consumer."),
            **login("global.consumer."),
            "application.id": EXACT,
            "processing.guarantee": "exactly_once_v2",
            "topology.optimization": "all",
            "tables": "true",
            "commit.interval.ms": "20",
            "max.poll.records": "20",
            "max.partition.fetch.bytes": "16384",  # parts of all partitions by turns
        }
        if stalls:
            exact |= {"stall.at": f"{STALL_AT:04d}", "stall.file": str(self.stalled)}
        self._start(
            streams_applications(self.root / "streams", self.versions.streams, plain, exact)
        )

    def start_connect(self, connector: str, *, overrides: bool) -> None:
        """Start a worker, and give it a connector: as on the page, or without an address, which
        the worker's configuration has then for all sinks.
        """
        config: dict[str, str] = json.loads(documented("json", "{", self.log))["config"]
        endpoint = config["consumer.override.bootstrap.servers"]
        worker_settings = {}
        if overrides:
            config |= login("consumer.override.")
        else:
            worker_settings = {"consumer.bootstrap.servers": endpoint, **login("consumer.")}
            del config["consumer.override.bootstrap.servers"]
        worker = ConnectWorker(self.root / "connect", self.log.brokers, worker_settings)
        self._start(worker.process)
        worker.configure(connector, self._sink(connector, config))

    def _sink(self, connector: str, config: Mapping[str, str]) -> dict[str, str]:
        return {
            **config,
            "file": str(self.file(connector)),
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": DEAD + connector,
            "errors.deadletterqueue.topic.replication.factor": "1",
            "consumer.override.group.instance.id": "one",
        }

    def start_flink(self) -> None:
        """Start the job, or let it continue at its newest checkpoint."""
        if self.versions.is_long:
            source = {"bootstrap.servers": self.log.endpoint.bootstrap, **login()}
            self._start(flink_job(self.root / FLINK, source, self.log.brokers, FLINK))

    @property
    def flink_groups(self) -> tuple[str, ...]:
        """The group of the job, if it runs."""
        return (FLINK,) * self.versions.is_long

    def _start(self, process: ManagedProcess) -> None:
        self.running.append(process)
        process.start()

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait, while all processes run."""

        def holds() -> bool:
            for process in self.running:
                assert process.running, process.log_tail(60)
            return bool(condition())

        wait_until(holds, 120, what, every=0.2)

    def wait_for_commits(self, *groups: str) -> None:
        """Wait until these groups have read and committed all orders."""
        for group in groups:
            at_end = partial(is_at_end, self.log, group)
            self.wait_until(at_end, f"the commits of {group}")

    def wait_for_outputs(self, counts: Mapping[str, int]) -> None:
        """Wait until output topics have this many records: a repartition topic is read later."""
        for topic, count in counts.items():
            self.wait_until(partial(has_sent, self.log, topic, count), f"the output in {topic}")

    def kill(self) -> None:
        """Kill all processes."""
        while self.running:
            self.running.pop().kill()

    def stop(self) -> None:
        """Stop all processes as operators do."""
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(SECONDS)


@pytest.fixture(params=versions(), ids=str)
def programs(
    request: pytest.FixtureRequest,
    java: Java,  # noqa: ARG001 - servers need it
    tmp_path: Path,
) -> Iterator[Programs]:
    versions: Versions = request.param
    users = tmp_path / "users.yaml"
    write_users(users, {"reader": READER})
    secured = ("--users", str(users), "--insecure")
    with live_log(tmp_path, versions.release, PARTITIONS, *secured) as log:
        programs = Programs(log, tmp_path, versions)
        try:
            yield programs
        finally:
            programs.kill()


def test_streams_and_connect_read_over_the_seam_and_write_to_the_brokers(
    programs: Programs,
) -> None:
    """Both are killed: one application within a transaction, the others when they have committed
    everything. Before they come back, the brokers delete records behind their positions.
    """
    log = programs.log
    writer = Writer(log.brokers)
    outputs = writer.outputs().keys() - ({FLINK} if not programs.versions.is_long else set())
    for topic in outputs:
        create_topic(log.brokers, topic)
    writer.send_table(RATES, 0)
    writer.send_table(PRICES, 0)
    writer.send_orders(0, 300)
    trim(log, *PARTITIONS)
    writer.send_orders(300, 300)

    programs.start_streams(stalls=True)
    programs.start_connect("first", overrides=True)
    programs.start_flink()
    programs.wait_until(programs.stalled.exists, "the application to stop within a transaction")
    programs.wait_for_commits(PLAIN, "connect-first", *programs.flink_groups)
    programs.wait_until(partial(has_sent_last, log), "the records of the transaction")
    programs.kill()

    writer.send_table(RATES, 100)
    writer.send_orders(600, 300)
    trim(log, ORDERS, RATES)
    for group in ("connect-first", PLAIN, EXACT, *programs.flink_groups):
        committed = positions(log, group)
        assert max(committed) > 0, group
        both = zip(committed, bounds(log), strict=True)
        assert all(position < start for position, (start, _) in both), group
    tasks = [*(programs.root / "streams" / "state" / EXACT).glob("[0-9]_[0-9]")]
    assert len(tasks) == PARTITIONS[ORDERS]
    for stores in tasks:  # the tables are restored
        shutil.rmtree(stores)
    programs.start_streams(stalls=False)
    programs.start_connect("second", overrides=False)
    programs.start_flink()
    if programs.versions.is_long:
        log.endpoint.kill()  # while they start; they find it again
        log.endpoint.start()
    programs.wait_for_commits(
        PLAIN, EXACT, "connect-first", "connect-second", *programs.flink_groups
    )
    expected = writer.outputs()
    programs.wait_for_outputs({topic: number_of(expected[topic]) for topic in outputs})
    programs.stop()

    for topic in outputs:
        assert sent_to(log, topic) == expected[topic], topic
    joined = sent_to(log, "exact-joined", "read_uncommitted")
    assert number_of(joined) > number_of(writer.joined)  # the transaction in which it was killed
    lines = writer.values(lambda order: order.text, where=lambda order: order.is_json)
    dead = writer.values(lambda order: order.value, where=lambda order: not order.is_json)
    keys = {order.text: order.key for order in writer.orders}
    for connector in ("first", "second"):
        found: Values = {}
        for line in programs.file(connector).read_text().splitlines():
            found.setdefault(keys[line], []).append(line)
        assert found == lines
        assert sent_to(log, DEAD + connector) == dead
