"""The client's side of SASL: PLAIN (RFC 4616), SCRAM (RFC 5802), OAUTHBEARER (RFC 7628)."""

from collections.abc import Generator

from scramp import ScramClient, ScramException  # type: ignore[import-untyped]  # ships no types

from sidetier.segments.errors import BrokerLoginError
from sidetier.wire.settings import SaslSettings

Exchange = Generator[bytes, bytes, None]
"""Yields what the client sends, is sent what the broker answers, and ends after the last answer."""


def exchange(settings: SaslSettings) -> Exchange:
    """The messages of one login.

    Raises:
        BrokerLoginError: while it runs, when the broker's answer is not that of a broker which
            knows the password, or when there is no token.
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
    assert settings.token is not None  # noqa: S101 - ClientSettings.from_properties asks for it
    try:
        token = settings.token()
    except Exception as error:
        raise BrokerLoginError(f"oauth_cb returned no token: {error}") from error
    refusal = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if refusal:  # RFC 7628 3.2.3: a JSON error, which the client acknowledges with one byte
        yield b"\x01"
        raise BrokerLoginError(f"OAUTHBEARER: {refusal.decode(errors='replace')}")
