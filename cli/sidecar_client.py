"""Asking a running sidecar by its HTTP port."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

import click

from sidetier.segments.errors import ConfigurationError, SidetierError

if TYPE_CHECKING:
    from sidetier.config.telemetry import HttpConfig

_TIMEOUT_SECONDS: Final = 10.0

Answer = Mapping[str, Any]
"""A JSON object of the sidecar's."""


class NoSidecarError(SidetierError):
    """Nothing answers, or what answers is no sidecar."""


def ask_partitions(
    url: str,
    topic: str | None = None,
    timeout: float = _TIMEOUT_SECONDS,
    bearer_token: str | None = None,
) -> Answer:
    """The sidecar's `/api/partitions`, of one topic only where it is given.

    Raises:
        NoSidecarError: nothing answers there, or something else than a sidecar.
    """
    query = "?" + urlencode({"topic": topic}) if topic is not None else ""
    answer = _get(url, "/api/partitions" + query, timeout, bearer_token)
    if not isinstance(answer.get("partitions"), list):
        raise NoSidecarError(f"what answers at {url} is no sidecar")
    return answer


def ask_readiness(
    url: str, timeout: float = _TIMEOUT_SECONDS, bearer_token: str | None = None
) -> Answer:
    """The sidecar's `/readyz`, ready or not.

    Raises:
        NoSidecarError: nothing answers there, or something else than a sidecar.
    """
    return _get(url, "/readyz", timeout, bearer_token)


def checked_url(url: str) -> str:
    """The address without a slash at its end; click.BadParameter where it is none."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or too high
        sound = False
    if not sound:
        raise click.BadParameter(f"{url!r}: expected http://host:port")
    return url.rstrip("/")


def url_of(http: "HttpConfig") -> str:
    """Where the sidecar of this host listens, by its configuration.

    Raises:
        ConfigurationError: it has chosen its port by itself.
    """
    if http.port == 0:
        raise ConfigurationError(
            "http.port is 0, so the system has chosen the sidecar's port. The log event "
            "daemon.started has its address: give it by --sidecar"
        )
    from sidetier.config.telemetry import local_url  # noqa: PLC0415 -- loaded with `http`

    return local_url(http.host, http.port)


def bearer_token_of(http: "HttpConfig") -> str | None:
    """The token that this configuration's sidecars ask for; None for no token.

    Raises:
        ConfigurationError: the token cannot be read.
    """
    return None if http.bearer_token is None else http.bearer_token.resolve()


def _get(url: str, path: str, timeout: float, bearer_token: str | None) -> Answer:
    # The sidecar stands on this host or in this network: a proxy of the environment is not for it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url + path)  # noqa: S310 -- `checked_url` has seen it
        if bearer_token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {bearer_token}")
        with opener.open(request, timeout=timeout) as response:
            return _parsed(response.read(), url)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # `/readyz` says why in its body
                return _parsed(error.read(), url)
            if error.code == HTTPStatus.UNAUTHORIZED:
                raise NoSidecarError(
                    f"the sidecar at {url} refuses {path}: it asks for a bearer token; "
                    "give the configuration with its http.bearer_token (--config)"
                ) from None
        raise NoSidecarError(f"what answers at {url} is no sidecar: {path}: {error}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NoSidecarError(
            f"no sidecar answers at {url}: {reason}; is `sidetier run` up? Give its "
            "address by --sidecar if it is another"
        ) from None


def _parsed(body: bytes, url: str) -> Answer:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise NoSidecarError(f"what answers at {url} is no sidecar: it does not speak JSON")
    return parsed
