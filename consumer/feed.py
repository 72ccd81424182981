"""Feed: fetched records and events of both sources, and the order in which they are returned.

Both sources take turns, one batch each, so that neither starves the other. While the application
polls, Kafka's client is called at least every 50 ms even if no partition is read from it: this call
runs callbacks, rebalances, and the check of `max.poll.interval.ms`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from operator import lt
from typing import Any, Final, Protocol

import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from sidetier.archive.errors import DamagedArchiveError, NoArchiveError
from sidetier.archive.missing_offsets import GapReason
from sidetier.archive.reader.results import Failed, Gap, ReachedEnd, Records, Taken
from sidetier.consumer.errors import TieredError
from sidetier.consumer.kafka_side import KafkaSide
from sidetier.consumer.metrics import ConsumerMetrics
from sidetier.consumer.partition import Partition, Source
from sidetier.consumer.sources import UNKNOWN
from sidetier.consumer.store_side import StoreRecords, StoreSide, StoreSlice
from sidetier.consumer.subscription_state import SubscriptionState
from sidetier.segments.offsets import OffsetRange, TopicPartition


def report(state: SubscriptionState, event: ReachedEnd | Gap | Failed) -> None:
    """Pass an event of the archive reader to the router, which chooses the next source."""
    if isinstance(event, ReachedEnd):
        state.store_ended(event.tp, event.next_offset)
    elif isinstance(event, Gap):
        below = event.reason is GapReason.BELOW_START
        state.store_missing(event.tp, event.offsets, event.detail, below=below)
    elif isinstance(event.error, DamagedArchiveError):
        damaged = event.error
        state.store_missing(event.tp, damaged.offsets, f"damaged: {damaged}", below=False)
    elif isinstance(event.error, NoArchiveError):
        state.store_missing(
            event.tp,
            # Nothing is known to be missing: the empty range only makes the router search again.
            OffsetRange(event.next_offset, event.next_offset),
            str(event.error),
            below=True,
        )
    else:
        error = state.router.store_error(event.tp, event.next_offset, event.error)
        state.store_failed(event.tp, event.next_offset, error)


SERVE_EVERY: Final = 0.05
"""Longest time between two calls of Kafka's client while polling, in seconds."""
READ_AHEAD: Final = 500
"""Records taken from a source at once when the application polls for one message at a time."""
SHORT_WAIT: Final = 0.02
"""Longest wait on one source, in seconds, while the other one may have records."""

Share = list[Message] | StoreSlice | TieredError
"""Items that are returned together: messages of Kafka, or one error message of Kafka; records of
the store; or one error of the tiered consumer.
"""


class Idle(Protocol):
    """A wait for a poll that reads from neither source: a `threading.Event`, set by `close`."""

    def wait(self, timeout: float) -> object:
        """Wait until the event is set, or `timeout` seconds have passed."""
        ...

    def set(self) -> None:
        """Wake the waiting thread."""
        ...


class DeliveryRecorder:
    """Counts returned records and stores positions. `flush` passes both on.

    A position is stored only after the records before it were returned. So a consumer that is
    killed reads uncommitted records again, and loses none.

    Args:
        kafka: None without a broker.
        metrics: receives the sums at each `flush`.
        stores: whether positions are stored (`enable.auto.offset.store`).
    """

    def __init__(self, kafka: KafkaSide | None, metrics: ConsumerMetrics, *, stores: bool) -> None:
        self._kafka, self._metrics, self._stores = kafka, metrics, stores
        self._records = {Source.KAFKA: 0, Source.STORE: 0}
        self._bytes = {Source.KAFKA: 0, Source.STORE: 0}

    def count_message(self, source: Source, message: Message) -> None:
        """Count one message."""
        self._records[source] += 1
        self._bytes[source] += len(message)

    def count_messages(self, source: Source, messages: Sequence[Message]) -> None:
        """Count messages, none of them an error."""
        self._records[source] += len(messages)
        self._bytes[source] += sum(map(len, messages))

    def count_slice(self, part: StoreSlice) -> None:
        """Count rows of the store."""
        self._records[Source.STORE] += part.stop - part.start
        self._bytes[Source.STORE] += _value_bytes(part)

    def flush(self, partitions: Iterable[Partition]) -> None:
        """Update the metrics, and store the positions that have moved in librdkafka."""
        for source, records in self._records.items():
            if records:
                self._metrics.handed_out(source, records, self._bytes[source])
                self._records[source] = self._bytes[source] = 0
        if self._kafka is None or not self._stores:
            return
        kafka = self._kafka
        moved = [one for one in partitions if one.dirty and not _of_a_deleted_topic(one, kafka)]
        if moved:
            self._store(kafka, moved)

    def _store(self, kafka: KafkaSide, moved: Sequence[Partition]) -> None:
        try:
            kafka.store([_offset(partition) for partition in moved])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise  # _STATE: the assignment was lost, and another member continues
        for partition in moved:
            partition.dirty = False


def _of_a_deleted_topic(partition: Partition, kafka: KafkaSide) -> bool:
    """Whether the position is known to be one of a deleted topic. A commit has no topic id, and
    would count for the topic that has the name now.
    """
    now = kafka.seen.get(partition.tp.topic, UNKNOWN)
    return partition.recreated or now.differs(partition.identity)


def _offset(partition: Partition) -> KafkaTopicPartition:
    tp, epoch = partition.tp, partition.leader_epoch
    position = -1 if partition.position is None else partition.position
    if epoch is None or epoch < 0:
        return KafkaTopicPartition(tp.topic, tp.partition, position)
    return KafkaTopicPartition(tp.topic, tp.partition, position, leader_epoch=epoch)


def _value_bytes(part: StoreSlice) -> int:
    """Return the size of the values, from the start of the first to the end of the last.

    A null value has no bytes in an Arrow column.
    """
    values = part.piece.records.column("value")
    # The second buffer of a binary column has its int32 offsets. `cast` needs bytes in between.
    bounds = memoryview(values.buffers()[1]).cast("b").cast("i")
    return int(bounds[values.offset + part.stop] - bounds[values.offset + part.start])


class Feed:
    """Returns records of both sources, and advances the partitions' positions.

    Args:
        state: the assigned partitions.
        sides: Kafka's client, or None without a broker; and the archive reader.
        clock: monotonic clock, in seconds.
        delivery: counts returned records and stores offsets.
        idle: wait for a poll that reads from neither source.
    """

    def __init__(
        self,
        state: SubscriptionState,
        sides: tuple[KafkaSide | None, StoreSide],
        clock: Callable[[], float],
        delivery: DeliveryRecorder,
        idle: Idle,
    ) -> None:
        self.idle = idle
        self._state, self._clock, self._delivery = state, clock, delivery
        self._kafka, self._store = sides
        self._buffer = state.buffer
        # The deques themselves, which a poll reaches faster; the buffer never replaces them.
        self._held, self._stored = state.buffer.messages, state.buffer.store_items
        self._kafka_turn = True
        self._serve_at = 0.0
        self._seen = -1
        self._flows = (False, False)
        self._before: list[tuple[Partition, int | None]] = []
        """The positions before the records of the last `gather`."""

    def next(self) -> Message | None:
        """Return the next fetched message, or None if the caller must call `gather`.

        The fast path of a poll: it fetches from neither source.
        """
        # `gather` must run: it reports errors, and calls Kafka's client for its callbacks.
        if self._state.router.errors or self._clock() >= self._serve_at:
            return None
        if self._buffer.given_back is not None:
            return None
        # Without items of the store, Kafka needs no turn: `gather` would call its client and store
        # the position for each message.
        if self._held and (self._kafka_turn or not self._stored):
            return self._next_of_kafka()
        piece = self._stored[0] if self._stored else None
        if not isinstance(piece, StoreRecords):
            return None
        partition, position = piece.partition, piece.partition.position
        try:
            message = piece.next_message()
            self._delivery.count_message(Source.STORE, message)
            if not piece.left:
                self._kafka_turn = True
                self._finished(piece)
        except BaseException:
            self._set_back([(partition, position)])
            raise
        return message

    def gather(self, most: int, wait: float) -> list[Share]:
        """Return at most `most` records; wait up to `wait` seconds for the first. An error comes
        alone.

        May return an empty list before `wait` has passed, so that the caller can check whether the
        consumer is being closed.
        """
        self._state.replace_silent_client()
        self._state.router.step()
        self._fetch_available(most)
        shares = self._next_shares(most)
        if not shares and wait > 0 and not self._state.router.errors:
            self._fetch_waiting(most, wait)
            self._state.router.step()
            shares = self._next_shares(most)
        return shares

    @contextmanager
    def returning_again(self) -> Iterator[None]:
        """If the block raises, read the records of the last `gather` again.

        Their positions have moved, but the application does not get them: without this, an
        interrupted `consume` would skip them, and `close` would commit the offsets after them.
        They are fetched again: messages of Kafka's client may be returned by it only once.
        """
        try:
            yield
        except BaseException:
            self._set_back(self._before)
            raise

    def read_again(self, messages: Sequence[Message]) -> None:
        """Read these messages again, which were returned, and all that follow them."""
        starts = {}
        for message in reversed(messages):
            partition = self._of(message)
            if partition is not None:
                starts[partition.tp] = partition, message.offset()
        self._set_back(starts.values())

    def _set_back(self, positions: Iterable[tuple[Partition, int | None]]) -> None:
        moved = [(one, position) for one, position in positions if one.position != position]
        for partition, position in moved:
            partition.position = position
        if moved:
            # Both: a partition may have changed its source after its last record.
            self._state.kafka_interrupted()
            self._state.store_interrupted()

    def give_back(self, message: Message) -> None:
        """Take back the last returned message. It is returned again next."""
        partition = self._of(message)
        if partition is not None:
            self._buffer.given_back = (message, partition)
            partition.position = message.offset()

    def _fetch_available(self, most: int) -> None:
        """Fetch the available records of both sources, without waiting."""
        kafka_flows, store_flows = self._flowing()
        ahead = READ_AHEAD if most == 1 else most
        now = self._clock()
        if self._kafka is None:
            self._serve_at = now + SERVE_EVERY
        elif kafka_flows or now >= self._serve_at:
            # At least 1: the call is due for its callbacks even if enough messages are held.
            self._take_from_kafka(self._kafka, max(1, ahead - len(self._held)), 0.0)
        if store_flows:
            rows = sum(piece.left for piece in self._stored if isinstance(piece, StoreRecords))
            if rows < most:
                self._take_from_store(ahead - rows, 0.0)

    def _fetch_waiting(self, most: int, wait: float) -> None:
        kafka_flows, store_flows = self._flowing()
        ahead = READ_AHEAD if most == 1 else most
        # The answer of a lookup does not end a wait.
        if self._state.router.looking:
            wait = min(wait, SHORT_WAIT)
        if store_flows:
            self._take_from_store(ahead, min(wait, SHORT_WAIT) if kafka_flows else wait)
        elif self._kafka is not None:
            # `most`, not `ahead`: librdkafka waits until it has as many messages as it was asked
            # for, and a poll must return the first one at once.
            self._take_from_kafka(self._kafka, most, wait)
        else:
            self.idle.wait(wait)

    def _take_from_kafka(self, kafka: KafkaSide, most: int, wait: float) -> None:
        self._delivery.flush(self._state.partitions.values())
        try:
            self._held.extend(kafka.take(most, wait))
        except BaseException:
            self._state.kafka_interrupted()
            raise
        self._serve_at = self._clock() + SERVE_EVERY
        # Last: the exception of a callback must not lose the messages.
        kafka.callbacks.check()

    def _take_from_store(self, most: int, wait: float) -> None:
        try:
            for taken in self._store.take(most, wait):
                self._add(taken)
        except BaseException:
            self._state.store_interrupted()
            raise

    def _add(self, taken: Taken) -> None:
        partition = self._state.partitions.get(taken.tp)
        if partition is None or partition.source is not Source.STORE:
            return
        if isinstance(taken, Records):
            piece = _piece(partition, taken)
            if piece is not None:
                self._stored.append(piece)
        else:
            self._stored.append(taken)

    def _next_shares(self, most: int) -> list[Share]:
        self._before = [(one, one.position) for one in self._state.partitions.values()]
        with self.returning_again():
            return self._shares(most)

    def _shares(self, most: int) -> list[Share]:
        errors = self._state.router.errors
        if errors:
            return [errors.pop(0)]
        if self._buffer.given_back is not None:
            message, partition = self._buffer.given_back
            self._buffer.given_back = None
            partition.moved(int(message.offset() or 0) + 1, message.leader_epoch())
            return [[message]]
        shares: list[Share] = []
        for _ in range(2):
            source = self._share_of_kafka if self._kafka_turn else self._share_of_store
            self._kafka_turn = not self._kafka_turn
            most -= source(most, shares)
            if most <= 0:
                break
        return shares

    def _share_of_kafka(self, most: int, shares: list[Share]) -> int:
        run: list[Message] = []
        while self._held and len(run) < most:
            message = self._held[0]
            error = message.error()
            if error is None:
                run += self._accepted(self._records_before_error(most - len(run)))
            # librdkafka has `auto.offset.reset=error`, so that this error asks for another source.
            elif (
                error.code() == KafkaError._AUTO_OFFSET_RESET
                and not self._state.kafka_resets_offsets
            ):
                self._held.popleft()
                self._refused(message)
            elif run or shares:
                break
            else:
                shares.append([self._held.popleft()])
                # An error comes alone: nothing else fits into this result.
                return most
        if run:
            shares.append(run)
            self._delivery.count_messages(Source.KAFKA, run)
        return len(run)

    def _share_of_store(self, most: int, shares: list[Share]) -> int:
        taken = 0
        while self._stored and taken < most:
            piece = self._stored[0]
            if isinstance(piece, StoreRecords):
                part = piece.slice(most - taken)
                shares.append(part)
                taken += part.stop - part.start
                if not piece.left:
                    self._finished(piece)
                self._delivery.count_slice(part)
            elif shares:
                break  # `report` may raise, and the records gathered before it would be lost
            else:
                self._stored.popleft()
                report(self._state, piece)
        return taken

    def _next_of_kafka(self) -> Message | None:
        while self._held and self._held[0].error() is None:
            message = self._held.popleft()
            partition = self._of(message)
            position = None if partition is None else partition.position
            if position is None:
                position = message.offset()
            try:
                if self._accepts(message):
                    self._delivery.count_message(Source.KAFKA, message)
                    return message
            except BaseException:
                if partition is not None:
                    self._set_back([(partition, position)])
                raise
        if not self._held:
            self._kafka_turn = False
        return None

    def _records_before_error(self, most: int) -> list[Message]:
        """Remove messages from the front of the held ones, up to the first error. Return them."""
        ahead = list(islice(self._held, most))
        errors = enumerate(map(Message.error, ahead))
        del ahead[next((at for at, error in errors if error is not None), most) :]
        for _ in ahead:
            self._held.popleft()
        return ahead

    def _accepted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that `_accepts` accepts, and advance the positions.

        All messages of a partition that follow one another are checked together in C: a call of
        `_accepts` for each of them would take longer than librdkafka takes to decode it.
        """
        accepted: list[Message] = []
        start = 0
        tps = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        for tp, same in groupby(tps):
            run = messages[start : start + len(list(same))]
            start += len(run)
            partition = self._state.partitions.get(tp)  # type: ignore[call-overload]  # see `_of`
            offsets: list[Any] = list(map(Message.offset, run))
            if (
                partition is not None
                and partition.source is Source.KAFKA
                and (partition.position is None or offsets[0] >= partition.position)
                and all(map(lt, offsets, offsets[1:]))
            ):
                if partition.position is None:  # only the message shows where reading began
                    self._before.append((partition, offsets[0]))
                partition.moved(offsets[-1] + 1, run[-1].leader_epoch())
                accepted += run
            else:
                accepted += filter(self._accepts, run)
        return accepted

    def _accepts(self, message: Message) -> bool:
        """Whether the message is the partition's next one. If so, advance the position."""
        partition = self._of(message)
        if partition is None or partition.source is not Source.KAFKA:
            return False
        offset = int(message.offset() or 0)
        if partition.position is None:
            self._before.append((partition, offset))
        elif offset < partition.position:
            return False
        partition.moved(offset + 1, message.leader_epoch())
        return True

    def _refused(self, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is not None and partition is not None:
            self._state.kafka_refused(
                TopicPartition(topic, partition), -1 if offset is None else offset
            )

    def _finished(self, piece: StoreRecords) -> None:
        self._stored.popleft()
        self._state.handed_out(piece.partition)

    def _of(self, message: Message) -> Partition | None:
        # A plain tuple finds the named tuple's entry, and takes half the time to create.
        return self._state.partitions.get((message.topic(), message.partition()))  # type: ignore[call-overload,no-any-return]

    def _flowing(self) -> tuple[bool, bool]:
        """Whether records may come from Kafka, and from the store."""
        changes = self._state.router.changes
        if changes != self._seen:
            self._seen = changes
            self._flows = (self._state.reads(Source.KAFKA), self._state.reads(Source.STORE))
        return self._flows


def _piece(partition: Partition, taken: Records) -> StoreRecords | None:
    """Return the records from the partition's position on; earlier ones were returned already."""
    records, position = taken.records, partition.position
    if position is not None and records.column("offset")[0].as_py() < position:
        records = records.filter(pc.greater_equal(records.column("offset"), position))
        if records.num_rows == 0:
            return None
    return StoreRecords(partition, records, taken.next_offset)
