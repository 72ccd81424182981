"""`sidetier status`: what the running sidecar says of its partitions."""

from typing import TYPE_CHECKING

import click

from sidetier.cli import exits
from sidetier.cli.arguments import checked_topic
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.cli.sidecar_client import (
    ask_partitions,
    ask_readiness,
    bearer_token_of,
    checked_url,
    url_of,
)
from sidetier.cli.status_view import StatusResult

if TYPE_CHECKING:
    from sidetier.config.telemetry import HttpConfig


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
    by errors, those whose archive is being set aside, those with a gap.

    \b
    Example:
      sidetier status --url http://127.0.0.1:9108

    Exit codes: 0 all is well, 1 no sidecar answers, 3 a partition is halted, held, being set aside
    or has a gap, or the sidecar is not ready.
    """  # noqa: D301 -- \b is click's mark, and must be one character
    http = _http_config(context)
    address = checked_url(url) if url is not None else url_of(http or _default_http())
    token = bearer_token_of(http) if http is not None else None
    result = ask(address, topic, show_all=show_all, bearer_token=token)
    emit(result, output)
    context.exit(exits.OK if result.ready and not result.problems else exits.FINDINGS)


def ask(
    url: str,
    topic: str | None = None,
    *,
    show_all: bool = False,
    bearer_token: str | None = None,
) -> StatusResult:
    """What the sidecar at this address says.

    Raises:
        NoSidecarError: nothing answers there, or something else than a sidecar.
    """
    answer = ask_partitions(url, topic, bearer_token=bearer_token)
    readiness = ask_readiness(url, bearer_token=bearer_token)
    return StatusResult(url, answer, readiness.get("conditions", []), show_all)


def _http_config(context: click.Context) -> "HttpConfig | None":
    """That of the configuration; None where there is none at all."""
    call = invocation(context)
    return call.load().config.http if call.is_configured() else None


def _default_http() -> "HttpConfig":
    from sidetier.config.telemetry import HttpConfig  # noqa: PLC0415 -- `--url` needs no pydantic

    return HttpConfig()
