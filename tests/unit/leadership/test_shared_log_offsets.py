"""Answers of the own broker about the logs that it leads, with a fake connection."""

import struct
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sidetier.leadership import shared_log_offsets
from sidetier.leadership.log_offsets import KafkaLogOffsets
from sidetier.leadership.shared_log_offsets import SharedLogOffsets
from sidetier.segments.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    KafkaApiError,
    LeadershipError,
    UnsupportedVersionError,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.wire import cluster
from sidetier.wire.cluster import DEFAULT_TIMEOUT, Cluster, ClusterMetadata
from sidetier.wire.connection import Buffer
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind
from sidetier.wire.protocol import ApiKey

TP, OTHER = TopicPartition("t", 3), TopicPartition("t", 4)
ASKED = OffsetKind.HIGH_WATERMARK, [(TP, LeaderEpoch(7)), (OTHER, LeaderEpoch(8))]


class Answering(Cluster):
    """Its broker answers 100 for high watermarks, 90 for last stable offsets."""

    errors: dict[int, ErrorCode]
    left_out: set[int]
    version: int
    cluster_id: str | None
    hangs_up: int
    opened: list["FakeConnection"]
    asked: list[tuple[int, dict[int, int]]]

    def metadata(
        self, topics: Collection[str] | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> ClusterMetadata:
        del timeout
        assert topics == ()
        return ClusterMetadata(self.cluster_id, BrokerId(1), {}, {}, {})

    def connect(self, broker: BrokerId) -> "FakeConnection":  # type: ignore[override]
        assert broker == 1, "only the own broker is asked"
        self.opened.append(FakeConnection(type(self)))
        return self.opened[-1]


class FakeConnection:
    """Takes and answers ListOffsets in version 5, which is not flexible."""

    def __init__(self, answering: type[Answering]) -> None:
        self.answering = answering

    def version(self, api: ApiKey, *, at_least: int = 0) -> int:
        assert api is ApiKey.LIST_OFFSETS
        if self.answering.version < at_least:
            raise UnsupportedVersionError("an old broker")
        return self.answering.version

    def send_buffers(
        self, api: ApiKey, version: int, body: Sequence[Buffer], *, timeout: float | None = None
    ) -> None:
        del timeout
        assert (api, version) == (ApiKey.LIST_OFFSETS, 5)
        if self.answering.hangs_up:
            self.answering.hangs_up -= 1
            raise BrokerUnavailableError("connection reset")
        data = b"".join(body)
        _, isolation, topics, length = struct.unpack_from(">ibih", data)
        assert (topics, data[11 : 11 + length]) == (1, b"t")
        rows = struct.iter_unpack(">iiq", data[11 + length + 4 :])
        self.answering.asked.append((isolation, {number: epoch for number, epoch, _ in rows}))

    def receive_body(self) -> tuple[int, memoryview]:
        isolation, epochs = self.answering.asked[-1]
        rows = [
            struct.pack(
                ">ihqqi",
                number,
                self.answering.errors.get(number, ErrorCode.none).value,
                -1,
                90 if isolation else 100,
                epoch,
            )
            for number, epoch in epochs.items()
            if number not in self.answering.left_out
        ]
        return 5, memoryview(struct.pack(">iih1si", 0, 1, 1, b"t", len(rows)) + b"".join(rows))

    def close(self) -> None:
        """Nothing is open."""

    interrupt = close


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> type[Answering]:
    monkeypatch.setattr(cluster, "Cluster", Answering)
    Answering.errors, Answering.left_out, Answering.version = {}, set(), 5
    Answering.cluster_id, Answering.hangs_up = "K", 0
    Answering.opened, Answering.asked = [], []
    return Answering


def source(clock: "FakeClock | None" = None) -> SharedLogOffsets:
    clock = clock or FakeClock()
    asker = KafkaLogOffsets("broker:9092", {}, BrokerId(1), "K", clock=clock)
    return SharedLogOffsets(asker, clock)


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_broker_is_asked_in_the_epochs_in_which_it_leads(answering: type[Answering]) -> None:
    led = source()
    assert led.offsets(*ASKED) == [
        AnsweredOffset(Offset(100), LeaderEpoch(7)),
        AnsweredOffset(Offset(100), LeaderEpoch(8)),
    ]
    assert led.offsets(OffsetKind.LAST_STABLE, ASKED[1][:1]) == [
        AnsweredOffset(Offset(90), LeaderEpoch(7))
    ]
    assert not led.offsets(OffsetKind.HIGH_WATERMARK, [])
    assert answering.asked == [(0, {3: 7, 4: 8}), (1, {3: 7})]
    assert len(answering.opened) == 1, "the connection stays open"


def test_partition_that_the_broker_does_not_lead_has_an_error(answering: type[Answering]) -> None:
    answering.errors, answering.left_out = {3: ErrorCode.fenced_leader_epoch}, {4}
    first, second = source().offsets(*ASKED)
    assert isinstance(first, KafkaApiError)
    assert isinstance(second, LeadershipError)


@pytest.mark.parametrize("cluster_id", ["another", None])
def test_brokers_of_another_cluster_are_not_asked(
    answering: type[Answering], cluster_id: str | None
) -> None:
    answering.cluster_id = cluster_id
    led = source()
    for _ in range(2):  # also not with the connection that is open then
        with pytest.raises(LeadershipError, match="belong to Kafka cluster"):
            led.offsets(*ASKED)
    assert not answering.asked


def test_connection_that_was_idle_is_opened_again(answering: type[Answering]) -> None:
    led = source(clock := FakeClock())
    led.offsets(*ASKED)
    answering.hangs_up = 1
    assert len(led.offsets(*ASKED)) == 2
    assert len(answering.opened) == 2
    answering.hangs_up = 2
    for _ in range(2):  # the second time without a request
        with pytest.raises(BrokerUnavailableError):
            led.offsets(*ASKED)
    clock.now += 5.0
    assert len(led.offsets(*ASKED)) == 2


@pytest.mark.usefixtures("answering")
def test_broker_that_hangs_holds_one_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others get its error, and it is not asked twice."""
    led = source(clock := FakeClock())
    led.offsets(*ASKED)
    waited = []

    def hang(*_: object, **__: object) -> None:
        waited.append(1)
        clock.now += 10.0
        raise BrokerUnavailableError("no response within 10 s")

    monkeypatch.setattr(FakeConnection, "send_buffers", hang)
    for _ in range(5):
        with pytest.raises(BrokerUnavailableError, match="no response"):
            led.offsets(*ASKED)
    assert len(waited) == 1
    monkeypatch.undo()


@pytest.mark.usefixtures("answering")
def test_callers_give_up_while_one_request_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each upload thread that has a part would wait for the timeout."""
    monkeypatch.setattr(shared_log_offsets, "_LONGEST_WAIT", 0.02)
    led = source(clock := FakeClock())
    led.offsets(*ASKED)
    asks, answers = threading.Event(), threading.Event()
    send = FakeConnection.send_buffers

    def slow(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        asks.set()
        assert answers.wait(10)
        return send(*args, **kwargs)

    monkeypatch.setattr(FakeConnection, "send_buffers", slow)
    with ThreadPoolExecutor(2) as threads:
        hangs = threads.submit(led.offsets, *ASKED)
        assert asks.wait(10)
        clock.now += 0.01  # not long: the second caller waits
        waits = threads.submit(led.offsets, *ASKED)
        with pytest.raises(TimeoutError):
            waits.result(0.2)
        clock.now += 0.02
        with pytest.raises(BrokerUnavailableError, match="earlier request"):
            waits.result(10)
        answers.set()
        assert len(hangs.result(10)) == 2
        assert len(led.offsets(*ASKED)) == 2, "not an error of the broker"


def test_old_broker_and_closed_source_are_errors(answering: type[Answering]) -> None:
    answering.version = 1  # without leader epochs
    led = source()
    with pytest.raises(UnsupportedVersionError):
        led.offsets(*ASKED)
    led.close()
    led.close()
    with pytest.raises(BrokerUnavailableError):
        led.offsets(*ASKED)


def test_unsupported_login_is_refused() -> None:
    properties = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "GSSAPI"}
    with pytest.raises(ConfigurationError, match=r"sasl\.mechanism is GSSAPI"):
        KafkaLogOffsets("broker:9092", properties, BrokerId(1), "K")
