"""Methods that choose the partitions to read, and their positions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_END, OFFSET_INVALID, TopicPartition

from sidetier.consumer.errors import StoreError, given_twice
from sidetier.consumer.group_api import Callback, GroupApi, PollLock
from sidetier.consumer.kafka_side import KafkaSide, named
from sidetier.consumer.opening import Sides
from sidetier.consumer.sources import Mode
from sidetier.consumer.subscription_state import SubscriptionState
from sidetier.segments import offsets as domain
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, OffsetRange


def bounds(mode: Mode, kafka: OffsetRange | None, stored: OffsetRange | None) -> OffsetRange:
    """Return the first readable offset and the next offset that will be written (exclusive end).

    Args:
        mode: with `TIERED_STORAGE_ONLY` only the store counts.
        kafka: None where Kafka was not asked.
        stored: None where nothing is stored.
    """
    spans = [stored] if mode is Mode.TIERED_STORAGE_ONLY else [kafka, stored]
    known = [span for span in spans if span is not None]
    if not known:
        return OffsetRange(Offset(0), Offset(0))
    return OffsetRange(min(span.start for span in known), max(span.end for span in known))


def first_of(*offsets: int | None) -> int | None:
    """Return the first record at or after a timestamp, from each side's answer (None: no record).

    Each side returns its first match, and both hold the same log, so the lower offset is the first
    one.
    """
    known = [offset for offset in offsets if offset is not None and offset >= 0]
    return min(known, default=None)


_CACHED_SECONDS = 3600.0
"""Oldest snapshot of the archive that answers `cached` queries."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Access to the sides that the mode reads. Kafka's client is called under the `PollLock`."""

    mode: Mode
    sides: Sides
    poll_lock: PollLock

    @property
    def kafka(self) -> KafkaSide | None:
        """Kafka's side; None with `TIERED_STORAGE_ONLY`, whose log is the archive alone."""
        return None if self.mode is Mode.TIERED_STORAGE_ONLY else self.sides.kafka


def watermarks(
    asker: Asker, partition: TopicPartition, timeout: float, *, cached: bool
) -> tuple[int, int]:
    """Return the first readable offset and the next offset that will be written.

    With `cached`, unknown values are OFFSET_INVALID, as in confluent-kafka.

    Raises:
        KafkaException: Kafka or the store does not answer.
    """
    tp = domain.TopicPartition(partition.topic, partition.partition)
    low = high = OFFSET_INVALID
    if asker.kafka is not None:
        with asker.poll_lock:
            low, high = asker.kafka.consumer.get_watermark_offsets(partition, timeout, cached)
    try:
        archive = asker.sides.reader.bounds(tp, max_age=_CACHED_SECONDS if cached else 0.0)
    except SidetierError as error:
        raise StoreError(tp, None, error) from error
    stored = None if archive is None else OffsetRange(archive.start_offset, archive.next_offset)
    if asker.kafka is not None and min(low, high) < 0:
        return _known(low, high, stored)
    kafka = None if asker.kafka is None else OffsetRange(Offset(low), Offset(high))
    both = bounds(asker.mode, kafka, stored)
    return both.start, both.end


def _known(low: int, high: int, stored: OffsetRange | None) -> tuple[int, int]:
    """Return the bounds if Kafka's client has cached only one of its own, or none.

    An unknown end stays unknown: only Kafka knows the end of the log.
    """
    if stored is not None:
        low = stored.start if low < 0 else min(low, stored.start)
        high = high if high < 0 else max(high, stored.end)
    return low, high


def for_times(
    asker: Asker, partitions: Sequence[TopicPartition], timeout: float
) -> list[TopicPartition]:
    """Return for each partition the first record at or after a timestamp; OFFSET_END for none.

    Args:
        asker: access to both sides.
        partitions: with the timestamp in milliseconds as offset.
        timeout: seconds for Kafka's answer; negative for no limit.

    Raises:
        KafkaException: Kafka or the store does not answer.
    """
    at_kafka: dict[tuple[str, int], TopicPartition] = {}
    if asker.kafka is not None:
        with asker.poll_lock:
            offsets = asker.kafka.consumer.offsets_for_times(list(partitions), timeout)
        at_kafka = {(partition.topic, partition.partition): partition for partition in offsets}
    return [
        _for_time(asker.sides, partition, at_kafka.get((partition.topic, partition.partition)))
        for partition in partitions
    ]


def positions(
    board: SubscriptionState, partitions: Sequence[TopicPartition]
) -> list[TopicPartition]:
    """Return the next offsets that will be returned; OFFSET_INVALID where none was returned yet."""
    return [_position(board, partition) for partition in partitions]


def _for_time(
    sides: Sides, asked: TopicPartition, at_kafka: TopicPartition | None
) -> TopicPartition:
    if at_kafka is not None and (at_kafka.error is not None or asked.offset == OFFSET_END):
        return at_kafka  # OFFSET_END as a timestamp asks for the log's end, which Kafka knows
    tp = domain.TopicPartition(asked.topic, asked.partition)
    try:
        stored = _stored_at(sides, tp, asked.offset)
    except SidetierError as error:
        raise StoreError(tp, None, error) from error
    first = first_of(stored, None if at_kafka is None else at_kafka.offset)
    return named(tp, OFFSET_END if first is None else first)


def _stored_at(sides: Sides, tp: domain.TopicPartition, timestamp: int) -> int | None:
    """Search the archive. OFFSET_END as a timestamp means the archive's end, as in ListOffsets."""
    if timestamp != OFFSET_END:
        return sides.reader.offset_for_time(tp, timestamp)
    archive = sides.reader.bounds(tp)
    return None if archive is None else archive.next_offset


def _position(board: SubscriptionState, asked: TopicPartition) -> TopicPartition:
    tp = domain.TopicPartition(asked.topic, asked.partition)
    partition = board.partitions.get(tp)
    if partition is None or not partition.consumed or partition.position is None:
        return named(tp, OFFSET_INVALID)
    return named(tp, partition.position)


class Rebalancing:
    """Rebalance callbacks for librdkafka, which call the application's callbacks.

    As in confluent-kafka, the application may change the assignment in its callback with `assign`,
    `incremental_assign` and their counterparts. If it does not, or its callback fails, this class
    changes the assignment.

    Args:
        consumer: passed to the application's callbacks.
        assign: default action for new partitions.
        revoke: default action for revoked partitions.
        callbacks: the application's on_assign, on_revoke and on_lost.
    """

    def __init__(
        self,
        consumer: object,
        assign: Callable[[list[TopicPartition]], None],
        revoke: Callable[[list[TopicPartition]], None],
        callbacks: tuple[Callback | None, Callback | None, Callback | None],
    ) -> None:
        self._consumer = consumer
        self._assign, self._revoke = assign, revoke
        self._on_assign, self._on_revoke, self._on_lost = callbacks
        self._answered = False

    def answered(self) -> None:
        """Note that the application has changed the assignment."""
        self._answered = True

    def on_assign(self, _: object, partitions: list[TopicPartition]) -> None:
        """Handle partitions that the group assigns."""
        self._ask(self._on_assign, self._assign, partitions)

    def on_revoke(self, _: object, partitions: list[TopicPartition]) -> None:
        """Handle partitions that the group revokes."""
        self._ask(self._on_revoke, self._revoke, partitions)

    def on_lost(self, _: object, partitions: list[TopicPartition]) -> None:
        """Handle partitions that another member may own already; commits for them are refused."""
        self._ask(self._on_lost or self._on_revoke, self._revoke, partitions)

    def _ask(
        self,
        callback: Callback | None,
        otherwise: Callable[[list[TopicPartition]], None],
        partitions: list[TopicPartition],
    ) -> None:
        self._answered = False
        try:
            if callback is not None:
                callback(self._consumer, partitions)
        finally:
            if not self._answered:
                otherwise(partitions)


class Assigning(GroupApi):
    """Subscription, assignment, seek, pause, and queries about offsets."""

    _rebalancing: Rebalancing | None = None

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
        inner = self._inner("subscribe")
        named_callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        for name, callback in named_callbacks.items():
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} expects a callable")
        with self._poll_lock:
            own = Rebalancing(self, self._take_on, self._let_go, (on_assign, on_revoke, on_lost))
            inner.subscribe(
                topics,
                on_assign=self._guard(own.on_assign),
                on_revoke=self._guard(own.on_revoke),
                on_lost=self._guard(own.on_lost),
            )
            self._rebalancing = own
            self._tell_subscribed(yes=True)

    def unsubscribe(self) -> None:
        """Leave the group."""
        inner = self._inner("unsubscribe")
        with self._poll_lock:
            inner.unsubscribe()
            self._tell_subscribed(yes=False)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Replace the assignment. A partition without an offset starts at the committed offset."""
        self._require_open()
        with self._poll_lock:
            self._answer()
            self._flush()
            self._parts.board.assign(_starts(partitions))

    def unassign(self) -> None:
        """Remove the assignment."""
        self._require_open()
        with self._poll_lock:
            self._answer()
            self._flush()
            self._parts.board.clear()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Add partitions to the assignment."""
        self._require_open()
        with self._poll_lock:
            self._answer()
            self._parts.board.add(_starts(partitions))

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Remove partitions from the assignment."""
        self._require_open()
        with self._poll_lock:
            self._answer()
            self._flush()
            self._parts.board.remove(_names(partitions))

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions, each with the offset that it was assigned with."""
        self._require_open()
        with self._poll_lock:
            return [
                named(tp, partition.start) for tp, partition in self._parts.board.partitions.items()
            ]

    def seek(self, partition: TopicPartition) -> None:
        """Continue at `partition.offset`. OFFSET_BEGINNING and OFFSET_END refer to both sides as
        one log.

        Raises:
            KafkaException: the partition is not assigned.
        """
        self._require_open()
        with self._poll_lock:
            self._parts.board.seek(_name(partition), partition.offset)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        self._require_open()
        with self._poll_lock:
            for tp in _names(partitions):
                self._parts.board.pause(tp)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Continue paused partitions."""
        self._require_open()
        with self._poll_lock:
            for tp in _names(partitions):
                self._parts.board.resume(tp)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the next offsets that will be returned; OFFSET_INVALID before the first record."""
        self._require_open()
        with self._poll_lock:
            return positions(self._parts.board, partitions)

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """Return the first offset at or after a timestamp, from either side.

        Args:
            partitions: with the timestamp in milliseconds as offset.
            timeout: seconds for Kafka's answer; negative for no limit.
        """
        self._require_open()
        return for_times(self._asker(), partitions, timeout)

    def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float = -1,
        cached: bool = False,  # noqa: FBT001, FBT002 -- as confluent-kafka
    ) -> tuple[int, int]:
        """Return the first offset that either side can return, and the end (exclusive)."""
        self._require_open()
        return watermarks(self._asker(), partition, timeout, cached=cached)

    def _take_on(self, partitions: list[TopicPartition]) -> None:
        if self._settings.kafka.cooperative:
            self._parts.board.add(_starts(partitions))
        else:
            self._parts.board.assign(_starts(partitions))

    def _let_go(self, partitions: list[TopicPartition]) -> None:
        self._parts.delivery.flush(self._parts.board.partitions.values())
        if self._settings.kafka.cooperative:
            self._parts.board.remove(_names(partitions))
        else:
            self._parts.board.clear()

    def _asker(self) -> Asker:
        return Asker(self._settings.mode, self._parts.sides, self._poll_lock)

    def _guard(self, callback: Callback) -> Callback:
        kafka = self._parts.sides.kafka
        return callback if kafka is None else kafka.callbacks.guard(callback)

    def _answer(self) -> None:
        if self._rebalancing is not None:
            self._rebalancing.answered()

    def _tell_subscribed(self, *, yes: bool) -> None:
        if self._parts.sides.kafka is not None:
            self._parts.sides.kafka.subscribed(yes=yes)


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
