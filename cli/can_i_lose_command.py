"""`sidetier can-i-lose`: which records would be lost with a broker and its disk."""

import click

from sidetier.cli import exits
from sidetier.cli.arguments import bootstrap_option, sidecar_option
from sidetier.cli.cluster_facts import need_cluster
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.lose.gather import Asked, gather
from sidetier.cli.lose.view import LoseResult
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.segments.errors import LeadershipUnavailableError


@click.command(name="can-i-lose")
@click.argument("broker", type=click.IntRange(0, 2**31 - 1))
@sidecar_option(asked_for="Sidecar of that broker, which may hold deleted segments open.")
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def command(
    context: click.Context,
    broker: int,
    *,
    sidecar: str | None,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Show which records would be lost with a broker and its disk.

    The command checks every partition with a replica on BROKER (a broker id). Stored records are
    safe, and so are records on another in-sync replica that is up. All other records would be lost.
    So would segments that brokers deleted before they were stored and that only this broker's
    sidecar holds open. The command asks that sidecar if BROKER is this host's broker, or with
    --sidecar. Records above the high watermark (acks=0 or 1) are not counted. The answer is valid
    for this moment: ask again right before you act.

    It runs on any host that has the configuration. It sends one Metadata request, ListOffsets
    requests, and one request to the store for each partition. It changes nothing.

    \b
    Example:
      sidetier can-i-lose 3 --sidecar http://broker-3:9108 --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 yes, it can be lost; 3 no; 1 no broker answers.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = invocation(context).load().config
    try:
        facts = gather(Asked(config, broker, sidecar), need_cluster(config, bootstrap))
    except LeadershipUnavailableError as error:
        raise LeadershipUnavailableError(
            f"{error}; --bootstrap-server names another broker"
        ) from error
    result = LoseResult.of(facts.broker, facts.held, facts.notes)
    emit(result, output)
    context.exit(exits.OK if result.can_be_lost else exits.FINDINGS)
