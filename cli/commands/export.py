"""`sidetier export`: write archived records to files and tables."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from sidetier.cli.export.options import TableOptions
from sidetier.cli.extras import quiet_logs
from sidetier.cli.invocation import configuration_parameters

if TYPE_CHECKING:
    from sidetier.config.model import Config

KINDS: Final[Mapping[str, str]] = {
    "files": "Parquet, JSON, Avro or raw files, in the layout of Confluent's S3 sink.",
    "hudi": "A Hudi table; the offsets are in its commits.",
    "iceberg": "An Iceberg table; the offsets are in its snapshots.",
}
"""Help text of each kind. `sidetier.cli.commands.export_<kind>.command` is imported on use."""

SPARK_PACKAGES: Final = {"pyspark", "py4j", "pandas", "cramjam", "numpy", "pyarrow"}


class LazyKinds(click.Group):
    """Group that imports a command when it is called, not when it is listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- signature required by click
        """Return the kinds in the order of `KINDS`."""
        return list(KINDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- signature required by click
        """Import the command."""
        if cmd_name not in KINDS:
            return None
        command = importlib.import_module(f"sidetier.cli.commands.export_{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"export {cmd_name}: no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- signature required by click
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(KINDS.items()))


@click.group(name="export", cls=LazyKinds, params=[*configuration_parameters()])
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
    loaded = options.call.load(needs_log_dirs=False)
    quiet_logs(loaded)
    return loaded.config
