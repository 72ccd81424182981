"""Conversion of librdkafka's properties to properties of Kafka's Java client, for Spark's source.

Certificates are read here and passed as text, because executors may not have the files.

Source: librdkafka's CONFIGURATION.md, Kafka's documentation of consumer settings (KIP-651 for PEM).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sidetier.config.model import BrokerConfig
from sidetier.pipeline.export.tail.brokers import client_settings
from sidetier.segments.errors import ConfigurationError

_SECURITY: Final = "security.protocol"
_SAME: Final = (_SECURITY, "client.id", "client.rack", "sasl.kerberos.service.name")
_MECHANISMS: Final = ("sasl.mechanism", "sasl.mechanisms")
_LOGINS: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_USER, _PASSWORD = "sasl.username", "sasl.password"
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
_PEMS: Final = {
    "ssl.ca.location": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.ca.pem": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate.location": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.certificate.pem": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key.location": ("ssl.keystore.type", "ssl.keystore.key"),
    "ssl.key.pem": ("ssl.keystore.type", "ssl.keystore.key"),
}
_KNOWN: Final = {
    *_SAME,
    *_MECHANISMS,
    _USER,
    _PASSWORD,
    _IDENTIFICATION,
    *_PEMS,
    "ssl.key.password",
}
_NOT_JAVAS: Final = frozenset({_USER, _PASSWORD, "sasl.mechanisms", *_PEMS})
"""Names that only librdkafka has. Java's client would ignore them silently."""


def java_properties(broker: BrokerConfig, given: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with which Spark reaches the cluster, with secrets. Do not log them.

    Properties of `given` take precedence. If it has `security.protocol`, no security setting of the
    sidecar's client is used.

    Raises:
        ConfigurationError: no broker address is set; a secret or a file cannot be read; a property
            of the sidecar's client has no counterpart in Java; or `given` has a name of librdkafka.
    """
    for name in sorted(_NOT_JAVAS & given.keys()):
        raise ConfigurationError(
            f"--kafka-option {name}: is a name of librdkafka, but tables are read by Kafka's Java "
            "client: set it in broker.client, or give Java's properties (sasl.jaas.config, "
            "ssl.truststore.*, ssl.keystore.*) in --kafka-config"
        )
    servers, properties = client_settings(broker)
    taken = {} if _SECURITY in given else translated(properties)
    return {**taken, "bootstrap.servers": servers, **given}


def translated(
    properties: Mapping[str, str], read: Callable[[Path], str] = Path.read_text
) -> dict[str, str]:
    """Return librdkafka's security properties under Java's names.

    Raises:
        ConfigurationError: see `java_properties`.
    """
    for name in sorted(properties):
        if name.startswith(("sasl.", "ssl.", "enable.ssl.")) and name not in _KNOWN:
            raise ConfigurationError(
                f"broker.client.{name} has no counterpart in Kafka's Java client, with which Spark "
                "reads: give security.protocol and its properties under Java's names, by "
                "--kafka-config or --kafka-option"
            )
    converted = {name: properties[name] for name in _SAME if name in properties}
    if _SECURITY in converted:
        converted[_SECURITY] = converted[_SECURITY].upper()
    return converted | _sasl(properties) | _ssl(properties, read)


def _sasl(properties: Mapping[str, str]) -> dict[str, str]:
    named = [properties[name] for name in _MECHANISMS if name in properties]
    if not named:
        return {}
    mechanism = named[0].upper()
    if _USER not in properties:
        return {"sasl.mechanism": mechanism}
    if mechanism not in _LOGINS:
        raise ConfigurationError(
            f"broker.client: {mechanism} with a user has no counterpart in Kafka's Java client: "
            "give sasl.jaas.config by --kafka-config"
        )
    user, password = _quoted(properties[_USER]), _quoted(properties.get(_PASSWORD, ""))
    login = f"{_LOGINS[mechanism]} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _ssl(properties: Mapping[str, str], read: Callable[[Path], str]) -> dict[str, str]:
    converted: dict[str, str] = {}
    for name, (kind, target) in _PEMS.items():
        if name in properties:
            value = properties[name]
            converted |= {kind: "PEM", target: _text(name, value, read)}
    if "ssl.key.password" in properties:
        converted["ssl.key.password"] = properties["ssl.key.password"]
    if _IDENTIFICATION in properties:
        # An empty value in Java means what "none" means in librdkafka.
        converted[_IDENTIFICATION] = properties[_IDENTIFICATION].replace("none", "")
    return converted


def _text(name: str, value: str, read: Callable[[Path], str]) -> str:
    if not name.endswith(".location"):
        return value
    try:
        return read(Path(value))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"broker.client.{name}: {value}: {error}") from None


def _quoted(text: str) -> str:
    """Quote a text for a JAAS configuration."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
