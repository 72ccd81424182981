"""HTTP client of a running sidecar."""

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
    from sidetier.config.model import HttpConfig

_TIMEOUT_SECONDS: Final = 10.0

Answer = Mapping[str, Any]
"""JSON object that the sidecar returns."""


class NoSidecarError(SidetierError):
    """No server answers at the address, or the server is not a sidecar."""


def ask_partitions(
    url: str,
    topic: str | None = None,
    timeout: float = _TIMEOUT_SECONDS,
    bearer_token: str | None = None,
) -> Answer:
    """Return the sidecar's `/api/partitions`, optionally of one topic only.

    Raises:
        NoSidecarError: No server answers at the address, or the server is not a sidecar.
    """
    query = "?" + urlencode({"topic": topic}) if topic is not None else ""
    answer = _get(url, "/api/partitions" + query, timeout, bearer_token)
    if not isinstance(answer.get("partitions"), list):
        raise NoSidecarError(f"what answers at {url} is no sidecar")
    return answer


def ask_readiness(
    url: str, timeout: float = _TIMEOUT_SECONDS, bearer_token: str | None = None
) -> Answer:
    """Return the sidecar's `/readyz`, whether it is ready or not.

    Raises:
        NoSidecarError: No server answers at the address, or the server is not a sidecar.
    """
    return _get(url, "/readyz", timeout, bearer_token)


def checked_url(url: str) -> str:
    """Return the URL without a trailing slash.

    Raises:
        click.BadParameter: It is not an http or https URL with a host.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or above 65535
        is_valid = False
    if not is_valid:
        raise click.BadParameter(f"{url!r}: expected http://host:port")
    return url.rstrip("/")


def url_of(http: "HttpConfig") -> str:
    """Return the configured URL of this host's sidecar.

    Raises:
        ConfigurationError: `http.port` is 0, so only the running sidecar knows its port.
    """
    if http.port == 0:
        raise ConfigurationError(
            "http.port is 0, so the system has chosen the sidecar's port. The log event "
            "daemon.started has its address: give it by --sidecar"
        )
    from sidetier.config.model import local_url  # noqa: PLC0415 -- `http` has loaded this module already

    return local_url(http.host, http.port)


def bearer_token_of(http: "HttpConfig") -> str | None:
    """Return the bearer token that sidecars with this configuration require; None for no token.

    Raises:
        ConfigurationError: The token cannot be read.
    """
    return None if http.bearer_token is None else http.bearer_token.resolve()


def _get(url: str, path: str, timeout: float, bearer_token: str | None) -> Answer:
    # Ignore the environment's proxy: the sidecar runs on this host or in this network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url + path)  # noqa: S310 -- `checked_url` allows http and https only
        if bearer_token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {bearer_token}")
        with opener.open(request, timeout=timeout) as response:
            return _parsed(response.read(), url)
    except urllib.error.HTTPError as error:
        with error:
            # the body of `/readyz` has the reasons
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
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
