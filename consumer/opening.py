"""Construction of a consumer's parts from its settings."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import confluent_kafka
from confluent_kafka import KafkaError

from sidetier.archive.access import open_archive
from sidetier.archive.partition_archive import ArchiveBounds
from sidetier.archive.reader.reader import ArchiveReader
from sidetier.archive.reader.results import Taken
from sidetier.consumer.delivery import DeliveryRecorder
from sidetier.consumer.feed import Feed, Idle, StoreTaker
from sidetier.consumer.kafka_side import Callbacks, KafkaSide
from sidetier.consumer.lookups import Looker, Lookups
from sidetier.consumer.metrics import ConsumerMetrics, metrics_of
from sidetier.consumer.routing import StoreSide
from sidetier.consumer.settings import Settings
from sidetier.consumer.subscription_state import SubscriptionState
from sidetier.segments.offsets import Offset, TopicPartition


class Reader(StoreSide, StoreTaker, Looker, Protocol):
    """The methods of `ArchiveReader` that a consumer needs."""

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> Offset | None:
        """See `ArchiveReader`."""
        ...

    def close(self) -> None:
        """See `ArchiveReader`."""
        ...


@dataclass(frozen=True, slots=True)
class Sides:
    """Kafka's client, the archive reader, and the lookups over both.

    Attributes:
        kafka: None without a broker.
        idle: event that a poll waits on when it reads from neither side; `close` sets it.
        close: closes the store and the reader.
    """

    kafka: KafkaSide | None
    reader: Reader
    lookups: Lookups
    metrics: ConsumerMetrics
    clock: Callable[[], float]
    idle: Idle
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that a consumer consists of."""

    sides: Sides
    board: SubscriptionState
    feed: Feed
    delivery: DeliveryRecorder


class NoStore:
    """Reader for `KAFKA_ONLY`, in which the store is not read."""

    def bounds(self, tp: TopicPartition, *, max_age: float = 0.0) -> ArchiveBounds | None:
        """Return None: there is no archive."""
        del tp, max_age
        return None

    def where(self, tp: TopicPartition) -> str:
        """Return a placeholder; never called."""
        return f"nowhere, for {tp}"

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> Offset | None:
        """Return None: there is no archive."""
        del tp, timestamp_ms
        return None

    def assign(self, tp: TopicPartition, offset: int) -> None:
        """Never called."""

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Never called."""

    def unassign(self, tp: TopicPartition) -> None:
        """Ignore the call."""

    def pause(self, tp: TopicPartition) -> None:
        """Never called."""

    def resume(self, tp: TopicPartition) -> None:
        """Never called."""

    def take(self, max_records: int, timeout: float) -> list[Taken]:
        """Return no records."""
        del max_records, timeout
        return []

    def close(self) -> None:
        """Ignore the call."""


def open_sides(settings: Settings) -> Sides:
    """Open the store and Kafka's client. Neither gets a request yet.

    Raises:
        ConfigurationError: the store's settings are wrong.
        KafkaException: librdkafka refuses its settings.
    """
    metrics = metrics_of(settings.registry)
    with ExitStack() as stack:
        reader = _reader(settings, metrics, stack)
        kafka = None
        if settings.kafka.config is not None:
            callbacks = Callbacks()
            consumer = confluent_kafka.Consumer(callbacks.guarded(settings.kafka.config))
            kafka = KafkaSide(consumer, cooperative=settings.kafka.cooperative, callbacks=callbacks)
        lookups = Lookups(kafka, reader, threads=settings.reader.fetch_threads)
        close = stack.pop_all().close
        return Sides(kafka, reader, lookups, metrics, time.monotonic, threading.Event(), close)


def assemble(settings: Settings, sides: Sides) -> Parts:
    """Build a consumer's parts over both sides."""
    both = (sides.kafka, sides.reader)
    warn: Callable[[KafkaError], None] = settings.kafka.error_cb or (lambda _: None)
    board = SubscriptionState(settings.rules, both, sides.lookups, sides.clock, sides.metrics, warn)
    delivery = DeliveryRecorder(sides.kafka, sides.metrics, stores=settings.kafka.auto_store)
    return Parts(sides, board, Feed(board, both, sides.clock, delivery, sides.idle), delivery)


def _reader(settings: Settings, metrics: ConsumerMetrics, stack: ExitStack) -> Reader:
    if settings.storage is None:
        return NoStore()
    stop = threading.Event()
    archive = stack.enter_context(
        open_archive(
            settings.cluster,
            settings.storage,
            connections=2 * settings.reader.fetch_threads,  # half of them for the lookups' threads
            observer=metrics,
            stop=stop,
        )
    )
    reader = ArchiveReader(archive, settings.reader, metrics)
    stack.callback(reader.close)
    stack.callback(stop.set)
    return reader
