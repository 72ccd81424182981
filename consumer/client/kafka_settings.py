"""The keys that are librdkafka's: which of them we keep to ourselves, and which we set for it."""

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
    """What librdkafka is given, and what of it we do in its place.

    Attributes:
        config: for the inner consumer; None where there is no broker.
        auto_store: enable.auto.offset.store: we store offsets when records are handed out.
        cooperative: assignments change by single partitions.
        error_cb: also told of the store's troubles.
    """

    config: Mapping[str, Any] | None
    reset: Reset = Reset.LATEST
    isolation: str = "read_committed"
    auto_store: bool = True
    partition_eof: bool = False
    cooperative: bool = False
    error_cb: Any = None


def kafka_settings(given: Mapping[str, Any], mode: Mode) -> KafkaSettings:
    """Take librdkafka's keys apart.

    The inner consumer stores no offsets by itself, and, but with KAFKA_ONLY, never resets one:
    `auto.offset.reset` is `error` there.

    Raises:
        ConfigurationError: a value that librdkafka would not take, of a key that we need.
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
        kept = {key: value for key, value in config[_TOPIC_CONFIG].items() if key != _RESET_KEY}
        config[_TOPIC_CONFIG] = kept
    config[_RESET_KEY] = Reset.ERROR.value
    return config


def _is_new_protocol(given: Mapping[str, Any]) -> bool:
    """KIP-848's, in which partitions come and go one by one; librdkafka does not mind the case."""
    return str(given.get("group.protocol", "")).lower() == "consumer"


def _boolean(given: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """As librdkafka reads it."""
    value = str(given.get(key, default)).lower()
    if value not in (*_TRUE, *_FALSE):
        raise ConfigurationError(f"{key}: must be true or false")
    return value in _TRUE
