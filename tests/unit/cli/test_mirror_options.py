"""The clients of `sidetier mirror`: their properties from options and from the configuration."""

from pathlib import Path

import pytest

from sidetier.cli.invocation import Invocation
from sidetier.cli.mirror.options import client_properties
from sidetier.config.model import Config
from sidetier.segments.errors import ConfigurationError

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


def given(*source: str) -> dict[str, object]:
    return {"source_properties": source, "source_config": None}


def test_the_configured_broker_is_the_source_in_the_texts_that_librdkafka_reads(
    config: Config,
) -> None:
    assert client_properties("source", given("socket.timeout.ms=9000"), config) == {
        "bootstrap.servers": "a:9092",
        "security.protocol": "SSL",
        "enable.ssl.certificate.verification": "false",
        "socket.timeout.ms": "9000",
    }


def test_a_named_source_gets_nothing_of_the_configuration(config: Config) -> None:
    named = client_properties("source", given("bootstrap.servers=b:9092"), config)
    assert named == {"bootstrap.servers": "b:9092"}


def test_a_source_that_nothing_names_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--source bootstrap\.servers=HOST:PORT"):
        client_properties("source", given())
