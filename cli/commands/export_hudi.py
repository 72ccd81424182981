"""`sidetier export hudi`: export archived records to a Hudi table."""

from sidetier.cli import kernel
from sidetier.cli.commands.export import SPARK_PACKAGES, table_config
from sidetier.cli.export.options import HudiCommandOptions
from sidetier.cli.extras import needs_extra


@kernel.command("hudi")
def command(options: HudiCommandOptions) -> int:
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
    config = table_config(options.table)
    with needs_extra("this export", SPARK_PACKAGES, "spark35"):
        from sidetier.cli.export.table_session import export_hudi  # noqa: PLC0415 - needs an extra
    return export_hudi(config, options)
