"""Settings of the client that reads records from the brokers."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sidetier.cli.export.kafka_options import java_kafka_properties, kafka_properties
from sidetier.cli.export.options import TailOptions
from sidetier.cli.export.session import reached_at, read_by
from sidetier.config.model import BrokerConfig
from sidetier.config.types import SecretRef
from sidetier.segments.errors import ConfigurationError
from tests.harness.command_line import options_of

BROKER = BrokerConfig(bootstrap_servers="own:9092", client={"client.id": "sidecar"})


def tail(properties: Mapping[str, str] | None = None, file: Path | None = None) -> TailOptions:
    words = [f"--kafka-option={name}={value}" for name, value in (properties or {}).items()]
    words += [] if file is None else [f"--kafka-config={file}"]
    return options_of(TailOptions, "--tail=kafka", *words)


def test_command_line_takes_precedence_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\nkafka.client.id: theirs\n")
    found = kafka_properties(tail({"security.protocol": "X"}, file))
    assert found == {"security.protocol": "X", "client.id": "theirs"}
    with pytest.raises(ConfigurationError, match=r"--kafka-config .*: cannot be read"):
        kafka_properties(tail(file=tmp_path / "missing"))


def test_bootstrap_servers_come_from_options_command_line_or_configuration() -> None:
    assert reached_at(BROKER, None, {}).bootstrap_servers == "own:9092"
    assert reached_at(BROKER, "other:1", {}).bootstrap_servers == "other:1"
    named = {"bootstrap.servers": "third:1"}
    assert reached_at(BROKER, "other:1", named).bootstrap_servers == "third:1"


def test_secrets_are_passed_as_references() -> None:
    options = {"bootstrap.servers": "b:1", "sasl.password": "env:WORD", "client.id": "x"}
    found = read_by(BROKER, None, options)
    assert found.bootstrap_servers == "b:1"
    assert found.client == {"client.id": "x", "sasl.password": SecretRef(env="WORD")}
    for value in ("word", "env:"):
        with pytest.raises(
            ConfigurationError, match=r"--kafka-option sasl.password: must be a reference"
        ):
            read_by(BROKER, None, {"sasl.password": value})
    with pytest.raises(ConfigurationError, match=r"--kafka-option sasl.password: .*absolute path"):
        read_by(BROKER, None, {"sasl.password": "file:word"})


@pytest.mark.parametrize(
    "name",
    ["sasl.jaas.config", "kafka.ssl.keystore.password", "ssl.keystore.key", "ssl.key.password"],
)
def test_secrets_for_tables_are_refused_on_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The properties file may contain the secret; Spark's source receives the secret itself."""
    plain = name.removeprefix("kafka.")
    with pytest.raises(
        ConfigurationError, match=f"--kafka-option {plain}: .*not the secret itself"
    ):
        java_kafka_properties(tail({name: "word"}))
    secret, file = tmp_path / "secret", tmp_path / "client.properties"
    secret.write_text("word\n")
    options = {name: f"file:{secret}", "client.id": "x"}
    assert java_kafka_properties(tail(options)) == {plain: "word", "client.id": "x"}
    monkeypatch.setenv("WORD", "other")
    found = java_kafka_properties(tail({name: "env:WORD"}))
    assert found == {plain: "other"}
    file.write_text(f"{name}=word\n")
    assert java_kafka_properties(tail(file=file)) == {plain: "word"}
