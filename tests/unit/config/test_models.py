from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from sidetier.config.model import BrokerConfig, Config, TopicsConfig
from sidetier.config.storage import AzureConfig, GcsConfig, S3Config, StorageConfig, StorageOverride
from sidetier.config.types import Part, SecretRef
from sidetier.config.uploader import EarlyConfig, EarlyLimits, EarlyOverride
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition

LEAST: dict[str, Any] = {
    "cluster": {"name": "prod-a"},
    "log_dirs": ["/var/lib/kafka/data"],
    "storage": {"url": "s3://bucket/prefix"},
}


def parts() -> Iterator[type[Part]]:
    waiting: list[type[Part]] = [Part]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += part.__subclasses__()


def test_minimal_configuration_is_valid() -> None:
    config = Config.model_validate(LEAST)
    assert config.log_dirs == (Path("/var/lib/kafka/data"),)
    assert config.uploader.threads == 8
    assert config.storage.deadline.min_bytes_per_second == 1024**2


@pytest.mark.parametrize(
    ("topic", "limits"),
    [
        ("orders", EarlyLimits(1000, 900.0)),
        ("pay.cards", EarlyLimits(1000, 60.0)),
        ("pay.slow", EarlyLimits(2000, 900.0)),
        ("other.cards", None),
    ],
)
def test_first_override_that_matches_gives_limits_of_early_archiving(
    topic: str, limits: EarlyLimits | None
) -> None:
    early = EarlyConfig.model_validate(
        {
            "topics": ["orders", "pay\\..*"],
            "bytes": 1000,
            "age": "15m",
            "overrides": [
                {"topics": "pay\\.slow", "bytes": 2000},
                {"topics": "pay.*|.*cards", "age": "1m"},
            ],
        }
    )
    assert early.limits(topic) == limits
    assert early.shortest_age == 60.0


def test_override_of_early_archiving_needs_a_limit() -> None:
    with pytest.raises(ValidationError, match="must have age, bytes or both"):
        EarlyOverride(topics="t")


def test_configuration_round_trips_through_json() -> None:
    config = Config.model_validate(LEAST)
    dumped = config.model_dump(mode="json")
    assert dumped["storage"]["s3"]["part_size"] == "256MiB"
    assert Config.model_validate(dumped) == config


@pytest.mark.parametrize("part", list(parts()), ids=lambda part: part.__name__)
def test_every_section_is_frozen_strict_and_refuses_unknown_keys(part: type[BaseModel]) -> None:
    assert part.model_config["frozen"] is True
    assert part.model_config["extra"] == "forbid"
    assert part.model_config["strict"] is True
    assert part.model_config["hide_input_in_errors"] is True


@pytest.mark.parametrize(
    "part",
    [part for part in parts() if part.__module__.startswith("sidetier.config.")],
    ids=lambda part: part.__name__,
)
def test_every_setting_is_described(part: type[BaseModel]) -> None:
    assert [name for name, field in part.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/a/b", "file:///srv/a", "memory://", "hdfs:///a", "gs://b/p"]
)
def test_valid_urls_are_accepted(url: str) -> None:
    assert StorageConfig(url=url).url == url
    assert StorageConfig(url=f"{url}/").url == url


@pytest.mark.parametrize(
    "url",
    [
        "bucket/prefix",
        "ftp://x/y",
        "s3://",
        "file://host/path",
        "file:///",
        "file:relative",
        "s3://key:secret@bucket/x",
        "s3://bucket/a?b",
    ],
)
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="must"):
        StorageConfig(url=url)


def test_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        StorageConfig(url="s3://key:hunter2@bucket/x")
    assert "hunter2" not in str(caught.value)


def test_first_matching_override_wins_and_inherits() -> None:
    storage = StorageConfig(
        url="s3://main",
        s3=S3Config(region="eu-1", path_style=True),
        overrides=(
            StorageOverride(topics=r"pay\..*", url="s3://pay", s3=S3Config(region="us-1")),
            StorageOverride(topics=r"pay\.eu", url="s3://never"),
        ),
    )
    target = storage.target("pay.eu")
    assert (target.url, target.s3.region, target.s3.path_style) == ("s3://pay", "us-1", True)
    assert storage.target("prepay.eu").url == "s3://main"


def test_overrides_of_every_kind_of_store_inherit() -> None:
    storage = StorageConfig(
        url="gs://main",
        gcs=GcsConfig(storage_class="NEARLINE", endpoint_url="https://gcs.corp"),
        azure=AzureConfig(account_name="ours"),
        overrides=(
            StorageOverride(topics="a", url="gs://a", gcs=GcsConfig(storage_class="ARCHIVE")),
            StorageOverride(topics="b", url="abfs://b", azure=AzureConfig(access_tier="Cool")),
        ),
    )
    first, second = storage.target("a").gcs, storage.target("b").azure
    assert (first.storage_class, first.endpoint_url) == ("ARCHIVE", "https://gcs.corp")
    assert (second.account_name, second.access_tier) == ("ours", "Cool")
    assert storage.target("c").gcs.storage_class == "NEARLINE"


def test_deadline_grows_with_the_size() -> None:
    deadline = StorageConfig(url="s3://b").deadline
    assert deadline.seconds(0) == 30.0
    assert deadline.seconds(1024**3) == 30.0 + 1024


@pytest.mark.parametrize(
    ("topic", "selected"),
    [
        ("orders", True),
        ("orders.dlq", False),
        ("my-orders", False),
        ("__consumer_offsets", False),
        ("__cluster_metadata", False),
    ],
)
def test_patterns_match_whole_names_and_exclude_wins(topic: str, *, selected: bool) -> None:
    topics = TopicsConfig(include=("orders.*", "__.*"), exclude=(r".*\.dlq",))
    assert topics.selects(topic) is selected


def test_internal_topics_can_be_included_except_the_metadata_log() -> None:
    topics = TopicsConfig(internal=True)
    assert topics.selects("__consumer_offsets")
    assert not topics.selects("__cluster_metadata")


def test_static_partitions_are_split_at_the_last_dash() -> None:
    config = Config.model_validate(
        {**LEAST, "leadership": {"source": "static", "static": {"partitions": ["a-b-12"]}}}
    )
    assert config.leadership.static.topic_partitions() == (TopicPartition("a-b", 12),)


class TestSecrets:
    def test_environment_secret_is_read_at_each_use(self) -> None:
        environ = {"TOKEN": "first"}
        secret = SecretRef(env="TOKEN")
        assert secret.resolve(environ) == "first"
        environ["TOKEN"] = "second"
        assert secret.resolve(environ) == "second"

    def test_file_secret_is_read_without_its_line_end(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.write_text(" hunter2 \n", encoding="utf-8")
        assert SecretRef(file=path).resolve({}) == " hunter2 "

    @pytest.mark.parametrize("secret", [SecretRef(env="GONE"), SecretRef(file=Path("/nowhere/x"))])
    def test_error_for_a_missing_secret_names_its_location(self, secret: SecretRef) -> None:
        with pytest.raises(ConfigurationError, match=r"GONE|/nowhere/x"):
            secret.resolve({})

    def test_empty_secret_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="is empty"):
            SecretRef(env="EMPTY").resolve({"EMPTY": ""})

    @pytest.mark.parametrize("value", [{}, {"env": "A", "file": "/b"}])
    def test_secret_has_exactly_one_location(self, value: dict[str, str]) -> None:
        with pytest.raises(ValidationError, match="env: NAME"):
            SecretRef.model_validate(value)

    def test_resolved_secret_is_never_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PASSWORD", "hunter2")
        broker = BrokerConfig(
            bootstrap_servers="b:9092",
            client={"sasl.password": SecretRef(env="PASSWORD"), "security.protocol": "SASL_SSL"},
        )
        assert broker.client_properties() == {
            "bootstrap.servers": "b:9092",
            "sasl.password": "hunter2",
            "security.protocol": "SASL_SSL",
        }
        assert "hunter2" not in repr(broker) + str(broker) + broker.model_dump_json()

    @pytest.mark.parametrize("name", ["sasl.password", "ssl.key.pem", "ssl.key.password"])
    def test_literal_secret_is_refused_and_not_repeated(self, name: str) -> None:
        with pytest.raises(ValidationError, match=name) as caught:
            BrokerConfig(client={name: "hunter2"})
        assert "hunter2" not in str(caught.value)
