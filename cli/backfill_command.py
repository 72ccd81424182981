"""`sidetier backfill`: archive the closed segments in the log dirs once, and exit."""

from typing import TYPE_CHECKING

import click

from sidetier.cli import exits
from sidetier.cli.arguments import checked_topics
from sidetier.cli.backfill.job import Scope, prepare
from sidetier.cli.backfill.view import OutcomeResult, PlanResult
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from sidetier.config.loading import LoadedConfig


@click.command(name="backfill")
@click.option("--dry-run", is_flag=True, help="Show the plan, and write nothing.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    callback=checked_topics,
    help="Archive only this topic; repeatable.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    metavar="TOPIC-N",
    multiple=True,
    help="Archive only this partition, such as orders-3; repeatable.",
)
@click.option(
    "--offline", is_flag=True, help="Send no request to a broker, even if one is configured."
)
@click.option(
    "--assume-committed", is_flag=True, help="Treat every closed segment as committed; see above."
)
@configuration_options
@output_option
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    dry_run: bool,
    topics: tuple[str, ...],
    partitions: tuple[str, ...],
    offline: bool,
    assume_committed: bool,
    output: OutputFormat,
) -> None:
    """Archive the closed segments in the log dirs once, and exit.

    Stores the closed segments of every partition in log_dirs, whether or not this broker leads the
    partition. The broker may be running; with --offline, no broker is needed. A second run stores
    only what is missing. Ctrl-C and SIGTERM stop the command gracefully. The active segment is not
    stored.

    There is no --from and no --to: an archive has no gaps, so backfill begins with the oldest
    segment, or continues at the offset that is archived up to.

    Backfill stores only committed records. It takes the high watermark from
    replication-offset-checkpoint or from the broker. Copy log dirs with their time stamps (cp -a,
    rsync -t): a checkpoint that is older than a segment does not cover that segment.
    --assume-committed skips this check. Its risk: a broker that was killed, or lost leadership, may
    have closed segments whose last records were never committed. The cluster then has other records
    at these offsets, and the archive differs from Kafka.

    \b
    Example:
      sidetier backfill --dry-run --topic orders --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 everything is stored; 3 at least one segment could not be stored, and the table
    shows the reason. With --dry-run, 3 means that at least one segment would not be stored.
    """  # noqa: D301 -- \b is click's marker and must be one character
    loaded = invocation(context).load()
    scope = Scope(loaded, offline=offline, assume_committed=assume_committed)
    _quiet_logs(loaded)
    job = prepare(scope, topics, partitions)
    plan = job.survey(read_only=dry_run)
    if dry_run:
        emit(PlanResult(plan), output)
        context.exit(exits.FINDINGS if plan.findings else exits.OK)
    outcome = job.run(plan)
    emit(OutcomeResult(outcome), output)
    if outcome.interrupted:
        context.exit(exits.INTERRUPTED)
    context.exit(exits.FINDINGS if outcome.findings else exits.OK)


def _quiet_logs(loaded: "LoadedConfig") -> None:
    """Log errors only, unless `log.level` is set: the command reports problems at its end."""
    log = loaded.config.log
    is_configured = loaded.origin(("log", "level")) != "default"
    configure_logs(log.format, log.level if is_configured else "error")
    for warning in loaded.warnings:
        click.echo(f"sidetier: warning: {warning}", err=True)
