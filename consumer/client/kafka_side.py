"""Kafka's side: the inner `confluent_kafka.Consumer`, and how it is aimed.

Every assigned partition is assigned to the inner consumer, too: then offsets can be stored and are
committed by librdkafka, and the group sees a member like any other. Those that are read from the
store are paused there, at an offset that needs no question to the broker: a `seek` while librdkafka
asks where the end is would be undone by the late answer, and what lies between be skipped.

A partition whose fetch was refused, or that is just being started, is in no fetch state, and `seek`
says `_STATE`: it must be assigned anew, which librdkafka allows for single partitions outside of an
eager group only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from sidetier.consumer.client.callbacks import Callbacks
from sidetier.consumer.client.sources import Logical
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

PARKED: Final = 0
"""Where partitions stand that are not read from Kafka: never `OFFSET_END`, see above."""
LOOKUP_SECONDS: Final = 1.0
"""How long a question to Kafka may take; it is asked again."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where Kafka's side of a partition begins; `flowing` where it is read from there."""

    tp: TopicPartition
    offset: int
    flowing: bool


@dataclass(frozen=True, slots=True)
class AtKafka:
    """What Kafka says of a partition; the error is set where it could not be asked."""

    committed: int | None = None
    span: OffsetRange | None = None
    error: KafkaError | None = None


class KafkaSide:
    """The inner consumer. Not for KAFKA_ONLY, which hands everything through.

    Attributes:
        callbacks: where what the application's callbacks raise is kept until `consumer` returns.
    """

    def __init__(
        self,
        consumer: confluent_kafka.Consumer,
        *,
        cooperative: bool,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.consumer = consumer
        self.callbacks = callbacks or Callbacks()
        self._cooperative = cooperative
        self._subscribed = False

    def subscribed(self, *, yes: bool) -> None:
        """Whether assignments come from the group."""
        self._subscribed = yes

    def assign(self, starts: Sequence[Start]) -> None:
        """Replace the assignment. A pause outlives it: what is to stand still fetches nothing."""
        self.hold(start.tp for start in starts if not start.flowing)
        self.consumer.assign([_start(start) for start in starts])
        self._flow(starts)

    def add(self, starts: Sequence[Start]) -> None:
        """Add to the assignment."""
        self.consumer.incremental_assign([_start(start) for start in starts])
        self._flow(starts)

    def remove(self, tps: Iterable[TopicPartition]) -> None:
        """Take from the assignment."""
        self.consumer.incremental_unassign([named(tp) for tp in tps])

    def clear(self) -> None:
        """End the assignment."""
        self.consumer.unassign()

    def aim(self, starts: Sequence[Start], everything: Iterable[Start]) -> bool:
        """Read those from there. `everything` is the whole assignment as it then is.

        Returns:
            Whether the whole assignment was made anew, and stored offsets are gone with it.
        """
        refused = [start for start in starts if not self._seek(start)]
        if not refused:
            self._flow(starts)
            return False
        if self._subscribed and not self._cooperative:
            self.assign(list(everything))
            return True
        self.remove(start.tp for start in refused)
        self.add(refused)
        self._flow(starts)
        return True

    def hold(self, tps: Iterable[TopicPartition]) -> None:
        """Fetch nothing of these."""
        partitions = [named(tp) for tp in tps]
        if partitions:
            self.consumer.pause(partitions)

    def release(self, tps: Iterable[TopicPartition]) -> None:
        """Fetch these from where they stand."""
        partitions = [named(tp) for tp in tps]
        if partitions:
            self.consumer.resume(partitions)

    def take(self, most: int, timeout: float) -> list[Message]:
        """Messages and errors; serves callbacks, and tells librdkafka that we are alive."""
        return self.consumer.consume(most, timeout)

    def store(self, offsets: list[confluent_kafka.TopicPartition]) -> None:
        """What the next commit without offsets, and the one at intervals, will commit."""
        self.consumer.store_offsets(offsets=offsets)

    def committed(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, AtKafka]:
        """The group's offsets."""
        asked = [named(tp) for tp in tps]
        try:
            found = self.consumer.committed(asked, timeout=LOOKUP_SECONDS)
        except KafkaException as error:
            return {tp: AtKafka(error=error.args[0]) for tp in tps}
        return {
            tp: AtKafka(error=one.error)
            if one.error is not None
            else AtKafka(committed=one.offset if one.offset >= 0 else None)
            for tp, one in _by_name(found)
        }

    def spans(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, AtKafka]:
        """Where the logs of these start and end now."""
        lows = self._list_offsets(tps, Logical.BEGINNING)
        highs = self._list_offsets(tps, Logical.END)
        return {tp: _span(lows[tp], highs[tp]) for tp in tps}

    def _list_offsets(
        self, tps: Sequence[TopicPartition], which: Logical
    ) -> dict[TopicPartition, int | KafkaError]:
        """ListOffsets knows the earliest and the latest by the timestamps -2 and -1."""
        asked = [named(tp, int(which)) for tp in tps]
        try:
            found = self.consumer.offsets_for_times(asked, timeout=LOOKUP_SECONDS)
        except KafkaException as error:
            return dict.fromkeys(tps, error.args[0])
        return {tp: one.error or one.offset for tp, one in _by_name(found)}

    def _seek(self, start: Start) -> bool:
        try:
            self.consumer.seek(named(start.tp, start.offset))
        except KafkaException as error:
            if error.args[0].code() == KafkaError._STATE:
                return False
            raise
        return True

    def _flow(self, starts: Sequence[Start]) -> None:
        self.hold(start.tp for start in starts if not start.flowing)
        self.release(start.tp for start in starts if start.flowing)


def named(tp: TopicPartition, offset: int = Logical.INVALID) -> confluent_kafka.TopicPartition:
    """A partition in confluent-kafka's terms."""
    return confluent_kafka.TopicPartition(tp.topic, tp.partition, offset)


def _start(start: Start) -> confluent_kafka.TopicPartition:
    return named(start.tp, start.offset)


def _by_name(
    found: Iterable[confluent_kafka.TopicPartition],
) -> Iterator[tuple[TopicPartition, confluent_kafka.TopicPartition]]:
    return ((TopicPartition(one.topic, one.partition), one) for one in found)


def _span(low: int | KafkaError, high: int | KafkaError) -> AtKafka:
    if isinstance(low, KafkaError):
        return AtKafka(error=low)
    if isinstance(high, KafkaError):
        return AtKafka(error=high)
    if min(low, high) < 0:
        return AtKafka(error=KafkaError(KafkaError._NO_OFFSET, "the broker knows no such offset"))
    return AtKafka(span=OffsetRange(Offset(low), Offset(max(low, high))))
