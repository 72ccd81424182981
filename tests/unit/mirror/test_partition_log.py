"""Committed records up to a known end, with waits for open transactions."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest
from kio.schema.errors import ErrorCode

from sidetier.mirror.partition_log import ClusterLog, wait_for_open_transactions
from sidetier.segments.errors import MirrorError
from sidetier.segments.headers import Compression
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.protocol import ApiKey
from sidetier.wire.settings import ClientSettings
from tests.harness.fake_broker import Received, fake_broker, led_by
from tests.harness.record_batches import MadeBatch, MadeRecord

TP = TopicPartition("map", 0)


def batch(first: int, *, transactional: bool = False) -> MadeBatch:
    records = tuple(
        MadeRecord(first + row, key=b"k%d" % (first + row), headers=((b"h", b"1"),))
        for row in range(2)
    )
    return MadeBatch(records, codec=Compression.LZ4, is_transactional=transactional, producer_id=7)


class Partition:
    """A partition; each Fetch returns the next answer (batches and last stable offset), or the
    last.
    """

    def __init__(self, stack: ExitStack, *answers: tuple[list[MadeBatch], int]) -> None:
        self.answers = list(answers)
        broker = stack.enter_context(fake_broker())
        broker.versions[ApiKey.FETCH] = (11, 11)
        broker.answers[ApiKey.METADATA] = lambda request: led_by(broker, request, TP)
        broker.answers[ApiKey.FETCH] = self.fetch
        self.asked: list[int] = []
        clock = count(step=1.0)
        self.cluster = stack.enter_context(Cluster(ClientSettings((broker.address,))))
        self.log = ClusterLog(self.cluster, patience=5.0, clock=lambda: next(clock))

    def fetch(self, request: Received) -> bytes:
        (topic,) = request.entity.topics
        (partition,) = topic.partitions
        self.asked.append(partition.fetch_offset)
        batches, stable = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        data = b"".join(batch.encoded() for batch in batches)
        return request.response(
            throttle_time=0,
            error_code=ErrorCode.none,
            session_id=0,
            responses=[
                {
                    "topic": TP.topic,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "error_code": ErrorCode.none,
                            "high_watermark": 100,
                            "last_stable_offset": stable,
                            "log_start_offset": 0,
                            "aborted_transactions": (),
                            "preferred_read_replica": -1,
                            "records": data,
                        }
                    ],
                }
            ],
        )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_records_after_an_open_transaction_are_waited_for(stack: ExitStack) -> None:
    later = batch(2, transactional=True)
    partition = Partition(stack, ([batch(0)], 2), ([], 2), ([], 2), ([later], 4))
    result = list(partition.log.read(TP, 0, 4))
    assert [(item.offset, item.key) for item in result] == [(at, b"k%d" % at) for at in range(4)]
    assert result[0].headers == (("h", b"1"),)
    assert partition.asked == [0, 2, 2, 2]


def test_only_requested_offsets_are_read(stack: ExitStack) -> None:
    partition = Partition(stack, ([batch(0), batch(2)], 4))
    assert [item.offset for item in partition.log.read(TP, 1, 3)] == [1, 2]
    assert partition.asked == [1]


def test_transaction_that_stays_open_ends_the_read_with_its_offset(stack: ExitStack) -> None:
    partition = Partition(stack, ([batch(0)], 2), ([], 2))
    with pytest.raises(MirrorError, match="map-0: a transaction at offset 2 has been open"):
        list(partition.log.read(TP, 0, 4))


def listed(stack: ExitStack, high_watermark: int, stable: list[int]) -> tuple[Cluster, list[int]]:
    """A partition whose last stable offsets come from `stable`, and the requested isolation
    levels.
    """
    levels: list[int] = []

    def answer(request: Received) -> bytes:
        levels.append(request.entity.isolation_level)
        return request.response(
            throttle_time=0,
            topics=[
                {
                    "name": TP.topic,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "error_code": ErrorCode.none,
                            "timestamp": -1,
                            "offset": stable.pop(0) if levels[-1] else high_watermark,
                            "leader_epoch": 0,
                        }
                    ],
                }
            ],
        )

    broker = stack.enter_context(fake_broker())
    broker.answers[ApiKey.METADATA] = lambda request: led_by(broker, request, TP)
    broker.answers[ApiKey.LIST_OFFSETS] = answer
    return stack.enter_context(Cluster(ClientSettings((broker.address,)))), levels


def test_open_transactions_are_waited_for(stack: ExitStack) -> None:
    stable = [40, 40, 50, 60]
    cluster, levels = listed(stack, 50, stable)
    wait_for_open_transactions(cluster, [TP], threading.Event())
    assert stable == [60]
    assert levels == [0, 1, 1, 1]


def test_signal_ends_the_wait_for_open_transactions(stack: ExitStack) -> None:
    cluster, levels = listed(stack, 50, [])
    stop = threading.Event()
    stop.set()
    wait_for_open_transactions(cluster, [TP], stop)
    assert levels == [0]
