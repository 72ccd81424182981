"""Reading a range of offsets with a client that returns records in the order of arrival."""

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
    """Return the prepared answers, and nothing once they are used up."""

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
    """A message as the client returns it when a header's key is not valid text."""

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


def test_first_timestamp_of_each_partition_is_read() -> None:
    """A timestamp that librdkafka marks as unavailable is left out and not waited for."""
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


def test_read_ends_at_the_first_record_beyond_the_range() -> None:
    client = FakeClient([[record(10), record(13)], [], [record(19), record(20), record(21)]])
    assert read(client) == [10, 13, 19]
    assert client.asked == 3


def test_read_ends_with_the_last_record_of_the_range() -> None:
    """A later failure of the broker does not matter."""
    client = FakeClient([[record(18), record(19)], [failed(KafkaError._TRANSPORT)]])
    assert read(client) == [18, 19]
    assert client.asked == 1


def test_read_ends_at_the_log_end_if_it_covers_the_range() -> None:
    """Between the last record and the end of the range are only markers or nothing."""
    client = FakeClient([[record(11), failed(EOF, 15)], [failed(EOF, 20)]])
    assert read(client) == [11]
    assert client.asked == 2
    assert read(FakeClient([[failed(EOF, 33)]])) == []


def test_records_deleted_during_the_read_are_an_error() -> None:
    for code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        with pytest.raises(BrokerReadError, match="has deleted records below offset 20 since"):
            read(FakeClient([[record(10)], [failed(code)]]))


def test_read_of_a_silent_broker_is_given_up() -> None:
    client = FakeClient([[failed(KafkaError._TRANSPORT)], [record(10)]])
    with pytest.raises(BrokerReadError, match="returned no record up to offset 19 for 60 s"):
        read(client)
    assert 10 < client.asked < 20


def test_time_spent_on_received_records_does_not_count_as_silence() -> None:
    clock = Ticking()
    client = FakeClient([[record(10)], [], [failed(EOF, 20)]])
    reader = BrokerReader(BrokerConfig(), IsolationLevel.READ_COMMITTED, COLUMNS, 60.0, clock)
    for _ in reader.take(client, WANTED):
        clock.now += 600.0  # a file goes to the store
    assert client.asked == 3


def test_aborted_records_do_not_count_as_silence() -> None:
    """The client skips aborted transactions for longer than the silence limit: its position
    advances.
    """
    places = [place for place in range(11, 19) for _ in range(4)]
    client = FakeClient([[]] * 32 + [[record(19)]], places=places)
    assert read(client) == [19]
    assert client.asked == 33
    beyond = FakeClient([], places=list(range(20, 60)))
    with pytest.raises(BrokerReadError, match="returned no record"):
        read(beyond)


def test_refusal_by_a_broker_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="Topic authorization failed"):
        read(FakeClient([[failed(KafkaError.TOPIC_AUTHORIZATION_FAILED)]]))


@pytest.mark.parametrize(
    "code",
    [KafkaError._BAD_MSG, KafkaError._LOG_TRUNCATION, KafkaError.UNKNOWN_TOPIC_OR_PART],
)
def test_other_broker_errors_are_transient(code: int) -> None:
    with pytest.raises(BrokerReadError, match="up to offset 19 the broker returns: ") as raised:
        read(FakeClient([[record(10)], [failed(code)]]))
    assert raised.value.retry


def test_reading_a_topic_needs_no_group_permission() -> None:
    """The client asks for the coordinator of its group anyway, and passes the answer on."""
    for code in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TIMED_OUT):
        said = Message(error=KafkaError(code))
        assert read(FakeClient([[said], [record(10)], [record(20)]])) == [10]
    silent = FakeClient([[Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))]])
    with pytest.raises(BrokerReadError, match=r"for 60 s: .*Group authorization failed"):
        read(silent)


def test_unreadable_headers_are_a_transient_error() -> None:
    """Once the record is archived, it is read from the archive."""
    client = FakeClient([[record(10), cast("Message", Unreadable(11))]])
    reader = BrokerReader(BrokerConfig(), IsolationLevel.READ_COMMITTED, COLUMNS)
    said = "orders-0 offset 11: a header's key is not UTF-8 text.* once it is archived"
    with pytest.raises(BrokerReadError, match=said) as raised:
        list(reader.take(client, WANTED))
    assert raised.value.retry
