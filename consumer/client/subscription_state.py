"""What is assigned, and what happens to it: the application's calls, and the sides' news."""

import itertools
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError

from sidetier.consumer.client.errors import (
    EndReachedError,
    StoreError,
    already_assigned,
    not_assigned,
)
from sidetier.consumer.client.kafka_side import KafkaSide, Start
from sidetier.consumer.client.lookups import Lookups
from sidetier.consumer.client.partition import Partition, Source
from sidetier.consumer.client.routing import Router, StoreSide, start_now
from sidetier.consumer.client.rules import Rules
from sidetier.consumer.client.sources import Archive, FromKafka, Logical, Mode
from sidetier.consumer.metrics import ConsumerMetrics
from sidetier.segments.offsets import OffsetRange, TopicPartition


class SubscriptionState:
    """The assigned partitions, each read from one side at a time.

    Args:
        rules: see there.
        sides: Kafka's, None where there is no broker; and who reads the store.
        lookups: asked where each side begins and ends.
        clock: seconds.
        metrics: counts.
        warn: hears of what passes by itself, but should be known (`error_cb`).

    Attributes:
        drop: called with a partition of which nothing that is at hand may be handed out any more.
    """

    def __init__(
        self,
        rules: Rules,
        sides: tuple[KafkaSide | None, StoreSide],
        lookups: Lookups,
        clock: Callable[[], float],
        metrics: ConsumerMetrics,
        warn: Callable[[KafkaError], None] = lambda _: None,
    ) -> None:
        self.router = Router(rules, sides, lookups, clock, metrics, warn)
        self.partitions = self.router.partitions
        self.drop: Callable[[TopicPartition], None] = lambda _: None
        self._rules, self._metrics = rules, metrics
        self._kafka, self._store = sides
        self._serials = itertools.count(1)

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment: partitions, and an offset or one of `Logical` for each."""
        new = self._new(starts)
        if self._kafka is not None:
            self._kafka.assign([self._begin(partition) for partition in new])
        self._forget(list(self.partitions))
        self._accept(new)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Add to the assignment; one that is assigned already is refused."""
        new = self._new(starts)
        if self._kafka is not None:
            self._kafka.add([self._begin(partition) for partition in new])
        for tp in starts:
            if tp in self.partitions:
                raise already_assigned(tp)
        self._accept(new)

    def remove(self, tps: Iterable[TopicPartition]) -> None:
        """Take from the assignment; all must be in it."""
        gone = list(tps)
        if self._kafka is not None:
            self._kafka.remove(gone)
        for tp in gone:
            self.partition(tp)
        self._forget(gone)

    def clear(self) -> None:
        """End the assignment."""
        if self._kafka is not None:
            self._kafka.clear()
        self._forget(list(self.partitions))

    def partition(self, tp: TopicPartition) -> Partition:
        """An assigned partition; raises KafkaException `_STATE` where it is not assigned."""
        try:
            return self.partitions[tp]
        except KeyError:
            raise not_assigned(tp) from None

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read on from an offset, or one of `Logical`."""
        partition = self.partition(tp)
        self._drop(tp)
        self.router.leave(partition)
        partition.move(offset, next(self._serials))
        if self._rules.mode is Mode.KAFKA_ONLY:
            self._begin(partition)
            self.router.aim(partition)
        else:
            self.router.look(partition)
            self.router.step()

    def pause(self, tp: TopicPartition) -> None:
        """Hand out nothing of it. What is at hand is dropped, and read again on `resume`."""
        partition = self.partitions.get(tp)
        if partition is None or partition.paused:
            return
        partition.paused = True
        self.router.changes += 1
        self.drop(tp)
        if partition.source is Source.STORE and partition.position is not None:
            self._store.seek(tp, partition.position)
            self._store.pause(tp)
        elif partition.source is Source.KAFKA and self._kafka is not None:
            self._kafka.hold([tp])

    def resume(self, tp: TopicPartition) -> None:
        """Go on after `pause`."""
        partition = self.partitions.get(tp)
        if partition is None or not partition.paused:
            return
        partition.paused = False
        self.router.changes += 1
        if partition.source is Source.STORE:
            self._store.resume(tp)
        elif partition.source is Source.KAFKA and self._kafka is not None:
            if partition.behind:
                self.router.aim(partition)
            else:
                self._kafka.release([tp])

    def reads(self, source: Source) -> bool:
        """Whether something may come from this side."""
        return any(one.source is source and not one.paused for one in self.partitions.values())

    @property
    def resets_itself(self) -> bool:
        """Whether librdkafka follows auto.offset.reset, and its errors are the application's."""
        return self._rules.mode is Mode.KAFKA_ONLY

    def kafka_broke_off(self) -> None:
        """Kafka's client was interrupted (Ctrl-C, say). It drops what it was about to return then,
        a refusal, too, and stands behind it: all is read again from where it is wanted.
        """
        for partition in list(self.partitions.values()):
            if partition.source is Source.KAFKA:
                self.drop(partition.tp)
                self.router.again(partition)

    def kafka_refused(self, tp: TopicPartition, offset: int) -> None:
        """Kafka says `_AUTO_OFFSET_RESET`: the offset is out of range, or (negative) none is
        committed.
        """
        partition = self.partitions.get(tp)
        if partition is None or partition.source is not Source.KAFKA:
            return
        if partition.position is None and offset >= 0:
            partition.position = offset
        if partition.position is not None and 0 <= offset < partition.position:
            return  # of a place that was left since
        self._metrics.missed(Source.KAFKA)
        gap = partition.gap
        partition.forget()
        partition.gap = gap
        partition.tries += 1
        partition.refused = partition.position is not None
        self.router.look(partition)

    def store_ended(self, tp: TopicPartition, next_offset: int) -> None:
        """The store has nothing more: Kafka goes on there, unless it is not to be read."""
        partition = self.partitions[tp]
        _advance(partition, next_offset)
        if self._rules.mode is not Mode.TIERED_STORAGE_ONLY:
            self._drop(tp)
            self.router.from_kafka(partition, FromKafka(next_offset))
            self.router.aim()
        elif self._rules.say_end:
            self.router.troubles.append(EndReachedError(tp, next_offset))

    def store_lacks(
        self, tp: TopicPartition, gap: OffsetRange, detail: str, *, below: bool
    ) -> None:
        """The store does not have these offsets; `below`: its start has moved beyond them."""
        partition = self.partitions[tp]
        self._metrics.missed(Source.STORE)
        _advance(partition, gap.start)
        self._lost(partition)
        if not below:
            partition.gap, partition.detail = gap, detail

    def store_failed(self, tp: TopicPartition, next_offset: int, error: StoreError) -> None:
        """The store cannot be read now. Kafka is, if it has the offset."""
        partition = self.partitions[tp]
        _advance(partition, next_offset)
        partition.tries += 1
        self.router.store_away(partition, error)
        if error.passes and self._rules.mode is Mode.TIERED_STORAGE_ONLY:
            return  # the reader tries again by itself
        self._lost(partition)
        if self._rules.mode is not Mode.TIERED_STORAGE_ONLY:
            partition.archive = Archive(away=True)

    def handed_out(self, partition: Partition) -> None:
        """A piece of the store is handed out to its end: Kafka goes on where it can."""
        at, until = partition.position, partition.until
        if until is not None and at is not None and at >= until:
            self._drop(partition.tp)
            self.router.from_kafka(partition, FromKafka(at))
            self.router.aim()

    def _new(self, starts: Mapping[TopicPartition, int]) -> list[Partition]:
        return [Partition(tp, start, next(self._serials)) for tp, start in starts.items()]

    def _begin(self, partition: Partition) -> Start:
        """Kafka first, where that is the mode: librdkafka itself asks for what is committed."""
        start, mode = partition.start, self._rules.mode
        direct = start >= 0 or start in (Logical.STORED, Logical.INVALID)
        if mode is Mode.KAFKA_ONLY or (mode is Mode.KAFKA_PREFERRED and direct):
            partition.source = Source.KAFKA
            partition.position = start if start >= 0 else None
        return start_now(partition)

    def _accept(self, new: Iterable[Partition]) -> None:
        for partition in new:
            self.partitions[partition.tp] = partition
            if partition.source is Source.LOOKING:
                self.router.look(partition)
        self.router.changes += 1

    def _forget(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._drop(tp)
            self.router.forget(self.partitions.pop(tp))

    def _lost(self, partition: Partition) -> None:
        """It was read from the store, and cannot be any more."""
        self.drop(partition.tp)
        self.router.leave(partition)
        partition.forget()
        self.router.look(partition)

    def _drop(self, tp: TopicPartition) -> None:
        self.drop(tp)
        troubles = self.router.troubles
        troubles[:] = [one for one in troubles if (one.topic, one.partition) != tp]


def _advance(partition: Partition, position: int) -> None:
    if partition.position is None or position > partition.position:
        partition.position = position
        partition.dirty = partition.consumed
