"""The sidecar's broker settings translated to the names of Kafka's Java client."""

from pathlib import Path

import pytest

from sidetier.config.model import BrokerConfig
from sidetier.pipeline.export.tail.java_properties import java_properties, translated
from sidetier.segments.errors import ConfigurationError


def test_common_settings_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", 'o"pen\\')
    broker = BrokerConfig.model_validate(
        {
            "bootstrap_servers": "b:9093",
            "client": {
                "security.protocol": "sasl_ssl",
                "sasl.mechanisms": "scram-sha-512",
                "sasl.username": "exporter",
                "sasl.password": {"env": "KAFKA_PASSWORD"},
                "ssl.endpoint.identification.algorithm": "none",
                "socket.timeout.ms": 1000,
            },
        }
    )
    found = java_properties(broker, {"max.poll.records": "50"})
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    assert found == {
        "bootstrap.servers": "b:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{login} username="exporter" password="o\\"pen\\\\";',
        "ssl.endpoint.identification.algorithm": "",
        "max.poll.records": "50",
    }
    own = {"security.protocol": "PLAINTEXT"}
    assert java_properties(broker, own) == {"bootstrap.servers": "b:9093", **own}


def test_certificates_are_sent_as_text(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    found = translated(
        {
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.certificate.pem": "CERT",
            "ssl.key.pem": "KEY",
            "ssl.key.password": "word",
        }
    )
    assert found == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "CA",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "CERT",
        "ssl.keystore.key": "KEY",
        "ssl.key.password": "word",
    }
    with pytest.raises(ConfigurationError, match=r"broker.client.ssl.ca.location: .*none.pem"):
        translated({"ssl.ca.location": str(tmp_path / "none.pem")})


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"sasl.oauthbearer.config": "x"}, "sasl.oauthbearer.config has no counterpart"),
        ({"enable.ssl.certificate.verification": "false"}, "has no counterpart"),
        ({"sasl.mechanism": "GSSAPI", "sasl.username": "u"}, "GSSAPI with a user"),
    ],
)
def test_setting_without_a_java_equivalent_is_refused(
    properties: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        translated(properties)


def test_kerberos_needs_no_user() -> None:
    assert translated({"sasl.mechanism": "GSSAPI"}) == {"sasl.mechanism": "GSSAPI"}


@pytest.mark.parametrize("name", ["sasl.password", "sasl.mechanisms", "ssl.ca.location"])
def test_names_that_kafkas_java_client_ignores_are_refused(name: str) -> None:
    broker = BrokerConfig(bootstrap_servers="broker-1:9092")
    with pytest.raises(ConfigurationError, match=f"--kafka-option {name}: is a name of librdkafka"):
        java_properties(broker, {"security.protocol": "SASL_SSL", name: "env:KAFKA"})
