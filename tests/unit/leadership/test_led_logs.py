"""Answers of the own broker about the logs that it leads, with a fake cluster client."""

import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sidetier.leadership import led_logs
from sidetier.leadership.led_logs import KafkaLedLogs
from sidetier.leadership.port import LedLog
from sidetier.segments.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    KafkaApiError,
    LeadershipError,
    UnsupportedVersionError,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.wire import cluster
from sidetier.wire.cluster import DEFAULT_TIMEOUT, Broker, Cluster, ClusterMetadata, Route
from sidetier.wire.protocol import ApiKey, build_request, build_response, encode

TP, OTHER = TopicPartition("t", 3), TopicPartition("t", 4)
EPOCHS = {TP: LeaderEpoch(7), OTHER: LeaderEpoch(8)}


class Answering(Cluster):
    """Answers ListOffsets: 100 for high watermarks, 90 for last stable offsets."""

    errors: dict[int, ErrorCode]
    left_out: set[int]
    version: int
    cluster_id: str | None
    hangs_up: int
    opened: list["Answering"]
    asked: list[tuple[int, dict[int, int]]]

    def metadata(
        self, topics: Collection[str] | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> ClusterMetadata:
        del timeout
        assert topics == ()
        self.opened.append(self)
        return ClusterMetadata(self.cluster_id, BrokerId(1), {}, {}, {})

    def request_once(
        self,
        route: Route,
        api: ApiKey,
        /,
        *,
        tolerate: Collection[ErrorCode] = (),
        **values: object,
    ) -> Any:  # noqa: ANN401 - of the real one
        assert route == Broker(BrokerId(1)), "only the own broker is asked"
        assert tolerate
        if type(self).hangs_up:
            type(self).hangs_up -= 1
            raise BrokerUnavailableError("connection reset")
        request: Any = build_request(api, self.version, **values)
        encode(request)
        [topic] = request.topics
        epochs = {p.partition_index: p.current_leader_epoch for p in topic.partitions}
        self.asked.append((request.isolation_level, epochs))
        partitions = [
            {
                "partition_index": number,
                "error_code": self.errors.get(number, ErrorCode.none),
                "offset": 90 if request.isolation_level else 100,
                "timestamp": None,
                "leader_epoch": epoch,
            }
            for number, epoch in epochs.items()
            if number not in self.left_out
        ]
        topics = [{"name": topic.name, "partitions": partitions}]
        return build_response(api, self.version, throttle_time=0, topics=topics)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> type[Answering]:
    monkeypatch.setattr(cluster, "Cluster", Answering)
    Answering.errors, Answering.left_out, Answering.version = {}, set(), 7
    Answering.cluster_id, Answering.hangs_up = "K", 0
    Answering.opened, Answering.asked = [], []
    return Answering


def source(clock: "FakeClock | None" = None) -> KafkaLedLogs:
    return KafkaLedLogs("broker:9092", {}, BrokerId(1), "K", clock=clock or FakeClock())


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_broker_is_asked_in_the_epochs_in_which_it_leads(answering: type[Answering]) -> None:
    led = source()
    assert led.led_logs(EPOCHS) == {
        TP: LedLog(Offset(100), Offset(90), LeaderEpoch(7)),
        OTHER: LedLog(Offset(100), Offset(90), LeaderEpoch(8)),
    }
    assert answering.asked == [(0, {3: 7, 4: 8}), (1, {3: 7, 4: 8})]
    assert led.led_logs({}) == {}
    assert led.led_logs({TP: LeaderEpoch(7)}, stable=False) == {
        TP: LedLog(Offset(100), None, LeaderEpoch(7))
    }
    assert answering.asked[2:] == [(0, {3: 7})], "one request"
    assert len(answering.opened) == 1, "the connection stays open"


def test_partition_that_the_broker_does_not_lead_has_an_error(answering: type[Answering]) -> None:
    answering.errors, answering.left_out = {3: ErrorCode.fenced_leader_epoch}, {4}
    answers = source().led_logs(EPOCHS)
    assert isinstance(answers[TP], KafkaApiError)
    assert isinstance(answers[OTHER], LeadershipError)


@pytest.mark.parametrize("cluster_id", ["another", None])
def test_brokers_of_another_cluster_are_not_asked(
    answering: type[Answering], cluster_id: str | None
) -> None:
    answering.cluster_id = cluster_id
    led = source()
    for _ in range(2):  # also not with the connection that is open then
        with pytest.raises(LeadershipError, match="belong to Kafka cluster"):
            led.led_logs(EPOCHS)
    assert not answering.asked


def test_connection_that_was_idle_is_opened_again(answering: type[Answering]) -> None:
    led = source(clock := FakeClock())
    led.led_logs(EPOCHS)
    answering.hangs_up = 1
    assert len(led.led_logs(EPOCHS)) == 2
    assert len(answering.opened) == 2
    answering.hangs_up = 2
    for _ in range(2):  # the second time without a request
        with pytest.raises(BrokerUnavailableError):
            led.led_logs(EPOCHS)
    clock.now += 5.0
    assert len(led.led_logs(EPOCHS)) == 2


def test_broker_that_hangs_holds_one_caller(
    answering: type[Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others get its error, and it is not asked twice."""
    led = source(clock := FakeClock())
    led.led_logs(EPOCHS)
    waited = []

    def hang(*_: object, **__: object) -> None:
        waited.append(1)
        clock.now += 10.0
        raise BrokerUnavailableError("no response within 10 s")

    monkeypatch.setattr(answering, "request_once", hang)
    for _ in range(5):
        with pytest.raises(BrokerUnavailableError, match="no response"):
            led.led_logs(EPOCHS, stable=False)
    assert len(waited) == 1
    monkeypatch.undo()


def test_callers_give_up_while_one_request_takes_long(
    answering: type[Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each upload thread that has a part would wait for the timeout."""
    monkeypatch.setattr(led_logs, "_LONGEST_WAIT", 0.02)
    led = source(clock := FakeClock())
    led.led_logs(EPOCHS)
    asks, answers = threading.Event(), threading.Event()
    request = answering.request_once

    def slow(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        asks.set()
        assert answers.wait(10)
        return request(*args, **kwargs)

    monkeypatch.setattr(answering, "request_once", slow)
    with ThreadPoolExecutor(2) as threads:
        hangs = threads.submit(led.led_logs, EPOCHS)
        assert asks.wait(10)
        clock.now += 0.01  # not long: the second caller waits
        waits = threads.submit(led.led_logs, EPOCHS)
        with pytest.raises(TimeoutError):
            waits.result(0.2)
        clock.now += 0.02
        with pytest.raises(BrokerUnavailableError, match="earlier request"):
            waits.result(10)
        answers.set()
        assert len(hangs.result(10)) == 2
        assert len(led.led_logs(EPOCHS)) == 2, "not an error of the broker"


def test_old_broker_and_closed_source_are_errors(answering: type[Answering]) -> None:
    answering.version = 1  # without leader epochs
    led = source()
    with pytest.raises(UnsupportedVersionError):
        led.led_logs(EPOCHS)
    led.close()
    led.close()
    with pytest.raises(BrokerUnavailableError):
        led.led_logs(EPOCHS)


def test_unsupported_login_is_refused() -> None:
    properties = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "GSSAPI"}
    with pytest.raises(ConfigurationError, match=r"sasl\.mechanism is GSSAPI"):
        KafkaLedLogs("broker:9092", properties, BrokerId(1), "K")
