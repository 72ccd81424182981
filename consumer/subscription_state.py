"""Assigned partitions, changed by calls of the application and by events of both sides."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from sidetier.consumer.errors import (
    EndReachedError,
    StoreError,
    already_assigned,
    cannot_remove,
    not_assigned,
)
from sidetier.consumer.fetch_buffer import FetchBuffer
from sidetier.consumer.kafka_side import KafkaSide, Start
from sidetier.consumer.lookups import Lookups
from sidetier.consumer.metrics import ConsumerMetrics
from sidetier.consumer.partition import Partition, Source
from sidetier.consumer.routing import Router, log, start_now
from sidetier.consumer.sources import (
    UNKNOWN,
    Archive,
    FromKafka,
    Identity,
    Logical,
    Mode,
    Rules,
)
from sidetier.consumer.store_side import StoreSide
from sidetier.segments.offsets import OffsetRange, TopicPartition

SILENT_SECONDS: Final = 30.0
"""Time between two looks for partitions that have not moved, whose topics are then asked for."""


class SubscriptionState:
    """The assigned partitions, each read from one side at a time.

    Args:
        rules: settings for decisions.
        sides: Kafka's side, or None without a broker; and the archive reader.
        lookups: looks up where each side starts and ends.
        clock: monotonic clock, in seconds.
        metrics: counts refusals, gaps and switches.
        warn: called with transient errors (`error_cb`).

    Attributes:
        router: finds the source of each partition.
        partitions: the assigned partitions; the router's own dict.
        buffer: the records and messages that were fetched and not returned yet.
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
        self.buffer = FetchBuffer()
        self._rules, self._metrics = rules, metrics
        self._kafka, self._store = sides
        self._clock = clock
        self._serials = itertools.count(1)
        self._compares = rules.mode not in {Mode.KAFKA_ONLY, Mode.TIERED_STORAGE_ONLY}
        self._check_at = 0.0
        self._checked: dict[TopicPartition, int | None] = {}
        self._recreated: set[str] = set()
        self._replacing = False
        # As in librdkafka: a pause lasts until `resume`, over assignments and rebalances; and only
        # partitions of topics that were assigned before can be paused.
        self._paused: set[TopicPartition] = set()
        self._known_topics: set[str] = set()

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment.

        Args:
            starts: an offset or one of `Logical` for each partition.
        """
        new = self._new(starts)
        # Kafka's client first: if it raises, nothing has changed here.
        if self._kafka is not None:
            self._kafka.assign([self._begin(partition) for partition in new])
        self._forget(list(self.partitions))
        self._accept(new)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Add to the assignment.

        Raises:
            KafkaException: `_CONFLICT`: a partition is assigned already.
        """
        new = self._new(starts)
        if self._kafka is not None:
            self._kafka.add([self._begin(partition) for partition in new])
        # librdkafka has checked this already. Without a broker, nobody has.
        for tp in starts:
            if tp in self.partitions:
                raise already_assigned(tp)
        self._accept(new)

    def remove(self, tps: Iterable[TopicPartition]) -> None:
        """Remove from the assignment.

        Raises:
            KafkaException: `_INVALID_ARG`: a partition is not assigned.
        """
        gone = list(tps)
        if self._kafka is not None:
            self._kafka.remove(gone)
        # As in `add`: this finds an error only without a broker.
        for tp in gone:
            if tp not in self.partitions:
                raise cannot_remove(tp)
        self._forget(gone)

    def clear(self) -> None:
        """End the assignment."""
        if self._kafka is not None:
            self._kafka.clear()
        self._forget(list(self.partitions))

    def partition(self, tp: TopicPartition) -> Partition:
        """Return an assigned partition.

        Raises:
            KafkaException: `_STATE`: it is not assigned; or `_UNKNOWN_PARTITION`: no partition of
                its topic ever was.
        """
        try:
            return self.partitions[tp]
        except KeyError:
            raise not_assigned(tp, known=tp.topic in self._known_topics) from None

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue at an offset, or at one of `Logical`."""
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
        """Return nothing of the partition until `resume`, also after another assignment.

        Records fetched already are dropped, and fetched again after `resume`.
        """
        if tp.topic in self._known_topics:
            self._paused.add(tp)
        partition = self.partitions.get(tp)
        if partition is None or partition.paused:
            return
        partition.paused = True
        self.router.changes += 1
        self.buffer.drop(tp, partition)
        if partition.source is Source.STORE and partition.position is not None:
            # The reader is behind the records that were dropped.
            self._store.seek(tp, partition.position)
            self._store.pause(tp)
        elif partition.source is Source.KAFKA and self._kafka is not None:
            self._kafka.hold([tp])

    def resume(self, tp: TopicPartition) -> None:
        """Continue a paused partition."""
        self._paused.discard(tp)
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
        """Whether any partition is read from this source and not paused."""
        return any(
            partition.source is source and not partition.paused
            for partition in self.partitions.values()
        )

    @property
    def kafka_resets_offsets(self) -> bool:
        """Whether librdkafka applies `auto.offset.reset` and the application gets its errors."""
        return self._rules.mode is Mode.KAFKA_ONLY

    def kafka_interrupted(self) -> None:
        """Aim all of Kafka's partitions again after a call of Kafka's client was interrupted
        (Ctrl-C).

        The interrupted client drops the messages and errors that it was about to return, and its
        positions are behind them. So each partition is read again from the next wanted offset.
        """
        for partition in list(self.partitions.values()):
            if partition.source is Source.KAFKA:
                self.buffer.drop(partition.tp, partition)
                self.router.again(partition)

    def store_interrupted(self) -> None:
        """Read all of the store's partitions again from the next wanted offset, after a call of
        the archive reader was interrupted: the records that it was about to return may be lost.
        """
        for partition in list(self.partitions.values()):
            if partition.source is Source.STORE and partition.position is not None:
                self.buffer.drop(partition.tp, partition)
                self._store.seek(partition.tp, partition.position)

    def kafka_refused(self, tp: TopicPartition, offset: int) -> None:
        """Find another source after Kafka's error `_AUTO_OFFSET_RESET`.

        Args:
            tp: the refused partition.
            offset: the offset that is out of range; negative if the group has no committed offset.
        """
        partition = self.partitions.get(tp)
        if partition is None or partition.source is not Source.KAFKA:
            return
        if partition.position is None and offset >= 0:
            partition.position = offset
        if partition.position is not None and 0 <= offset < partition.position:
            return  # the error is about a position that the partition has left since
        self._metrics.missed(Source.KAFKA)
        gap = partition.gap
        # The gap of the store stays known: without it, the decision would return to the store.
        partition.forget()
        partition.gap = gap
        partition.tries += 1
        partition.refused = partition.position is not None
        self.router.look(partition)

    def store_ended(self, tp: TopicPartition, next_offset: int) -> None:
        """Continue at Kafka after the archive's end.

        With `TIERED_STORAGE_ONLY` the reader waits for more, and the end is reported if configured.
        """
        partition = self.partitions[tp]
        _advance(partition, next_offset)
        before = partition.ended
        again = before is not None and before[0] == next_offset
        partition.ended = (next_offset, before[1] + 1 if before is not None and again else 1)
        if self._rules.mode is not Mode.TIERED_STORAGE_ONLY:
            self._drop(tp)
            self.router.from_kafka(partition, FromKafka(next_offset))
            self.router.aim()
        elif self._rules.report_end:
            self.router.errors.append(EndReachedError(tp, next_offset))

    def store_missing(
        self, tp: TopicPartition, gap: OffsetRange, detail: str, *, below: bool
    ) -> None:
        """Find another source for offsets that the store does not have.

        Args:
            tp: the partition.
            gap: the missing offsets.
            detail: why they are missing.
            below: the archive's start has moved beyond them, so they are not a gap within it.
        """
        partition = self.partitions[tp]
        self._metrics.missed(Source.STORE)
        _advance(partition, gap.start)
        self._lost(partition)
        # After `_lost`, which drops all known facts.
        if not below:
            partition.gap, partition.detail = gap, detail

    def store_failed(self, tp: TopicPartition, next_offset: int, error: StoreError) -> None:
        """Continue at Kafka, if it has the offset, after the store could not be read."""
        partition = self.partitions[tp]
        _advance(partition, next_offset)
        partition.tries += 1
        self.router.report_store_error(partition, error)
        if error.passes and self._rules.mode is Mode.TIERED_STORAGE_ONLY:
            return  # the archive reader retries by itself
        self._lost(partition)
        # After `_lost`, which would drop this fact, too.
        if self._rules.mode is not Mode.TIERED_STORAGE_ONLY:
            partition.archive = Archive(unavailable=True)

    def handed_out(self, partition: Partition) -> None:
        """Continue at Kafka if the returned batch ends where Kafka has the rest."""
        position, until = partition.position, partition.until
        if until is not None and position is not None and position >= until:
            self._drop(partition.tp)
            self.router.from_kafka(partition, FromKafka(position))
            self.router.aim()

    def replace_silent_client(self) -> None:
        """Replace Kafka's client if it is silent because a topic was created again.

        librdkafka ignores the leaders of a topic whose leader epochs are lower than those of the
        deleted topic, and fetches nothing more of it, if it has not seen that the topic was away
        (https://github.com/confluentinc/librdkafka/issues/4898). A new client knows no epochs. Only
        an id distinguishes the two topics: so each topic is asked for before it is assigned, and
        again while one of its partitions is silent.
        """
        kafka, now = self._kafka, self._clock()
        if kafka is None or self._replacing or not self._compares:
            return
        if now >= self._check_at:
            self._recreated |= self._silent_recreated(kafka)
            self._check_at = now + SILENT_SECONDS
            if self._recreated and not self._prepared(kafka):
                self._recreated = set()
        if self._recreated:
            # A callback in here may poll.
            self._replacing = True
            try:
                self._replace_client(kafka)
            finally:
                self._replacing = False

    def _silent_recreated(self, kafka: KafkaSide) -> set[str]:
        """Return the recreated topics of which Kafka's client may have missed the absence."""
        silent = self._silent()
        asked = {partition.tp.topic for partition in silent}
        # An answer may not have come in time, or was one of a broker that lags behind: a position
        # of another topic is not stored, so that it stays dirty.
        asked |= {
            tp.topic
            for tp, partition in self.partitions.items()
            if partition.dirty or tp.topic not in kafka.first
        }
        now = kafka.recreated(asked) if asked else {}
        return {
            partition.tp.topic
            for partition in silent
            if partition.tp.topic in now
            # Else Kafka's client fetches it; records of the store do not show that.
            and partition.fetched_id != now[partition.tp.topic].topic_id
        }

    def _silent(self) -> list[Partition]:
        """Return the partitions that are not read from the store, and have not moved since the last
        call.
        """
        before = self._checked
        self._checked = {
            tp: partition.position
            for tp, partition in self.partitions.items()
            if partition.source is not Source.STORE and not partition.paused
        }
        return [
            self.partitions[tp]
            for tp, position in self._checked.items()
            if tp in before and before[tp] == position
        ]

    def _prepared(self, kafka: KafkaSide) -> bool:
        try:
            kafka.prepare()
        except KafkaException as error:
            log.warning("consumer.kafka_client_not_replaced", error=error)
            return False
        return True

    def _replace_client(self, kafka: KafkaSide) -> None:
        """Read on with a new Kafka client; partitions at an offset of a deleted topic by
        `auto.offset.reset`.

        An exception (Ctrl-C) may come anywhere: the next poll then begins again.
        """
        log.warning("consumer.kafka_client_replaced", recreated=",".join(sorted(self._recreated)))
        recreated = [one for tp, one in self.partitions.items() if tp.topic in self._recreated]
        for partition in recreated:
            if kafka.seen[partition.tp.topic].differs(partition.identity):
                self.router.clear_stored(partition)
            if partition.position is None:
                partition.identity = UNKNOWN  # the committed offset is looked up again
            # A partition of the store compares the ids when it leaves the store.
            if partition.source is not Source.STORE:
                self._lost(partition)
        kafka.replace()
        self._metrics.client_replaced()
        if kafka.subscribed:
            self._forget(list(self.partitions))  # what the callback has not removed already
        else:
            # Before the new client sees them.
            kafka.identities({tp.topic for tp in self.partitions})
            kafka.assign([start_now(partition) for partition in self.partitions.values()])
            self.router.store_again(kafka)
        self._recreated = set()

    def _new(self, starts: Mapping[TopicPartition, int]) -> list[Partition]:
        here: Mapping[str, Identity | KafkaError] = {}
        if self._kafka is not None and self._compares and starts:
            # Before Kafka's client sees them, which may miss that they are created again.
            here = self._kafka.identities({tp.topic for tp in starts})
        new = []
        for tp, start in starts.items():
            partition = Partition(tp, start, next(self._serials), paused=tp in self._paused)
            identity = here.get(tp.topic)
            if isinstance(identity, Identity) and self._begins_at_kafka(start):
                partition.identity = identity
            new.append(partition)
        return new

    def _begin(self, partition: Partition) -> Start:
        """Return the partition's start in Kafka's consumer; choose Kafka as source if that needs no
        lookup.

        With `KAFKA_PREFERRED` and a start at the committed offset, librdkafka looks this offset up.
        """
        start = partition.start
        if self._begins_at_kafka(start):
            partition.source = Source.KAFKA
            partition.position = start if start >= 0 else None
        return start_now(partition)

    def _begins_at_kafka(self, start: int) -> bool:
        direct = start >= 0 or start in (Logical.STORED, Logical.INVALID)
        mode = self._rules.mode
        return mode is Mode.KAFKA_ONLY or (mode is Mode.KAFKA_PREFERRED and direct)

    def _accept(self, new: Iterable[Partition]) -> None:
        for partition in new:
            self.partitions[partition.tp] = partition
            self._known_topics.add(partition.tp.topic)
            if partition.source is Source.LOOKING:
                self.router.look(partition)
        self.router.changes += 1

    def _forget(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._drop(tp)
            self.router.forget(self.partitions.pop(tp))

    def _lost(self, partition: Partition) -> None:
        """Find another source for a partition that the store can no longer serve."""
        self.buffer.drop(partition.tp, partition)
        self.router.leave(partition)
        partition.forget()
        self.router.look(partition)

    def _drop(self, tp: TopicPartition) -> None:
        self.buffer.drop(tp, self.partitions.get(tp))
        errors = self.router.errors
        errors[:] = [error for error in errors if (error.topic, error.partition) != tp]


def _advance(partition: Partition, position: int) -> None:
    if partition.position is None or position > partition.position:
        partition.position = position
        partition.dirty = partition.consumed
