"""`sidetier export files`: files in the layout of Confluent's S3 sink."""

from typing import Final

import click

from sidetier.cli import kernel
from sidetier.cli.export.options import FilesCommandOptions
from sidetier.cli.extras import needs_extra, quiet_config

_EXTRA: Final = ("cramjam", "numpy", "pyarrow")
"""Packages that the extra `consumer` installs."""


@kernel.command("files")
def command(options: FilesCommandOptions) -> int:
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
    if options.follow and (options.once or options.begin or options.end):
        raise click.UsageError("--follow has no end: omit --once, --from and --to")
    if options.flat and options.layout not in {None, "flat"}:
        raise click.UsageError(f"--layout {options.layout} is not --flat: omit one of them")
    if options.abandon_plan and options.dry_run:
        raise click.UsageError("--dry-run writes nothing: omit --abandon-plan")
    config = quiet_config(options.call)
    with needs_extra("sidetier export", _EXTRA, "export"):
        from sidetier.cli.export.files_session import export_files  # noqa: PLC0415 -- `--help` needs none
    return export_files(config, options)
