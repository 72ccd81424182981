"""librdkafka's properties, and the refused ones."""

from pathlib import Path

import pytest
import trustme

from sidetier.segments.errors import ConfigurationError
from sidetier.wire.settings import Address, ClientSettings, TlsSettings

SERVERS = {"bootstrap.servers": "one:9092"}


def test_defaults_are_applied() -> None:
    settings = ClientSettings.from_properties(SERVERS)
    assert settings == ClientSettings((Address("one", 9092),))


def test_all_properties_are_read_together() -> None:
    settings = ClientSettings.from_properties(
        {
            "bootstrap.servers": "one:1,two, [::1]:3",
            "client.id": "me",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": "secret",
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": "/client.pem",
            "ssl.key.location": "/client.key",
            "ssl.key.password": "secret",
            "ssl.endpoint.identification.algorithm": "none",
            "socket.timeout.ms": 5000,
            "socket.connection.setup.timeout.ms": "1500",
            "socket.keepalive.enable": False,
            "receive.message.max.bytes": 2000,
            "socket.receive.buffer.bytes": 4096,
            "log_level": 0,
        }
    )
    assert settings.bootstrap_servers == (
        Address("one", 1),
        Address("two", 9092),
        Address("::1", 3),
    )
    assert str(settings.bootstrap_servers[2]) == "[::1]:3"
    assert settings.sasl is not None
    assert (settings.sasl.mechanism, settings.sasl.password) == ("SCRAM-SHA-512", "secret")
    assert settings.tls == TlsSettings(
        ca=Path("/ca.pem"),
        certificate=Path("/client.pem"),
        key=Path("/client.key"),
        key_password="secret",
        check_hostname=False,
    )
    assert (settings.request_timeout, settings.connect_timeout) == (5.0, 1.5)
    assert (settings.max_response_bytes, settings.keepalive) == (2000, False)
    assert "secret" not in repr(settings)


def test_token_comes_from_the_callback() -> None:
    settings = ClientSettings.from_properties(
        SERVERS
        | {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.config": "scope=kafka",
            "oauth_cb": lambda config: (f"token for {config}", 0.0),
        }
    )
    assert settings.sasl is not None
    assert settings.sasl.token is not None
    assert settings.sasl.token() == "token for scope=kafka"


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"bootstrap.servers": " , "}, r"bootstrap\.servers names no broker"),
        ({"bootstrap.servers": "one:http"}, "'one:http' is not host:port"),
        ({"bootstrap.servers": "one:70000"}, "'one:70000' is not host:port"),
        ({"security.protocol": "TLS"}, r"security\.protocol is TLS; .* plaintext, ssl, sasl"),
        ({"security.protocol": "SASL_SSL"}, r"sasl\.mechanism is not set; .* PLAIN, SCRAM"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            r"sasl\.mechanism is GSSAPI; this command supports PLAIN",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a"},
            r"sasl\.password is required",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "oauth_cb is required for OAUTHBEARER",
        ),
        ({"sasl.password": "secret"}, r"sasl\.password has no effect with security.protocol plai"),
        ({"ssl.keystore.location": "/k"}, r"ssl\.keystore\.location is not supported"),
        ({"socket.timeout.ms": "soon"}, r"socket\.timeout\.ms is soon, not a whole number from 1"),
        ({"socket.timeout.ms": 0}, r"socket\.timeout\.ms is 0, not a whole number from 1 on"),
        ({"socket.keepalive.enable": "yes"}, r"enable is yes; this command supports true, false"),
        (
            {"security.protocol": "SSL", "ssl.key.location": "/key"},
            r"ssl\.key\.location needs ssl\.certificate\.location",
        ),
        ({"no.such.property": "1"}, r"no\.such\.property is not supported"),
    ],
)
def test_unusable_property_is_refused_by_name(properties: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as raised:
        ClientSettings.from_properties(SERVERS | properties)
    assert "secret" not in str(raised.value)


def test_missing_bootstrap_servers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is required"):
        ClientSettings.from_properties({})


def test_error_for_unreadable_certificates_names_the_property(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location \(.*missing\.pem\) cannot be"):
        TlsSettings(ca=missing).context()
    with pytest.raises(ConfigurationError, match=r"ssl\.certificate\.location, .*missing\.pem"):
        TlsSettings(certificate=missing).context()
    with pytest.raises(ConfigurationError, match=r"ssl\.cipher\.suites cannot be used"):
        TlsSettings(ciphers="ROT13").context()


def test_directory_of_authorities_is_accepted(tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "0a1b2c3d.0"))
    TlsSettings(ca=tmp_path).context()
