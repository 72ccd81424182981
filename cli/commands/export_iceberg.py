"""`sidetier export iceberg`: export archived records to an Iceberg table."""

from typing import Any

import click

from sidetier.cli.arguments import checked_topics
from sidetier.cli.commands.export import TableExport, export_to_table
from sidetier.cli.export.options import pairs, table_options
from sidetier.cli.invocation import configuration_options
from sidetier.cli.output import OutputFormat, output_option


@click.command(name="iceberg")
@click.argument("topics", nargs=-1, required=True, callback=checked_topics, metavar="TOPIC...")
@click.option(
    "--table",
    required=True,
    metavar="CATALOG.NAMESPACE.TABLE",
    help="Table to write to; it is created if it does not exist.",
)
@click.option(
    "--partitioned-by", default="", metavar="SQL", help="Partition spec of a created table."
)
@click.option(
    "--table-property",
    "properties",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="Property of a created table; repeatable.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="Option of Iceberg's writer, such as target-file-size-bytes; repeatable.",
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
    """Export archived records of topics to an Iceberg table, each record exactly once.

    The offsets of all partitions are in the summary of each snapshot, and nowhere else: a run
    begins at those of the newest snapshot in the history of the table's main branch. It stages the
    rows first, and publishes them only if no other export has committed meanwhile. Define the
    catalog for Spark with --spark-conf. A catalog of type hadoop is refused on an object store,
    where it would lose one of two concurrent commits.

    \b
    Example:
      sidetier export iceberg orders --table lake.db.orders --partitioned-by 'days(timestamp)' \\
          --spark-conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog \\
          --spark-conf spark.sql.catalog.lake.type=rest \\
          --spark-conf spark.sql.catalog.lake.uri=https://catalog.example.com

    Exit codes: 0 everything was exported; 3 as 0, but offsets are missing or still on the brokers
    alone, records did not fit the schema, or a partition is held back (its archive ends below what
    was exported, or a transaction hangs in it); 1 the export failed; 2 a setting or an argument is
    wrong.
    """  # noqa: D301 - \b is click's mark, and must be one character

    def load() -> TableExport:
        from sidetier.cli.export.table_session import (  # noqa: PLC0415 - needs an extra
            export_iceberg,
        )

        return lambda config, asked: export_iceberg(config, asked, output)

    context.exit(export_to_table(context, given, load, "spark"))
