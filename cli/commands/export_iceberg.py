"""`sidetier export iceberg`: export archived records to an Iceberg table."""

from sidetier.cli import kernel
from sidetier.cli.commands.export import SPARK_PACKAGES, table_config
from sidetier.cli.export.options import IcebergCommandOptions
from sidetier.cli.extras import needs_extra


@kernel.command("iceberg")
def command(options: IcebergCommandOptions) -> int:
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
    config = table_config(options.table)
    with needs_extra("this export", SPARK_PACKAGES, "spark"):
        from sidetier.cli.export.table_session import (  # noqa: PLC0415 - needs an extra
            export_iceberg,
        )
    return export_iceberg(config, options)
