"""Configuration of a consumer: librdkafka's keys, `tiered.storage.*`, and deserializers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from prometheus_client import CollectorRegistry
from pydantic import BeforeValidator, Field

from sidetier.archive.reader.settings import IsolationLevel, ReaderSettings
from sidetier.config.archive_options import (
    PREFIX,
    ArchiveOptions,
    Flag,
    WholeNumber,
    archive_of,
    names_of,
    parse_options,
)
from sidetier.config.storage import StorageConfig
from sidetier.config.units import Duration, Size
from sidetier.consumer.sources import Mode, Reset, Rules
from sidetier.segments.errors import ConfigurationError

_RESETS: Final[Mapping[str, Reset]] = {
    "earliest": Reset.EARLIEST,
    "smallest": Reset.EARLIEST,
    "beginning": Reset.EARLIEST,
    "latest": Reset.LATEST,
    "largest": Reset.LATEST,
    "end": Reset.LATEST,
    "error": Reset.ERROR,
}
_ISOLATION: Final = ("read_committed", "read_uncommitted")
_TRUE: Final = ("true", "t", "1")
_FALSE: Final = ("false", "f", "0")
_RESET_KEY: Final = "auto.offset.reset"
_STORE_KEY: Final = "enable.auto.offset.store"
_TOPIC_CONFIG: Final = "default.topic.config"


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Configuration of the inner consumer, and the keys that the tiered consumer implements itself.

    Attributes:
        config: configuration of the inner consumer; None without a broker.
        auto_store: `enable.auto.offset.store`: the tiered consumer stores the offsets of records
            that it has returned.
        cooperative: the group adds and removes single partitions instead of whole assignments.
        error_cb: the application's `error_cb`, also called with transient errors of the store.
    """

    config: Mapping[str, Any] | None
    reset: Reset = Reset.LATEST
    isolation: str = "read_committed"
    auto_store: bool = True
    partition_eof: bool = False
    cooperative: bool = False
    error_cb: Any = None


def kafka_settings(given: Mapping[str, Any], mode: Mode) -> KafkaSettings:
    """Read and override librdkafka's keys.

    The inner consumer does not store offsets itself. Except with `KAFKA_ONLY`, it does not reset
    them either: its `auto.offset.reset` is `error`.

    Raises:
        ConfigurationError: a key that the tiered consumer reads has a value that librdkafka would
            refuse.
    """
    topic_config = given.get(_TOPIC_CONFIG) or {}
    reset = given.get(_RESET_KEY, topic_config.get(_RESET_KEY, "latest"))
    isolation = given.get("isolation.level", "read_committed")
    if str(reset).lower() not in _RESETS:
        raise ConfigurationError(f"{_RESET_KEY}: must be one of {', '.join(_RESETS)}")
    if isolation not in _ISOLATION:
        raise ConfigurationError(f"isolation.level: must be one of {', '.join(_ISOLATION)}")
    strategy = str(given.get("partition.assignment.strategy", ""))
    settings = KafkaSettings(
        config=_inner(given, mode),
        reset=_RESETS[str(reset).lower()],
        isolation=isolation,
        auto_store=_boolean(given, _STORE_KEY, default=True),
        partition_eof=_boolean(given, "enable.partition.eof", default=False),
        cooperative="cooperative" in strategy or _is_new_protocol(given),
        error_cb=given.get("error_cb"),
    )
    if settings.config is None and mode is not Mode.TIERED_STORAGE_ONLY:
        raise ConfigurationError(
            f"bootstrap.servers: is needed with tiered.storage.mode {mode.value}; only "
            "TIERED_STORAGE_ONLY does without brokers"
        )
    return settings


def _inner(given: Mapping[str, Any], mode: Mode) -> Mapping[str, Any] | None:
    if not given.get("bootstrap.servers") and not given.get("metadata.broker.list"):
        return None
    config = dict(given)
    config[_STORE_KEY] = False
    if mode is Mode.KAFKA_ONLY:
        return config
    if _TOPIC_CONFIG in config:
        rest = {key: value for key, value in config[_TOPIC_CONFIG].items() if key != _RESET_KEY}
        config[_TOPIC_CONFIG] = rest
    config[_RESET_KEY] = Reset.ERROR.value
    return config


def _is_new_protocol(given: Mapping[str, Any]) -> bool:
    """Whether the group uses KIP-848, which always adds and removes single partitions."""
    # librdkafka ignores the case of this value, too.
    return str(given.get("group.protocol", "")).lower() == "consumer"


def _boolean(given: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """Parse a boolean as librdkafka does."""
    value = str(given.get(key, default)).lower()
    if value not in (*_TRUE, *_FALSE):
        raise ConfigurationError(f"{key}: must be true or false")
    return value in _TRUE


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
        description="Action at offsets that neither side has: an error; or a warning and a count, "
        "and reading continues after them.",
    )
    gap_patience: Duration = Field(
        default=60.0,
        description="Time to wait for the upload of offsets that Kafka has deleted, before they "
        "count as a gap.",
    )
    with_tail: Flag = Field(
        default=False,
        description="Also read the records of active segments that tail packs have. Only with "
        "`TIERED_STORAGE_ONLY`. Costs a listing for each broker at each `look.interval`, and a "
        "request for each new pack.",
    )
    memory_budget: Size = Field(
        default=ReaderSettings().memory_budget,
        description="Maximum bytes of stored segments that are held or being fetched.",
    )
    fetch_threads: WholeNumber = Field(
        default=ReaderSettings().fetch_threads,
        ge=1,
        description="Maximum number of concurrent requests to the store.",
    )
    look_interval: Duration = Field(
        default=ReaderSettings().look_interval,
        gt=0,
        description="Interval at which the consumer checks for new segments at an archive's end.",
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
    if config.with_tail and config.mode is not Mode.TIERED_STORAGE_ONLY:
        raise ConfigurationError(
            f"{PREFIX}with.tail: is only for {PREFIX}mode {Mode.TIERED_STORAGE_ONLY.value}: with "
            f"{config.mode.value}, the brokers have these records"
        )
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
            report_end=kafka.partition_eof,
            has_file=config.config is not None,
        ),
        reader=ReaderSettings(
            isolation=IsolationLevel(kafka.isolation),
            memory_budget=config.memory_budget,
            max_batch_bytes=config.max_batch_bytes,
            fetch_threads=config.fetch_threads,
            look_interval=config.look_interval,
            with_tail=config.with_tail,
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
