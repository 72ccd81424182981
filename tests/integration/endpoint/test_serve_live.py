"""`sidetier serve --live`: archive and live cluster as one log, for unmodified clients.

Clients of five libraries read the same two topics side by side, while brokers, store and endpoint
are stopped and come back. They reach the endpoint through a relay that searches everything that
they get for addresses of brokers.

Environment variables: `LIVE_CLIENTS_ROUNDS` repeats all events in random order with more consumers,
and `LIVE_CLIENTS_SEED` repeats one such run.
"""

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from devtools.sandbox.go import GoBuilder
from devtools.sandbox.kafka_clients import franz_go_reader
from sidetier.wire.protocol import ApiKey
from sidetier.wire.settings import parse_addresses
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import file_store
from tests.harness.endpoint import RawClient, fetch_of
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.log_readers import (
    ASSIGNED,
    REFRESH_MS,
    Consumed,
    LogReaders,
    Row,
    Settings,
    log_readers,
)
from tests.harness.recording_relay import Addresses, RecordingRelay
from tests.harness.serve_process import LAYOUT, ServeProcess, serve_process
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import (
    create_topic,
    delete_records,
    leader_of,
    move_leader,
    watermark_offsets,
)
from tests.harness.transactional_log import HostedCluster, LogWriter, last_epoch, whole_log
from tests.harness.waiting import holds_for, wait_until

ROUNDS: Final = int(os.environ.get("LIVE_CLIENTS_ROUNDS", "0"))
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900 + 600 * ROUNDS)]

PAUSE: Final = 0.2
"""Seconds between two rounds of the producer."""
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
LIBRARIES: Final = (
    "java-4.3.1",
    "java-3.9.2",
    "confluent-kafka",
    "franz-go",
    "kafka-python",
    "aiokafka",
)


def settings_of(library: str) -> list[Settings]:
    """Return the settings of the consumers of a library.

    One consumer of each isolation level: one chooses its partitions itself, with the library's own
    interval of Metadata requests; one is a member of a group, with Metadata every second.
    """
    group = "consumer" if library == "java-4.3.1" else "classic"
    usual = [Settings(UNCOMMITTED, ASSIGNED), Settings(COMMITTED, group, REFRESH_MS)]
    more = [Settings(COMMITTED, ASSIGNED, REFRESH_MS), Settings(UNCOMMITTED, "classic")]
    return [*usual, *more] if ROUNDS else usual


@dataclass(frozen=True, slots=True)
class Log:
    """Topics of three brokers, with a sidecar beside each, and an endpoint behind a relay.

    Attributes:
        topics: One whose records come from the broker if it has them, and one of the store.
    """

    topics: tuple[str, str]
    cluster: HostedCluster
    sidecars: Mapping[int, Sidecar]
    root: Path
    writer: LogWriter
    endpoint: ServeProcess
    relay: RecordingRelay

    @property
    def servers(self) -> str:
        """Addresses of the brokers for the producer and administrators."""
        return self.cluster.bootstrap_servers

    @property
    def store(self) -> Path:
        """Directory of the store."""
        return self.root / "store"

    def leader(self, topic: str) -> int:
        """Return the leader of a topic; 0 if there is none now."""
        return leader_of(self.servers, topic, 0) or 0

    def leader_dir(self, topic: str) -> Path:
        """Return the log directory of the leader."""
        return self.cluster.log_dirs(self.leader(topic))[0]

    def archive(self, topic: str, offset: int) -> int:
        """Wait until an offset is archived, and return the end of what is."""
        directory = self.leader_dir(topic) / f"{topic}-0"
        wait_until(lambda: closed_end(directory) > offset, 120, f"{topic} to be closed at {offset}")
        end = closed_end(directory)
        wait_until_stored(file_store(self.store).objects, topic, 0, end, 120)
        return end

    @contextmanager
    def without_store(self) -> Iterator[None]:
        """Move the store away; the sidecars are paused, because they would make a new one."""
        away = self.store.with_name("away")
        with ExitStack() as stack:
            for sidecar in self.sidecars.values():
                sidecar.pause()
                stack.callback(sidecar.resume)
            self.store.rename(away)
            stack.callback(away.rename, self.store)
            yield

    @contextmanager
    def without_endpoint(self) -> Iterator[None]:
        """Kill the endpoint, and start it again at the same address."""
        self.endpoint.kill()
        self.relay.stop()
        try:
            yield
        finally:
            self.endpoint.start()
            self.relay.start()

    @contextmanager
    def without_brokers(self) -> Iterator[None]:
        """Kill all brokers, and start them again."""
        for broker in self.cluster.brokers:
            self.cluster.kill_broker(broker)
        try:
            yield
        finally:
            for broker in self.cluster.brokers:  # none is ready before there is a quorum
                self.cluster.start_broker(broker, wait=False)

    def consumer(self, **settings: object) -> Consumer:
        """Return a plain consumer at the endpoint."""
        group = f"g-{uuid4().hex[:6]}"
        return Consumer({"bootstrap.servers": self.relay.address, "group.id": group, **settings})


@pytest.fixture(scope="module")
def log(java: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:  # noqa: ARG001
    """The log with the first half in the archive alone, at leader epochs above 0."""
    root, name = tmp_path_factory.mktemp("log"), uuid4().hex[:6]
    topics = f"broker-{name}", f"store-{name}"
    store = file_store(root / "store")
    bits = {"storage": {"prefix_entropy_bits": LAYOUT.bits}}
    with ExitStack() as stack:
        cluster = stack.enter_context(HostedCluster(tmp_path_factory.mktemp("kraft")))
        servers = cluster.bootstrap_servers
        for topic, replicas in zip(topics, ([1, 2, 3], [2, 3, 1]), strict=True):
            create_topic(servers, topic, assignment=[replicas], configs=small_segments())
        sidecars = {
            broker: Sidecar(
                root / f"sidecar-{broker}",
                merged(beside(cluster, store, broker_id=broker, topics=list(topics)), bits),
                store,
            )
            for broker in cluster.brokers
        }
        for sidecar in sidecars.values():
            stack.enter_context(sidecar)
        writer = LogWriter(servers, topics)
        writer.write(10)
        for topic, leader in zip(topics, (2, 3), strict=True):
            move_leader(servers, topic, 0, leader)
        writer.write(25)
        relay = RecordingRelay(Addresses(list(cluster.hosted.values())))
        options = (
            *("--live", cluster.hosted_servers, "--advertise", relay.address),
            *("--prefer", "store-.*=store", "--prefer", "broker"),
        )
        endpoint = stack.enter_context(serve_process(root, *options, store=store))
        (relay.server,) = parse_addresses(endpoint.bootstrap)
        stack.enter_context(relay)
        log = Log(topics, cluster, sidecars, root, writer, endpoint, relay)
        for topic in topics:
            delete_records(servers, topic, 0, log.archive(topic, 0) // 2)
        yield log
        assert not relay.found


@pytest.fixture(scope="module")
def franz_go() -> Path:
    with GoBuilder() as builder:
        return franz_go_reader(builder)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The events. After each, all consumers read on, and none gets an error."""

    log: Log
    readers: LogReaders

    def catch_up(self) -> None:
        """Wait until all consumers have what is acknowledged now."""
        wanted = dict(self.log.writer.ends)

        def reached(consumed: Consumed) -> bool:
            self.log.writer.check()
            # More than this offset: it may be that of an aborted transaction.
            return all(consumed.last(topic) > offset for topic, offset in wanted.items())

        self.readers.wait(reached, 180, f"all consumers to reach {wanted}")

    def write_on(self) -> None:
        """Wait until the producer has written more."""
        for topic, offset in dict(self.log.writer.ends).items():
            self.log.writer.wait_for(topic, offset + 20)

    def trim_below_paused(self) -> None:
        """The log start passes the positions of all consumers."""
        self._trim_below_paused()
        self.readers.resume()
        self.catch_up()

    def trim_below_paused_and_move_store_away(self) -> None:
        """The same; and then nobody has the records, for a while."""
        self._trim_below_paused()
        with self.log.without_store():
            self.readers.resume()
            holds_for(self._get_no_error, 3, "no consumer gets an error")
        self.catch_up()

    def trim_below_paused_and_kill_all_brokers(self) -> None:
        """The same; archived records are served without brokers, and their end is no reset."""
        ends = self._trim_below_paused()
        with self.log.without_brokers():
            self.readers.resume()
            # A member of a group may wait for its coordinator (kafka-python), and one with
            # read_committed for a marker that is not archived.
            reads_on = Settings(UNCOMMITTED, ASSIGNED)
            self.readers.wait(
                lambda each: (
                    each.settings != reads_on
                    or all(each.last(topic) > end - 10 for topic, end in ends.items())
                ),
                60,
                "the archived records to be read without brokers",
            )
            holds_for(self._get_no_error, 2, "no consumer gets an error")
        self.catch_up()

    def _trim_below_paused(self) -> dict[str, int]:
        ends = {}
        self.readers.pause()
        for topic in self.log.topics:
            last = max(each.last(topic) for each in self.readers.consumers)
            ends[topic] = end = self.log.archive(topic, last + 30)
            delete_records(self.log.servers, topic, 0, end)
            assert watermark_offsets(self.log.servers, topic)[0] == end > last + 1
        return ends

    def kill_leader(self) -> None:
        """SIGKILL for the leader of one topic."""
        leader = self.log.leader(self.log.topics[0])
        self.log.cluster.kill_broker(leader)
        self._read_without(leader, lambda: self.log.cluster.start_broker(leader, wait=False))

    def stop_leader(self) -> None:
        """A controlled shutdown of the leader of the other one."""
        leader = self.log.leader(self.log.topics[1])
        self.log.cluster.stop_broker(leader)
        self._read_without(leader, lambda: self.log.cluster.start_broker(leader, wait=False))

    def freeze_leader(self) -> None:
        """SIGSTOP: the broker keeps its connections, and answers nothing."""
        leader = self.log.leader(self.log.topics[0])
        self.log.cluster.pause_broker(leader)
        self._read_without(leader, lambda: self.log.cluster.resume_broker(leader))

    def _read_without(self, leader: int, bring_back: Callable[[], None]) -> None:
        """Wait for other leaders, and until all consumers have what these have written."""
        try:
            for topic in self.log.topics:
                led = partial(self._is_led_by_another, topic, leader)
                wait_until(led, 60, f"another leader of {topic}")
            self.write_on()
            self.catch_up()
        finally:
            bring_back()

    def _is_led_by_another(self, topic: str, leader: int) -> bool:
        return self.log.leader(topic) not in {leader, 0}

    def _get_no_error(self) -> bool:
        self.readers.check()
        return True

    def move_leaders(self) -> None:
        """Preferred elections: the former leaders are there, and name the new ones."""
        for topic in self.log.topics:
            leader = self.log.leader(topic)
            other = min(each for each in self.log.cluster.brokers if each != leader)
            move_leader(self.log.servers, topic, 0, other)
        self.write_on()
        self.catch_up()

    def restart_endpoint(self) -> None:
        """SIGKILL for the endpoint."""
        with self.log.without_endpoint():
            self.write_on()
        self.catch_up()

    def move_store_away(self) -> None:
        """The ends of the topics do not need the store."""
        with self.log.without_store():
            self.write_on()
            self.catch_up()

    def events(self) -> tuple[Callable[[], None], ...]:
        """All of them."""
        return (
            self.trim_below_paused,
            self.kill_leader,
            self.move_leaders,
            self.restart_endpoint,
            self.freeze_leader,
            self.move_store_away,
            self.trim_below_paused_and_move_store_away,
            self.stop_leader,
            self.trim_below_paused_and_kill_all_brokers,
        )


def test_all_clients_read_all_records_once_while_everything_fails(
    log: Log, franz_go: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("LIVE_CLIENTS_SEED", random.SystemRandom().randrange(1 << 30)))
    if ROUNDS:
        record_property("chaos", f"LIVE_CLIENTS_SEED={seed} LIVE_CLIENTS_ROUNDS={ROUNDS}")
    dice, writer, prefix = random.Random(seed), log.writer, f"reader-{uuid4().hex[:6]}-"
    libraries = {library: settings_of(library) for library in LIBRARIES}
    with (
        log_readers(
            log.relay.address, prefix, log.topics, libraries, franz_go, tmp_path
        ) as readers,
        asking_for_addresses(log, [prefix + each.name for each in readers.consumers]),
    ):
        timeline = Timeline(log, readers)
        with writer.writing(PAUSE):
            timeline.catch_up()
            events = timeline.events()
            for event in events:
                event()
            for _ in range(ROUNDS):
                for event in dice.sample(events, len(events)):
                    event()
        reach_ends(readers, expected_rows(log))
        writer.write_behind_open_transaction()
        expected = expected_rows(log)
        reach_ends(readers, expected)
        holds_for(lambda: not are_beyond(readers, expected), 1, "an open transaction is not read")
        writer.end_long()
        expected = expected_rows(log)
        reach_ends(readers, expected)
        readers.stop()
    for topic in log.topics:
        rows = expected[topic, UNCOMMITTED]
        whole = {value: offset for offset, value in rows}
        assert len(whole) == len(rows)
        assert whole.items() >= writer.acknowledged[topic].items()
        assert last_epoch(log.leader_dir(topic), topic) > 3
    wrong = [text for each in readers.consumers for text in differences(log, each, expected)]
    assert not wrong, "\n".join(wrong)
    for each in readers.consumers:
        check_commits(log, each, prefix)
    wanted = {"Fetch", "Metadata", "FindCoordinator", "DescribeCluster", "ConsumerGroupHeartbeat"}
    assert wanted <= log.relay.answers.keys()
    assert not log.relay.found


def expected_rows(log: Log) -> dict[tuple[str, str], list[Row]]:
    """Return what consumers must get by now, by topic and isolation level."""
    objects, rows = file_store(log.store).objects, {}
    for topic in log.topics:
        whole = whole_log(objects, log.leader_dir(topic), topic)
        for isolation in (COMMITTED, UNCOMMITTED):
            rows[topic, isolation] = log.writer.expected(whole, isolation)
    return rows


def reach_ends(readers: LogReaders, expected: Mapping[tuple[str, str], Sequence[Row]]) -> None:
    """Wait until all consumers have the last record that they must get."""

    def has_reached(each: Consumed) -> bool:
        ends = {topic: expected[topic, each.settings.isolation][-1][0] for topic in each.rows}
        return all(each.last(topic) >= end for topic, end in ends.items())

    readers.wait(has_reached, 120, "all consumers to read the last record")


def are_beyond(readers: LogReaders, expected: Mapping[tuple[str, str], Sequence[Row]]) -> bool:
    """Return whether a consumer has more than it must get."""
    return any(
        each.last(topic) > expected[topic, each.settings.isolation][-1][0]
        for each in readers.consumers
        for topic in each.rows
    )


def differences(
    log: Log, consumed: Consumed, expected: Mapping[tuple[str, str], Sequence[Row]]
) -> Iterator[str]:
    """Yield where a consumer got other records than each one once, and in order.

    A member that gets its partitions again continues at its committed offsets, so it may get
    records again; but it skips none.
    """
    for topic in log.topics:
        due, end = expected[topic, consumed.settings.isolation], 0
        rows, numbers = consumed.rows[topic], {row: number for number, row in enumerate(due)}
        for life in pairwise([0, *(each[topic] for each in consumed.restarts[1:]), len(rows)]):
            got = rows[slice(*life)]
            begin = numbers.get(got[0], end) if got else end
            wanted = due[min(begin, end) : begin + len(got)]
            if got != wanted:
                pairs = enumerate(zip(got, wanted, strict=False))
                at = next((number for number, (one, other) in pairs if one != other), len(wanted))
                yield (
                    f"{consumed.name} {topic} {life}: {got[at : at + 8]} instead of "
                    f"{wanted[at : at + 8]}; extra: {sorted(set(got) - set(due))[:20]}"
                )
            end = begin + len(got)
        if end != len(due):
            yield f"{consumed.name} {topic}: {len(rows)} records, and the last one is {rows[-1:]}"


def check_commits(log: Log, consumed: Consumed, prefix: str) -> None:
    """The commits of a group are in the live cluster: it could go on at the brokers."""
    if consumed.settings.mode != ASSIGNED:
        plain = Consumer({"bootstrap.servers": log.servers, "group.id": prefix + consumed.name})
        for found in plain.committed([TopicPartition(topic, 0) for topic in log.topics], 30):
            assert found.offset > consumed.last(found.topic), (consumed.name, found)
        plain.close()


@contextmanager
def asking_for_addresses(log: Log, groups: Sequence[str]) -> Iterator[None]:
    """Send the requests whose answers may have addresses once a second, until the block ends."""
    ended = threading.Event()
    (address,) = parse_addresses(log.relay.address)

    def run() -> None:
        while not ended.wait(1):
            # The endpoint may be away.
            with suppress(OSError, AssertionError), RawClient(address, 20) as client:
                for api, version, values in requests_for_addresses(log.topics, groups):
                    client.exchange(api, version, **values)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def requests_for_addresses(
    topics: Sequence[str], groups: Sequence[str]
) -> Iterator[tuple[ApiKey, int, dict[str, Any]]]:
    """Yield requests that a broker answers with addresses, hints or errors."""
    groups = [*groups, "no-such-group"]
    describe = {"include_authorized_operations": True}
    yield ApiKey.DESCRIBE_CLUSTER, 1, {"include_cluster_authorized_operations": True}
    for number, group in enumerate(groups):
        yield ApiKey.FIND_COORDINATOR, 3, {"key": group, "key_type": number % 2}
    yield ApiKey.LIST_GROUPS, 4, {"states_filter": ()}
    yield ApiKey.DESCRIBE_GROUPS, 5, {"groups": groups, **describe}
    yield ApiKey.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": groups, **describe}
    for name in (*topics, "no-such-topic"):
        topic = {"topic_id": UUID(int=0), "name": name}
        create = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": True}
        yield ApiKey.METADATA, 12, {"topics": [topic], **create}
        for epoch in (-1, 0, 1 << 20):  # the last two are fenced and unknown at a broker
            fields = fetch_of(name, 0)
            fields["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
            yield ApiKey.FETCH, 12, fields
        yield ApiKey.FETCH, 12, fetch_of(name, 1 << 40)


def test_the_relay_finds_the_addresses_that_brokers_send(log: Log) -> None:
    """Without the endpoint, each of these answers has one: also the error of a Fetch (KIP-951)."""
    topic = log.topics[0]
    other = next(broker for broker in log.cluster.brokers if broker != log.leader(topic))
    relay = RecordingRelay(Addresses(list(log.cluster.hosted.values())))
    relay.server = log.cluster.hosted[other]
    with relay, RawClient(parse_addresses(relay.address)[0]) as client:
        client.request(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False)
        client.request(ApiKey.FIND_COORDINATOR, 3, key="group", key_type=0)
        metadata: Any = client.request(
            ApiKey.METADATA,
            12,
            topics=[{"topic_id": UUID(int=0), "name": topic}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        fields = fetch_of("", 0)
        (asked,) = fields["topics"]
        fields["topics"] = [
            {"topic_id": metadata.topics[0].topic_id, "partitions": asked["partitions"]}
        ]
        asked["partitions"][0]["current_leader_epoch"] = 0  # fenced
        del fields["replica_id"]
        client.request(ApiKey.FETCH, 16, **fields)
        wait_until(lambda: relay.answers.total() == 4, 10, "all answers to be searched")
    assert {each.request for each in relay.found} == relay.answers.keys()


def test_topics_without_an_archive_are_shown_whole(log: Log) -> None:
    topic = f"plain-{uuid4().hex[:6]}"
    create_topic(log.servers, topic, partitions=2)
    producer = Producer({"bootstrap.servers": log.servers})
    for number in range(40):
        producer.produce(topic, str(number).encode(), partition=number % 2)
    assert producer.flush(30) == 0
    plain = log.consumer(**{"auto.offset.reset": "earliest"})
    # Not all brokers know a new topic at once.
    wait_until(
        lambda: plain.list_topics(topic, 30).topics[topic].error is None,
        60,
        "the topic to be shown",
    )
    plain.subscribe([topic])
    assert sorted(values_of(plain, 40)) == sorted(str(number).encode() for number in range(40))
    plain.commit(asynchronous=False)
    kept = plain.committed([TopicPartition(topic, number) for number in (0, 1)], 30)
    assert [each.offset for each in kept] == [20, 20]
    plain.close()


def values_of(plain: Consumer, count: int) -> list[bytes]:
    """Return the values of this number of records."""
    values: list[bytes] = []

    def take() -> bool:
        message = plain.poll(1.0)
        if message is not None:
            assert message.error() is None, str(message.error())
            values.append(message.value() or b"")
        return len(values) == count

    wait_until(take, 60, f"{count} records")
    return values


def test_timestamps_are_found_on_both_sides(log: Log) -> None:
    topic = log.topics[0]
    plain = log.consumer(**{"isolation.level": UNCOMMITTED, "enable.partition.eof": True})
    low, end = plain.get_watermark_offsets(TopicPartition(topic, 0), 30)
    start, _ = watermark_offsets(log.servers, topic)
    assert low == 0 < start < end
    times: dict[int, int] = {}
    plain.assign([TopicPartition(topic, 0, 0)])

    def take() -> bool:
        for message in plain.consume(1000, 0.5):
            error = message.error()
            if error is None:
                times[int(message.offset() or 0)] = message.timestamp()[1]
            else:
                assert error.code() == KafkaError._PARTITION_EOF, str(error)
                return True
        return False

    wait_until(take, 60, "all records")
    ordered = sorted(times)
    for offset in (0, start - 30, start, ordered[len(ordered) // 2], ordered[-1]):
        at = next(times[each] for each in ordered if each >= offset)
        (found,) = plain.offsets_for_times([TopicPartition(topic, 0, at)], 30)
        # The marker of a transaction may have that timestamp, too.
        first = next(each for each in ordered if each >= found.offset)
        assert first == next(each for each in ordered if times[each] >= at)
    plain.close()
