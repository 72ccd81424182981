"""`sidetier export hudi`: export archived records to a Hudi table."""

from pathlib import Path
from typing import Any

import click

from sidetier.cli.arguments import checked_duration, checked_topics
from sidetier.cli.commands.export import TableExport, export_to_table
from sidetier.cli.export.options import pairs, table_options
from sidetier.cli.invocation import configuration_options
from sidetier.cli.output import OutputFormat, output_option


@click.command(name="hudi")
@click.argument("topics", nargs=-1, required=True, callback=checked_topics, metavar="TOPIC...")
@click.option(
    "--options",
    "file",
    metavar="PATH",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Properties file with target.base.path, target.table.name, hoodie.*",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="One property, which overrides the file; repeatable.",
)
@click.option(
    "--lock",
    metavar="URL",
    help="URL of the lease on the table: s3://, file:///  [default: beside the table]",
)
@click.option(
    "--lock-config",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="YAML file with `storage` settings of the lease, if they differ from the archive's.",
)
@click.option(
    "--lock-wait",
    default="90s",
    show_default=True,
    callback=checked_duration,
    help="Maximum wait for a lease that another export holds.",
)
@click.option(
    "--lock-ttl",
    default="60s",
    show_default=True,
    callback=checked_duration,
    help="Time after which an unrenewed lease expires. Use the same for all exports into a table.",
)
@table_options
@configuration_options
@output_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    output: OutputFormat,
    **given: Any,  # noqa: ANN401 - one value for each option
) -> None:
    """Export archived records of topics to a Hudi table, each record exactly once.

    The offsets of all partitions are in the extra metadata of each commit, and nowhere else: a run
    begins at those of the last completed commit. It first rolls back what an earlier run left
    without a commit. One export runs at a time: a second one waits for the lease on the table, and
    is refused if the first one renews the lease meanwhile.

    \b
    Example:
      sidetier export hudi orders --option target.base.path=s3a://lake/orders \\
          --option target.table.name=orders --value-format json --value-schema order.json --flat \\
          --option hoodie.datasource.write.operation=upsert \\
          --option hoodie.datasource.write.recordkey.field=id

    Exit codes: 0 everything was exported; 3 as 0, but offsets are missing or still on the brokers
    alone, records did not fit the schema, or a partition is held back (its archive ends below what
    was exported, or a transaction hangs in it); 1 the export failed; 2 a setting or an argument is
    wrong.
    """  # noqa: D301 - \b is click's mark, and must be one character

    def load() -> TableExport:
        from sidetier.cli.export.table_session import export_hudi  # noqa: PLC0415 - needs an extra

        return lambda config, asked: export_hudi(config, asked, output)

    context.exit(export_to_table(context, given, load, "spark35"))
