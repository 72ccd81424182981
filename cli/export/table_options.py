"""What exports into tables are asked on the command line, whatever the table's format."""

from typing import Final

import click

from sidetier.cli.arguments import MAX_BATCH_BYTES
from sidetier.cli.export.options import (
    AGAIN,
    CHUNK_BYTES,
    DRY_RUN,
    ISOLATION,
    METRICS_FILE,
    ON_TRUNCATION,
    TAIL,
    TRANSACTION_TIMEOUT,
    VALUES,
    Decorated,
    decorated,
    pairs,
    seconds,
)

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
    TRANSACTION_TIMEOUT,
    click.option(
        "--on-data-loss",
        type=click.Choice(["error", "skip"]),
        default="error",
        show_default=True,
        help="What becomes of offsets that are not stored.",
    ),
    MAX_BATCH_BYTES,
    ON_TRUNCATION,
    click.option(
        "--chunk", type=click.IntRange(1), help="Offsets of one commit, about.  [default: all]"
    ),
    CHUNK_BYTES,
    click.option(
        "--timeout", callback=seconds, metavar="DURATION", help="Of one commit.  [default: 5m]"
    ),
    click.option(
        "--whole-state-every",
        type=click.IntRange(1),
        metavar="COMMITS",
        help="Of a table of many partitions, one of so many commits has the whole state, the other "
        "ones what has changed since.  [default: Iceberg 50, Hudi 10]",
    ),
    *AGAIN,
    click.option(
        "--interval", callback=seconds, metavar="DURATION", help="Of --follow.  [default: 1m]"
    ),
    *TAIL,
    METRICS_FILE,
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
