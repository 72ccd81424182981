"""Reading by topic id from a fake broker."""

import itertools
from collections.abc import Iterator
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.copy.source import (
    Fetched,
    KafkaSource,
    OnGap,
    PartitionFailed,
    SourceEvent,
    SourceGap,
    TopicRecreated,
)
from sidetier.segments.errors import SourceUnavailableError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.protocol import ApiKey
from sidetier.wire.settings import ClientSettings
from tests.harness.fake_broker import HANG_UP, FakeBroker, Received, fake_broker, led_by
from tests.harness.made_archive import MadeArchive, access_to, batches
from tests.harness.waiting import wait_for, wait_until

TP = TopicPartition("orders", 0)
OLD, NEW = UUID(int=1), UUID(int=2)
WAIT = 30.0


class Recreated:
    """A broker that has the topic under another ID than the requested one."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.topic_id = NEW
        self.leader = 1
        self.refusal = ErrorCode.unknown_topic_id
        broker.answers |= {ApiKey.METADATA: self.metadata, ApiKey.FETCH: self.fetch}

    def metadata(self, request: Received) -> bytes:
        return led_by(self.broker, request, TP, topic_id=self.topic_id, leader=self.leader)

    def fetch(self, request: Received) -> bytes:
        (asked,) = request.entity.topics
        known = asked.topic_id == self.topic_id
        partition = {
            "partition_index": 0,
            "error_code": ErrorCode.none if known else self.refusal,
            "high_watermark": 0,
            "last_stable_offset": 0,
            "log_start_offset": 0,
            "aborted_transactions": (),
            "preferred_read_replica": -1,
            "records": None,
        }
        return request.response(
            throttle_time=0,
            error_code=ErrorCode.none,
            session_id=0,
            responses=[{"topic_id": asked.topic_id, "partitions": [partition]}],
            node_endpoints=(),
        )

    def fetches(self) -> list[UUID]:
        asked = [request.entity for request in self.broker.received if request.api is ApiKey.FETCH]
        return [topic.topic_id for entity in asked for topic in entity.topics]


@pytest.fixture
def broker() -> Iterator[Recreated]:
    with fake_broker() as made:
        yield Recreated(made)


@pytest.fixture
def source(broker: Recreated) -> Iterator[KafkaSource]:
    settings = ClientSettings((broker.broker.address,))
    made = KafkaSource(lambda: Cluster(settings), None)
    yield made
    made.close()


def polled(source: KafkaSource) -> list[SourceEvent]:
    return wait_for(lambda: source.poll(0.1) or None, WAIT, "an event")


def test_recreated_topic_is_reported_and_no_longer_read(
    broker: Recreated, source: KafkaSource
) -> None:
    source.assign({TP: Offset(7)}, {TP.topic: OLD})
    assert polled(source) == [TopicRecreated(TP.topic)]
    assert source.poll(1.0) == []
    assert broker.fetches() == [OLD]
    assert not source.finished()


def test_a_topic_id_that_the_broker_does_not_know_yet_is_requested_again(
    broker: Recreated, source: KafkaSource
) -> None:
    """Its metadata has the ID, but the log is missing."""
    refusals = [ErrorCode.unknown_topic_id]
    answer = broker.fetch

    def fetch(request: Received) -> bytes:
        broker.topic_id = NEW if refusals else OLD
        data = answer(request)
        broker.topic_id = OLD
        refusals.clear()
        return data

    broker.topic_id = OLD
    broker.broker.answers[ApiKey.FETCH] = fetch
    source.assign({TP: Offset(0)}, {TP.topic: OLD})
    wait_for(lambda: broker.fetches()[2:] or None, WAIT, "more requests")
    assert not any(isinstance(event, TopicRecreated) for event in source.poll(0.0))


def test_partition_that_the_brokers_refuse_ends_without_the_others(
    broker: Recreated, source: KafkaSource
) -> None:
    broker.refusal = ErrorCode.topic_authorization_failed
    source.assign({TP: Offset(7)}, {TP.topic: OLD})
    (event,) = polled(source)
    assert isinstance(event, PartitionFailed)
    assert event.tp == TP
    assert "the principal needs Read" in str(event.error)
    assert source.poll(1.0) == []
    assert broker.fetches() == [OLD]
    assert not source.finished()


def test_partition_without_a_leader_does_not_stop_the_others(broker: Recreated) -> None:
    """It is given up after a minute; meanwhile and afterwards the others are read."""
    broker.topic_id = OLD
    lost = TopicPartition(TP.topic, 1)  # not in the metadata
    now = 0.0
    settings = ClientSettings((broker.broker.address,))
    source = KafkaSource(lambda: Cluster(settings), None, clock=lambda: now)
    source.assign({TP: Offset(0), lost: Offset(0)}, {TP.topic: OLD})
    wait_for(lambda: broker.fetches()[3:] or None, WAIT, "reads of the other partition")
    events = source.poll(0.0)
    now = 61.0
    events += wait_for(lambda: [*source.poll(0.1)] or None, WAIT, "the failure")
    (failed,) = [event for event in events if isinstance(event, PartitionFailed)]
    assert failed.tp == lost
    assert "failed for 60 s, at last: the brokers do not know partition orders-1" in str(
        failed.error
    )
    count = len(broker.fetches())
    wait_for(lambda: broker.fetches()[count + 2 :] or None, WAIT, "more reads")
    source.close()


def test_partition_without_an_end_of_reading_is_not_read(broker: Recreated) -> None:
    """Its end was not known when the copy began."""
    broker.topic_id = OLD
    settings = ClientSettings((broker.broker.address,))
    source = KafkaSource(lambda: Cluster(settings), None, until={})
    source.assign({TP: Offset(0)})
    (event,) = polled(source)
    assert isinstance(event, PartitionFailed)
    assert "orders-0 had no leader at the start" in str(event.error)
    assert source.finished()
    assert broker.fetches() == []
    source.close()


def test_partition_without_a_leader_ends_after_a_minute(broker: Recreated) -> None:
    broker.leader = -1
    settings = ClientSettings((broker.broker.address,))
    minutes = itertools.count(0.0, 61.0)
    source = KafkaSource(lambda: Cluster(settings), None, clock=lambda: next(minutes))
    source.assign({TP: Offset(0)})
    (event,) = polled(source)
    assert isinstance(event, PartitionFailed)
    assert "partition orders-0 has no leader now" in str(event.error)
    assert source.poll(0.5) == []
    source.close()


def test_deleted_offsets_count_as_a_gap_only_after_a_minute_without_an_upload(
    broker: Recreated,
) -> None:
    """The brokers have deleted [0, 60). A sidecar uploads a part of it late, and never the rest."""
    log_start = 60

    def deleted(request: Received) -> bytes:
        (asked,) = request.entity.topics
        partition = {
            "partition_index": 0,
            "error_code": ErrorCode.offset_out_of_range,
            "high_watermark": log_start,
            "last_stable_offset": log_start,
            "log_start_offset": log_start,
            "aborted_transactions": (),
            "preferred_read_replica": -1,
            "records": None,
        }
        topic = {"topic_id": asked.topic_id, "partitions": [partition]}
        return request.response(
            throttle_time=0,
            error_code=ErrorCode.none,
            session_id=0,
            responses=[topic],
            node_endpoints=(),
        )

    def offsets(request: Received) -> bytes:
        row = {
            "partition_index": 0,
            "error_code": ErrorCode.none,
            "timestamp": -1,
            "offset": log_start,
            "leader_epoch": 0,
        }
        topics = [{"name": TP.topic, "partitions": [row]}]
        return request.response(throttle_time=0, topics=topics)

    broker.topic_id = OLD
    broker.broker.answers |= {ApiKey.FETCH: deleted, ApiKey.LIST_OFFSETS: offsets}
    archive = MadeArchive()
    archive.segments(0, 20)
    now = 0.0
    settings = ClientSettings((broker.broker.address,))
    source = KafkaSource(
        lambda: Cluster(settings),
        ArchiveSource(access_to(archive.store)),
        on_gap=OnGap.SKIP,
        clock=lambda: now,
    )
    source.assign({TP: Offset(0)}, {TP.topic: OLD})
    read: list[Fetched] = []

    def has_read(until: int) -> bool:
        for event in source.poll(0.1):
            assert isinstance(event, Fetched), event
            read.append(event)
        return bool(read) and read[-1].selection.next_offset == until

    wait_until(lambda: has_read(20), WAIT, "what is archived at first")
    assert source.poll(1.0) == []
    now = 59.0
    assert source.poll(1.0) == []
    archive.segment(20, batches(20, 40))
    archive.mark(20, 40)
    wait_until(lambda: has_read(40), WAIT, "what is uploaded late")
    now = 100.0  # less than a minute since
    assert source.poll(1.0) == []
    now = 200.0
    (gap,) = polled(source)
    assert isinstance(gap, SourceGap)
    assert (gap.start, gap.end) == (40, log_start)
    source.close()


def test_permanently_unavailable_source_is_a_retryable_error(broker: Recreated) -> None:
    """Spark then starts the task again."""
    broker.broker.answers[ApiKey.METADATA] = lambda _: HANG_UP
    settings = ClientSettings((broker.broker.address,))
    minutes = itertools.count(0.0, 61.0)
    source = KafkaSource(lambda: Cluster(settings), None, clock=lambda: next(minutes))
    source.assign({TP: Offset(0)})
    with pytest.raises(SourceUnavailableError, match="have failed for 60 s") as raised:
        polled(source)
    assert raised.value.retry
    source.close()
