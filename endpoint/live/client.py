"""The client of a live cluster, whose settings and certificates may change while it is used."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from sidetier.wire.settings import ClientSettings

_CONNECT_TIMEOUT: Final = 3.0
REQUEST_TIMEOUT: Final = 10.0
"""Less than the request timeout of clients (30 s), so that they get an answer."""
MAX_ANSWER: Final = 32 << 20
"""Largest answer of the live cluster, in bytes. Descriptions of 10,000 groups take half of it."""


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """How a live cluster is reached.

    Attributes:
        load: Returns the settings of the client; may raise ConfigurationError.
        properties: The file that `load` reads; None if there is none.
    """

    load: Callable[[], ClientSettings]
    properties: Path | None = None

    def files(self) -> tuple[Path, ...]:
        """The properties file, and the certificates that it names. Raises ConfigurationError."""
        tls = self.load().tls
        certificates = () if tls is None else (tls.ca, tls.certificate, tls.key)
        return tuple(path for path in (self.properties, *certificates) if path is not None)

    def client(self) -> "LiveClient":
        """Load the settings and certificates. Raises ConfigurationError."""
        return LiveClient.of(self.load())


@dataclass(frozen=True, slots=True)
class LiveClient:
    """The client of the live cluster: its settings, and its certificates if it uses TLS."""

    settings: ClientSettings
    context: ssl.SSLContext | None

    @classmethod
    def of(cls, settings: ClientSettings) -> Self:
        """Return a client whose timeouts are shorter than the endpoint's clients'.

        Raises:
            ConfigurationError: A certificate cannot be loaded.
        """
        short = replace(
            settings,
            connect_timeout=min(settings.connect_timeout, _CONNECT_TIMEOUT),
            request_timeout=min(settings.request_timeout, REQUEST_TIMEOUT),
            max_response_bytes=min(settings.max_response_bytes, MAX_ANSWER),
        )
        return cls(short, None if settings.tls is None else settings.tls.context())
