"""Questions about offsets that concern both sides as one log."""

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_END, OFFSET_INVALID, TopicPartition

from sidetier.consumer.client.errors import StoreError
from sidetier.consumer.client.kafka_side import KafkaSide, named
from sidetier.consumer.client.opening import Sides
from sidetier.consumer.client.poll_lock import PollLock
from sidetier.consumer.client.sources import Mode
from sidetier.consumer.client.subscription_state import SubscriptionState
from sidetier.segments import offsets as domain
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, OffsetRange


def bounds(mode: Mode, kafka: OffsetRange | None, stored: OffsetRange | None) -> OffsetRange:
    """The first offset that can be read, and the one that will be written next.

    Args:
        mode: with TIERED_STORAGE_ONLY the store's alone.
        kafka: None where it was not asked.
        stored: None where nothing is.
    """
    spans = [stored] if mode is Mode.TIERED_STORAGE_ONLY else [kafka, stored]
    known = [span for span in spans if span is not None]
    if not known:
        return OffsetRange(Offset(0), Offset(0))
    return OffsetRange(min(span.start for span in known), max(span.end for span in known))


def first_of(*offsets: int | None) -> int | None:
    """The first record with a timestamp or a later one, of what each side has found (None: none).

    Either side gives the first one that it holds, and what both hold is the same log.
    """
    found = [offset for offset in offsets if offset is not None and offset >= 0]
    return min(found, default=None)


_CACHED_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Asker:
    """What is asked: with `mode`, both sides or one; Kafka under the turnstile."""

    mode: Mode
    sides: Sides
    poll_lock: PollLock

    @property
    def kafka(self) -> KafkaSide | None:
        """None where the mode's log is the store's alone."""
        return None if self.mode is Mode.TIERED_STORAGE_ONLY else self.sides.kafka


def watermarks(
    asker: Asker, partition: TopicPartition, timeout: float, *, cached: bool
) -> tuple[int, int]:
    """The first offset that can be read, and the one that will be written next.

    Of what is `cached`, OFFSET_INVALID stands for what is not known, as in confluent-kafka.

    Raises:
        KafkaException: Kafka or the store does not answer.
    """
    tp = domain.TopicPartition(partition.topic, partition.partition)
    low = high = OFFSET_INVALID
    if asker.kafka is not None:
        with asker.poll_lock:
            low, high = asker.kafka.consumer.get_watermark_offsets(partition, timeout, cached)
    try:
        found = asker.sides.reader.bounds(tp, max_age=_CACHED_SECONDS if cached else 0.0)
    except SidetierError as error:
        raise StoreError(tp, None, error) from error
    stored = None if found is None else OffsetRange(found.start_offset, found.next_offset)
    if asker.kafka is not None and min(low, high) < 0:
        return _known(low, high, stored)
    kafka = None if asker.kafka is None else OffsetRange(Offset(low), Offset(high))
    both = bounds(asker.mode, kafka, stored)
    return both.start, both.end


def _known(low: int, high: int, stored: OffsetRange | None) -> tuple[int, int]:
    """Kafka's client knows one of its bounds, or none; the end is Kafka's to say."""
    if stored is not None:
        low = stored.start if low < 0 else min(low, stored.start)
        high = high if high < 0 else max(high, stored.end)
    return low, high


def for_times(
    asker: Asker, partitions: Sequence[TopicPartition], timeout: float
) -> list[TopicPartition]:
    """The first record of each partition with a timestamp or a later one; OFFSET_END for none.

    Raises:
        KafkaException: Kafka or the store does not answer.
    """
    at_kafka: dict[tuple[str, int], TopicPartition] = {}
    if asker.kafka is not None:
        with asker.poll_lock:
            found = asker.kafka.consumer.offsets_for_times(list(partitions), timeout)
        at_kafka = {(one.topic, one.partition): one for one in found}
    return [
        _for_time(asker.sides, one, at_kafka.get((one.topic, one.partition))) for one in partitions
    ]


def positions(
    board: SubscriptionState, partitions: Sequence[TopicPartition]
) -> list[TopicPartition]:
    """What will be handed out next; OFFSET_INVALID where nothing was handed out yet."""
    return [_position(board, one) for one in partitions]


def _for_time(
    sides: Sides, asked: TopicPartition, at_kafka: TopicPartition | None
) -> TopicPartition:
    if at_kafka is not None and (at_kafka.error is not None or asked.offset == OFFSET_END):
        return at_kafka  # OFFSET_END as a timestamp is where the log ends: that is Kafka's to say
    tp = domain.TopicPartition(asked.topic, asked.partition)
    try:
        stored = _stored_at(sides, tp, asked.offset)
    except SidetierError as error:
        raise StoreError(tp, None, error) from error
    first = first_of(stored, None if at_kafka is None else at_kafka.offset)
    return named(tp, OFFSET_END if first is None else first)


def _stored_at(sides: Sides, tp: domain.TopicPartition, timestamp: int) -> int | None:
    """In the archive; OFFSET_END as a timestamp is its end, as it is the log's in ListOffsets."""
    if timestamp != OFFSET_END:
        return sides.reader.offset_for_time(tp, timestamp)
    found = sides.reader.bounds(tp)
    return None if found is None else found.next_offset


def _position(board: SubscriptionState, asked: TopicPartition) -> TopicPartition:
    tp = domain.TopicPartition(asked.topic, asked.partition)
    partition = board.partitions.get(tp)
    if partition is None or not partition.consumed or partition.position is None:
        return named(tp, OFFSET_INVALID)
    return named(tp, partition.position)
