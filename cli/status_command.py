"""`sidetier status`: show the partitions of the running sidecar."""

from typing import TYPE_CHECKING

import click

from sidetier.cli import exits
from sidetier.cli.arguments import checked_topic, sidecar_option
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.cli.sidecar_client import (
    ask_partitions,
    ask_readiness,
    bearer_token_of,
    url_of,
)
from sidetier.cli.status_view import StatusResult
from sidetier.config.problems import suggestion
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from sidetier.config.telemetry import HttpConfig


@click.command(name="status")
@sidecar_option("--url")
@click.option("-t", "--topic", callback=checked_topic, help="Show only this topic's partitions.")
@click.option("--all", "show_all", is_flag=True, help="Show every partition.")
@configuration_options
@output_option
@click.pass_context
def command(
    context: click.Context,
    *,
    sidecar: str | None,
    topic: str | None,
    show_all: bool,
    output: OutputFormat,
) -> None:
    """Show what is on the broker, what is archived, and what is missing.

    Offsets are exclusive ends. LOG END is the high watermark, ARCHIVED TO the end of the archive.
    NOT ARCHIVED are the records between the two, the bytes of their segments, and the time since
    the oldest was appended. OF IT CLOSED are the segments among them that the sidecar can upload
    now, and the time since the oldest was closed; a broker closes a segment by segment.bytes or
    segment.ms.

    The command asks the running sidecar. Partitions that need an operator come first: halted
    partitions, partitions held by errors, partitions whose archive is being moved to quarantine,
    partitions with a gap.

    \b
    Example:
      sidetier status --sidecar http://127.0.0.1:9108

    Exit codes: 0 no problem; 1 no sidecar answers; 2 the sidecar's broker leads no partition of the
    named topic; 3 a partition is halted, held, being moved to quarantine or has a gap, or the
    sidecar is not ready.
    """  # noqa: D301 -- \b is click's marker and must be one character
    http = _http_config(context)
    address = url_of(http or _default_http()) if sidecar is None else sidecar
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
    """Return the status of the sidecar at this address.

    Raises:
        NoSidecarError: No server answers at the address, or the server is not a sidecar.
        ConfigurationError: The sidecar's broker leads no partition of the topic.
    """
    answer = ask_partitions(url, topic, bearer_token=bearer_token)
    if topic is not None and not answer["partitions"]:
        everything = ask_partitions(url, bearer_token=bearer_token)
        raise ConfigurationError(
            f"the sidecar at {url} has no partition of topic {topic}: its broker "
            f"({answer['broker_id']}) leads none"
            f"{suggestion(topic, {row['topic'] for row in everything['partitions']})}"
        )
    readiness = ask_readiness(url, bearer_token=bearer_token)
    return StatusResult(url, answer, readiness.get("conditions", []), show_all)


def _http_config(context: click.Context) -> "HttpConfig | None":
    """Return the `http` section of the configuration; None without a configuration."""
    call = invocation(context)
    return call.load().config.http if call.is_configured() else None


def _default_http() -> "HttpConfig":
    from sidetier.config.telemetry import HttpConfig  # noqa: PLC0415 -- with `--sidecar`, pydantic is not needed

    return HttpConfig()
