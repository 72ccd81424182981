"""Feed: fetched records and events of both sources, and the order in which they are returned.

Both sources take turns, one batch each, so that neither starves the other. While the application
polls, Kafka's client is called at least every 50 ms even if no partition is read from it: this call
runs callbacks, rebalances, and the check of `max.poll.interval.ms`.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import pyarrow.compute as pc
from confluent_kafka import KafkaError, Message

from sidetier.archive.errors import DamagedArchiveError, NoArchiveError
from sidetier.archive.missing_offsets import GapReason
from sidetier.archive.reader.results import Failed, Gap, ReachedEnd, Records, Taken
from sidetier.consumer.delivery import DeliveryRecorder
from sidetier.consumer.errors import StoreError, TieredError
from sidetier.consumer.kafka_side import KafkaSide
from sidetier.consumer.partition import Partition, Source
from sidetier.consumer.store_records import StoreRecords, StoreSlice
from sidetier.consumer.subscription_state import SubscriptionState
from sidetier.segments.offsets import OffsetRange, TopicPartition


def tell(board: SubscriptionState, news: ReachedEnd | Gap | Failed) -> None:
    """Pass an event of the archive reader to the router, which chooses the next source."""
    if isinstance(news, ReachedEnd):
        board.store_ended(news.tp, news.next_offset)
    elif isinstance(news, Gap):
        below = news.reason is GapReason.BELOW_START
        board.store_lacks(news.tp, news.offsets, news.detail, below=below)
    elif isinstance(news.error, DamagedArchiveError):
        damaged = news.error
        board.store_lacks(news.tp, damaged.offsets, f"damaged: {damaged}", below=False)
    elif isinstance(news.error, NoArchiveError):
        board.store_lacks(
            news.tp, OffsetRange(news.next_offset, news.next_offset), str(news.error), below=True
        )
    else:
        error = StoreError(news.tp, news.next_offset, news.error)
        board.store_failed(news.tp, news.next_offset, error)


SERVE_EVERY: Final = 0.05
"""Longest time between two calls of Kafka's client while polling, in seconds."""
AHEAD: Final = 500
"""Records taken from a source at once when the application polls for one message at a time."""
SOON: Final = 0.02
"""Longest wait on one source, in seconds, while the other one may have records."""

Share = list[Message] | StoreSlice | TieredError
"""Items that are returned together: messages of Kafka, or one error message of Kafka; records of
the store; or one error of the tiered consumer.
"""


class StoreTaker(Protocol):
    """The method of `ArchiveReader` that returns records; see there."""

    def take(self, max_records: int, timeout: float) -> list[Taken]:
        """Return available records and events."""
        ...


class Idle(Protocol):
    """A wait for a poll that reads from neither source: a `threading.Event`, set by `close`."""

    def wait(self, timeout: float) -> object:
        """Wait until the event is set, or `timeout` seconds have passed."""
        ...

    def set(self) -> None:
        """Wake the waiting thread."""
        ...


class Feed:
    """Returns records of both sources, and advances the partitions' positions.

    Args:
        board: the assigned partitions.
        sides: Kafka's client, or None without a broker; and the archive reader.
        clock: monotonic clock, in seconds.
        delivery: counts returned records and stores offsets.
        idle: wait for a poll that reads from neither source.
    """

    def __init__(
        self,
        board: SubscriptionState,
        sides: tuple[KafkaSide | None, StoreTaker],
        clock: Callable[[], float],
        delivery: DeliveryRecorder,
        idle: Idle,
    ) -> None:
        self.idle = idle
        self._board, self._clock, self._delivery = board, clock, delivery
        self._kafka, self._store = sides
        self._held: deque[Message] = deque()
        self._stored: deque[StoreRecords | ReachedEnd | Gap | Failed] = deque()
        self._given_back: tuple[Message, Partition] | None = None
        self._kafka_turn = True
        self._serve_at = 0.0
        self._seen = -1
        self._flows = (False, False)
        board.drop = self.drop

    def next(self) -> Message | None:
        """Return the next fetched message, or None if the caller must call `gather`.

        The fast path of a poll: it fetches from neither source.
        """
        if self._board.router.troubles or self._clock() >= self._serve_at:
            return None
        if self._kafka_turn and self._held and self._given_back is None:
            return self._one_of_kafka()
        piece = self._stored[0] if self._stored else None
        if not isinstance(piece, StoreRecords) or self._given_back is not None:
            return None
        message = piece.one()
        self._delivery.one(Source.STORE, message)
        if not piece.left:
            self._kafka_turn = True
            self._finished(piece)
        return message

    def gather(self, most: int, wait: float) -> list[Share]:
        """Return at most `most` records; wait up to `wait` seconds for the first. An error comes
        alone.

        May return an empty list before `wait` has passed, so that the caller can check whether the
        consumer is being closed.
        """
        self._board.router.step()
        self._bring(most)
        shares = self._hand_out(most)
        if not shares and wait > 0 and not self._board.router.troubles:
            self._await(most, wait)
            self._board.router.step()
            shares = self._hand_out(most)
        return shares

    def give_back(self, message: Message) -> None:
        """Take back the last returned message. It is returned again next."""
        partition = self._of(message)
        if partition is not None:
            self._given_back = (message, partition)
            partition.position = message.offset()

    def drop(self, tp: TopicPartition) -> None:
        """Drop everything fetched of this partition that was not returned yet."""
        self._stored = deque(item for item in self._stored if _tp(item) != tp)
        # `behind`: Kafka's client has moved past what is dropped and must be aimed again.
        if self._given_back is not None and self._given_back[1].tp == tp:
            self._given_back[1].behind = True
            self._given_back = None
        dropped = [item for item in self._held if (item.topic(), item.partition()) == tp]
        if not dropped:
            return
        self._held = deque(item for item in self._held if (item.topic(), item.partition()) != tp)
        partition = self._board.partitions.get(tp)
        if partition is not None and partition.source is Source.KAFKA:
            partition.behind = True
            if partition.position is None:
                partition.position = dropped[0].offset()

    def _bring(self, most: int) -> None:
        """Fetch from both sources what they have, without waiting."""
        kafka_flows, store_flows = self._flowing()
        ahead = AHEAD if most == 1 else most
        now = self._clock()
        if self._kafka is None:
            self._serve_at = now + SERVE_EVERY
        elif kafka_flows or now >= self._serve_at:
            self._take_from_kafka(self._kafka, max(1, ahead - len(self._held)), 0.0)
        if store_flows:
            rows = sum(piece.left for piece in self._stored if isinstance(piece, StoreRecords))
            if rows < most:
                self._take_from_store(ahead - rows, 0.0)

    def _await(self, most: int, wait: float) -> None:
        kafka_flows, store_flows = self._flowing()
        ahead = AHEAD if most == 1 else most
        if self._board.router.looking:
            wait = min(wait, SOON)
        if store_flows:
            self._take_from_store(ahead, min(wait, SOON) if kafka_flows else wait)
        elif self._kafka is not None:
            # `most`, not `ahead`: librdkafka waits until it has as many messages as it was asked
            # for, and a poll must return the first one at once.
            self._take_from_kafka(self._kafka, most, wait)
        else:
            self.idle.wait(wait)

    def _take_from_kafka(self, kafka: KafkaSide, most: int, wait: float) -> None:
        self._delivery.flush(self._board.partitions.values())
        try:
            taken = kafka.take(most, wait)
        except BaseException:
            self._board.kafka_broke_off()
            raise
        self._held.extend(taken)
        self._serve_at = self._clock() + SERVE_EVERY
        kafka.callbacks.check()

    def _take_from_store(self, most: int, wait: float) -> None:
        for taken in self._store.take(most, wait):
            partition = self._board.partitions.get(taken.tp)
            if partition is None or partition.source is not Source.STORE:
                continue
            if isinstance(taken, Records):
                piece = _piece(partition, taken)
                if piece is not None:
                    self._stored.append(piece)
            else:
                self._stored.append(taken)

    def _hand_out(self, most: int) -> list[Share]:
        troubles = self._board.router.troubles
        if troubles:
            return [troubles.pop(0)]
        if self._given_back is not None:
            message, partition = self._given_back
            self._given_back = None
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
                self._held.popleft()
                if self._accepts(message):
                    run.append(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET and not self._board.resets_itself:
                self._held.popleft()
                self._refused(message)
            elif run or shares:
                break
            else:
                shares.append([self._held.popleft()])
                return most
        if run:
            shares.append(run)
            self._delivery.many(Source.KAFKA, run)
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
                self._delivery.part(part)
            elif shares:
                break  # `tell` may raise, and the records gathered before it would be lost
            else:
                self._stored.popleft()
                tell(self._board, piece)
        return taken

    def _one_of_kafka(self) -> Message | None:
        while self._held and self._held[0].error() is None:
            message = self._held.popleft()
            if self._accepts(message):
                self._delivery.one(Source.KAFKA, message)
                return message
        if not self._held:
            self._kafka_turn = False
        return None

    def _accepts(self, message: Message) -> bool:
        """Whether the message is the partition's next one. If so, advance the position."""
        partition = self._of(message)
        if partition is None or partition.source is not Source.KAFKA:
            return False
        offset = int(message.offset() or 0)
        if partition.position is not None and offset < partition.position:
            return False
        partition.moved(offset + 1, message.leader_epoch())
        return True

    def _refused(self, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is not None and partition is not None:
            self._board.kafka_refused(
                TopicPartition(topic, partition), -1 if offset is None else offset
            )

    def _finished(self, piece: StoreRecords) -> None:
        self._stored.popleft()
        self._board.handed_out(piece.partition)

    def _of(self, message: Message) -> Partition | None:
        # A plain tuple finds the named tuple's entry, and takes half the time to create.
        return self._board.partitions.get((message.topic(), message.partition()))  # type: ignore[call-overload,no-any-return]

    def _flowing(self) -> tuple[bool, bool]:
        """Whether records may come from Kafka, and from the store."""
        changes = self._board.router.changes
        if changes != self._seen:
            self._seen = changes
            self._flows = (self._board.reads(Source.KAFKA), self._board.reads(Source.STORE))
        return self._flows


def _tp(one: StoreRecords | ReachedEnd | Gap | Failed) -> TopicPartition:
    return one.partition.tp if isinstance(one, StoreRecords) else one.tp


def _piece(partition: Partition, taken: Records) -> StoreRecords | None:
    """Return the records from the partition's position on; earlier ones were returned already."""
    records, position = taken.records, partition.position
    if position is not None and records.column("offset")[0].as_py() < position:
        records = records.filter(pc.greater_equal(records.column("offset"), position))
        if records.num_rows == 0:
            return None
    return StoreRecords(partition, records, taken.next_offset)
