"""`sidetier export files`: files in the layout of Confluent's S3 sink."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sidetier.cli.arguments import MAX_BATCH_BYTES, checked_duration, checked_patterns
from sidetier.cli.export.options import (
    AGAIN,
    CHUNK_BYTES,
    DRY_RUN,
    ISOLATION,
    METRICS_FILE,
    ON_DATA_LOSS,
    ON_TRUNCATION,
    TAIL,
    TRANSACTION_TIMEOUT,
    VALUES,
    Decorated,
    decorated,
)
from sidetier.cli.extras import from_extra, quiet_logs
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, output_option

if TYPE_CHECKING:
    from sidetier.config.loading import LoadedConfig

_EXTRA: Final = ("cramjam", "numpy", "pyarrow")
"""Packages that the extra `consumer` installs."""


def _bytes(_context: click.Context, _option: click.Parameter, given: str | None) -> bytes | None:
    from sidetier.cli.consume.request import unescaped  # noqa: PLC0415

    try:
        return None if given is None else unescaped(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_OPTIONS: Final = (
    click.option(
        "--into",
        metavar="URL",
        help="URL under which files are written: s3://, file:///, gs://, ...",
    ),
    click.option(
        "--into-config",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help="YAML file with `storage` settings of the output, if they differ from the archive's.",
    ),
    click.option(
        "--topics-dir", default="topics", show_default=True, help="Directory below the URL."
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(["parquet", "json", "avro", "raw"]),
        default="parquet",
        show_default=True,
        help="Format of the files.",
    ),
    click.option(
        "--compression",
        help="Compression codec of files.  [default: parquet snappy, avro deflate, others none]",
    ),
    click.option(
        "--partitioner",
        type=click.Choice(["default", "field", "time", "hourly", "daily"]),
        default="default",
        show_default=True,
        help="Partition directories by Kafka partition, by fields of the value, or by time.",
    ),
    click.option(
        "--partition-field",
        multiple=True,
        metavar="FIELD",
        help="Field to partition by; repeatable.",
    ),
    click.option(
        "--path-format",
        metavar="PATTERN",
        help="Directory pattern, such as 'year'=YYYY/'month'=MM/'day'=dd.",
    ),
    click.option(
        "--partition-duration",
        metavar="DURATION",
        callback=checked_duration,
        help="Time span of a directory.  [default: 1h]",
    ),
    click.option(
        "--timezone",
        default="UTC",
        show_default=True,
        help="Time zone of directories, such as Europe/Berlin.",
    ),
    click.option(
        "--locale", default="en", show_default=True, help="Locale of names in the pattern."
    ),
    click.option(
        "--timestamp-field",
        metavar="FIELD",
        help="Field of the value with the time.  [default: the record's timestamp]",
    ),
    click.option(
        "--flush-size",
        type=click.IntRange(1),
        default=1_000_000,
        show_default=True,
        help="Maximum number of records in a file.",
    ),
    click.option(
        "--rotate-interval",
        metavar="DURATION",
        callback=checked_duration,
        help="Maximum span of record time in a file.",
    ),
    click.option(
        "--max-open-files",
        type=click.IntRange(1),
        default=100,
        show_default=True,
        help="Maximum number of open files for one Kafka partition.",
    ),
    click.option(
        "--whole-files",
        is_flag=True,
        help="Write only files that are full (--flush-size, --rotate-interval), and leave other "
        "records to a later run: the borders of files do not depend on the times of runs.",
    ),
    *VALUES,
    click.option(
        "--layout",
        type=click.Choice(["record", "flat", "value"]),
        help="Rows: records with key, offset, headers and value (record); the same with the fields "
        "of the value as columns (flat); or values alone (value).  [default: record]",
    ),
    click.option("--flat", is_flag=True, help="The same as --layout flat."),
    click.option(
        "--delimiter",
        default=r"\n",
        show_default=True,
        callback=_bytes,
        help=r"Delimiter after each raw value: text, \n, \t, \0, \xHH.",
    ),
    click.option(
        "--key-delimiter",
        callback=_bytes,
        help="Raw format: write the key and this delimiter before the value.",
    ),
    click.option(
        "--dead-letters",
        metavar="DIR",
        help="Directory below the URL for records that do not fit the schema.",
    ),
    ISOLATION,
    TRANSACTION_TIMEOUT,
    ON_DATA_LOSS,
    MAX_BATCH_BYTES,
    ON_TRUNCATION,
    click.option(
        "--from", "begin", metavar="WHERE", help="First offset or timestamp to export, inclusive."
    ),
    click.option(
        "--to",
        "end",
        metavar="WHERE",
        help="Offset or timestamp at which the export ends, exclusive.",
    ),
    *AGAIN,
    click.option(
        "--interval",
        default="1m",
        show_default=True,
        callback=checked_duration,
        help="Pause between runs when `--follow` is set.",
    ),
    click.option(
        "--chunk",
        type=click.IntRange(1),
        help="Maximum number of offsets in one commit.  [default: all]",
    ),
    CHUNK_BYTES,
    *TAIL,
    click.option(
        "--accept-changes",
        is_flag=True,
        help="Continue in a directory that was written with other settings.",
    ),
    click.option(
        "--abandon-plan",
        is_flag=True,
        help="Discard the unfinished plan of an earlier run, and make a new one with the options "
        "of this run.",
    ),
    METRICS_FILE,
    DRY_RUN,
    click.option(
        "--master",
        metavar="MASTER",
        help="Spark master, such as local[2]; `submit` under spark-submit.  [default: no Spark]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1),
        default=2,
        show_default=True,
        help="Topics exported in parallel. Without Spark also Kafka partitions in parallel, over "
        "all topics.",
    ),
)


def _files_options(command: Decorated) -> Decorated:
    return decorated(command, _OPTIONS)


@click.command(name="files")
@click.argument("topics", nargs=-1, required=True, callback=checked_patterns, metavar="TOPIC...")
@_files_options
@configuration_options
@output_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    topics: tuple[str, ...],
    output: OutputFormat,
    **given: Any,  # noqa: ANN401 -- one value for each option
) -> None:
    """Export archived records of topics to files, each record exactly once.

    Files are named <topic>+<partition>+<first offset>, in directories that the partitioner
    chooses, as with Confluent's S3 sink. The file <topics-dir>/<topic>/_sidetier/manifest.json
    alone records what was exported, and up to which offsets: the next run continues from there,
    and after a crash it finishes what was begun. With --from or --to the output is that range
    alone, and needs a directory of its own.

    WHERE is an offset (1234), a date or time (2026-11-21T08:00:00Z, @1700000000000), beginning or
    end, the same in each partition. Name the place of a secret of the schema registry, not the
    secret: --schema-registry-option basic.auth.user.info=env:NAME, or file:/path.

    TOPIC is a name, or a regular expression that matches the whole name of archived topics, such
    as 'orders-.*'. With --follow, topics that are archived later join.

    \b
    Example:
      sidetier export files orders --into s3://lake/kafka --partitioner hourly
      sidetier export files orders --into file:///tmp/lake --format json --value-format json \\
          --value-schema order.schema.json --partitioner field --partition-field country
      sidetier export files 'orders-.*' payments --into s3://lake/kafka --follow

    Each topic is an export of its own: if one fails, the others continue.

    Exit codes: 0 everything was exported; 3 as 0, but offsets are missing or still on the brokers
    alone, records did not fit the schema, or a partition is held back (its archive ends below what
    was exported, or a transaction hangs in it); 1 a topic could not be exported; 2 a setting or an
    argument is wrong.
    """  # noqa: D301 -- \b is click's mark, and must be one character
    if given["follow"] and (given["once"] or given["begin"] or given["end"]):
        raise click.UsageError("--follow has no end: omit --once, --from and --to")
    if given["flat"] and given["layout"] not in {None, "flat"}:
        raise click.UsageError(f"--layout {given['layout']} is not --flat: omit one of them")
    given["layout"] = "flat" if given["flat"] else given["layout"] or "record"
    if given["abandon_plan"] and given["dry_run"]:
        raise click.UsageError("--dry-run writes nothing: omit --abandon-plan")
    loaded = invocation(context).load(needs_log_dirs=False)
    quiet_logs(loaded)
    context.exit(_export(loaded, topics, given, output))


def _export(
    loaded: "LoadedConfig", topics: tuple[str, ...], given: dict[str, Any], output: OutputFormat
) -> int:
    def load() -> Callable[[], int]:
        from sidetier.cli.export.files_session import export_files  # noqa: PLC0415
        from sidetier.cli.export.request import request_of  # noqa: PLC0415 -- `--help` needs none

        return lambda: export_files(loaded.config, request_of(topics, given), output)

    return from_extra(load, "sidetier export", _EXTRA, "export")()
