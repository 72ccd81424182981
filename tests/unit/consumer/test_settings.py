"""Parsing of a consumer's configuration."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sidetier.archive.reader.settings import IsolationLevel
from sidetier.consumer.settings import Settings, option_names, read_settings
from sidetier.consumer.sources import Mode, Reset
from sidetier.segments.errors import ConfigurationError

KAFKA = {"bootstrap.servers": "b:1", "group.id": "g"}
STORE = {"tiered.storage.url": "s3://b/p", "tiered.storage.cluster.name": "c"}
DOCUMENT = Path(__file__).parents[3] / "docs" / "consumer.md"


def read(**more: Any) -> Settings:  # noqa: ANN401 -- whatever librdkafka takes
    given = {key.replace("__", "."): value for key, value in more.items()}
    return read_settings({**KAFKA, **STORE, **given})


def test_inner_consumer_neither_resets_nor_stores_offsets_by_itself() -> None:
    settings = read(
        auto__offset__reset="smallest",
        default__topic__config={"auto.offset.reset": "latest", "other": 1},
    )
    assert settings.kafka.config is not None
    assert settings.kafka.config["auto.offset.reset"] == "error"
    assert settings.kafka.config["enable.auto.offset.store"] is False
    assert settings.kafka.config["default.topic.config"] == {"other": 1}
    assert not [key for key in settings.kafka.config if key.startswith("tiered.")]
    assert settings.rules.reset is Reset.EARLIEST
    assert settings.kafka.auto_store


def test_kafka_only_keeps_kafkas_reset_and_opens_no_store() -> None:
    given = {"auto.offset.reset": "earliest", "tiered.storage.mode": "kafka_only"}
    settings = read_settings({**KAFKA, **given})
    assert settings.mode is Mode.KAFKA_ONLY
    assert settings.kafka.config is not None
    assert settings.kafka.config["auto.offset.reset"] == "earliest"
    assert settings.storage is None


@pytest.mark.parametrize(
    ("given", "yes"),
    [
        ({}, False),
        ({"partition__assignment__strategy": "range"}, False),
        ({"partition__assignment__strategy": "cooperative-sticky"}, True),
        ({"group__protocol": "consumer"}, True),
        ({"group__protocol": "Consumer"}, True),
    ],
)
def test_cooperative_groups_are_recognised(given: dict[str, str], yes: bool) -> None:  # noqa: FBT001
    assert read(**given).kafka.cooperative is yes


def test_reader_settings_come_from_the_tiered_storage_settings() -> None:
    settings = read(
        isolation__level="read_uncommitted",
        tiered__storage__memory__budget="16MiB",
        tiered__storage__fetch__threads="3",
        tiered__storage__on__gap="skip",
        tiered__storage__gap__patience="5s",
        tiered__storage__prefix__entropy__bits="-1",
    )
    assert settings.reader.isolation is IsolationLevel.READ_UNCOMMITTED
    assert (settings.reader.memory_budget, settings.reader.fetch_threads) == (16 << 20, 3)
    assert (settings.rules.skip_gaps, settings.rules.patience) == (True, 5.0)
    assert settings.storage is not None
    assert settings.storage.prefix_entropy_bits == -1


def test_s3_settings_equal_those_of_the_sidecar() -> None:
    settings = read(
        tiered__storage__s3__endpoint__url="http://s3:1",
        tiered__storage__s3__path__style="true",
        tiered__storage__s3__access__key__id="env:KEY",
        tiered__storage__s3__secret__access__key="file:/run/secret",
    )
    assert settings.storage is not None
    s3 = settings.storage.s3
    assert (s3.endpoint_url, s3.path_style) == ("http://s3:1", True)
    assert str(s3.access_key_id) == "environment variable KEY"
    assert str(s3.secret_access_key) == "file /run/secret"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"tiered.storage.mod": "KAFKA_ONLY"}, "did you mean tiered.storage.mode"),
    "unknown mode": ({"tiered.storage.mode": "SOMETIMES"}, "tiered.storage.mode"),
    "a size": ({"tiered.storage.memory.budget": "much"}, "tiered.storage.memory.budget"),
    "too small": ({"tiered.storage.memory.budget": 1}, "memory.budget 1"),
    "a writer's": ({"tiered.storage.s3.part.size": "8MiB"}, "tiered.storage.s3.part.size"),
    "a plain secret": ({"tiered.storage.s3.access.key.id": "AKIA"}, "s3.access"),
    "no registry": ({"tiered.storage.metrics.registry": 1}, "CollectorRegistry"),
    "twice": ({"tiered.storage.config": "/etc/sidetier.yaml"}, "tiered.storage.cluster.name"),
    "reset": ({"auto.offset.reset": "none"}, "auto.offset.reset"),
    "isolation": ({"isolation.level": "serializable"}, "isolation.level"),
    "boolean": ({"enable.partition.eof": "perhaps"}, "enable.partition.eof"),
}


@pytest.mark.parametrize("name", WRONG)
def test_error_names_the_wrong_setting(name: str) -> None:
    given, said = WRONG[name]
    with pytest.raises(ConfigurationError) as raised:
        read_settings({**KAFKA, **STORE, **given})
    assert said in str(raised.value)
    assert "AKIA" not in str(raised.value)


def test_store_location_and_broker_are_required() -> None:
    with pytest.raises(ConfigurationError, match=r"tiered\.storage\.url"):
        read_settings(KAFKA)
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        read_settings(STORE)
    settings = read_settings({**STORE, "tiered.storage.mode": "TIERED_STORAGE_ONLY"})
    assert settings.kafka.config is None


def test_tail_is_only_for_the_mode_without_kafka() -> None:
    only = {**STORE, "tiered.storage.mode": "TIERED_STORAGE_ONLY"}
    assert not read_settings(only).reader.with_tail
    for given in ("true", "TRUE", True):
        assert read_settings({**only, "tiered.storage.with.tail": given}).reader.with_tail
    assert not read_settings({**only, "tiered.storage.with.tail": "false"}).reader.with_tail
    with pytest.raises(ConfigurationError, match=r"tiered\.storage\.with\.tail"):
        read_settings({**only, "tiered.storage.with.tail": "perhaps"})
    with pytest.raises(ConfigurationError, match="the brokers have these records"):
        read_settings({**KAFKA, **STORE, "tiered.storage.with.tail": "true"})


def test_registry_and_deserializers_are_separated() -> None:
    registry = CollectorRegistry()
    settings = read(tiered__storage__metrics__registry=registry, key__deserializer=str)
    assert settings.registry is registry
    assert settings.deserializers == {"key.deserializer": str}
    assert "key.deserializer" not in (settings.kafka.config or {})


def test_documentation_page_names_every_setting() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [
        name for name in option_names() if f"`{name.removeprefix('tiered.storage.')}`" not in text
    ]
    assert not missing
