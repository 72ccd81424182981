"""`sidetier export`: write archived records to files and tables."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from sidetier.cli.export.options import TableOptions
from sidetier.cli.extras import quiet_config
from sidetier.cli.invocation import configuration_parameters
from sidetier.cli.kernel import LazyGroup

if TYPE_CHECKING:
    from sidetier.config.model import Config

KINDS: Final[Mapping[str, str]] = {
    "files": "Parquet, JSON, Avro or raw files, in the layout of Confluent's S3 sink.",
    "hudi": "A Hudi table; the offsets are in its commits.",
    "iceberg": "An Iceberg table; the offsets are in its snapshots.",
}
"""Help text of each kind."""

SPARK_PACKAGES: Final = {"pyspark", "py4j", "pandas", "cramjam", "numpy", "pyarrow"}


class Kinds(LazyGroup):
    """The group of the kinds of exports."""

    summaries = KINDS
    modules = "sidetier.cli.commands.export_"


@click.group(name="export", cls=Kinds, params=[*configuration_parameters()])
def command() -> None:
    """Write archived records to files and tables, each record exactly once.

    An export stores its position in its own state, and continues there. A run after a crash repeats
    no record.

    \b
    Example:
      sidetier export files orders --into s3://lake/kafka --config /etc/sidetier/sidetier.yaml
    """  # noqa: D301 -- \b is click's marker and must be one character


def table_config(options: TableOptions) -> "Config":
    """Load the configuration of an export to a table. Raises UsageError if options conflict."""
    if options.follow and (options.once or options.ending_offsets):
        raise click.UsageError("--follow has no end: omit --once and --ending-offsets")
    return quiet_config(options.call)
