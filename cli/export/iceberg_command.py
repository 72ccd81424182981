"""`sidetier export iceberg`: archived records into an Iceberg table."""

from typing import Any

import click

from sidetier.cli.arguments import checked_topics
from sidetier.cli.export.options import pairs
from sidetier.cli.export.table_call import Run, call
from sidetier.cli.export.table_options import table_options
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
    **given: Any,  # noqa: ANN401 - an option each
) -> None:
    """Archived records of topics in an Iceberg table, each record exactly once.

    The offsets of all partitions are in the summary of each snapshot, and nowhere else: a run
    begins at those of the newest one that the table's main branch comes from. Rows are staged
    first, and published only where no other export has committed meanwhile. The catalog is one of
    Spark's, by --spark-conf; one of the type hadoop is refused on an object store, where it would
    lose one of two commits.

    \b
    Example:
      sidetier export iceberg orders --table lake.db.orders --partitioned-by 'days(timestamp)' \\
          --spark-conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog \\
          --spark-conf spark.sql.catalog.lake.type=rest \\
          --spark-conf spark.sql.catalog.lake.uri=https://catalog.example.com

    Exit codes: 0 everything was exported; 3 likewise, but offsets are missing, still on the
    broker alone, or records did not fit; 1 it failed; 2 a setting or an argument is wrong.
    """  # noqa: D301 - \b is click's mark, and must be one character

    def load() -> Run:
        from sidetier.cli.export.iceberg_session import (  # noqa: PLC0415 - needs an extra
            export_iceberg,
        )

        return lambda config, asked: export_iceberg(config, asked, output)

    context.exit(call(context, given, load, "spark"))
