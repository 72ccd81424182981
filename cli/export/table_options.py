"""What exports into tables are asked on the command line, whatever the table's format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def pairs(
    _context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    """`name=value`, each name once."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param=option)
        if name.strip() in found:
            raise click.BadParameter(f"{name.strip()} is given twice", param=option)
        found[name.strip()] = value
    return found


def seconds(_context: click.Context, _option: click.Parameter, given: str | None) -> float | None:
    """A duration, as `30s` or `1h`."""
    from sidetier.config.units import parse_duration  # noqa: PLC0415 - `--help` needs none

    try:
        return None if given is None else parse_duration(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_VALUES: Final = (
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
    click.option(
        "--flat",
        is_flag=True,
        help="The value's fields are columns beside the record's, in place of the value.",
    ),
    click.option(
        "--dead-letters",
        metavar="URL",
        help="Where records go whose value does not fit.  [default: an error]",
    ),
)
_RANGES: Final = (
    click.option(
        "--starting-offsets",
        metavar="WHERE",
        help="Of a table without offsets: earliest, latest or JSON.  [default: earliest]",
    ),
    click.option("--ending-offsets", metavar="WHERE", help="latest or JSON.  [default: latest]"),
    click.option(
        "--isolation",
        type=click.Choice(["read_committed", "read_uncommitted"]),
        default="read_committed",
        show_default=True,
        help="Whether aborted records are left out.",
    ),
    click.option(
        "--on-data-loss",
        type=click.Choice(["error", "skip"]),
        default="error",
        show_default=True,
        help="What becomes of offsets that are not stored.",
    ),
    click.option(
        "--chunk", type=click.IntRange(1), help="Offsets of one commit, about.  [default: all]"
    ),
    click.option(
        "--timeout", callback=seconds, metavar="DURATION", help="Of one commit.  [default: 5m]"
    ),
    click.option("--once", is_flag=True, help="Up to what is there now.  [default]"),
    click.option("--follow", is_flag=True, help="Again and again, until stopped."),
    click.option(
        "--interval", callback=seconds, metavar="DURATION", help="Of --follow.  [default: 1m]"
    ),
    click.option(
        "--tail",
        type=click.Choice(["stop", "wait", "kafka"]),
        default="stop",
        show_default=True,
        help="Records that only the broker has: stop before them, or wait until they are stored.",
    ),
    click.option("--tail-timeout", default="1h", show_default=True, callback=seconds),
    click.option("--bootstrap", metavar="HOST:PORT", help="[default: broker.bootstrap_servers]"),
    click.option("--dry-run", is_flag=True, help="Show what would be exported."),
)
_SPARK: Final = (
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="Of Spark; submit for the one of spark-submit.",
    ),
    click.option(
        "--spark-conf",
        multiple=True,
        callback=pairs,
        metavar="NAME=VALUE",
        help="Of Spark's session; repeatable.",
    ),
)


def table_options(command: Decorated) -> Decorated:
    """Add what every export into a table is asked."""
    for option in reversed((*_RANGES, *_VALUES, *_SPARK)):
        command = option(command)
    return command
