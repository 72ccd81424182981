"""The digests that consumers must get of restored partitions, and the reported differences."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from kio.schema.errors import ErrorCode

from sidetier.mirror.hydrate.batch_scan import BatchScanner
from sidetier.mirror.hydrate.digest import Digest, HiddenOffsets
from sidetier.mirror.hydrate.plan import PlannedPartition, plan_partition
from sidetier.mirror.hydrate.survey import Cut, make_plan
from sidetier.mirror.hydrate.verify import (
    ArchiveSide,
    BrokerSide,
    verify_partition,
    verify_partitions,
)
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.segments.transactions import Marker
from sidetier.wire.cluster import Cluster
from sidetier.wire.protocol import ApiKey
from sidetier.wire.settings import ClientSettings
from tests.harness.fake_broker import Received, fake_broker, led_by
from tests.harness.made_archive import MadeArchive, access_to
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog

if TYPE_CHECKING:
    from confluent_kafka import Consumer


def records(offsets: Sequence[int], value: bytes = b"v") -> pa.RecordBatch:
    columns = {
        "offset": list(offsets),
        "timestamp": [offset * 10 for offset in offsets],
        "timestamp_type": [0] * len(offsets),
        "key": [None] * len(offsets),
        "value": [value] * len(offsets),
        "headers": [[] for _ in offsets],
    }
    return pa.RecordBatch.from_pydict(columns)


def digest(*batches: pa.RecordBatch) -> Digest:
    result = Digest()
    for batch in batches:
        result.add(batch)
    return result


def test_equal_records_have_no_difference_in_any_division_into_batches() -> None:
    assert digest(records([1, 2, 3])).difference(digest(records([1]), records([2, 3]))) is None


def test_each_difference_is_reported() -> None:
    ours = digest(records([1, 2, 3]))
    assert ours.difference(digest(records([1, 2]))) == "2 records, expected 3"
    assert ours.difference(digest(records([1, 2, 4]))) == "offsets 1 to 4, expected 1 to 3"
    assert "checksum" in str(ours.difference(digest(records([1, 2, 3], b"w"))))
    assert "checksum" in str(digest(records([1, 2, 4])).difference(digest(records([1, 3, 4]))))


def test_hidden_offsets_are_left_out() -> None:
    hidden = HiddenOffsets([OffsetRange(Offset(2), Offset(4)), OffsetRange(Offset(7), Offset(9))])
    result = Digest()
    result.add(records(range(10)), hidden)
    assert (result.records, result.first_offset, result.last_offset) == (6, 0, 9)


def test_only_read_uncommitted_expects_aborted_and_open_transactions() -> None:
    log = TransactionalLog()
    log.write(1, 3)
    log.write(2, 4)
    log.mark(1, commit=True)
    log.mark(2, commit=False)
    log.write(3, 2)  # stays open
    log.write(4, 5)
    log.mark(4, commit=True)
    archive = MadeArchive()
    archive.segment(0, log.encoded)
    archive.mark(0, log.next_offset)
    access = access_to(archive.store)
    (plan,) = make_plan(access, lambda _: True, Cut(), {}).partitions
    side = ArchiveSide(access)
    try:
        expected = side.expected(plan)
        nothing = side.expected(plan_partition(TopicPartition("orders", 1), None))
    finally:
        side.close()
    assert expected[IsolationLevel.READ_UNCOMMITTED].records == 3 + 4 + 2 + 5
    assert expected[IsolationLevel.READ_COMMITTED].records == 3 + 5
    assert nothing[IsolationLevel.READ_COMMITTED].records == 0


class Equal(BrokerSide):
    """Brokers that hold the archived records, all with the same timestamp, from offset 0 on."""

    def __init__(self, expected: Mapping[IsolationLevel, Digest]) -> None:
        super().__init__({})
        self._expected = expected

    def digest(self, plan: PlannedPartition, isolation: IsolationLevel) -> Digest:  # noqa: ARG002
        return self._expected[isolation]

    def offsets_for_times(
        self,
        plan: PlannedPartition,  # noqa: ARG002 -- the form of the real one
        timestamps: Iterable[int],
    ) -> list[int | None]:
        return [0 for _ in timestamps]


def test_partition_may_have_equal_timestamps_at_its_start_and_end() -> None:
    archive = MadeArchive()
    for base in (0, 20):
        same = [MadeRecord(offset, 5) for offset in range(base, base + 20)]
        archive.segment(base, [MadeBatch(tuple(same))])
    archive.mark(20, 40)
    access = access_to(archive.store)
    (whole,) = make_plan(access, lambda _: True, Cut(), {}).partitions
    end = replace(whole, start=30, segments=whole.segments[1:])
    side = ArchiveSide(access)
    try:
        verified = verify_partition(end, side, Equal(side.expected(end)))
    finally:
        side.close()
    assert (verified.records, verified.problems) == (10, ())


def test_batches_are_scanned_from_chunks_of_any_size() -> None:
    log = TransactionalLog()
    for producer in range(5):
        log.write(producer, 3)
        log.mark(producer, commit=producer % 2 == 0)
    data = log.encoded
    for size in (1, 7, 60, 61, 62, 100, len(data)):
        scanner = BatchScanner("x")
        out, markers = bytearray(), []
        for start in range(0, len(data), size):
            buffer, result = scanner.feed(data[start : start + size])
            out += buffer
            markers += [marker for _, _, marker in result if marker is not Marker.NONE]
        scanner.finish()
        assert out == data
        assert [marker.name for marker in markers] == ["COMMIT", "ABORT"] * 2 + ["COMMIT"]


@dataclass
class FakeConsumer:
    """A consumer of a partition; its known leader epoch is current or outdated."""

    outdated: bool

    def offsets_for_times(self, asked: list[KafkaPartition], **_: object) -> list[KafkaPartition]:
        if self.outdated:
            raise KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH))
        return [KafkaPartition(item.topic, item.partition, 5) for item in asked]

    def close(self) -> None:
        """Do nothing; there is nothing to close."""


def test_election_between_two_requests_does_not_end_the_verification() -> None:
    """A client sends the leader epoch that it knows; a new client knows the new epoch."""
    consumers = [FakeConsumer(outdated=True), FakeConsumer(outdated=False)]
    brokers = BrokerSide({}, lambda _: cast("Consumer", consumers.pop(0)))
    plan = PlannedPartition("orders", 0, 0, 60, 60)
    assert brokers.offsets_for_times(plan, [7]) == [5]
    assert consumers == []


def test_later_log_start_is_a_difference_with_its_reason() -> None:
    plan = PlannedPartition("orders", 0, 0, 60, 60)
    archive = ArchiveSide(access_to(MadeArchive().store))
    with fake_broker() as broker:
        broker.answers = {
            ApiKey.METADATA: lambda request: led_by(broker, request, TopicPartition("orders", 0)),
            ApiKey.LIST_OFFSETS: partial(starting_at, 5),
        }
        settings = ClientSettings((broker.address,))
        (result,) = verify_partitions(
            [plan], archive, BrokerSide({}), lambda: Cluster(settings), at_once=1
        )
    archive.close()
    (problem,) = result.problems
    assert problem.startswith("orders-0: the log starts at offset 5, the plan at 0")


def starting_at(offset: int, request: Received) -> bytes:
    partition = {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "timestamp": -1,
        "offset": offset,
        "leader_epoch": 5,
    }
    topics = [{"name": "orders", "partitions": [partition]}]
    return request.response(throttle_time=0, topics=topics)
