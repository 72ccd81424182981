"""A range of offsets from a client that gives what it has, in the order in which it comes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, TIMESTAMP_NOT_AVAILABLE, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from sidetier.config.model import BrokerConfig
from sidetier.pipeline.export.errors import BrokerReadError
from sidetier.pipeline.export.tail.consuming import BrokerReader, first_timestamps
from sidetier.pipeline.planning.split import BrokerRange
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

WANTED = BrokerRange(TopicPartition("orders", 0), OffsetRange(Offset(10), Offset(20)))
COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")


@dataclass
class FakeClient:
    """Gives the next answers; nothing once they are used up."""

    answers: list[Sequence[Message]]
    asked: int = 0
    places: list[int] = field(default_factory=list)

    def position(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        [one] = partitions
        assert (one.topic, one.partition) == ("orders", 0)
        place = self.places.pop(0) if self.places else OFFSET_INVALID
        return [KafkaPartition(one.topic, one.partition, place)]

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        assert num_messages > 1
        assert timeout > 0
        self.asked += 1
        return list(self.answers.pop(0)) if self.answers else []

    def close(self) -> None: ...


@dataclass
class Ticking:
    now: float = 0.0
    steps: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        self.now += 5.0
        return self.now


def record(offset: int) -> Message:
    return Message(
        topic="orders",
        partition=0,
        offset=offset,
        key=b"k",
        value=b"v",
        headers=[("a", b"1"), ("b", None)],
        timestamp=(1, offset),
    )


class Unreadable:
    """A message as the client has it where a header's key is no text."""

    def __init__(self, offset: int) -> None:
        self._message = record(offset)

    def headers(self) -> list[tuple[str, bytes]]:
        raise SystemError("headers returned a result with an exception set")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- those of the message
        return getattr(self._message, name)


def failed(code: int, offset: int = -1) -> Message:
    return Message("orders", 0, offset, error=KafkaError(code))


def read(client: FakeClient) -> list[int]:
    reader = BrokerReader(BrokerConfig(), IsolationLevel.READ_COMMITTED, COLUMNS, 60.0, Ticking())
    found = []
    for batch in reader.take(client, WANTED):
        assert tuple(batch.schema.names) == COLUMNS
        assert batch.num_rows
        found += batch.column("offset").to_pylist()
    return found


def test_the_first_timestamp_of_each_partition() -> None:
    """One of librdkafka that nobody can tell is left out, and is not waited for."""
    one, two = WANTED.tp, TopicPartition("orders", 1)
    without = Message("orders", 1, 4, timestamp=(TIMESTAMP_NOT_AVAILABLE, 0))
    client = FakeClient([[], [failed(EOF), record(12), record(13)], [without]])
    offsets = {one: Offset(10), two: Offset(4)}
    assert first_timestamps(client, offsets, 60.0, Ticking()) == {one: 12}
    assert client.asked == 3
    silent = FakeClient([[record(12)]])
    assert first_timestamps(silent, offsets, 60.0, Ticking()) == {one: 12}
    assert 3 < silent.asked < 20, "it gives up"


EOF = KafkaError._PARTITION_EOF


def test_it_ends_at_a_record_behind_the_range() -> None:
    client = FakeClient([[record(10), record(13)], [], [record(19), record(20), record(21)]])
    assert read(client) == [10, 13, 19]
    assert client.asked == 3


def test_it_ends_with_its_last_record() -> None:
    """Whatever becomes of the broker then."""
    client = FakeClient([[record(18), record(19)], [failed(KafkaError._TRANSPORT)]])
    assert read(client) == [18, 19]
    assert client.asked == 1


def test_it_ends_where_the_log_ends_if_that_is_far_enough() -> None:
    """Between the last record and the end of the range are markers, or nothing."""
    client = FakeClient([[record(11), failed(EOF, 15)], [failed(EOF, 20)]])
    assert read(client) == [11]
    assert client.asked == 2
    assert read(FakeClient([[failed(EOF, 33)]])) == []


def test_what_was_deleted_meanwhile_is_no_end() -> None:
    for code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        with pytest.raises(BrokerReadError, match="has deleted records below offset 20 since"):
            read(FakeClient([[record(10)], [failed(code)]]))


def test_a_silent_broker_is_given_up() -> None:
    client = FakeClient([[failed(KafkaError._TRANSPORT)], [record(10)]])
    with pytest.raises(BrokerReadError, match="given nothing up to offset 19 for 60 s"):
        read(client)
    assert 10 < client.asked < 20


def test_what_is_made_of_the_records_meanwhile_is_no_silence() -> None:
    clock = Ticking()
    client = FakeClient([[record(10)], [], [failed(EOF, 20)]])
    reader = BrokerReader(BrokerConfig(), IsolationLevel.READ_COMMITTED, COLUMNS, 60.0, clock)
    for _ in reader.take(client, WANTED):
        clock.now += 600.0  # a file goes to the store
    assert client.asked == 3


def test_records_that_are_not_to_be_seen_are_no_silence() -> None:
    """Aborted transactions, for longer than a broker may be silent: their markers move it on."""
    places = [place for place in range(11, 19) for _ in range(4)]
    client = FakeClient([[]] * 32 + [[record(19)]], places=places)
    assert read(client) == [19]
    assert client.asked == 33
    beyond = FakeClient([], places=list(range(20, 60)))
    with pytest.raises(BrokerReadError, match="given nothing"):
        read(beyond)


def test_a_broker_that_refuses_is_told() -> None:
    with pytest.raises(ConfigurationError, match="Topic authorization failed"):
        read(FakeClient([[failed(KafkaError.TOPIC_AUTHORIZATION_FAILED)]]))


@pytest.mark.parametrize(
    "code",
    [KafkaError._BAD_MSG, KafkaError._LOG_TRUNCATION, KafkaError.UNKNOWN_TOPIC_OR_PART],
)
def test_other_errors_of_the_broker_are_no_setting_and_may_pass(code: int) -> None:
    with pytest.raises(BrokerReadError, match="up to offset 19 the broker gives: ") as raised:
        read(FakeClient([[record(10)], [failed(code)]]))
    assert raised.value.retry


def test_who_may_read_the_topic_needs_no_group() -> None:
    """The client asks for the coordinator of its group all the same, and hands the answer on."""
    for code in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TIMED_OUT):
        said = Message(error=KafkaError(code))
        assert read(FakeClient([[said], [record(10)], [record(20)]])) == [10]
    silent = FakeClient([[Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))]])
    with pytest.raises(BrokerReadError, match=r"for 60 s: .*Group authorization failed"):
        read(silent)


def test_headers_that_the_client_cannot_hand_out_are_an_error_that_passes() -> None:
    """Once the record is archived, it is read from there."""
    client = FakeClient([[record(10), cast("Message", Unreadable(11))]])
    reader = BrokerReader(BrokerConfig(), IsolationLevel.READ_COMMITTED, COLUMNS)
    said = "orders-0 offset 11: a header's key is no UTF-8 text.* once it is archived"
    with pytest.raises(BrokerReadError, match=said) as raised:
        list(reader.take(client, WANTED))
    assert raised.value.retry
