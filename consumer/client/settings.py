"""A consumer's configuration, taken apart: librdkafka's keys, `tiered.storage.*`, deserializers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry
from pydantic import Field, ValidationError

from sidetier.archive.reading.settings import IsolationLevel, ReaderSettings
from sidetier.config.base import Part
from sidetier.config.loading import load
from sidetier.config.problems import suggestion
from sidetier.config.s3 import S3Config
from sidetier.config.storage import StorageConfig, StorageUrl
from sidetier.config.types import SecretRef
from sidetier.config.units import Duration, Size
from sidetier.consumer.client.kafka_settings import KafkaSettings, kafka_settings
from sidetier.consumer.client.rules import Rules
from sidetier.consumer.client.sources import Mode
from sidetier.segments.errors import ConfigurationError

PREFIX: Final = "tiered.storage."
_S3: Final = "s3."
_REGISTRY: Final = "metrics.registry"
_SECRETS: Final = ("access_key_id", "secret_access_key", "session_token")
_S3_LEFT_OUT: Final = frozenset(
    {
        "checksum",
        "multipart_threshold",
        "part_size",
        "sse",
        "sse_kms_key_id",
        "storage_class",
        "tags",
    }
)
"""What only a writer has a use for."""


class TieredConfig(Part):
    """`tiered.storage.*`, dots become underscores; `tiered.storage.s3.*` is a part of its own."""

    mode: Mode = Field(
        default=Mode.KAFKA_PREFERRED, strict=False, description="Which side is read first."
    )
    config: str | None = Field(
        default=None,
        description="Path of the sidecar's configuration: its cluster.name and storage are used.",
    )
    url: StorageUrl | None = Field(
        default=None, description="Root of the archive, as the sidecar's storage.url."
    )
    cluster_name: str | None = Field(
        default=None, min_length=1, description="As the sidecar's cluster.name."
    )
    prefix_entropy_bits: int = Field(
        default=5, ge=-1, le=128, description="As the sidecar's storage.prefix_entropy_bits."
    )
    on_hole: Literal["error", "skip"] = Field(
        default="error",
        description="What becomes of offsets that neither side has: an error, or a warning, a "
        "count, and on behind them.",
    )
    hole_patience: Duration = Field(
        default=60.0,
        description="How long Kafka may have deleted what the sidecar has not stored yet, before "
        "it counts as a hole.",
    )
    memory_budget: Size = Field(
        default=ReaderSettings().memory_budget,
        description="Bytes of stored segments that are held, fetched or on their way.",
    )
    fetch_threads: int = Field(
        default=ReaderSettings().fetch_threads,
        ge=1,
        description="Requests to the store that are made at once.",
    )
    look_interval: Duration = Field(
        default=ReaderSettings().look_interval,
        gt=0,
        description="How soon what is new at an archive's end is seen.",
    )
    s3: S3Config = Field(default=S3Config(), description="As the sidecar's storage.s3.")


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration of one consumer.

    Attributes:
        storage: None where no store is read: KAFKA_ONLY.
        registry: where metrics go; None: nowhere.
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
    """Take a configuration apart, and check what is ours.

    Raises:
        ConfigurationError: a key below `tiered.storage.` is not known, has a wrong value, or
            contradicts another.
    """
    given = dict(configuration)
    tiered = {key: given.pop(key) for key in list(given) if key.startswith(PREFIX)}
    serdes = {key: given.pop(key) for key in list(given) if _is_deserializer(key)}
    registry = tiered.pop(PREFIX + _REGISTRY, None)
    if registry is not None and not isinstance(registry, CollectorRegistry):
        raise ConfigurationError(
            f"{PREFIX}{_REGISTRY}: must be a prometheus_client.CollectorRegistry"
        )
    config = _parsed(tiered)
    kafka = kafka_settings(given, config.mode)
    cluster, storage = _archive(config, set(tiered))
    return Settings(
        mode=config.mode,
        kafka=kafka,
        rules=Rules(
            config.mode,
            kafka.reset,
            skip_holes=config.on_hole == "skip",
            patience=config.hole_patience,
            say_end=kafka.partition_eof,
        ),
        reader=ReaderSettings(
            isolation=IsolationLevel(kafka.isolation),
            memory_budget=config.memory_budget,
            fetch_threads=config.fetch_threads,
            look_interval=config.look_interval,
        ),
        cluster=cluster,
        storage=storage,
        registry=registry,
        deserializers=serdes,
    )


def option_names() -> tuple[str, ...]:
    """Every key that is ours, as users write it."""
    plain = [name for name in TieredConfig.model_fields if name != "s3"]
    s3 = [f"s3.{name}" for name in S3Config.model_fields if name not in _S3_LEFT_OUT]
    return tuple(PREFIX + name.replace("_", ".") for name in (*plain, *s3, "metrics_registry"))


def _is_deserializer(key: str) -> bool:
    return key.removesuffix(".builder") in ("key.deserializer", "value.deserializer")


def _parsed(tiered: Mapping[str, Any]) -> TieredConfig:
    known = option_names()
    tree: dict[str, Any] = {}
    for key, value in tiered.items():
        if key not in known:
            raise ConfigurationError(f"{key}: there is no such setting{suggestion(key, known)}")
        name = key.removeprefix(PREFIX)
        if name.startswith(_S3):
            field_name = name.removeprefix(_S3).replace(".", "_")
            tree.setdefault("s3", {})[field_name] = _s3_value(field_name, value)
        else:
            tree[name.replace(".", "_")] = _plain(name, value)
    try:
        return TieredConfig.model_validate(tree)
    except ValidationError as error:
        lines = [f"{_key(one['loc'])}: {_text(one['msg'])}" for one in error.errors()]
        raise ConfigurationError("\n".join(dict.fromkeys(lines))) from None


def _archive(config: TieredConfig, given: set[str]) -> tuple[str, StorageConfig | None]:
    """The cluster's name, and its store."""
    if config.mode is Mode.KAFKA_ONLY:
        return "", None
    if config.config is not None:
        own = {PREFIX + name for name in ("url", "cluster.name", "prefix.entropy.bits")}
        both = sorted(given & own) + sorted(key for key in given if key.startswith(PREFIX + _S3))
        if both:
            raise ConfigurationError(
                f"{both[0]}: stands in {PREFIX}config already, {config.config}; give one of them"
            )
        loaded = load([Path(config.config)]).config
        return loaded.cluster.name, loaded.storage
    if config.url is None or config.cluster_name is None:
        missing = "url" if config.url is None else "cluster.name"
        raise ConfigurationError(
            f"{PREFIX}{missing}: is needed with {PREFIX}mode {config.mode.value}; or give "
            f"{PREFIX}config, the path of the sidecar's configuration"
        )
    storage = StorageConfig(
        url=config.url, prefix_entropy_bits=config.prefix_entropy_bits, s3=config.s3
    )
    return config.cluster_name, storage


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 -- whatever the application has given
    """As librdkafka takes it: numbers may be text, too."""
    if name in ("prefix.entropy.bits", "fetch.threads") and isinstance(value, str):
        return int(value) if value.lstrip("-").isdigit() else value
    if name == "mode" and isinstance(value, str):
        return value.upper()
    if name == "config" and isinstance(value, Path):
        return str(value)
    return value


def _s3_value(name: str, value: Any) -> Any:  # noqa: ANN401
    if name == "path_style" and isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower(), value)
    if name in _SECRETS and isinstance(value, str):
        return _reference(value)
    return value


def _reference(value: str) -> Any:  # noqa: ANN401
    """`env:NAME` or `file:/path`: a secret itself has no place in a configuration."""
    kind, _, place = value.partition(":")
    if kind in ("env", "file") and place:
        return SecretRef.model_validate({kind: place}).model_dump(exclude_none=True)
    return value


def _key(path: tuple[int | str, ...]) -> str:
    steps = [str(step).replace("_", ".") for step in path]
    return PREFIX + ".".join(steps[:2] if steps[:1] == ["s3"] else steps[:1])


def _text(message: str) -> str:
    return message.removeprefix("Value error, ")
