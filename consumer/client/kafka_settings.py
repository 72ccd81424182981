"""librdkafka's part of the configuration: keys that the tiered consumer reads or overrides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidetier.consumer.client.sources import Mode, Reset
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
