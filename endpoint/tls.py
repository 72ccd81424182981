"""TLS of the listener: certificates, handshakes, and the names in client certificates."""

import re
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from sidetier.segments.errors import ConfigurationError

HANDSHAKE: Final = 0x16
"""First byte of each TLS connection: the type of the record that has the ClientHello."""
_KEYWORDS: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Keywords of RFC 2253 by OpenSSL's long names."""
_SPECIAL: Final = re.compile(r'(^[ #]|[,=+<>;"\\]| $)')
"""What Java escapes: RFC 2253 does not ask for `=`."""
_ESCAPED: Final = r"\\\1"


class TlsHandshakeError(Exception):
    """The client did not complete a TLS handshake."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a listener.

    Attributes:
        certificate: Certificate of the endpoint, with its intermediate certificates.
        key: Its private key; None if it is in the same file.
        client_ca: Certificates of the authorities that issue client certificates. If given, each
            client must have a certificate.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        return tuple(path for path in (self.certificate, self.key, self.client_ca) if path)

    def context(self) -> ssl.SSLContext:
        """Load the files.

        Raises:
            ConfigurationError: A file is missing or wrong; the message names it.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A client of TLS 1.2 could otherwise make the endpoint compute handshakes without end.
        context.options |= ssl.OP_NO_RENEGOTIATION
        for path in self.paths:
            try:
                path.read_bytes()
            except OSError as error:
                raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
        where = self.certificate if self.key is None else f"{self.certificate}, {self.key}"

        def refuse_passphrase() -> str:
            # Without this function, OpenSSL asks for the passphrase on the terminal.
            raise ConfigurationError(f"{where}: the key is encrypted; it must have no passphrase")

        try:
            context.load_cert_chain(self.certificate, self.key, refuse_passphrase)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"{where}: no usable certificate and key in PEM form: {_reason(error)}"
            ) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (ssl.SSLError, OSError) as error:
                raise ConfigurationError(
                    f"{self.client_ca}: no certificates in PEM form: {_reason(error)}"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


def begins_with_tls(plain: socket.socket, timeout: float) -> bool:
    """Return whether the client begins a TLS handshake, or False if it has closed.

    The bytes stay in the socket. A health check that connects and closes is not a failure.

    Raises:
        TlsHandshakeError: The client sent nothing, or plain text.
        OSError: The connection is lost.
    """
    plain.settimeout(timeout)
    try:
        first = plain.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        raise TlsHandshakeError("sent nothing in time") from None
    if first and first[0] != HANDSHAKE:
        raise TlsHandshakeError(
            "sent no TLS handshake: the client needs security.protocol=SSL or SASL_SSL"
        )
    return bool(first)


def shake_hands(connection: ssl.SSLSocket, timeout: float) -> str | None:
    """Complete the handshake; return the distinguished name of the client's certificate, if any.

    Raises:
        TlsHandshakeError: The handshake failed.
        ConnectionError: The connection is lost.
    """
    connection.settimeout(timeout)
    try:
        connection.do_handshake()
    except TimeoutError:
        raise TlsHandshakeError("did not complete the handshake in time") from None
    except ssl.SSLError as error:
        detail = getattr(error, "verify_message", "") or error.reason or str(error)
        raise TlsHandshakeError(f"the handshake failed: {detail}") from None
    certificate = connection.getpeercert()
    if not certificate:
        return None
    subject = cast("Iterable[Iterable[tuple[str, str]]]", certificate.get("subject", ()))
    return distinguished_name(subject)


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Return a subject as Kafka names it by default (`ssl.principal.mapping.rules=DEFAULT`).

    This is the form of RFC 2253, such as `CN=reader,OU=data,O=Example,C=DE`. Types without a
    keyword in the RFC, such as `emailAddress`, have OpenSSL's names; Java writes them as numbers.
    `subject` has the order of the certificate, as in `SSLSocket.getpeercert`.
    """
    parts = [
        "+".join(
            f"{_KEYWORDS.get(kind, kind)}={_SPECIAL.sub(_ESCAPED, value)}" for kind, value in names
        )
        for names in subject
    ]
    return ",".join(reversed(parts))
