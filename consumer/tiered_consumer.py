"""`TieredConsumer`: reads Kafka and the store as one log."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message

from sidetier.consumer.assigning import Assigning
from sidetier.consumer.deserializing import Deserializing, deserializing
from sidetier.consumer.errors import TieredError
from sidetier.consumer.feed import Share
from sidetier.consumer.group_api import PollLock
from sidetier.consumer.opening import Parts, Sides, assemble, open_sides
from sidetier.consumer.settings import Settings, read_settings
from sidetier.consumer.store_records import ArrowBatch, StoreSlice, batches_of

_SLICE_SECONDS: Final = 0.1
"""Longest time until a poll notices `close`, or lets another thread in, in seconds."""
_MOST_MESSAGES: Final = 1_000_000


class TieredConsumer(Assigning):
    """A `confluent_kafka.Consumer` that also reads the archive.

    Args:
        config: confluent-kafka's configuration, and `tiered.storage.*`; docs/consumer.md lists all
            keys. With `key.deserializer` or `value.deserializer` (or their `.builder`), messages
            are deserialized and errors are raised, as by `DeserializingConsumer`.
        options: further keys, which override those in `config`.

    Raises:
        ConfigurationError: a key below `tiered.storage.` is wrong or missing.
        KafkaException: librdkafka refuses its part of the configuration.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:  # noqa: ANN401 -- as confluent-kafka's
        settings = read_settings({**(config or {}), **options})
        serdes, inner = deserializing(settings.deserializers, settings.kafka.config or {})
        if settings.kafka.config is not None:
            settings = replace(settings, kafka=replace(settings.kafka, config=inner))
        self._begin(settings, open_sides(settings), serdes)

    def _begin(self, settings: Settings, sides: Sides, serdes: Deserializing | None) -> None:
        self._settings: Settings = settings
        self._parts: Parts = assemble(settings, sides)
        self._poll_lock: PollLock = PollLock()
        self._serdes = serdes
        self._closing = threading.Event()
        self._closed: bool = False
        if serdes is not None and sides.kafka is not None:
            serdes.cluster_id(sides.kafka.consumer.cluster_id)

    @classmethod
    def over(cls, settings: Settings, sides: Sides, serdes: Deserializing | None = None) -> Self:
        """Return a consumer over sides that the caller has opened."""
        consumer = cls.__new__(cls)
        consumer._begin(settings, sides, serdes)
        return consumer

    def poll(self, timeout: float | None = -1) -> Message | None:
        """Return the next message, or an error as a message; None after `timeout` seconds.

        Args:
            timeout: seconds; negative or None to wait without limit.

        Raises:
            RuntimeError: the consumer is closed, or another thread closes it during the call.
        """
        message = self._next(timeout)
        if message is None or self._serdes is None:
            return message
        return self._serdes.apply(message)

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message]:
        """Return at most `num_messages` messages as soon as there are any. An error comes alone.

        Every returned message belongs to a partition that is still assigned: no callback runs
        between the first message and the last.

        Args:
            num_messages: from 0 to 1,000,000.
            timeout: seconds, after which the list is empty; negative or None to wait without limit.

        Raises:
            ValueError: `num_messages` is below 0 or above a million.
            RuntimeError: the consumer is closed, or another thread closes it during the call.
        """
        if not 0 <= num_messages <= _MOST_MESSAGES:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        if num_messages == 0:
            return []
        if self._serdes is not None:
            return self._consume_deserialized(self._serdes, num_messages, timeout)
        shares = self._shares(num_messages, self._deadline(timeout))
        if len(shares) == 1:
            return _messages(shares[0])
        return [message for share in shares for message in _messages(share)]

    def consume_arrow(
        self, max_records: int = 10_000, timeout: float | None = -1
    ) -> list[ArrowBatch]:
        """Return at most `max_records` records as Arrow batches, as soon as there are any.

        Records of the store are not converted to Python objects. Keys and values are bytes, even if
        deserializers are configured.

        Args:
            max_records: at least 1; over all batches.
            timeout: seconds, after which the list is empty; negative or None to wait without limit.

        Raises:
            ValueError: `max_records` is below 1.
            KafkaException: an error that `poll` would return as a message. Records before the error
                were returned by an earlier call.
            RuntimeError: the consumer is closed, or another thread closes it during the call.
        """
        if max_records < 1:
            raise ValueError("max_records must be at least 1")
        deadline = self._deadline(timeout)
        while True:
            shares = self._shares(max_records, deadline)
            batches = [batch for share in shares for batch in _batches(share)]
            if batches or not shares:
                return batches

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the consumer is closed.

        Raises:
            KafkaException: an error that `poll` would return as a message, except the end of a
                partition, which is skipped.
        """
        while not self._closing.is_set():
            try:
                message = self._next(1.0)
            except RuntimeError:
                if self._closing.is_set():
                    return
                raise
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message if self._serdes is None else self._serdes.apply(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)

    def close(self) -> None:
        """Leave the group and stop reading.

        May be called twice, and from another thread: a waiting poll then ends with RuntimeError.
        """
        self._closing.set()
        self._parts.feed.idle.set()
        with self._poll_lock:
            if self._closed:
                return
            try:
                self._end()
            finally:
                self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        sides = self._parts.sides
        try:
            self._parts.delivery.flush(self._parts.board.partitions.values())
            sides.lookups.close()
            if sides.kafka is not None:
                sides.kafka.consumer.close()
                sides.kafka.callbacks.check()
        finally:
            sides.close()
            if self._serdes is not None:
                self._serdes.close()

    def _next(self, timeout: float | None) -> Message | None:
        self._poll_lock.take()
        try:
            self._require_polling()
            message = self._parts.feed.next()
        finally:
            self._poll_lock.give()
        if message is not None:
            return message
        for share in self._shares(1, self._deadline(timeout)):
            return _messages(share)[0]
        return None

    def _shares(self, most: int, deadline: float | None) -> list[Share]:
        """Return the next items; an empty list at the deadline."""
        clock = self._parts.sides.clock
        while True:
            with self._poll_lock.slice:
                self._require_polling()
                left = _SLICE_SECONDS if deadline is None else deadline - clock()
                shares = self._parts.feed.gather(most, max(0.0, min(left, _SLICE_SECONDS)))
            if shares or (deadline is not None and clock() >= deadline):
                return shares

    def _consume_deserialized(
        self, serdes: Deserializing, most: int, timeout: float | None
    ) -> list[Message]:
        """Wait for one message, and add the messages that were fetched already.

        A message that cannot be deserialized is raised alone, after those before it were returned.
        """
        messages: list[Message] = []
        message = self._next(timeout)
        while message is not None:
            try:
                messages.append(serdes.apply(message))
            except KafkaException:
                if not messages:
                    raise
                self._parts.feed.give_back(message)
                break
            if len(messages) == most:
                break
            with self._poll_lock.slice:
                message = self._parts.feed.next()
        return messages

    def _deadline(self, timeout: float | None) -> float | None:
        if timeout is None or timeout < 0:
            return None
        return self._parts.sides.clock() + timeout

    def _require_polling(self) -> None:
        if self._closing.is_set():
            raise RuntimeError("Consumer closed")


def _messages(share: Share) -> list[Message]:
    if isinstance(share, list):
        return share
    return share.messages() if isinstance(share, StoreSlice) else [share.message()]


def _batches(share: Share) -> Iterator[ArrowBatch]:
    if isinstance(share, StoreSlice):
        tp = share.piece.partition.tp
        yield ArrowBatch(tp.topic, tp.partition, share.batch())
        return
    if isinstance(share, TieredError):
        error: KafkaError | None = share.error
    else:
        error = share[0].error()
    if error is None:
        yield from batches_of(share if isinstance(share, list) else [])
    elif error.code() != KafkaError._PARTITION_EOF:
        raise share if isinstance(share, TieredError) else KafkaException(error)
