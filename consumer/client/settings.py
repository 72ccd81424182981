"""Configuration of a consumer: librdkafka's keys, `tiered.storage.*`, and deserializers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from prometheus_client import CollectorRegistry
from pydantic import BeforeValidator, Field

from sidetier.archive.reading.settings import IsolationLevel, ReaderSettings
from sidetier.config.archive_options import (
    PREFIX,
    ArchiveOptions,
    WholeNumber,
    archive_of,
    names_of,
    parse_options,
)
from sidetier.config.storage import StorageConfig
from sidetier.config.units import Duration, Size
from sidetier.consumer.client.kafka_settings import KafkaSettings, kafka_settings
from sidetier.consumer.client.rules import Rules
from sidetier.consumer.client.sources import Mode
from sidetier.segments.errors import ConfigurationError

_REGISTRY: Final = "metrics.registry"


def _upper_case(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class TieredConfig(ArchiveOptions):
    """Keys below `tiered.storage.`; `tiered.storage.on.gap` is the field `on_gap`.

    The keys below `tiered.storage.s3.` are a separate model.
    """

    mode: Annotated[Mode, BeforeValidator(_upper_case)] = Field(
        default=Mode.KAFKA_PREFERRED, strict=False, description="Which side is read first."
    )
    on_gap: Literal["error", "skip"] = Field(
        default="error",
        description="What becomes of offsets that neither side has: an error, or a warning, a "
        "count, and on behind them.",
    )
    gap_patience: Duration = Field(
        default=60.0,
        description="How long Kafka may have deleted what the sidecar has not stored yet, before "
        "it counts as a gap.",
    )
    memory_budget: Size = Field(
        default=ReaderSettings().memory_budget,
        description="Bytes of stored segments that are held, fetched or on their way.",
    )
    fetch_threads: WholeNumber = Field(
        default=ReaderSettings().fetch_threads,
        ge=1,
        description="Requests to the store that are made at once.",
    )
    look_interval: Duration = Field(
        default=ReaderSettings().look_interval,
        gt=0,
        description="How soon what is new at an archive's end is seen.",
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration of one consumer.

    Attributes:
        reader: settings of the archive reader.
        cluster: cluster name of the archive; empty with `KAFKA_ONLY`.
        storage: None with `KAFKA_ONLY`, in which the store is not read.
        registry: registry for metrics; None for no metrics.
        deserializers: `key.deserializer`, `value.deserializer` and their `.builder` keys.
    """

    mode: Mode
    kafka: KafkaSettings
    rules: Rules
    reader: ReaderSettings
    cluster: str = ""
    storage: StorageConfig | None = None
    registry: CollectorRegistry | None = None
    deserializers: Mapping[str, Any] = field(default_factory=dict)


def read_settings(configuration: Mapping[str, Any]) -> Settings:
    """Split a configuration into its parts, and check the keys of the tiered consumer.

    Raises:
        ConfigurationError: a key below `tiered.storage.` is unknown, has a wrong value, or
            contradicts another key; or a value of librdkafka's that the consumer reads is wrong.
    """
    given = dict(configuration)
    tiered = {key: given.pop(key) for key in list(given) if key.startswith(PREFIX)}
    serdes = {key: given.pop(key) for key in list(given) if _is_deserializer(key)}
    registry = tiered.pop(PREFIX + _REGISTRY, None)
    if registry is not None and not isinstance(registry, CollectorRegistry):
        raise ConfigurationError(
            f"{PREFIX}{_REGISTRY}: must be a prometheus_client.CollectorRegistry"
        )
    config = parse_options(TieredConfig, tiered, option_names())
    kafka = kafka_settings(given, config.mode)
    cluster, storage = _archive(config, set(tiered))
    return Settings(
        mode=config.mode,
        kafka=kafka,
        rules=Rules(
            config.mode,
            kafka.reset,
            skip_gaps=config.on_gap == "skip",
            patience=config.gap_patience,
            say_end=kafka.partition_eof,
        ),
        reader=ReaderSettings(
            isolation=IsolationLevel(kafka.isolation),
            memory_budget=config.memory_budget,
            max_batch_bytes=config.max_batch_bytes,
            fetch_threads=config.fetch_threads,
            look_interval=config.look_interval,
        ),
        cluster=cluster,
        storage=storage,
        registry=registry,
        deserializers=serdes,
    )


def option_names() -> tuple[str, ...]:
    """Return every key below `tiered.storage.`, as users write it."""
    return (*names_of(TieredConfig), PREFIX + _REGISTRY)


def _is_deserializer(key: str) -> bool:
    return key.removesuffix(".builder") in ("key.deserializer", "value.deserializer")


def _archive(config: TieredConfig, given: set[str]) -> tuple[str, StorageConfig | None]:
    """Return the cluster's name and its store."""
    if config.mode is Mode.KAFKA_ONLY:
        return "", None
    return archive_of(config, given, f" with {PREFIX}mode {config.mode.value}")
