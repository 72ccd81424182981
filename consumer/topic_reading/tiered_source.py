"""Records of one topic from Kafka, or from Kafka and the archive as one log."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from prometheus_client import CollectorRegistry

from sidetier.archive.reader.results import Failed, ReachedEnd, Records, Taken
from sidetier.config.model import Config
from sidetier.consumer.settings import read_settings
from sidetier.consumer.sides import open_sides
from sidetier.consumer.store_side import batches_of
from sidetier.consumer.tiered_consumer import TieredConsumer
from sidetier.consumer.topic_reading.request import TopicReadRequest
from sidetier.segments.errors import (
    ArchiveError,
    ConfigurationError,
    LeadershipUnavailableError,
    SidetierError,
)
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.telemetry.consumer_catalogue import SKIPPED_OFFSETS

_ASK_SECONDS: Final = 10.0
_ON_GAP: Final = "\n--on-gap skip skips every gap"
_NO_SUCH_PARTITION: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_MAX_MESSAGES: Final = 500
"""Maximum number of messages in one call of `consume`."""


class TieredTopicSource:
    """Reads one topic with a consumer whose partitions are assigned manually."""

    def __init__(
        self,
        consumer: TieredConsumer,
        topic: str,
        servers: str,
        registry: CollectorRegistry,
        undecided: Sequence[str] = (),
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._servers = servers
        self._registry = registry
        self._undecided = undecided
        """Texts of `note_undecided`. Without `follow` they are an error."""

    @property
    def skipped(self) -> int:
        """Number of offsets that the consumer skipped without reporting them."""
        return int(self._registry.get_sample_value(SKIPPED_OFFSETS.name) or 0)

    def partitions(self) -> Sequence[int]:
        """Return the partitions of the topic, in rising order."""
        with _translated(f"{self._servers} returns no metadata"):
            metadata = self._consumer.list_topics(timeout=_ASK_SECONDS).topics.get(self._topic)
        if metadata is None or not metadata.partitions:
            raise ConfigurationError(f"there is no topic {self._topic} at {self._servers}")
        return sorted(metadata.partitions)

    def bounds(self, tp: TopicPartition) -> OffsetRange:
        """Return the range that can be read, end exclusive."""
        with _translated(f"the offsets of {tp} are not known"):
            low, high = self._consumer.get_watermark_offsets(_named(tp), timeout=_ASK_SECONDS)
        return OffsetRange(Offset(low), Offset(high))

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the first offset of this time or later; None if there is none."""
        queries = [_named(tp, timestamp_ms)]
        with _translated(f"the offsets of {tp} are not known"):
            [answer] = self._consumer.offsets_for_times(queries, timeout=_ASK_SECONDS)
        if answer.error is not None:
            raise LeadershipUnavailableError(f"the offsets of {tp} are not known: {answer.error}")
        return None if answer.offset < 0 else int(answer.offset)

    def assign(self, starts: dict[TopicPartition, int]) -> None:
        """Start reading these partitions, each at the given offset."""
        self._consumer.assign([_named(tp, offset) for tp, offset in starts.items()])

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue a partition at another offset."""
        self._consumer.seek(_named(tp, offset))

    def finish(self, tp: TopicPartition) -> None:
        """Stop reading a partition."""
        self._consumer.incremental_unassign([_named(tp)])

    def take(self, most: int, timeout: float) -> list[Taken]:
        """Return at most `most` records; wait up to `timeout` seconds for the first."""
        if self._undecided:
            raise LeadershipUnavailableError(self._undecided[0])
        taken: list[Taken] = []
        messages: list[Message] = []
        for message in self._consumer.consume(min(most, _MAX_MESSAGES), timeout):
            error = message.error()
            if error is None:
                messages.append(message)
                continue
            taken += _records(messages)
            messages = []
            taken.append(_event_of(message, error))
        return taken + _records(messages)


def note_undecided(texts: list[str]) -> Callable[[KafkaError], None]:
    """Return an `error_cb` that notes transactions that no source has as a whole now."""

    def note(error: KafkaError) -> None:
        if error.code() == KafkaError.OFFSET_NOT_AVAILABLE:
            texts.append(error.str())

    return note


@contextmanager
def open_tiered_source(config: Config, request: TopicReadRequest) -> Iterator[TieredTopicSource]:
    """Open a consumer in the requested mode, and close it at the end.

    Raises:
        ConfigurationError: No broker is configured or given, or a setting is wrong.
    """
    client = dict(config.broker.client_properties())
    servers = request.bootstrap or client.get("bootstrap.servers")
    if servers is None:
        raise ConfigurationError(
            f"broker.bootstrap_servers is not set: mode {request.mode} reads Kafka; give the "
            "cluster's address by --bootstrap-server, or omit --mode to read the store alone"
        )
    registry = CollectorRegistry()
    undecided: list[str] = []
    settings = read_settings(
        {
            "group.id": "sidetier-consume",  # librdkafka requires one; nothing joins it or commits
            "client.id": "sidetier-consume",
            "log_level": 0,
            **client,
            "error_cb": note_undecided([] if request.follow else undecided),
            "bootstrap.servers": servers,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": request.isolation,
            "tiered.storage.mode": request.mode,
            "tiered.storage.url": config.storage.url,
            "tiered.storage.cluster.name": config.cluster.name,
            "tiered.storage.on.gap": "skip" if request.skip_gaps else "error",
            "tiered.storage.gap.patience": "60s" if request.follow else "0s",
            "tiered.storage.max.batch.bytes": request.max_batch_bytes,
            "tiered.storage.metrics.registry": registry,
        }
    )
    if settings.storage is not None:
        # The keys above have only the default URL. The whole
        # configuration also has overrides and credentials.
        rules = replace(settings.rules, has_file=True)
        settings = replace(settings, storage=config.storage, rules=rules)
    try:
        consumer = TieredConsumer.over(settings, open_sides(settings))
    except (KafkaException, ValueError, TypeError) as error:
        raise ConfigurationError(f"the Kafka client's properties are refused: {error}") from error
    with consumer:
        yield TieredTopicSource(consumer, request.topic, str(servers), registry, undecided)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        if isinstance(error.__cause__, SidetierError):
            raise error.__cause__ from error
        if _code(error) in _NO_SUCH_PARTITION:
            raise ConfigurationError(f"{what}: there is no such partition") from error
        raise LeadershipUnavailableError(f"{what}: {_text_of(error)}") from error


def _code(error: KafkaException) -> int | None:
    inner = error.args[0] if error.args else None
    return inner.code() if isinstance(inner, KafkaError) else None


def _text_of(error: KafkaException) -> str:
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner)


def _records(run: Sequence[Message]) -> list[Taken]:
    batches: list[Taken] = []
    for topic, partition, records in batches_of(run):
        last = records.column("offset")[-1].as_py()
        batches.append(Records(TopicPartition(topic, partition), records, Offset(last + 1)))
    return batches


def _event_of(message: Message, error: KafkaError) -> Taken:
    tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
    offset = Offset(int(message.offset() or 0))
    if error.code() == KafkaError._PARTITION_EOF:
        return ReachedEnd(tp, offset)
    kind = LeadershipUnavailableError if error.retriable() else ArchiveError
    advice = _ON_GAP if error.code() == KafkaError.OFFSET_OUT_OF_RANGE else ""
    return Failed(tp, offset, kind(f"{error.str()}{advice}"))


def _named(tp: TopicPartition, offset: int | None = None) -> KafkaTopicPartition:
    if offset is None:
        return KafkaTopicPartition(tp.topic, tp.partition)
    return KafkaTopicPartition(tp.topic, tp.partition, offset)
