"""`sidetier export`: archived records into files and tables."""

import importlib
from collections.abc import Mapping
from typing import Final

import click

from sidetier.cli.invocation import configuration_options

KINDS: Final[Mapping[str, str]] = {
    "files": "Parquet, JSON, Avro or raw files, laid out as Confluent's S3 sink does.",
    "hudi": "A Hudi table; promises what Hudi's Kafka Connect sink does.",
    "iceberg": "An Iceberg table; the offsets are in its snapshots.",
}
"""Each is `command` in `sidetier.cli.export.<kind>_command`, imported when it is called."""


class LazyKinds(click.Group):
    """A group whose commands are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's form
        """In the order of the table."""
        return list(KINDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- click's form
        """Import the command."""
        if cmd_name not in KINDS:
            return None
        command = importlib.import_module(f"sidetier.cli.export.{cmd_name}_command").command
        if not isinstance(command, click.Command):
            raise TypeError(f"export {cmd_name}: no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- click's form
        """The table, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl(list(KINDS.items()))


@click.group(name="export", cls=LazyKinds)
@configuration_options
def command() -> None:
    """Write archived records to files and tables, each record exactly once.

    An export continues at the position in its own state. A run after a crash repeats nothing.

    \b
    Example:
      sidetier export files orders --into s3://lake/kafka --config /etc/sidetier/sidetier.yaml
    """  # noqa: D301 -- \b is click's mark, and must be one character
