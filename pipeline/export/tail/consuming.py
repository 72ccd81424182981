"""Reads a fixed range of offsets from the brokers with Kafka's own client.

It ends by offsets: once the last one came, or a record that lies at or above the end, or the broker
says that the log goes no farther and that is at or above it. Markers, aborted and compacted records
give none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from sidetier.archive.reading.kafka_messages import UnreadableHeadersError, records_of
from sidetier.config.cluster import BrokerConfig
from sidetier.pipeline.export.tail.brokers import client_settings
from sidetier.pipeline.export.tail.errors import BrokerReadError
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.split import BrokerRange
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import monotonic

PATIENCE: Final = 60.0
"""Seconds without any news of the broker."""
_MOST: Final = 1 << 14
_WAIT: Final = 0.5
_PASSING: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 -- librdkafka's names
        KafkaError._TRANSPORT,  # noqa: SLF001
    }
)
_REFUSED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001
_UNLESS_TOLD: Final = {
    "group.id": "sidetier-export",  # the client wants one; it joins no group, and commits nothing
    "check.crcs": True,
    "log_level": 0,
}
_OURS: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}


class Messages(Protocol):
    """What is asked of a client that was given its partition."""

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Messages and errors; none where nothing came in time."""
        ...

    def position(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        """Behind what it has come by: markers too, which are not handed out."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass(slots=True)
class _Trouble:
    """What the client has complained of last."""

    text: str = ""

    def __call__(self, error: KafkaError) -> None:
        self.text = error.str()


@dataclass(slots=True)
class BrokerReader:
    """Reads ranges; `patience` is how many seconds may pass without a record."""

    broker: BrokerConfig
    isolation: IsolationLevel
    columns: Sequence[str]
    patience: float = PATIENCE
    clock: Callable[[], float] = monotonic
    _trouble: _Trouble = field(default_factory=_Trouble)

    def read(self, wanted: BrokerRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, in order of offsets, in batches that are never empty.

        Raises:
            BrokerReadError: the broker is silent, has deleted some of them meanwhile, or gives
                an error; or the client cannot hand out a record.
            ConfigurationError: a property is refused, or the cluster refuses who asks.
        """
        if wanted.range.start >= wanted.range.end:
            return
        client = self._client(wanted)
        try:
            yield from self.take(client, wanted)
        finally:
            client.close()

    def take(self, client: Messages, wanted: BrokerRange) -> Iterator[pa.RecordBatch]:
        """The same of a client that was given its partition."""
        until, done = wanted.range.end, False
        heard, place = self.clock(), int(wanted.range.start)
        while not done:
            messages, ended = self._sorted(client.consume(_MOST, _WAIT), wanted)
            chosen = [one for one in messages if _offset(one) < until]
            done = ended or len(chosen) < len(messages)
            done |= bool(chosen) and _offset(chosen[-1]) == until - 1
            if chosen:
                yield self._records(chosen)
                heard = self.clock()  # what became of them meanwhile is no silence of the broker
            elif place < (now := _place(client, wanted)) < until:
                heard, place = self.clock(), now  # over records that are not to be seen
            elif not done and self.clock() - heard > self.patience:
                trouble = f": {self._trouble.text}" if self._trouble.text else ""
                raise BrokerReadError(
                    f"{in_words(wanted.tp)}: the broker has given nothing up to offset "
                    f"{until - 1} for {self.patience:g} s{trouble}"
                )

    def _records(self, messages: Sequence[Message]) -> pa.RecordBatch:
        try:
            return records_of(messages, self.columns)
        except UnreadableHeadersError as error:
            raise BrokerReadError(
                f"{error}; once it is archived it is exported from there, with replacement "
                "characters"
            ) from None

    def _sorted(self, came: Sequence[Message], wanted: BrokerRange) -> tuple[list[Message], bool]:
        """The records, and whether the end of the log was met, at or above that of the range."""
        messages, ended = [], False
        for one in came:
            error = one.error()
            if error is None:
                messages.append(one)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                ended |= _offset(one) >= wanted.range.end
            elif error.code() in _GONE:
                raise BrokerReadError(
                    f"{in_words(wanted.tp)}: the broker has deleted records below offset "
                    f"{wanted.range.end} since the export was planned: run it again, the "
                    f"archive may have them by now ({error.str()})"
                )
            elif error.code() in _REFUSED:
                raise ConfigurationError(f"{in_words(wanted.tp)}: {error.str()}")
            elif _passes(one, error):
                self._trouble(error)
            else:
                # A damaged batch, a topic that was deleted, a log that was truncated, ...
                raise BrokerReadError(
                    f"{in_words(wanted.tp)}: up to offset {wanted.range.end - 1} the broker "
                    f"gives: {error.str()}"
                )
        return messages, ended

    def _client(self, wanted: BrokerRange) -> Consumer:
        settings = {"isolation.level": self.isolation.value, "error_cb": self._trouble}
        client = _consumer(self.broker, settings)
        tp = wanted.tp
        client.assign([KafkaPartition(tp.topic, tp.partition, wanted.range.start)])
        return client


def record_timestamps(
    broker: BrokerConfig, offsets: Mapping[TopicPartition, Offset], seconds: float = 10.0
) -> dict[TopicPartition, int]:
    """The timestamps, in ms, of the records at these offsets, committed or not; of the next one
    where there is no such record. A partition whose record does not come within `seconds` is left
    out.

    Raises:
        ConfigurationError: a property is refused.
    """
    settings = {
        "isolation.level": IsolationLevel.READ_UNCOMMITTED.value,
        "fetch.message.max.bytes": 1,  # one batch of each partition
        "error_cb": _Trouble(),
    }
    client = _consumer(broker, settings)
    try:
        client.assign([KafkaPartition(tp.topic, tp.partition, at) for tp, at in offsets.items()])
        return first_timestamps(client, offsets, seconds)
    finally:
        client.close()


def first_timestamps(
    client: Messages,
    offsets: Mapping[TopicPartition, Offset],
    seconds: float,
    clock: Callable[[], float] = monotonic,
) -> dict[TopicPartition, int]:
    """The same of a client that was given its partitions."""
    found: dict[TopicPartition, int | None] = {}
    until = clock() + seconds
    while len(found) < len(offsets) and clock() < until:
        for message in client.consume(_MOST, _WAIT):
            if message.error() is None:
                tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
                kind, timestamp = message.timestamp()
                found.setdefault(tp, None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp)
    return {tp: timestamp for tp, timestamp in found.items() if timestamp is not None}


def _consumer(broker: BrokerConfig, settings: Mapping[str, Any]) -> Consumer:
    servers, properties = client_settings(broker)
    try:
        return Consumer(
            {**_UNLESS_TOLD, **properties, **_OURS, "bootstrap.servers": servers, **settings}
        )
    except (KafkaException, ValueError, TypeError) as error:
        raise ConfigurationError(f"Kafka's client refuses a property: {error}") from None


def _place(client: Messages, wanted: BrokerRange) -> int:
    tp = wanted.tp
    [found] = client.position([KafkaPartition(tp.topic, tp.partition)])
    return found.offset


def _passes(message: Message, error: KafkaError) -> bool:
    """Whether records may come all the same. What is said of no topic is of the client's group: it
    looks for the coordinator, but nobody joins, and a right to the group is not needed.
    """
    return message.topic() is None or error.retriable() or error.code() in _PASSING


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset
