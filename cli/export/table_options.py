"""Options of exports to tables of any format."""

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
        help="Write the fields of the value as columns, in place of the value column.",
    ),
    click.option(
        "--dead-letters",
        metavar="URL",
        help="URL for records whose value does not fit the schema.  [default: end with an error]",
    ),
)
_RANGES: Final = (
    click.option(
        "--starting-offsets",
        metavar="WHERE",
        help="First offsets of a new table: earliest, latest or JSON.  [default: earliest]",
    ),
    click.option(
        "--ending-offsets",
        metavar="WHERE",
        help="End offsets, exclusive: latest or JSON.  [default: latest]",
    ),
    ISOLATION,
    TRANSACTION_TIMEOUT,
    click.option(
        "--on-data-loss",
        type=click.Choice(["error", "skip"]),
        default="error",
        show_default=True,
        help="Action at offsets that are not stored.",
    ),
    MAX_BATCH_BYTES,
    ON_TRUNCATION,
    click.option(
        "--chunk",
        type=click.IntRange(1),
        help="Approximate number of offsets in one commit.  [default: all]",
    ),
    CHUNK_BYTES,
    click.option(
        "--timeout",
        callback=seconds,
        metavar="DURATION",
        help="Maximum time of one commit.  [default: 5m]",
    ),
    click.option(
        "--whole-state-every",
        type=click.IntRange(1),
        metavar="COMMITS",
        help="Store the whole state in every Nth commit, and changes in the others; for tables "
        "of many partitions.  [default: Iceberg 50, Hudi 10]",
    ),
    *AGAIN,
    click.option(
        "--interval",
        callback=seconds,
        metavar="DURATION",
        help="Pause between runs when `--follow` is set.  [default: 1m]",
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
        help="Spark master; `submit` under spark-submit.",
    ),
    click.option(
        "--spark-conf",
        multiple=True,
        callback=pairs,
        metavar="NAME=VALUE",
        help="Property of the Spark session; repeatable.",
    ),
)


def table_options(command: Decorated) -> Decorated:
    """Add the options of an export to a table."""
    return decorated(command, (*_RANGES, *_VALUES, *_SPARK))
