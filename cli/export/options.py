"""What every export is asked on the command line, into files or into a table."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def seconds(_context: click.Context, _option: click.Parameter, given: str | None) -> float | None:
    """A duration, as `30s` or `1h`."""
    from sidetier.config.units import parse_duration  # noqa: PLC0415 - `--help` needs none

    try:
        return None if given is None else parse_duration(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


VALUES: Final = (
    click.option(
        "--value-format",
        type=click.Choice(["bytes", "string", "json", "avro"]),
        default="bytes",
        show_default=True,
        help="What values are read as.",
    ),
    click.option(
        "--value-schema",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help="JSON Schema or Avro schema that values are to fit.",
    ),
    click.option(
        "--writer-schemas",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Avro schemas of writers: <id>.avsc each.",
    ),
    click.option("--schema-registry", metavar="URL", help="Asked for Avro schemas."),
)
ISOLATION: Final = click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Whether aborted records are left out.",
)
AGAIN: Final = (
    click.option("--once", is_flag=True, help="Up to what is there now.  [default]"),
    click.option("--follow", is_flag=True, help="Again and again, until stopped."),
)
BOOTSTRAP: Final = click.option(
    "--bootstrap", metavar="HOST:PORT", help="[default: broker.bootstrap_servers]"
)
DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Show what would be exported.")


def decorated(command: Decorated, options: Iterable[Callable[[Any], Any]]) -> Decorated:
    """The command with these options, which its help shows in this order."""
    for option in reversed(tuple(options)):
        command = option(command)
    return command
