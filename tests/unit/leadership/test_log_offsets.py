"""Offsets of all led logs from the own broker, with a fake connection."""

import struct
from collections.abc import Collection, Sequence

import pytest

from sidetier.leadership.log_offsets import KafkaLogOffsets
from sidetier.segments.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    KafkaApiError,
    LeadershipError,
    MalformedResponseError,
    SidetierError,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.wire import cluster
from sidetier.wire.cluster import DEFAULT_TIMEOUT, Cluster, ClusterMetadata
from sidetier.wire.connection import Buffer
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind
from sidetier.wire.protocol import ApiKey

PARTITIONS = [(TopicPartition("t", number), LeaderEpoch(7)) for number in (3, 4)]
ANSWER = AnsweredOffset(Offset(100), LeaderEpoch(7))
FENCED = 74


class FakeConnection:
    """Answers 100 for each partition of topic t, in version 5."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.failures: list[SidetierError] = []
        self.codes: dict[int, int] = {}
        self.left_out: set[int] = set()
        self.closed = self.interrupted = False
        self.cut = 0

    def version(self, api: ApiKey, *, at_least: int = 0) -> int:
        assert (api, at_least) == (ApiKey.LIST_OFFSETS, 4)
        return 5

    def send_buffers(
        self, api: ApiKey, version: int, body: Sequence[Buffer], *, timeout: float | None = None
    ) -> None:
        assert (api, version, timeout) == (ApiKey.LIST_OFFSETS, 5, 10.0)
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append(b"".join(body))

    def receive_body(self) -> tuple[int, memoryview]:
        rows = [
            struct.pack(">ihqqi", number, self.codes.get(number, 0), -1, 100, 7)
            for number in (3, 4)
            if number not in self.left_out
        ]
        body = struct.pack(">iih1si", 0, 1, 1, b"t", len(rows)) + b"".join(rows)
        return 5, memoryview(bytearray(body[: len(body) - self.cut]))

    def close(self) -> None:
        self.closed = True

    def interrupt(self) -> None:
        self.interrupted = True


class FakeCluster(Cluster):
    cluster_id: str | None = "K"
    opened: list[FakeConnection]

    def metadata(
        self, topics: Collection[str] | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> ClusterMetadata:
        assert (topics, timeout) == ((), 10.0)
        return ClusterMetadata(self.cluster_id, BrokerId(1), {}, {}, {})

    def connect(self, broker: BrokerId) -> FakeConnection:  # type: ignore[override]
        assert broker == 1, "only the own broker is asked"
        self.opened.append(FakeConnection())
        return self.opened[-1]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeConnection]:
    monkeypatch.setattr(cluster, "Cluster", FakeCluster)
    FakeCluster.opened, FakeCluster.cluster_id = [], "K"
    return FakeCluster.opened


def source() -> KafkaLogOffsets:
    return KafkaLogOffsets("broker:9092", {}, BrokerId(1), "K")


def ask(asker: KafkaLogOffsets) -> Sequence[AnsweredOffset | SidetierError]:
    return asker.offsets(OffsetKind.HIGH_WATERMARK, PARTITIONS)


def test_one_connection_answers_in_the_order_of_the_question(opened: list[FakeConnection]) -> None:
    asker = source()
    assert ask(asker) == [ANSWER, ANSWER]
    connection = opened[0]
    connection.codes, connection.left_out = {4: FENCED}, {3}
    left_out, refused = ask(asker)
    assert isinstance(left_out, LeadershipError)
    assert isinstance(refused, KafkaApiError)
    assert refused.code == FENCED
    assert len(opened) == 1
    assert not asker.offsets(OffsetKind.LOG_START, [])
    assert len(connection.sent) == 2


def test_a_connection_that_the_broker_has_closed_is_opened_again(
    opened: list[FakeConnection],
) -> None:
    asker = source()
    ask(asker)
    opened[0].failures = [BrokerUnavailableError("connection reset")]
    assert ask(asker) == [ANSWER, ANSWER]
    assert (len(opened), opened[0].closed) == (2, True)
    # A broker that is down: one attempt with the old connection, one with a new one.
    opened[1].failures = [BrokerUnavailableError("reset")] * 2
    FakeCluster.cluster_id = None
    with pytest.raises(LeadershipError):
        ask(asker)


def test_an_answer_that_cannot_be_decoded_ends_the_connection(opened: list[FakeConnection]) -> None:
    asker = source()
    ask(asker)
    opened[0].cut = 3
    with pytest.raises(MalformedResponseError):
        ask(asker)
    assert opened[0].closed
    assert ask(asker) == [ANSWER, ANSWER]


def test_another_cluster_is_not_asked(opened: list[FakeConnection]) -> None:
    FakeCluster.cluster_id = "other"
    with pytest.raises(LeadershipError, match="other"):
        ask(source())
    assert not opened


def test_after_the_end_nothing_is_asked(opened: list[FakeConnection]) -> None:
    asker = source()
    ask(asker)
    asker.close()
    asker.close()
    assert opened[0].interrupted
    opened[0].failures = [BrokerUnavailableError("interrupted")]
    with pytest.raises(BrokerUnavailableError, match="was closed"):
        ask(asker)
    assert len(opened) == 1


def test_properties_that_this_client_does_not_support_are_refused() -> None:
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "GSSAPI"}
    with pytest.raises(ConfigurationError):
        KafkaLogOffsets("broker:9092", properties, BrokerId(1), "K")
