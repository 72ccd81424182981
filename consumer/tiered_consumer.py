"""`TieredConsumer`: reads Kafka and the store as one log."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Self, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from sidetier.consumer.deserializing import Deserializing, deserializing
from sidetier.consumer.errors import TieredError, given_twice
from sidetier.consumer.feed import DeliveryRecorder, Feed, Share
from sidetier.consumer.group_api import GroupApi, PollLock
from sidetier.consumer.kafka_side import Callback, Rebalancing, named
from sidetier.consumer.offset_queries import OffsetQueries
from sidetier.consumer.settings import Settings, read_settings
from sidetier.consumer.sides import Sides, open_sides
from sidetier.consumer.store_side import ArrowBatch, StoreSlice, batches_of
from sidetier.consumer.subscription_state import SubscriptionState
from sidetier.segments import offsets as domain

_SLICE_SECONDS: Final = 0.1
"""Longest time until a poll notices `close`, or lets another thread in, in seconds."""
_MAX_MESSAGES: Final = 1_000_000
_T = TypeVar("_T")


class TieredConsumer(GroupApi):
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
        self._settings = settings
        self._sides = sides
        both = (sides.kafka, sides.reader)
        warn: Callable[[KafkaError], None] = settings.kafka.error_cb or (lambda _: None)
        self._state = SubscriptionState(
            settings.rules, both, sides.lookups, sides.clock, sides.metrics, warn
        )
        self._delivery = DeliveryRecorder(
            sides.kafka, sides.metrics, stores=settings.kafka.auto_store
        )
        self._feed = Feed(self._state, both, sides.clock, self._delivery, sides.idle)
        self._poll_lock = PollLock()
        self._queries = OffsetQueries(settings.rules, sides, self._poll_lock)
        self._rebalancing: Rebalancing | None = None
        self._serdes = serdes
        self._closing = threading.Event()
        self._closed = False
        if serdes is not None and sides.kafka is not None:
            serdes.cluster_id(self.cluster_id)

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
        try:
            return self._serdes.apply(message)
        except KafkaException:
            raise
        except BaseException:
            self._read_again([message])
            raise

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
        if not 0 <= num_messages <= _MAX_MESSAGES:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        if num_messages == 0:
            return []
        if self._serdes is not None:
            return self._consume_deserialized(self._serdes, num_messages, timeout)
        return self._gathered(num_messages, self._deadline(timeout), _all_messages)

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
            UnreadableHeadersError: a record of Kafka has a header whose key is not UTF-8. The next
                call raises it again: `seek` past the record.
            RuntimeError: the consumer is closed, or another thread closes it during the call.
        """
        if max_records < 1:
            raise ValueError("max_records must be at least 1")
        deadline = self._deadline(timeout)
        while True:
            found = self._gathered(max_records, deadline, _all_batches)
            if isinstance(found, KafkaException):
                raise found
            if found is not None:
                return found

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

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Join the group for these topics. The callbacks get this consumer as first argument.

        Args:
            topics: topic names; a name that starts with `^` is a pattern.
            on_assign: called with assigned partitions.
            on_revoke: called with revoked partitions.
            on_lost: called with lost partitions; without it, `on_revoke` is called.

        Raises:
            KafkaException: librdkafka refuses, or there is no broker.
            TypeError: a callback is not callable.
        """
        kafka = self._kafka("subscribe")
        named_callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        for name, callback in named_callbacks.items():
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} expects a callable")
        with self._poll_lock:
            own = Rebalancing(self, self._assign_new, self._revoke, (on_assign, on_revoke, on_lost))
            kafka.subscribe(
                topics,
                on_assign=self._guard(own.on_assign),
                on_revoke=self._guard(own.on_revoke),
                on_lost=self._guard(own.on_lost),
            )
            self._rebalancing = own

    def unsubscribe(self) -> None:
        """Leave the group."""
        kafka = self._kafka("unsubscribe")
        with self._poll_lock:
            kafka.unsubscribe()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Replace the assignment. A partition without an offset starts at the committed offset."""
        self._require_open()
        with self._poll_lock:
            self._answer()
            # Before the partitions are replaced: their positions would be lost.
            self._flush()
            self._state.assign(_starts(partitions))

    def unassign(self) -> None:
        """Remove the assignment."""
        self._require_open()
        with self._poll_lock:
            self._answer()
            self._flush()
            self._state.clear()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Add partitions to the assignment."""
        self._require_open()
        with self._poll_lock:
            self._answer()
            self._state.add(_starts(partitions))

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Remove partitions from the assignment."""
        self._require_open()
        with self._poll_lock:
            self._answer()
            self._flush()
            self._state.remove(_names(partitions))

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions, each with the offset that it was assigned with."""
        self._require_open()
        with self._poll_lock:
            return [
                # As librdkafka: without an offset, the committed one.
                named(tp, OFFSET_STORED if partition.start == OFFSET_INVALID else partition.start)
                for tp, partition in self._state.partitions.items()
            ]

    def seek(self, partition: TopicPartition) -> None:
        """Continue at `partition.offset`. OFFSET_BEGINNING and OFFSET_END refer to both sides as
        one log.

        Raises:
            KafkaException: the partition is not assigned.
        """
        self._require_open()
        with self._poll_lock:
            self._state.seek(_name(partition), partition.offset)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`, over assignments and rebalances.

        As in confluent-kafka, a partition is ignored if no partition of its topic was ever
        assigned: also in `on_assign` before the first assignment.
        """
        self._require_open()
        with self._poll_lock:
            for tp in _names(partitions):
                self._state.pause(tp)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Continue paused partitions."""
        self._require_open()
        with self._poll_lock:
            for tp in _names(partitions):
                self._state.resume(tp)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the next offsets that will be returned; OFFSET_INVALID before the first record."""
        self._require_open()
        with self._poll_lock:
            return [self._position(partition) for partition in partitions]

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """Return the first offset at or after a timestamp, from either side.

        Args:
            partitions: with the timestamp in milliseconds as offset.
            timeout: seconds for Kafka's answer; negative for no limit.
        """
        self._require_open()
        return self._queries.for_times(partitions, timeout)

    def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float = -1,
        cached: bool = False,  # noqa: FBT001, FBT002 -- as confluent-kafka
    ) -> tuple[int, int]:
        """Return the first offset that either side can return, and the end (exclusive)."""
        self._require_open()
        return self._queries.watermarks(partition, timeout, cached=cached)

    def close(self) -> None:
        """Leave the group and stop reading.

        May be called twice, and from another thread: a waiting poll then ends with RuntimeError.
        """
        # Before the lock is taken: a poll in another thread then ends its slice and releases it.
        self._closing.set()
        self._feed.idle.set()
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
        sides = self._sides
        try:
            # librdkafka commits the stored offsets when it leaves the group.
            self._delivery.flush(self._state.partitions.values())
            sides.lookups.close()
            if sides.kafka is not None:
                sides.kafka.close()
                sides.kafka.callbacks.check()
        finally:
            sides.close()
            if self._serdes is not None:
                self._serdes.close()

    def _assign_new(self, partitions: list[TopicPartition]) -> None:
        if self._settings.kafka.cooperative:
            self._state.add(_starts(partitions))
        else:
            self._state.assign(_starts(partitions))

    def _revoke(self, partitions: list[TopicPartition]) -> None:
        self._delivery.flush(self._state.partitions.values())
        if self._settings.kafka.cooperative:
            self._state.remove(_names(partitions))
        else:
            self._state.clear()

    def _position(self, asked: TopicPartition) -> TopicPartition:
        tp = domain.TopicPartition(asked.topic, asked.partition)
        partition = self._state.partitions.get(tp)
        if partition is None or not partition.consumed or partition.position is None:
            return named(tp, OFFSET_INVALID)
        return named(tp, partition.position)

    def _guard(self, callback: Callback) -> Callback:
        kafka = self._sides.kafka
        return callback if kafka is None else kafka.callbacks.guard(callback)

    def _answer(self) -> None:
        if self._rebalancing is not None:
            self._rebalancing.answered()

    def _next(self, timeout: float | None) -> Message | None:
        self._poll_lock.take()
        try:
            self._require_polling()
            message = self._feed.next()
        finally:
            self._poll_lock.give()
        if message is not None:
            return message
        messages = self._gathered(1, self._deadline(timeout), _all_messages)
        return messages[0] if messages else None

    def _gathered(
        self, most: int, deadline: float | None, convert: Callable[[list[Share]], _T]
    ) -> _T:
        """Return the next items, converted; `convert` gets an empty list at the deadline.

        If the conversion is interrupted or fails, the records are returned by the next call.
        """
        clock = self._sides.clock
        while True:
            with self._poll_lock.slice:
                self._require_polling()
                left = _SLICE_SECONDS if deadline is None else deadline - clock()
                # Not longer: the lock is held meanwhile, and `close` and other threads wait for it.
                shares = self._feed.gather(most, max(0.0, min(left, _SLICE_SECONDS)))
                if shares or (deadline is not None and clock() >= deadline):
                    with self._feed.returning_again():
                        return convert(shares)

    def _consume_deserialized(
        self, serdes: Deserializing, most: int, timeout: float | None
    ) -> list[Message]:
        """Wait for one message, and add the messages that were fetched already.

        A message that cannot be deserialized is raised alone, after those before it were returned.
        """
        messages: list[Message] = []
        message = self._next(timeout)
        try:
            while message is not None:
                try:
                    messages.append(serdes.apply(message))
                except KafkaException:
                    if not messages:
                        raise
                    self._feed.give_back(message)
                    break
                if len(messages) == most:
                    break
                with self._poll_lock.slice:
                    message = self._feed.next()
        except BaseException as error:
            # An error of the first message alone is the result of this call.
            if messages or not isinstance(error, KafkaException):
                self._read_again([*messages, *(() if message is None else (message,))])
            raise
        return messages

    def _read_again(self, messages: list[Message]) -> None:
        with self._poll_lock.slice:
            self._feed.read_again(messages)

    def _deadline(self, timeout: float | None) -> float | None:
        if timeout is None or timeout < 0:
            return None
        return self._sides.clock() + timeout

    def _require_polling(self) -> None:
        if self._closing.is_set():
            raise RuntimeError("Consumer closed")


def _messages(share: Share) -> list[Message]:
    if isinstance(share, list):
        return share
    return share.messages() if isinstance(share, StoreSlice) else [share.message()]


def _all_messages(shares: list[Share]) -> list[Message]:
    if len(shares) == 1:
        return _messages(shares[0])
    return [message for share in shares for message in _messages(share)]


def _all_batches(shares: list[Share]) -> list[ArrowBatch] | KafkaException | None:
    """Return the records as batches, or the error, which comes alone; None if only ends of
    partitions have arrived.

    The error is a result, not a failed conversion: nothing is read again because of it.
    """
    batches: list[ArrowBatch] = []
    for share in shares:
        if isinstance(share, StoreSlice):
            tp = share.piece.partition.tp
            batches.append(ArrowBatch(tp.topic, tp.partition, share.batch()))
        elif isinstance(share, TieredError):
            return share
        elif (error := share[0].error()) is None:
            batches += batches_of(share)
        elif error.code() != KafkaError._PARTITION_EOF:
            return KafkaException(error)
    return batches if batches or not shares else None


def _name(partition: TopicPartition) -> domain.TopicPartition:
    if not isinstance(partition, TopicPartition):
        raise TypeError(f"expected TopicPartition, not {type(partition).__name__}")
    return domain.TopicPartition(partition.topic, partition.partition)


def _names(partitions: Iterable[TopicPartition]) -> list[domain.TopicPartition]:
    return [_name(partition) for partition in partitions]


def _starts(partitions: Iterable[TopicPartition]) -> Mapping[domain.TopicPartition, int]:
    starts: dict[domain.TopicPartition, int] = {}
    for partition in partitions:
        tp = _name(partition)
        if tp in starts:
            raise given_twice(tp)
        starts[tp] = partition.offset
    return starts
