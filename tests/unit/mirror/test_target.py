"""Responses to Produce that do not confirm every batch, from a fake broker."""

from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from sidetier.mirror.copy.target import (
    DamagedBatchError,
    KafkaTarget,
    OutgoingBatch,
    RefusedBatchError,
)
from sidetier.segments.errors import (
    BrokerError,
    ConfigurationError,
    KafkaApiError,
    MalformedResponseError,
)
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import CommittedOffset
from sidetier.wire.settings import ClientSettings
from tests.harness.fake_broker import (
    HANG_UP,
    FakeBroker,
    Received,
    committed_by,
    coordinated_by,
    fake_broker,
    led_by,
)
from tests.harness.record_batches import MadeBatch, MadeRecord

TP = TopicPartition("orders", 0)


def batches(count: int) -> list[OutgoingBatch]:
    encoded = [MadeBatch((MadeRecord(at),)).encoded() for at in range(count)]
    return [
        OutgoingBatch(TP, memoryview(bytearray(data)), range(at, at + 1))
        for at, data in enumerate(encoded)
    ]


class Log:
    """A broker whose first Produce answer is the given one; later answers are successful."""

    def __init__(self, broker: FakeBroker) -> None:
        self.first: ErrorCode | bytes | None = ErrorCode.none
        self.asked = 0
        broker.answers |= {
            ApiKey.METADATA: lambda request: led_by(broker, request, TP),
            ApiKey.INIT_PRODUCER_ID: lambda request: request.response(
                throttle_time=0, error_code=ErrorCode.none, producer_id=5, producer_epoch=0
            ),
            ApiKey.PRODUCE: self.produce,
        }

    def produce(self, request: Received) -> bytes | None:
        self.asked += 1
        outcome = self.first if self.asked == 1 else ErrorCode.none
        if isinstance(outcome, bytes):
            return outcome
        partition = {
            "index": 0,
            "error_code": outcome,
            "base_offset": self.asked,
            "log_append_time": None,
            "log_start_offset": 0,
            "record_errors": (),
            "error_message": None,
        }
        named = [] if outcome is None else [{"name": "orders", "partition_responses": [partition]}]
        return request.response(throttle_time=0, responses=named)


def send(target: KafkaTarget, count: int) -> list[int]:
    """Send `count` batches; return the source offsets of the written ones."""
    target.send(batches(count))
    return [written.source_offsets[0] for written in target.flush()]


@pytest.fixture
def log() -> Iterator[tuple[Log, KafkaTarget]]:
    with fake_broker() as broker, Cluster(ClientSettings((broker.address,))) as cluster:
        target = KafkaTarget(cluster, "group", None)
        yield Log(broker), target
        target.close()


@pytest.mark.parametrize(
    ("first", "error"),
    [
        pytest.param(ErrorCode.not_leader_or_follower, KafkaApiError, id="another leader"),
        pytest.param(ErrorCode.unknown_topic_or_partition, KafkaApiError, id="not created yet"),
        pytest.param(HANG_UP, BrokerError, id="a closed connection"),
        pytest.param(None, MalformedResponseError, id="an answer without the partition"),
    ],
)
def test_unconfirmed_batch_is_an_error_even_if_later_ones_succeed(
    log: tuple[Log, KafkaTarget], first: ErrorCode | bytes | None, error: type[BrokerError]
) -> None:
    broker, target = log
    broker.first = first
    target.start()
    with pytest.raises(error):
        send(target, 3)
    target.start()
    assert send(target, 3) == [0, 1, 2]


def test_refused_batch_names_its_partition(log: tuple[Log, KafkaTarget]) -> None:
    """So that its partition alone is left out: also where one request is for several."""
    broker, target = log
    broker.first = ErrorCode.message_too_large
    target.start()
    sent = batches(2)
    target.send(sent)
    with pytest.raises(RefusedBatchError, match="MESSAGE_TOO_LARGE") as refused:
        target.flush()
    assert (refused.value.batch, refused.value.retry) == (sent[0], False)

    target.start()
    unknown = sent[1]._replace(tp=TopicPartition("orders", 7))
    with pytest.raises(RefusedBatchError, match="orders-7") as refused:
        target.send([*batches(1), unknown])
    assert (refused.value.batch, refused.value.retry) == (unknown, True)

    target.start()
    sent[1].data[-1] ^= 1
    with pytest.raises(DamagedBatchError, match="CRC") as damaged:
        target.send(sent)
    assert damaged.value.batch == sent[1]


def test_error_for_a_refused_transaction_timeout_names_the_option() -> None:
    with fake_broker() as broker, Cluster(ClientSettings((broker.address,))) as cluster:
        broker.answers |= {
            ApiKey.METADATA: lambda request: led_by(broker, request, TP),
            ApiKey.FIND_COORDINATOR: lambda request: coordinated_by(broker, request),
            ApiKey.INIT_PRODUCER_ID: lambda request: request.response(
                throttle_time=0,
                error_code=ErrorCode.invalid_transaction_timeout,
                producer_id=-1,
                producer_epoch=-1,
            ),
        }
        target = KafkaTarget(cluster, "group", "id", transaction_timeout=3600.0)
        with pytest.raises(ConfigurationError, match=r"3600 s: .* give a lower --transaction-tim"):
            target.start()
        target.close()


def listed(request: Received, *ids: str, error: ErrorCode = ErrorCode.none) -> bytes:
    """The answer to ListTransactions."""
    return request.response(
        throttle_time=0,
        error_code=error,
        unknown_state_filters=(),
        transaction_states=[
            {"transactional_id": topic_id, "producer_id": 7, "transaction_state": "Ongoing"}
            for topic_id in ids
        ],
    )


@pytest.mark.parametrize("refusal", [ErrorCode.none, ErrorCode.cluster_authorization_failed])
def test_worker_aborts_transactions_left_open_in_its_partitions_first(
    refusal: ErrorCode,
) -> None:
    """If it cannot abort them, the transactions end at their timeout."""
    with fake_broker() as broker, Cluster(ClientSettings((broker.address,))) as cluster:
        broker.answers |= {
            ApiKey.METADATA: lambda request: led_by(broker, request, TP),
            ApiKey.FIND_COORDINATOR: lambda request: coordinated_by(broker, request),
            ApiKey.LIST_TRANSACTIONS: lambda request: listed(
                request, "dr:orders-0", "dr:orders-1", "another", error=refusal
            ),
            ApiKey.INIT_PRODUCER_ID: lambda request: request.response(
                throttle_time=0, error_code=ErrorCode.none, producer_id=5, producer_epoch=1
            ),
            ApiKey.OFFSET_FETCH: lambda request: committed_by(request, {0: 7}),
        }
        target = KafkaTarget(cluster, "group", "dr-worker", task_id=lambda tp: f"dr:{tp}")
        assert target.progress([TP]) == {TP: CommittedOffset(Offset(7))}
        target.close()
        (states,) = [
            item.entity.state_filters
            for item in broker.received
            if item.api is ApiKey.LIST_TRANSACTIONS
        ]
        assert states == ("Ongoing",)
        aborted = [
            entry.entity.transactional_id
            for entry in broker.received
            if entry.api is ApiKey.INIT_PRODUCER_ID
        ]
        assert aborted == ([] if refusal is not ErrorCode.none else ["dr:orders-0"])
        assert broker.apis()[-1] is ApiKey.OFFSET_FETCH
