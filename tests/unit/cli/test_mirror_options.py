"""Client properties of `sidetier mirror`, from options and from the configuration."""

from pathlib import Path

import pytest

from sidetier.cli.invocation import Invocation
from sidetier.cli.mirror.options import ClusterOptions, client_properties
from sidetier.cli.options import group, options
from sidetier.config.model import Config
from sidetier.segments.errors import ConfigurationError
from tests.harness.command_line import options_of

CONFIGURATION = """
cluster: {name: c1}
log_dirs: [/kafka]
storage: {url: "file:///archive"}
broker:
  bootstrap_servers: a:9092
  client:
    security.protocol: SSL
    enable.ssl.certificate.verification: false
    socket.timeout.ms: 5000
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "sidetier.yaml"
    file.write_text(CONFIGURATION)
    return Invocation(files=[file]).load().config


def given(*source: str) -> ClusterOptions:
    @options
    class Source:
        cluster: ClusterOptions = group("source")

    return options_of(Source, *(f"--source={text}" for text in source)).cluster


def test_configured_broker_is_the_source_with_properties_as_librdkafka_text(
    config: Config,
) -> None:
    assert client_properties("source", given("socket.timeout.ms=9000"), config) == {
        "bootstrap.servers": "a:9092",
        "security.protocol": "SSL",
        "enable.ssl.certificate.verification": "false",
        "socket.timeout.ms": "9000",
    }


def test_source_given_by_options_ignores_the_configuration(config: Config) -> None:
    named = client_properties("source", given("bootstrap.servers=b:9092"), config)
    assert named == {"bootstrap.servers": "b:9092"}


def test_missing_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--source bootstrap\.servers=HOST:PORT"):
        client_properties("source", given())
