"""Queries about offsets that treat both sides as one log."""

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
