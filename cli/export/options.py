"""Options of the export commands: those that all exports have, and those of exports to tables."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sidetier.cli.arguments import (
    MAX_BATCH_BYTES,
    bootstrap_option,
    checked_duration,
    checked_positive_size,
)

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def pairs(
    _context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    """Click's callback for repeated `name=value` options; each name may occur once."""
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param=option)
        if name.strip() in values:
            raise click.BadParameter(f"{name.strip()} is given twice", param=option)
        values[name.strip()] = value
    return values


def _schema_options(part: str) -> tuple[Callable[[Any], Any], ...]:
    """Return the options for reading keys or values; `part` is `key` or `value`."""
    return (
        click.option(
            f"--{part}-format",
            type=click.Choice(["bytes", "string", "json", "avro", "protobuf"]),
            default="bytes",
            show_default=True,
            help=f"Format of {part}s.",
        ),
        click.option(
            f"--{part}-schema",
            metavar="PATH",
            type=click.Path(path_type=Path),
            help=f"JSON Schema or Avro schema of {part}s.  [default: the registry's]",
        ),
        click.option(
            f"--{part}-subject",
            metavar="NAME",
            help=f"Subject of the registry with the schema of {part}s.  [default: TOPIC-{part}]",
        ),
        click.option(
            f"--{part}-message",
            metavar="NAME",
            help="Full name of the Protobuf message.  [default: the first one of the schema]",
        ),
    )


VALUES: Final = (
    *_schema_options("value"),
    *_schema_options("key"),
    click.option(
        "--writer-schemas",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Directory of the writers' Avro schemas, one <id>.avsc each.",
    ),
    click.option(
        "--schema-registry",
        metavar="URL[,URL]",
        help="URL of the registry with the schemas of keys and values.",
    ),
    click.option(
        "--schema-registry-option",
        "registry_options",
        multiple=True,
        callback=pairs,
        metavar="NAME=VALUE",
        help="Property of Confluent's registry client, such as ssl.ca.location; secrets as "
        "env:NAME or file:/path. Repeatable.",
    ),
    click.option(
        "--schema-compatibility",
        type=click.Choice(["none", "backward", "forward", "full"]),
        default="none",
        show_default=True,
        help="When the registry's schema changes: rows have the schema of their record (none), the "
        "newest so far (backward, full) or the oldest (forward).",
    ),
    click.option(
        "--null-values",
        type=click.Choice(["keep", "skip"]),
        default="keep",
        show_default=True,
        help="Action for records without a value (tombstones).",
    ),
)
ISOLATION: Final = click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Isolation level: read_committed omits aborted records.",
)
ON_DATA_LOSS: Final = click.option(
    "--on-data-loss",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Action at offsets that are not stored: end with an error, or count and continue.",
)
ON_TRUNCATION: Final = click.option(
    "--on-truncation",
    type=click.Choice(["error", "reread"]),
    default="error",
    show_default=True,
    help="Action when brokers have discarded exported records (unclean election): end with an "
    "error, or also export the records that replace them.",
)
AGAIN: Final = (
    click.option("--once", is_flag=True, help="Export the present records, and exit. [default]"),
    click.option("--follow", is_flag=True, help="Repeat the export until stopped."),
)
TAIL: Final = (
    click.option(
        "--tail",
        type=click.Choice(["stop", "wait", "kafka"]),
        default="stop",
        show_default=True,
        help="Records that only the brokers have: end before them, wait until they are stored, or "
        "read them from Kafka.",
    ),
    click.option(
        "--tail-timeout",
        default="1h",
        show_default=True,
        callback=checked_duration,
        metavar="DURATION",
        help="Maximum wait when `--tail wait` is set.",
    ),
    bootstrap_option,
    click.option(
        "--kafka-option",
        "kafka_options",
        multiple=True,
        callback=pairs,
        metavar="NAME=VALUE",
        help="Property of the Kafka client of `--tail kafka`; repeatable.",
    ),
    click.option(
        "--kafka-config",
        metavar="PATH",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Properties file of the Kafka client of `--tail kafka`.",
    ),
)
CHUNK_BYTES: Final = click.option(
    "--chunk-bytes",
    metavar="SIZE",
    callback=checked_positive_size,
    help="Approximate archived bytes of one commit, such as 2GiB.  [default: all]",
)
TRANSACTION_TIMEOUT: Final = click.option(
    "--transaction-timeout",
    metavar="DURATION",
    callback=checked_duration,
    default="15m",
    show_default=True,
    help="Age at which an open transaction counts as hanging (exit code 3). Use the brokers' "
    "transaction.max.timeout.ms.",
)
METRICS_FILE: Final = click.option(
    "--metrics-file",
    metavar="PATH",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for Prometheus metrics, written after each run: held-back partitions, age of open "
    "transactions.",
)
DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Show what would be exported.")


def decorated(command: Decorated, options: Iterable[Callable[[Any], Any]]) -> Decorated:
    """Return the command with these options; its help shows them in this order."""
    for option in reversed(tuple(options)):
        command = option(command)
    return command


_TABLE_VALUES: Final = (
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
    ON_DATA_LOSS,
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
        callback=checked_duration,
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
        callback=checked_duration,
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
    return decorated(command, (*_RANGES, *_TABLE_VALUES, *_SPARK))
