"""`sidetier gc`: delete what is past its retention on the store."""

import sys
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidetier.cli import exits
from sidetier.cli.arguments import checked_duration, checked_topics, size_text
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.cli.stores import open_every_store
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidetier.archive.gc.run import GarbageCollector, RetentionReport


@click.command(name="gc")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    callback=checked_topics,
    help="Only this topic, with a row for each partition; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and write nothing.")
@click.option("-y", "--yes", is_flag=True, help="Delete without a question, as in scripts.")
@click.option(
    "--orphans",
    is_flag=True,
    help="Delete objects that are not part of an archive, instead of old segments.",
)
@click.option(
    "--quarantined",
    is_flag=True,
    help="With --orphans: also delete quarantined records, which the cluster has discarded.",
)
@click.option(
    "--multipart-uploads",
    is_flag=True,
    help="Abort unfinished multipart uploads on S3, instead of deleting old segments.",
)
@click.option(
    "--older-than",
    metavar="DURATION",
    default="7d",
    show_default=True,
    callback=checked_duration,
    help="With --orphans or --multipart-uploads: minimum age of what is deleted.",
)
@click.option(
    "--max-deletes-per-second",
    metavar="N",
    type=click.FloatRange(min=0, min_open=True),
    default=1000,
    show_default=True,
    help="Maximum number of objects deleted per second, over all topics.",
)
@click.option(
    "--metrics-file",
    metavar="PATH.prom",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write metrics of the run to this file, for the textfile collector of node exporter.",
)
@configuration_options
@output_option
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    topics: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    orphans: bool,
    quarantined: bool,
    multipart_uploads: bool,
    older_than: float,
    max_deletes_per_second: float,
    metrics_file: Path | None,
    output: OutputFormat,
) -> None:
    """Delete archived segments that are past their retention on the store.

    Rules in retention.store set the retention by topic: a maximum age, the bytes that each
    partition keeps, and the consumers that must not lose records (keep_for). The archive of a topic
    without a rule is kept for good.

    Only the oldest segments of a partition are deleted, and never its newest one. The archive has
    no gap afterwards: it begins at a later offset. Deleted records cannot be restored.

    Nothing that a consumer in keep_for still needs is deleted. While the progress of one of them is
    unknown, nothing of the topic is deleted.

    The sidecars may run meanwhile. The next run finishes an interrupted one. The command needs
    permission to delete objects.

    \b
    Example:
      sidetier gc --dry-run --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 done; 1 at least one partition failed; 2 a setting or an argument is wrong, such
    as a topic without a rule, and nothing was deleted; 3 nothing was deleted of a topic, because
    the progress of a consumer is unknown or because of the state of its archive.
    """  # noqa: D301 -- \b is click's marker and must be one character
    if orphans + multipart_uploads + (metrics_file is not None) > 1:
        raise click.UsageError("give one of --orphans, --multipart-uploads and --metrics-file")
    if quarantined and not orphans:
        raise click.UsageError("--quarantined needs --orphans")
    mode = _Mode.SHOW if dry_run else _Mode.DELETE if yes else _Mode.ASK
    config = invocation(context).load(needs_log_dirs=False).config
    from sidetier.archive.gc.run import CONNECTIONS, GarbageCollector, GcRequest  # noqa: PLC0415 -- `--help` must not load the stores

    request = GcRequest(topics, max_deletes_per_second)
    with (
        open_every_store(config, connections=CONNECTIONS) as archive,
        GarbageCollector(archive, config.storage, request) as collector,
    ):
        if orphans:
            code = _orphans(collector, older_than, output, quarantined=quarantined, mode=mode)
        elif multipart_uploads:
            code = _uploads(collector, older_than, output, mode)
        else:
            from sidetier.cli.gc.consumers import retained_consumers  # noqa: PLC0415 -- as above

            collect = partial(
                collector.retention, config.retention, retained_consumers(config, archive)
            )
            code = _retention(collect, metrics_file, output, mode, by_partition=bool(topics))
    context.exit(code)


class _Mode(Enum):
    """What happens to objects that are due."""

    SHOW = "show"
    ASK = "ask"
    DELETE = "delete"

    def may_delete(self, text: str) -> bool:
        """Return whether the objects are deleted; ask the operator if they did not say so.

        Raises:
            ConfigurationError: There is no terminal to ask at.
        """
        if self is not _Mode.ASK:
            return self is _Mode.DELETE
        if not sys.stdin.isatty():
            raise ConfigurationError(f"{text} would be deleted for good: give --yes or --dry-run")
        return click.confirm(f"Delete {text} for good?", err=True)


def _retention(
    collect: "Callable[..., RetentionReport]",
    metrics_file: Path | None,
    output: OutputFormat,
    mode: _Mode,
    *,
    by_partition: bool,
) -> int:
    from sidetier.cli.gc.results import GcResult  # noqa: PLC0415 -- `--help` must not load it

    # With --yes, nothing needs to be read twice.
    report = None if mode is _Mode.DELETE else collect(dry_run=True)
    if report is None or (
        report.size_bytes
        and mode.may_delete(f"{report.segments} segments, {size_text(report.size_bytes)}")
    ):
        report = collect(dry_run=False)
    emit(GcResult(report, by_partition), output)
    if metrics_file is not None and mode is not _Mode.SHOW:
        from sidetier.cli.gc.metrics import write_metrics  # noqa: PLC0415 -- only with the option

        write_metrics(metrics_file, report)
    if any(row.problem for row in report.rows):
        return exits.FAILED
    return exits.FINDINGS if any(row.blocked for row in report.rows) else exits.OK


def _orphans(
    collector: "GarbageCollector",
    older_than: float,
    output: OutputFormat,
    *,
    quarantined: bool,
    mode: _Mode,
) -> int:
    from sidetier.cli.gc.results import OrphansResult  # noqa: PLC0415 -- `--help` must not load it

    report = collector.orphans(older_than, quarantined=quarantined, dry_run=True)
    if report.deleted and mode.may_delete(f"{len(report.deleted)} objects"):
        report = collector.orphans(older_than, quarantined=quarantined, dry_run=False)
    emit(OrphansResult(report), output)
    return exits.FINDINGS if report.problems else exits.OK


def _uploads(
    collector: "GarbageCollector", older_than: float, output: OutputFormat, mode: _Mode
) -> int:
    from sidetier.cli.gc.results import UploadsResult  # noqa: PLC0415 -- `--help` must not load it

    report = collector.uploads(older_than, dry_run=True)
    if report.aborted and mode.may_delete(f"{len(report.aborted)} unfinished uploads"):
        report = collector.uploads(older_than, dry_run=False)
    emit(UploadsResult(report), output)
    return exits.OK
