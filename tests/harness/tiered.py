"""A `TieredConsumer` over the fakes of `one_log`."""

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from prometheus_client import CollectorRegistry

from sidetier.consumer.deserializing import deserializing
from sidetier.consumer.kafka_side import KafkaSide
from sidetier.consumer.lookups import Lookups
from sidetier.consumer.metrics import ConsumerMetrics
from sidetier.consumer.settings import read_settings
from sidetier.consumer.sides import Sides
from sidetier.consumer.tiered_consumer import TieredConsumer
from sidetier.segments.offsets import TopicPartition
from tests.harness.one_log import AtOnce, FakeClients, FakeKafka, FakeReader, World

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


@dataclass(frozen=True, slots=True)
class Tiered:
    """A consumer and its fakes."""

    consumer: TieredConsumer
    clients: FakeClients
    reader: FakeReader
    world: World
    registry: CollectorRegistry

    @property
    def kafka(self) -> FakeKafka:
        """The present client of Kafka; earlier ones were replaced."""
        return self.clients.opened[-1]

    def read(self, polls: int = 40) -> list[int]:
        """Return the offsets from this number of polls; an error fails the test."""
        return [int(message.offset() or 0) for message in self.messages(polls)]

    def messages(self, polls: int = 40) -> list[Message]:
        """Return the messages from this number of polls; an error fails the test."""
        results = [self.consumer.poll(0.05) for _ in range(polls)]
        messages = [message for message in results if message is not None]
        errors = [str(message.error()) for message in messages if message.error() is not None]
        assert not errors
        return messages

    def error(self, polls: int = 400) -> Message:
        """Return the first error within this number of polls."""
        for _ in range(polls):
            message = self.consumer.poll(0.5)
            if message is not None and message.error() is not None:
                return message
        raise AssertionError("no error came")

    def count(self, name: str, **labels: str) -> float:
        """Return the value of a metric's counter."""
        value = self.registry.get_sample_value(f"sidetier_consumer_{name}", labels)
        return 0.0 if value is None else value


def tiered(
    world: World,
    mode: str,
    config: Mapping[str, Any] | None = None,
    *,
    broker: bool = True,
    pool: Executor | None = None,
) -> Tiered:
    """Create a consumer in this mode; `config` overrides the minimal settings."""
    registry = CollectorRegistry()
    settings = read_settings(
        {
            **({"bootstrap.servers": "nowhere:1", "group.id": "g"} if broker else {}),
            "auto.offset.reset": "earliest",
            "tiered.storage.mode": mode,
            "tiered.storage.url": "memory://archive",
            "tiered.storage.cluster.name": "c",
            **(config or {}),
        }
    )
    clients = FakeClients(world, cooperative=settings.kafka.cooperative)
    reader = FakeReader(world)
    side = KafkaSide(clients, cooperative=settings.kafka.cooperative, clock=world.clock)  # type: ignore[arg-type]
    metrics = ConsumerMetrics(registry)
    at_kafka = side if broker else None
    lookups = Lookups(at_kafka, reader, pool=pool or AtOnce())
    sides = Sides(at_kafka, reader, lookups, metrics, world.clock, world, reader.close)
    serdes, _ = deserializing(settings.deserializers, {})
    consumer = TieredConsumer.over(settings, sides, serdes)
    return Tiered(consumer, clients, reader, world, registry)


def at(offset: int, tp: TopicPartition = TP) -> KafkaTopicPartition:
    """Return a position in confluent-kafka's type."""
    return KafkaTopicPartition(tp.topic, tp.partition, offset)


def world_of(
    end: int = 100,
    *,
    kafka_start: int = 0,
    store: tuple[int, int] = (0, 0),
    tp: TopicPartition = TP,
) -> World:
    """Return a world with one partition and a record at every offset."""
    world = World()
    log = world.log(tp)
    log.produce(end)
    log.kafka_start, (log.store_start, log.store_end) = kafka_start, store
    return world
