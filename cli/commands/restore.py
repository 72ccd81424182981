"""`sidetier restore`: copy an archive into topics of a running cluster, exactly once."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from sidetier.cli.arguments import bootstrap_option, checked_fixed_place
from sidetier.cli.extras import from_extra, quiet_logs
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.mirror.options import LIBRARIES, copy_options, engine_options, target_options
from sidetier.cli.output import OutputFormat, output_option

if TYPE_CHECKING:
    from sidetier.config.model import Config

Run = Callable[["Config", Mapping[str, Any], OutputFormat], int]
_NAME = click.option(
    "--name",
    metavar="NAME",
    help="Name of the restore; its progress is kept under it.  [default: cluster.name]",
)


@click.group(name="restore", invoke_without_command=True)
@_NAME
@click.option(
    "-p",
    "--partition",
    "partitions",
    metavar="TOPIC-N",
    multiple=True,
    help="Only this partition of its topic, such as orders-3; repeatable.",
)
@click.option(
    "--from",
    "begin",
    metavar="WHERE",
    callback=checked_fixed_place,
    help="First record to restore, inclusive.  [default: beginning]",
)
@click.option(
    "--to",
    "end",
    metavar="WHERE",
    callback=checked_fixed_place,
    help="Where to stop, exclusive.  [default: end]",
)
@click.option(
    "--from-quarantine",
    metavar="[NAME]",
    is_flag=False,
    flag_value="",
    help="Restore segments that a sidecar has moved to quarantine, from the folder NAME.",
)
@click.option(
    "--from-retired",
    metavar="[NAME]",
    is_flag=False,
    flag_value="",
    help="Restore the retired archive of a deleted or recreated topic, from the folder NAME.",
)
@bootstrap_option
@target_options
@copy_options
@click.option(
    "--open-transactions",
    type=click.Choice(["leave-out", "abort"]),
    default="leave-out",
    show_default=True,
    help="Action if a transaction is open at the end of the archive: leave out its partition's "
    "records from its first record on, or treat it as aborted and restore the other records.",
)
@engine_options
@click.option(
    "--accept-cleanup",
    is_flag=True,
    help="Restore also into topics whose retention or compaction may delete restored records.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Consume the restored records, and compare them with the archive.",
)
@output_option
@configuration_options
@click.pass_context
def command(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click passes values of several types
    """Copy archived topics into topics of a running cluster, each record exactly once.

    Reads only the archive. It keeps keys, values, headers, timestamps and partitions; `sidetier
    restore translate-offsets` translates offsets. `sidetier hydrate` keeps offsets as well, but
    needs an empty cluster. After an interruption, run the same command again: it continues.

    WHERE is an offset (1234), a number of records before the end (-100), a time
    (2026-11-21, 2026-11-21T08:00:00Z; UTC without a zone; or @1700000000000, ms since 1970),
    beginning or end.
    A time means the first record of that time or a later one.

    \b
    Example:
      sidetier restore --topic orders --bootstrap-server b:9092 --config lost-cluster.yaml
      sidetier restore --partition orders-3 --from 2026-11-21T08:00:00Z --rename 'orders=found'

    Exit codes: 0 restored, and equal to the archive; 1 a failure; 2 a setting or a target topic
    does not fit, and nothing was restored; 3 restored, but with gaps, without records of an open
    transaction, or not equal to the archive; 130 stopped.
    """  # noqa: D301 -- \b is click's marker and must be one character
    if context.invoked_subcommand is not None:
        return

    def load() -> Run:
        from sidetier.cli.restore.session import restore  # noqa: PLC0415 -- `--help` must not load Kafka's client

        return restore

    _run(context, load, given, output)


@command.command(
    name="translate-offsets", short_help="Set a consumer group to its archived position."
)
@_NAME
@click.option("--group", required=True, metavar="GROUP", help="Consumer group of the lost cluster.")
@bootstrap_option
@target_options
@click.option("--dry-run", is_flag=True, help="Show the offsets, and set none.")
@output_option
@configuration_options
@click.pass_context
def translate_offsets(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click passes values of several types
    """Set a consumer group on the target to its position in the archived cluster.

    The position comes from the newest cluster snapshot that has offsets of the group for a restored
    topic. The group must have no members on the target. If the group had read more than was
    restored, it is set to the end of the restored records.

    \b
    Example:
      sidetier restore translate-offsets --group billing --bootstrap-server b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting is wrong, or no snapshot has the group; 3 done, but
    the group had read more than was restored.
    """  # noqa: D301 -- \b is click's marker and must be one character

    def load() -> Run:
        from sidetier.cli.restore.session import translate  # noqa: PLC0415 -- as above

        return translate

    _run(context, load, given, output)


def _run(
    context: click.Context, load: Callable[[], Run], given: Mapping[str, Any], output: OutputFormat
) -> None:
    loaded = invocation(context).load(needs_log_dirs=False)
    quiet_logs(loaded)
    run = from_extra(load, "sidetier restore", LIBRARIES, "consumer,mirror")
    context.exit(run(loaded.config, given, output))
