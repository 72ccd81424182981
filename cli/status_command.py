"""`sidetier status`: what the running sidecar says of its partitions."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

import click

from sidetier.cli import exits
from sidetier.cli.arguments import checked_topic
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.cli.status_view import StatusResult
from sidetier.segments.errors import ConfigurationError, SidetierError

if TYPE_CHECKING:
    from sidetier.config.telemetry import HttpConfig

_TIMEOUT_SECONDS: Final = 10.0
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- mapped, not bound


class NoSidecarError(SidetierError):
    """Nothing answers, or what answers is no sidecar."""


@click.command(name="status")
@click.option("--url", metavar="URL", help="The sidecar's HTTP address.  [default: http.host/port]")
@click.option("--topic", callback=checked_topic, help="Only this topic's partitions.")
@click.option("--all", "show_all", is_flag=True, help="Every partition, however many there are.")
@configuration_options
@output_option
@click.pass_context
def command(
    context: click.Context,
    *,
    url: str | None,
    topic: str | None,
    show_all: bool,
    output: OutputFormat,
) -> None:
    """What is on the broker, what is stored, and what is missing.

    Asks the running sidecar. Partitions that want an operator come first: halted ones, those held
    by errors, those with a gap.

    \b
    Example:
      sidetier status --url http://127.0.0.1:9108

    Exit codes: 0 all is well, 1 no sidecar answers, 3 a partition is halted, held or has a gap, or
    the sidecar is not ready.
    """  # noqa: D301 -- \b is click's mark, and must be one character
    address = _checked(url) if url is not None else _configured(context)
    result = ask(address, topic, show_all=show_all)
    emit(result, output)
    context.exit(exits.OK if result.ready and not result.problems else exits.FINDINGS)


def ask(url: str, topic: str | None = None, *, show_all: bool = False) -> StatusResult:
    """What the sidecar at this address says.

    Raises:
        NoSidecarError: nothing answers there, or something else than a sidecar.
    """
    query = "?" + urlencode({"topic": topic}) if topic is not None else ""
    answer = _get(url, "/api/partitions" + query)
    readiness = _get(url, "/readyz")
    if not isinstance(answer.get("partitions"), list):
        raise NoSidecarError(f"what answers at {url} is no sidecar")
    return StatusResult(url, answer, readiness.get("conditions", []), show_all)


def _get(url: str, path: str) -> Mapping[str, Any]:
    # The sidecar stands on this host or in this network: a proxy of the environment is not for it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url + path, timeout=_TIMEOUT_SECONDS) as response:
            return _parsed(response.read(), url)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # `/readyz` says why in its body
                return _parsed(error.read(), url)
        raise NoSidecarError(f"what answers at {url} is no sidecar: {path}: {error}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NoSidecarError(
            f"no sidecar answers at {url}: {reason}; is `sidetier run` up? --url says where it is"
        ) from None


def _parsed(body: bytes, url: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise NoSidecarError(f"what answers at {url} is no sidecar: it does not speak JSON")
    return parsed


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or too high
        sound = False
    if not sound:
        raise click.BadParameter(f"{url!r}: expected http://host:port", param_hint="--url")
    return url.rstrip("/")


def _configured(context: click.Context) -> str:
    http = _http_config(context)
    if http.port == 0:
        raise ConfigurationError(
            "http.port is 0: the sidecar has chosen its port by itself, and says it in the log "
            "event daemon.started; give it by --url"
        )
    host = _ANY_ADDRESS.get(http.host.strip("[]"), http.host.strip("[]"))
    return f"http://[{host}]:{http.port}" if ":" in host else f"http://{host}:{http.port}"


def _http_config(context: click.Context) -> "HttpConfig":
    """That of the configuration; the defaults where there is none at all."""
    from sidetier.config.telemetry import HttpConfig  # noqa: PLC0415 -- `--url` needs no pydantic

    call = invocation(context)
    if call.is_configured():
        return call.load().config.http
    return HttpConfig()
