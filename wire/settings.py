"""Settings of a client, read from librdkafka's property names."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from sidetier.segments.errors import ConfigurationError

PropertyValue = str | int | float | bool

OauthCallback = Callable[[str], tuple[str, float]]
"""confluent-kafka's `oauth_cb`: takes `sasl.oauthbearer.config`, returns token and expiry time."""

# As in librdkafka.
_DEFAULT_PORT: Final = 9092
_PROTOCOLS: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_WITHOUT_EFFECT: Final = frozenset(
    {
        "api.version.request",
        "debug",
        "log.connection.close",
        "log_level",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "statistics.interval.ms",
        "topic.metadata.refresh.interval.ms",
    }
)
"""Properties of librdkafka's background work, which this client does not have. Ignored."""


_OF_SECURITY: Final = frozenset(
    {
        "enable.ssl.certificate.verification",
        "oauth_cb",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.oauthbearer.config",
        "sasl.password",
        "sasl.username",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)
"""Properties that only some security protocols use."""


class Address(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return Kafka's form; an IPv6 address is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings for brokers; paths are PEM files."""

    ca: Path | None = None
    """File or directory of CA certificates; None for those of the system."""
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    ciphers: str | None = None
    verify: bool = True
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Load the certificates.

        Raises:
            ConfigurationError: A file cannot be read; the text names the property.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # As in Kafka's default of `ssl.enabled.protocols`.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # In this order: Python refuses CERT_NONE while the host name is checked.
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        self._load("ssl.ca.location", self.ca, lambda: self._load_ca(context))
        if self.certificate is not None:
            certificate = self.certificate
            self._load(
                "ssl.certificate.location, ssl.key.location or ssl.key.password",
                certificate,
                # With a callback, OpenSSL never asks for the password on the terminal.
                lambda: context.load_cert_chain(
                    certificate, self.key, lambda: self.key_password or ""
                ),
            )
        if self.ciphers is not None:
            ciphers = self.ciphers
            self._load("ssl.cipher.suites", None, lambda: context.set_ciphers(ciphers))
        return context

    def _load_ca(self, context: ssl.SSLContext) -> None:
        if self.ca is None:
            context.load_default_certs()
        elif self.ca.is_dir():
            context.load_verify_locations(capath=self.ca)
        else:
            context.load_verify_locations(cafile=self.ca)

    @staticmethod
    def _load(properties: str, path: Path | None, load: Callable[[], object]) -> None:
        try:
            load()
        except (OSError, ValueError) as error:  # SSLError is an OSError
            location = f" ({path})" if path is not None else ""
            raise ConfigurationError(f"{properties}{location} cannot be used: {error}") from error


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """SASL settings for brokers."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: Callable[[], str] | None = field(default=None, repr=False)
    """Returns a new token, for OAUTHBEARER."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a Kafka client; durations are in seconds."""

    bootstrap_servers: tuple[Address, ...]
    client_id: str = "sidetier"
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    connect_timeout: float = 30.0
    """Timeout for TCP, TLS, ApiVersions and SASL together."""
    request_timeout: float = 30.0
    """Timeout of one request, from its first byte to the last byte of its response."""
    max_response_bytes: int = 100_000_000
    max_in_flight: int = 5
    """Maximum requests without a response on one connection. Brokers remember five batches per
    producer and partition: with more, they would reject a repeated batch of an idempotent
    producer."""
    first_backoff: float = 0.02
    """Upper bound of the first pause between attempts; doubles up to `max_backoff`."""
    max_backoff: float = 1.0
    send_buffer_bytes: int = 0
    """Send buffer of the socket; 0 for the system's default."""
    receive_buffer_bytes: int = 0
    keepalive: bool = True

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, PropertyValue | OauthCallback]
    ) -> "ClientSettings":
        """Read librdkafka's properties, which all other Kafka clients of Sidetier take as well.

        Raises:
            ConfigurationError: A property is unknown, unsupported or has an invalid value; the
                text names it.
        """
        reader = _Properties(properties)
        protocol = reader.choice("security.protocol", _PROTOCOLS, "plaintext").lower()
        settings = cls(
            bootstrap_servers=parse_addresses(reader.required("bootstrap.servers")),
            client_id=reader.text("client.id") or "sidetier",
            tls=_tls(reader) if protocol.endswith("ssl") else None,
            sasl=_sasl(reader) if protocol.startswith("sasl") else None,
            connect_timeout=reader.seconds("socket.connection.setup.timeout.ms", 30_000),
            request_timeout=reader.seconds("socket.timeout.ms", 30_000),
            max_response_bytes=reader.number("receive.message.max.bytes", 100_000_000, least=1000),
            first_backoff=reader.seconds("retry.backoff.ms", 20),
            max_backoff=reader.seconds("retry.backoff.max.ms", 1000),
            send_buffer_bytes=reader.number("socket.send.buffer.bytes", 0),
            receive_buffer_bytes=reader.number("socket.receive.buffer.bytes", 0),
            keepalive=reader.flag("socket.keepalive.enable", default=True),
        )
        reader.check_rest(protocol)
        return settings


def _tls(reader: "_Properties") -> TlsSettings:
    settings = TlsSettings(
        ca=reader.path("ssl.ca.location"),
        certificate=reader.path("ssl.certificate.location"),
        key=reader.path("ssl.key.location"),
        key_password=reader.text("ssl.key.password"),
        ciphers=reader.text("ssl.cipher.suites"),
        verify=reader.flag("enable.ssl.certificate.verification", default=True),
        check_hostname=reader.choice(
            "ssl.endpoint.identification.algorithm", ("https", "none"), "https"
        )
        == "https",
    )
    if settings.key is not None and settings.certificate is None:
        raise ConfigurationError("ssl.key.location needs ssl.certificate.location beside it")
    return settings


def _sasl(reader: "_Properties") -> SaslSettings:
    name = "sasl.mechanisms" if reader.has("sasl.mechanisms") else "sasl.mechanism"
    mechanism = reader.choice(name, MECHANISMS, None)
    if mechanism == "OAUTHBEARER":
        callback = reader.callback("oauth_cb")
        argument = reader.text("sasl.oauthbearer.config") or ""
        # The expiry time is not needed: each login gets a new token, and the broker's response
        # shows when the next login is due.
        return SaslSettings(mechanism, token=lambda: callback(argument)[0])
    return SaslSettings(
        mechanism, reader.required("sasl.username"), reader.required("sasl.password")
    )


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse `bootstrap.servers`: `host:port`, separated by commas, port 9092 by default.

    Raises:
        ConfigurationError: The text contains no address, or an invalid one.
    """
    addresses = tuple(_address(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise ConfigurationError("bootstrap.servers names no broker")
    return addresses


def _address(text: str) -> Address:
    # librdkafka accepts a protocol in front of the address, and ignores it.
    bare = text.rpartition("://")[2]
    host, colon, port = bare.rpartition(":")
    # An IPv6 address without a port ends in a bracket.
    if not colon or port.endswith("]"):
        host, port = bare, str(_DEFAULT_PORT)
    # `isdigit` alone accepts superscripts, which `int` refuses.
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigurationError(f"bootstrap.servers: {text!r} is not host:port")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


class _Properties:
    """Reads properties one by one, and finds those that were never read."""

    def __init__(self, properties: Mapping[str, PropertyValue | OauthCallback]) -> None:
        self._properties = properties
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._properties

    def text(self, name: str) -> str | None:
        self._taken.add(name)
        value = self._properties.get(name)
        return None if value is None else str(value)

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise ConfigurationError(f"the Kafka client's property {name} is required here")
        return value

    def path(self, name: str) -> Path | None:
        value = self.text(name)
        # librdkafka's word for the certificates of the system.
        return Path(value) if value and value != "probe" else None

    def choice(self, name: str, choices: tuple[str, ...], default: str | None) -> str:
        value = self.text(name)
        if value is None and default is not None:
            return default
        for known in choices:
            if value is not None and value.lower() == known.lower():
                return known
        raise ConfigurationError(
            f"the Kafka client's property {name} is {value or 'not set'}; "
            f"this command supports {', '.join(choices)}"
        )

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        text = self.text(name)
        try:
            value = default if text is None else int(text)
        except ValueError:
            # Refused below, with the same error as a number that is too small.
            value = least - 1
        if value < least:
            raise ConfigurationError(
                f"the Kafka client's property {name} is {text}, not a whole number from {least} on"
            )
        return value

    def seconds(self, name: str, default_ms: int) -> float:
        return self.number(name, default_ms, least=1) / 1000

    def callback(self, name: str) -> OauthCallback:
        self._taken.add(name)
        value = self._properties.get(name)
        if not callable(value):
            raise ConfigurationError(
                f"the Kafka client's property {name} is required for OAUTHBEARER: a function that "
                "returns a token and its expiry time"
            )
        return value

    def check_rest(self, protocol: str) -> None:
        """Reject properties that have no effect: the user may rely on them."""
        rest = sorted(self._properties.keys() - self._taken - _WITHOUT_EFFECT)
        if not rest:
            return
        if rest[0] in _OF_SECURITY:
            raise ConfigurationError(
                f"the Kafka client's property {rest[0]} has no effect with security.protocol "
                f"{protocol}: remove it, or change security.protocol"
            )
        raise ConfigurationError(
            f"the Kafka client's property {rest[0]} is not supported by this command, which speaks "
            "Kafka's protocol itself; remove it"
        )
