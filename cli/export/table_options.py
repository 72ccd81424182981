"""What exports into tables are asked on the command line, whatever the table's format."""

from typing import Final

import click

from sidetier.cli.export.options import (
    AGAIN,
    BOOTSTRAP,
    DRY_RUN,
    ISOLATION,
    VALUES,
    Decorated,
    decorated,
    seconds,
)


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


_VALUES: Final = (
    *VALUES,
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
    ISOLATION,
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
    *AGAIN,
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
    BOOTSTRAP,
    DRY_RUN,
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
    return decorated(command, (*_RANGES, *_VALUES, *_SPARK))
