"""The two sides of a consumer: Kafka's client and the archive reader, opened from its settings."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from sidetier.archive.access import open_archive
from sidetier.archive.reader.reader import ArchiveReader
from sidetier.config.archive_options import in_readers_names
from sidetier.consumer.feed import Idle
from sidetier.consumer.kafka_side import Callbacks, KafkaClients, KafkaSide
from sidetier.consumer.lookups import Lookups
from sidetier.consumer.metrics import ConsumerMetrics, metrics_of
from sidetier.consumer.settings import Settings
from sidetier.consumer.store_side import NoStore, StoreSide
from sidetier.segments.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Sides:
    """Kafka's client, the archive reader, and the lookups over both.

    Attributes:
        kafka: None without a broker.
        idle: event that a poll waits on when it reads from neither side; `close` sets it.
        close: closes the store and the reader.
    """

    kafka: KafkaSide | None
    reader: StoreSide
    lookups: Lookups
    metrics: ConsumerMetrics
    clock: Callable[[], float]
    idle: Idle
    close: Callable[[], None]


def open_sides(settings: Settings) -> Sides:
    """Open the store and Kafka's client. Neither gets a request yet.

    Raises:
        ConfigurationError: the store's settings are wrong.
        KafkaException: librdkafka refuses its settings.
    """
    metrics = metrics_of(settings.registry)
    with ExitStack() as stack:
        try:
            reader = _reader(settings, metrics, stack)
        except ConfigurationError as error:
            if settings.rules.has_file:
                raise
            raise ConfigurationError(in_readers_names(str(error))) from error
        kafka = None
        if settings.kafka.config is not None:
            callbacks = Callbacks()
            clients = KafkaClients(settings.kafka.config, callbacks)
            stack.callback(clients.close)
            kafka = KafkaSide(clients, cooperative=settings.kafka.cooperative, callbacks=callbacks)
        lookups = Lookups(kafka, reader, threads=settings.reader.fetch_threads)
        close = stack.pop_all().close
        return Sides(kafka, reader, lookups, metrics, time.monotonic, threading.Event(), close)


def _reader(settings: Settings, metrics: ConsumerMetrics, stack: ExitStack) -> StoreSide:
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
