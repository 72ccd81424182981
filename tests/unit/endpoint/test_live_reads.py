"""Reads of the leaders of a live cluster of fake brokers."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from sidetier.endpoint.live.chunks import Chunk, Reader
from sidetier.endpoint.live.client import LiveClient
from sidetier.endpoint.live.reads import LiveReads
from sidetier.endpoint.live.side import LiveBounds
from sidetier.endpoint.live.topics import LiveTopicsWatch
from sidetier.endpoint.metrics import LiveMetrics
from sidetier.segments.batches import split_batches
from sidetier.segments.errors import BrokerUnavailableError, KafkaApiError
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.wire.protocol import ApiKey
from sidetier.wire.record_requests import FetchedPartition
from sidetier.wire.settings import ClientSettings
from tests.harness.fake_broker import HANG_UP, FakeBroker, Received, fake_broker
from tests.harness.record_batches import TransactionalLog
from tests.harness.waiting import wait_until

TOPIC_ID = UUID(int=7)
NONE = ErrorCode.none


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


@dataclass(slots=True)
class Leaders:
    """Brokers 1 to n, and the logs of topic t's partitions, which they lead as a test sets it.

    Attributes:
        brokers: The brokers.
        led_by: The leader of each partition, by its number; the brokers know it at once.
        shown: The leaders that Metadata shows; as `led_by` without an entry.
        logs: The logs, by partition number.
        written: Their batches with the last offset of each.
        throttled: Throttle time, in seconds, of each answer to a client id.
        hanging: Brokers that do not answer until their event is set.
        closing: Brokers that close the connection of the next request.
        unknown: Topics that do not exist, with the errors of Metadata.
    """

    brokers: Sequence[FakeBroker]
    led_by: dict[int, int]
    shown: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    logs: dict[int, TransactionalLog] = field(default_factory=dict)
    written: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    throttled: dict[str, float] = field(default_factory=dict)
    hanging: dict[int, threading.Event] = field(default_factory=dict)
    closing: set[int] = field(default_factory=set)
    unknown: dict[str, ErrorCode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in self.led_by:
            self.logs[number] = TransactionalLog()
        for at, broker in enumerate(self.brokers, 1):
            broker.versions[ApiKey.FETCH] = (4, 16)
            broker.answers = {
                ApiKey.METADATA: self._answered(at, self._metadata),
                ApiKey.LIST_OFFSETS: self._answered(at, self._listed),
                ApiKey.FETCH: self._answered(at, self._fetched),
            }

    def write(self, number: int, records: int = 1) -> None:
        batch = self.logs[number].write(9, records, transactional=False)
        self.written.setdefault(number, []).append((batch.last, batch.encoded()))

    def asked(self, api: ApiKey) -> list[Received]:
        return [each for broker in self.brokers for each in broker.received if each.api is api]

    def _answered(
        self, at: int, answer: Callable[[int, Received], bytes]
    ) -> Callable[[Received], bytes]:
        def run(request: Received) -> bytes:
            if at in self.hanging:
                self.hanging[at].wait(10)
            if at in self.closing:
                self.closing.discard(at)
                return HANG_UP
            return answer(at, request)

        return run

    def _metadata(self, _: int, request: Received) -> bytes:
        rows = [
            {
                "error_code": NONE,
                "partition_index": number,
                "leader_id": self.shown.get(number, leader),
                "leader_epoch": 5 if number in self.shown else self.epochs.get(number, 5),
                "replica_nodes": (1,),
                "isr_nodes": (1,),
                "offline_replicas": (),
            }
            for number, leader in self.led_by.items()
        ]
        topic = {
            "error_code": NONE,
            "name": "t",
            "topic_id": TOPIC_ID,
            "is_internal": False,
            "partitions": rows,
            "topic_authorized_operations": 0,
        }
        nodes = [
            {"node_id": at, "host": each.address.host, "port": each.address.port, "rack": None}
            for at, each in enumerate(self.brokers, 1)
        ]
        return request.response(
            throttle_time=0,
            cluster_id="cluster",
            controller_id=1,
            error_code=NONE,
            brokers=nodes,
            topics=[topic]
            if request.entity.topics is None
            else [
                {
                    "error_code": self.unknown[named.name],
                    "name": named.name,
                    "topic_id": None,
                    "is_internal": False,
                    "partitions": [],
                    "topic_authorized_operations": 0,
                }
                for named in request.entity.topics
            ],
        )

    def _listed(self, at: int, request: Received) -> bytes:
        rows = []
        for asked in request.entity.topics[0].partitions:
            number = asked.partition_index
            is_leader = self.led_by[number] == at
            end = self.logs[number].next_offset
            rows.append(
                {
                    "partition_index": number,
                    "error_code": NONE if is_leader else ErrorCode.not_leader_or_follower,
                    "timestamp": -1,
                    "offset": 0 if asked.timestamp == -2 else end,
                    "leader_epoch": 5,
                }
            )
        return request.response(throttle_time=0, topics=[{"name": "t", "partitions": rows}])

    def _fetched(self, at: int, request: Received) -> bytes:
        rows = [self._row(at, asked) for asked in request.entity.topics[0].partitions]
        if not any(row["records"] for row in rows):
            threading.Event().wait(min(request.entity.max_wait.total_seconds(), 0.05))
        throttle = self.throttled.get(request.client_id, 0.0)
        return request.response(
            throttle_time=round(throttle * 1000),
            error_code=NONE,
            session_id=0,
            responses=[{"topic_id": TOPIC_ID, "partitions": rows}],
        )

    def _row(self, at: int, asked: Any) -> dict[str, Any]:  # noqa: ANN401 - kio's
        number, offset = asked.partition, asked.fetch_offset
        log, leader = self.logs[number], self.led_by[number]
        error, hint = NONE, {}
        if leader != at:
            error = ErrorCode.not_leader_or_follower
            epoch = self.epochs.get(number, 5)
            hint = {"current_leader": {"leader_id": leader, "leader_epoch": epoch}}
        elif offset > log.next_offset:
            error = ErrorCode.offset_out_of_range
        data = b"".join(data for last, data in self.written.get(number, ()) if last >= offset)
        is_refused = error is not NONE
        return {
            "partition_index": number,
            "error_code": error,
            "high_watermark": -1 if is_refused else log.next_offset,
            "last_stable_offset": -1 if is_refused else log.next_offset,
            "log_start_offset": -1 if is_refused else 0,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": b"" if is_refused else data,
            **hint,
        }


@dataclass(slots=True)
class Reading:
    """A reader of such a cluster. `told` has the partitions that were notified."""

    reads: LiveReads
    watch: LiveTopicsWatch
    told: list[TopicPartition]


@contextmanager
def leaders(count: int, led_by: dict[int, int]) -> Iterator[Leaders]:
    with ExitStack() as stack:
        yield Leaders([stack.enter_context(fake_broker()) for _ in range(count)], led_by)


@contextmanager
def reading(
    cluster: Leaders,
    *,
    memory: int = 64 << 20,
    timeout: float = 30.0,
    registry: CollectorRegistry | None = None,
) -> Iterator[Reading]:
    bootstrap = ",".join(str(broker.address) for broker in cluster.brokers)
    client = LiveClient.of(ClientSettings.from_properties({"bootstrap.servers": bootstrap}))
    stop, told, made = threading.Event(), list[TopicPartition](), list[LiveReads]()

    def report(tps: Collection[TopicPartition]) -> None:
        for each in made:
            each.forget(tps)

    watch = LiveTopicsWatch(lambda: client, report, stop)
    metrics = LiveMetrics(registry or CollectorRegistry())
    reads = LiveReads(lambda: client, watch, memory, metrics, told.extend, stop, timeout=timeout)
    made.append(reads)
    watch.start()
    try:
        yield Reading(reads, watch, told)
    finally:
        stop.set()
        for event in cluster.hanging.values():
            event.set()
        watch.close()
        reads.close()


def offsets(chunks: Sequence[Chunk] | None) -> list[int]:
    assert chunks is not None
    return [
        offset
        for chunk in chunks
        for _, header in split_batches(chunk.data)
        for offset in range(header.base_offset, header.next_offset)
    ]


def fetch(
    read: Reading, number: int, offset: int, client_id: str | None = None, most: int = 1 << 20
) -> Sequence[Chunk] | None:
    return read.reads.fetch(tp(number), Offset(offset), most, isolated=False, client_id=client_id)


def test_records_are_fetched_once_under_the_id_of_the_first_client() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0, 3)
        assert offsets(fetch(read, 0, 0, "app")) == [0, 1, 2]
        assert offsets(fetch(read, 0, 0, "another")) == [0, 1, 2]
        assert [each.client_id for each in cluster.asked(ApiKey.FETCH)] == ["app"]
        assert [each.client_id for each in cluster.asked(ApiKey.METADATA)] != ["app"]


def test_the_leader_that_a_broker_names_is_asked_at_once() -> None:
    with leaders(2, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0, 2)
        cluster.led_by, cluster.epochs = {0: 2}, {0: 6}
        cluster.shown = {0: 1}  # Metadata is not renewed yet
        before = len(cluster.asked(ApiKey.METADATA))
        assert offsets(fetch(read, 0, 0)) == [0, 1]
        assert read.watch.latest.leader(tp(0)) == 2
        assert len(cluster.asked(ApiKey.METADATA)) - before <= 1, "asked, but not waited for"


def test_a_leader_of_an_older_epoch_is_not_taken() -> None:
    with leaders(2, {0: 1}) as cluster, reading(cluster) as read:
        cluster.led_by, cluster.epochs = {0: 2}, {0: 4}
        cluster.shown = {0: 1}
        with pytest.raises(KafkaApiError, match="NOT_LEADER"):
            fetch(read, 0, 0)
        assert read.watch.latest.leader(tp(0)) == 1


def test_a_broker_that_hangs_costs_one_wait_and_no_other_broker_any() -> None:
    led_by = {0: 1, 1: 2, 2: 1}
    with leaders(2, led_by) as cluster, reading(cluster, timeout=1.5) as read:
        cluster.write(0)
        cluster.write(1)
        released = cluster.hanging[1] = threading.Event()
        with pytest.raises(BrokerUnavailableError):
            fetch(read, 0, 0)
        asked = len(cluster.brokers[0].received)
        read.reads.pool._brokers[BrokerId(1)].failed_at += 60  # no attempt in the meantime
        for number in (0, 2, 0):
            with pytest.raises(BrokerUnavailableError):
                fetch(read, number, 0)
        assert ApiKey.FETCH not in [each.api for each in cluster.brokers[0].received[asked:]]
        wait_until(lambda: answered(read, 1) == [0], 20, "the other broker")
        assert read.reads.pool.count_away() == 1
        released.set()
        del cluster.hanging[1]
        read.reads.pool._brokers[BrokerId(1)].failed_at -= 60
        wait_until(lambda: answered(read, 0) == [0], 20, "the broker is asked again")
        assert read.reads.pool.away(BrokerId(1)) is None


def answered(read: Reading, number: int) -> list[int]:
    try:
        return offsets(fetch(read, number, 0))
    except BrokerUnavailableError:
        return []


def test_a_connection_that_the_broker_has_closed_is_replaced() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0)
        assert offsets(fetch(read, 0, 0)) == [0]
        cluster.write(0)
        cluster.closing.add(1)
        assert offsets(fetch(read, 0, 1)) == [1]


def test_only_the_throttled_client_waits() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.throttled["greedy"] = 0.5
        cluster.write(0)
        began = monotonic()
        assert offsets(fetch(read, 0, 0, "greedy")) == [0]
        cluster.write(0)
        assert fetch(read, 0, 1, "greedy") is None
        assert read.reads.followers.positions() == {}, "it is not at the end"
        assert offsets(fetch(read, 0, 1, "modest")) == [1]
        cluster.write(0)
        wait_until(
            lambda: fetch(read, 0, 2, "greedy") is not None, 20, "the end of the throttle time"
        )
        assert monotonic() - began >= 0.5


def test_clients_that_take_their_answers_slowly_hold_little_memory() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster, memory=256 << 10) as read:
        for _ in range(150):
            cluster.write(0, 100)
        chunks = fetch(read, 0, 0, most=4 << 20)
        assert chunks is not None
        size = len(chunks[0].data)
        assert size > 128 << 10, "more than half of the memory"
        held = read.reads.lend(chunks, size)
        small = read.reads.lend(chunks, size)
        assert (held.size, small.size) == (size, 64 << 10)
        sent = b"".join(piece for piece in small.pieces if isinstance(piece, bytes))
        assert sent == chunks[0].data[: 64 << 10]
        held.release()
        small.release()
        assert read.reads.lend(chunks, size).size == size


def test_clients_of_the_same_records_hold_them_once() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster, memory=512 << 10) as read:
        for _ in range(60):
            cluster.write(0, 100)
        chunks = fetch(read, 0, 0, most=4 << 20)
        assert chunks is not None
        size = len(chunks[0].data)
        leases = [read.reads.lend(chunks, size) for _ in range(50)]
        assert {lease.size for lease in leases} == {size}
        for lease in leases:
            lease.release()
        assert read.reads._held == 0


def test_an_endpoint_without_clients_can_be_scraped() -> None:
    registry = CollectorRegistry()
    with leaders(1, {0: 1}) as cluster, reading(cluster, registry=registry) as read:
        for name in ("unavailable_brokers", "followed_partitions", "lag_records"):
            assert registry.get_sample_value(f"sidetier_endpoint_live_{name}") == 0
        assert fetch(read, 0, 0) == ()
        assert registry.get_sample_value("sidetier_endpoint_live_followed_partitions") == 1


def test_leaders_are_asked_again_until_one_is_shown() -> None:
    """Not every broker names the next leader, and it may be known only seconds later."""
    with leaders(2, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0)
        cluster.led_by, cluster.shown = {0: 2}, {0: 1}
        assert read.reads.bounds(tp(0), 0.0) is None
        cluster.shown, cluster.epochs = {}, {0: 6}
        wait_until(lambda: read.reads.bounds(tp(0), 2.0) is not None, 8, "the next leader")


def test_what_a_former_leader_returns_late_is_not_kept() -> None:
    with leaders(2, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0)
        before = read.watch.latest
        answer = FetchedPartition(
            *(tp(0), 0, Offset(1), Offset(1), Offset(0), (), -1),
            memoryview(bytearray(cluster.written[0][0][1])),
        )
        cluster.led_by, cluster.epochs = {0: 2}, {0: 6}
        read.watch.renew(wait=20)
        wait_until(lambda: read.watch.latest.leader(tp(0)) == 2, 20, "the next leader")
        with pytest.raises(BrokerUnavailableError, match="has changed"):
            read.reads._take(Reader(tp(0), is_isolated=False), Offset(0), answer, before)
        assert read.reads.kept(tp(0), Offset(0), 1 << 20, isolated=False) == []


def test_only_a_topic_that_no_broker_knows_by_its_name_is_gone() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.unknown = {"deleted": ErrorCode.unknown_topic_or_partition}
        cluster.unknown |= {"secret": ErrorCode.topic_authorization_failed}
        for topic in ("t", "deleted", "secret"):
            assert not read.watch.is_gone(topic)
        read.watch.renew(wait=20)
        wait_until(lambda: "deleted" in read.watch._unknown_since, 20, "the question")
        assert not read.watch.is_gone("deleted"), "it may be new"
        read.watch._unknown_since["deleted"] -= 60
        assert read.watch.is_gone("deleted")
        assert "secret" not in read.watch._unknown_since


def test_bounds_of_many_partitions_cost_three_requests_to_each_leader() -> None:
    led_by = {number: 1 + number % 2 for number in range(10)}
    with leaders(2, led_by) as cluster, reading(cluster) as read:
        cluster.write(3, 5)
        read.reads.refresh(map(tp, range(10)), 2.0)
        assert read.reads.bounds(tp(3), 2.0) == LiveBounds(Offset(0), Offset(5), Offset(5))
        assert len(cluster.asked(ApiKey.LIST_OFFSETS)) == 6


def test_one_bad_partition_leaves_the_bounds_of_the_others() -> None:
    with leaders(2, {0: 1, 1: 1}) as cluster, reading(cluster) as read:
        cluster.led_by[0], cluster.shown = 2, {0: 1}
        assert read.reads.bounds(tp(1), 2.0) is not None
        read.reads.refresh([tp(0), tp(1)], 0.0)
        assert read.reads.bounds(tp(1), 2.0) is not None
        assert read.reads.bounds(tp(0), 2.0) is None


def test_records_behind_the_end_come_by_one_follower_for_all() -> None:
    with leaders(1, {0: 1, 1: 1}) as cluster, reading(cluster) as read:
        for number in (0, 1):
            assert fetch(read, number, 0) == ()
        assert set(read.reads.followers.positions()) == {
            Reader(tp(number), is_isolated=False) for number in (0, 1)
        }
        before = read.reads.state(tp(1))
        cluster.write(1)
        wait_until(lambda: read.reads.state(tp(1)) != before, 20, "the follower")
        for _ in range(50):
            assert offsets(fetch(read, 1, 0)) == [0]
        assert tp(1) in read.told
        followed = [
            [row.partition for row in each.entity.topics[0].partitions]
            for each in cluster.asked(ApiKey.FETCH)
            if len(each.entity.topics[0].partitions) == 2
        ]
        wait_until(lambda: len(cluster.asked(ApiKey.FETCH)) > 8, 20, "more requests")
        assert [0, 1] in followed or [1, 0] in followed
        both = {
            tuple(row.partition for row in each.entity.topics[0].partitions)
            for each in cluster.asked(ApiKey.FETCH)
        }
        assert {(0, 1), (1, 0)} <= both, "each partition is the first one in turn"


def test_a_follower_that_loses_its_connection_tells_the_waiting_clients() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        assert fetch(read, 0, 0) == ()
        before = read.reads.state(tp(0))
        cluster.closing.add(1)
        wait_until(lambda: read.reads.state(tp(0)) != before, 20, "the follower")
        cluster.write(0)
        assert offsets(fetch(read, 0, 0)) == [0]
        assert fetch(read, 0, 1) == ()
        cluster.write(0)
        wait_until(lambda: bool(fetch(read, 0, 1)), 20, "the record")


def test_offsets_above_the_end_are_refused_by_the_leader() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0)
        with pytest.raises(KafkaApiError, match="OFFSET_OUT_OF_RANGE"):
            fetch(read, 0, 5)
