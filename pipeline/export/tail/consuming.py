"""Read a fixed range of offsets from the brokers with Kafka's own client.

Reading ends by offsets: at the last one of the range; at a record at or above the end; or when the
broker reports the end of its log at or above the end of the range. Transaction markers, aborted
records and compacted records give no record.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from sidetier.archive.kafka_messages import UnreadableHeadersError, records_of
from sidetier.config.model import BrokerConfig
from sidetier.leadership.cluster import NO_ANSWER
from sidetier.pipeline.export.errors import BrokerReadError
from sidetier.pipeline.export.tail.brokers import client_settings
from sidetier.pipeline.planning.split import BrokerRange, in_words
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import monotonic

PATIENCE: Final = 60.0
"""Seconds without records or progress after which reading fails."""
_MOST: Final = 1 << 14
_WAIT: Final = 0.5
_REFUSED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 -- names of librdkafka
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001
_UNLESS_TOLD: Final = {
    "group.id": "sidetier-export",  # the client requires it, but joins no group and never commits
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
    """The part of Kafka's consumer that a reader uses. Partitions are assigned already."""

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return messages and errors; an empty list if there is none within `timeout` seconds."""
        ...

    def position(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        """Return the next offsets. They also advance over markers, which are not returned as
        messages.
        """
        ...

    def close(self) -> None:
        """Close the client."""
        ...


@dataclass(slots=True)
class _Trouble:
    """Receives errors of the client and keeps the last one."""

    text: str = ""

    def __call__(self, error: KafkaError) -> None:
        self.text = error.str()


@dataclass(slots=True)
class BrokerReader:
    """Reads ranges from the brokers.

    Attributes:
        columns: columns of the record batches.
        patience: seconds that may pass without records or progress.
    """

    broker: BrokerConfig
    isolation: IsolationLevel
    columns: Sequence[str]
    patience: float = PATIENCE
    clock: Callable[[], float] = monotonic
    _trouble: _Trouble = field(default_factory=_Trouble)

    def read(self, wanted: BrokerRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, in order of offsets, in batches that are never empty.

        Raises:
            BrokerReadError: the broker does not answer, has deleted records of the range, or
                returns an error; or the client cannot hand out a record.
            ConfigurationError: librdkafka refuses a property, or the cluster refuses the client.
        """
        if wanted.range.start >= wanted.range.end:
            return
        client = self._client(wanted)
        try:
            yield from self.take(client, wanted)
        finally:
            client.close()

    def take(self, client: Messages, wanted: BrokerRange) -> Iterator[pa.RecordBatch]:
        """Do the work of `read` with a client that has its partition assigned."""
        until, done = wanted.range.end, False
        heard, place = self.clock(), int(wanted.range.start)
        while not done:
            messages, ended = self._sorted(client.consume(_MOST, _WAIT), wanted)
            chosen = [message for message in messages if _offset(message) < until]
            done = ended or len(chosen) < len(messages)
            done |= bool(chosen) and _offset(chosen[-1]) == until - 1
            if chosen:
                yield self._records(chosen)
                heard = self.clock()  # the time that the caller took does not count
            elif place < (now := _place(client, wanted)) < until:
                heard, place = self.clock(), now  # the client has skipped invisible records
            elif not done and self.clock() - heard > self.patience:
                trouble = f": {self._trouble.text}" if self._trouble.text else ""
                raise BrokerReadError(
                    f"{in_words(wanted.tp)}: the broker has returned no record up to offset "
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
        """Return the records, and whether the log's end is reached at or above the end of the
        range.

        Raise errors that another attempt to consume does not solve.
        """
        messages, ended = [], False
        for message in came:
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                ended |= _offset(message) >= wanted.range.end
            elif error.code() in _GONE:
                raise BrokerReadError(
                    f"{in_words(wanted.tp)}: the broker has deleted records below offset "
                    f"{wanted.range.end} since the export was planned: run it again, the "
                    f"archive may have them by now ({error.str()})"
                )
            elif error.code() in _REFUSED:
                raise ConfigurationError(f"{in_words(wanted.tp)}: {error.str()}")
            elif _passes(message, error):
                self._trouble(error)
            else:
                # For example a damaged batch, a deleted topic, or a truncated log.
                raise BrokerReadError(
                    f"{in_words(wanted.tp)}: up to offset {wanted.range.end - 1} the broker "
                    f"returns: {error.str()}"
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
    """Return the timestamps, in ms, of the records at these offsets, committed or not.

    If there is no record at an offset, the next record is taken. A partition whose record does not
    arrive within `seconds` is left out.

    Raises:
        ConfigurationError: librdkafka refuses a property.
    """
    settings = {
        "isolation.level": IsolationLevel.READ_UNCOMMITTED.value,
        "fetch.message.max.bytes": 1,  # brokers still return one whole batch per partition
        "error_cb": _Trouble(),
    }
    client = _consumer(broker, settings)
    try:
        client.assign(
            [KafkaPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        )
        return first_timestamps(client, offsets, seconds)
    finally:
        client.close()


def first_timestamps(
    client: Messages,
    offsets: Mapping[TopicPartition, Offset],
    seconds: float,
    clock: Callable[[], float] = monotonic,
) -> dict[TopicPartition, int]:
    """Do the work of `record_timestamps` with a client that has its partitions assigned."""
    timestamps: dict[TopicPartition, int | None] = {}
    until = clock() + seconds
    while len(timestamps) < len(offsets) and clock() < until:
        for message in client.consume(_MOST, _WAIT):
            if message.error() is None:
                tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
                kind, timestamp = message.timestamp()
                timestamps.setdefault(tp, None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp)
    return {tp: timestamp for tp, timestamp in timestamps.items() if timestamp is not None}


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
    [position] = client.position([KafkaPartition(tp.topic, tp.partition)])
    return position.offset


def _passes(message: Message, error: KafkaError) -> bool:
    """Return whether records may still arrive after this error.

    An error without a topic concerns the client's group: the client looks for a coordinator.
    Nothing joins the group, so no permission for it is needed.
    """
    return message.topic() is None or error.retriable() or error.code() in NO_ANSWER


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset
