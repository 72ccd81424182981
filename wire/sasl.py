"""Client side of SASL: PLAIN (RFC 4616), SCRAM (RFC 5802), OAUTHBEARER (RFC 7628)."""

from collections.abc import Generator

from scramp import ScramClient, ScramException  # type: ignore[import-untyped]  # ships no types

from sidetier.segments.errors import BrokerLoginError
from sidetier.wire.settings import SaslSettings

Exchange = Generator[bytes, bytes, None]
"""Yields the client's messages, receives the broker's responses, ends after the last response."""


def exchange(settings: SaslSettings) -> Exchange:
    """Return the messages of one login.

    Raises:
        BrokerLoginError: During the exchange: the broker's response shows that it does not know
            the password, or there is no token.
    """
    if settings.mechanism == "PLAIN":
        return _plain(settings)
    if settings.mechanism == "OAUTHBEARER":
        return _oauthbearer(settings)
    return _scram(settings)


def _plain(settings: SaslSettings) -> Exchange:
    yield f"\0{settings.username}\0{settings.password}".encode()


def _scram(settings: SaslSettings) -> Exchange:
    try:
        client = ScramClient([settings.mechanism], settings.username, settings.password)
        client.set_server_first((yield client.get_client_first().encode()).decode())
        client.set_server_final((yield client.get_client_final().encode()).decode())
    except (ScramException, UnicodeDecodeError) as error:
        raise BrokerLoginError(f"{settings.mechanism}: {error}") from error


def _oauthbearer(settings: SaslSettings) -> Exchange:
    assert settings.token is not None  # noqa: S101 - from_properties requires it for OAUTHBEARER
    try:
        token = settings.token()
    except Exception as error:
        raise BrokerLoginError(f"oauth_cb returned no token: {error}") from error
    refusal = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if refusal:  # RFC 7628 3.2.3: a JSON error; the client acknowledges it with one byte
        yield b"\x01"
        raise BrokerLoginError(f"OAUTHBEARER: {refusal.decode(errors='replace')}")
