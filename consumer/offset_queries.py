"""Queries about offsets that both sides answer: `get_watermark_offsets` and `offsets_for_times`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import OFFSET_END, OFFSET_INVALID, TopicPartition

from sidetier.consumer.errors import StoreError
from sidetier.consumer.group_api import PollLock
from sidetier.consumer.kafka_side import KafkaSide, named
from sidetier.consumer.lookups import archive_of
from sidetier.consumer.sides import Sides
from sidetier.consumer.sources import UNKNOWN, Archive, Mode, Rules, joined
from sidetier.segments import offsets as domain
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, OffsetRange

_CACHED_SECONDS: Final = 3600.0
"""Oldest snapshot of the archive that answers `cached` queries."""


@dataclass(frozen=True, slots=True)
class OffsetQueries:
    """Asks the sides that the mode reads. Kafka's client is called under the `PollLock`."""

    rules: Rules
    sides: Sides
    poll_lock: PollLock

    def watermarks(
        self, partition: TopicPartition, timeout: float, *, cached: bool
    ) -> tuple[int, int]:
        """Return the first readable offset and the next offset that will be written.

        With `cached`, unknown values are OFFSET_INVALID, as in confluent-kafka.

        Raises:
            KafkaException: Kafka or the store does not answer.
        """
        tp = domain.TopicPartition(partition.topic, partition.partition)
        kafka = self._kafka
        low = high = OFFSET_INVALID
        if kafka is not None:
            with self.poll_lock:
                low, high = kafka.consumer.get_watermark_offsets(partition, timeout, cached)
        stored = self._archive(tp, cached=cached).span
        # With `cached`, librdkafka knows an offset only after a fetch has returned it.
        if kafka is not None and min(low, high) < 0:
            return _known(low, high, stored)
        at_kafka = None if kafka is None else OffsetRange(Offset(low), Offset(high))
        log = joined(at_kafka, stored)
        return (0, 0) if log is None else (log.start, log.end)

    def for_times(
        self, partitions: Sequence[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        """Return for each partition the first record at or after a timestamp; OFFSET_END for none.

        Args:
            partitions: with the timestamp in milliseconds as offset.
            timeout: seconds for Kafka's answer; negative for no limit.

        Raises:
            KafkaException: Kafka or the store does not answer.
        """
        at_kafka: dict[tuple[str, int], TopicPartition] = {}
        if self._kafka is not None:
            with self.poll_lock:
                offsets = self._kafka.consumer.offsets_for_times(list(partitions), timeout)
            at_kafka = {(partition.topic, partition.partition): partition for partition in offsets}
        return [
            self._for_time(partition, at_kafka.get((partition.topic, partition.partition)))
            for partition in partitions
        ]

    @property
    def _kafka(self) -> KafkaSide | None:
        """Kafka's side; None with `TIERED_STORAGE_ONLY`, whose log is the archive alone."""
        return None if self.rules.mode is Mode.TIERED_STORAGE_ONLY else self.sides.kafka

    def _for_time(self, asked: TopicPartition, at_kafka: TopicPartition | None) -> TopicPartition:
        if at_kafka is not None and (at_kafka.error is not None or asked.offset == OFFSET_END):
            return at_kafka  # OFFSET_END as a timestamp asks for the log's end, which Kafka knows
        tp = domain.TopicPartition(asked.topic, asked.partition)
        stored = self._stored_at(tp, asked.offset)
        # Each side returns its first match, and both hold the same log: the lower offset is first.
        answers = (stored, None if at_kafka is None else at_kafka.offset)
        known = [offset for offset in answers if offset is not None and offset >= 0]
        return named(tp, min(known, default=OFFSET_END))

    def _stored_at(self, tp: domain.TopicPartition, timestamp: int) -> int | None:
        """Search the archive. As in ListOffsets, timestamp -1 (OFFSET_END) means the end."""
        archive = self._archive(tp)
        if archive.span is None or timestamp == OFFSET_END:
            return None if archive.span is None else archive.span.end
        try:
            return self.sides.reader.offset_for_time(tp, timestamp)
        except SidetierError as error:
            raise StoreError(tp, None, error, has_file=self.rules.has_file) from error

    def _archive(self, tp: domain.TopicPartition, *, cached: bool = False) -> Archive:
        """Look up the archive of the topic that the cluster has; with `cached`, had last."""
        here = UNKNOWN
        kafka = None if self.rules.mode is Mode.KAFKA_ONLY else self.sides.kafka
        if kafka is not None:
            with self.poll_lock:
                if not cached or tp.topic not in kafka.seen:
                    kafka.identities([tp.topic])
                here = kafka.seen.get(tp.topic, UNKNOWN)
        max_age = _CACHED_SECONDS if cached else 0.0
        try:
            return archive_of(self.sides.reader, tp, here, max_age=max_age)
        except SidetierError as error:
            raise StoreError(tp, None, error, has_file=self.rules.has_file) from error


def _known(low: int, high: int, stored: OffsetRange | None) -> tuple[int, int]:
    """Return the bounds if Kafka's client has cached only one of its own, or none.

    An unknown end stays unknown: only Kafka knows the end of the log.
    """
    if stored is not None:
        low = stored.start if low < 0 else min(low, stored.start)
        high = high if high < 0 else max(high, stored.end)
    return low, high
