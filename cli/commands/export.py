"""`sidetier export`: write archived records to files and tables."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from sidetier.cli.extras import from_extra, quiet_logs
from sidetier.cli.invocation import configuration_options, invocation

if TYPE_CHECKING:
    from sidetier.config.model import Config

KINDS: Final[Mapping[str, str]] = {
    "files": "Parquet, JSON, Avro or raw files, in the layout of Confluent's S3 sink.",
    "hudi": "A Hudi table; the offsets are in its commits.",
    "iceberg": "An Iceberg table; the offsets are in its snapshots.",
}
"""Help text of each kind. `sidetier.cli.commands.export_<kind>.command` is imported on use."""

_SPARK_EXTRAS: Final = {"pyspark", "py4j", "pandas", "cramjam", "numpy", "pyarrow"}

TableExport = Callable[["Config", dict[str, Any]], int]
"""Exports with a configuration and the values of the options; returns the exit code."""


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


@click.group(name="export", cls=LazyKinds)
@configuration_options
def command() -> None:
    """Write archived records to files and tables, each record exactly once.

    An export stores its position in its own state, and continues there. A run after a crash repeats
    no record.

    \b
    Example:
      sidetier export files orders --into s3://lake/kafka --config /etc/sidetier/sidetier.yaml
    """  # noqa: D301 -- \b is click's marker and must be one character


def export_to_table(
    context: click.Context, given: dict[str, Any], load: Callable[[], TableExport], extra: str
) -> int:
    """Load the configuration and the exporter to a table, and export; return the exit code.

    Raises:
        ConfigurationError: A package of the extra is not installed.
    """
    if given["follow"] and (given["once"] or given["ending_offsets"]):
        raise click.UsageError("--follow has no end: omit --once and --ending-offsets")
    loaded = invocation(context).load(needs_log_dirs=False)
    quiet_logs(loaded)
    return from_extra(load, "this export", _SPARK_EXTRAS, extra)(loaded.config, given)
