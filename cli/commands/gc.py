"""`sidetier gc`: delete what is past its retention on the store."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidetier.cli import kernel
from sidetier.cli.arguments import DURATION, FILE, size_text, topic_name
from sidetier.cli.extras import quiet_logs
from sidetier.cli.options import CommandOptions, option, options
from sidetier.cli.stores import open_every_store
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidetier.archive.gc.run import GarbageCollector, RetentionReport
    from sidetier.cli.gc.results import OrphansResult, TailsResult, UploadsResult
    from sidetier.config.model import Config


@options
class GcOptions(CommandOptions):
    """Options of `sidetier gc`."""

    topics: tuple[str, ...] = option(
        "-t",
        "--topic",
        parse=topic_name,
        help="Only this topic, with a row for each partition; repeatable.",
    )
    dry_run: bool = option("--dry-run", help="Show what would be deleted, and write nothing.")
    yes: bool = option("-y", "--yes", help="Delete without a question, as in scripts.")
    orphans: bool = option(
        "--orphans",
        help="Delete objects that are not part of an archive, instead of old segments.",
    )
    quarantined: bool = option(
        "--quarantined",
        help="With --orphans: also delete quarantined records, which the cluster has discarded.",
    )
    multipart_uploads: bool = option(
        "--multipart-uploads",
        help="Abort unfinished multipart uploads on S3, instead of deleting old segments.",
    )
    tail_packs: bool = option(
        "--tail-packs",
        help="Clean the tail packs of brokers that store none any more, instead of deleting old "
        "segments.",
    )
    deleted_topics: bool = option(
        "--deleted-topics",
        help="With --tail-packs: also delete records of deleted topics that no archive has. Asks "
        "the brokers for topic ids. Records of the last 24 hours are kept.",
    )
    older_than: float = option(
        "--older-than",
        type=DURATION,
        default="7d",
        help="With --orphans or --multipart-uploads: minimum age of what is deleted. With "
        "--tail-packs: minimum age of a broker's newest records in packs.",
    )
    max_deletes_per_second: float = option(
        "--max-deletes-per-second",
        metavar="N",
        type=click.FloatRange(min=0, min_open=True),
        default=1000,
        help="Maximum number of objects deleted per second, over all topics.",
    )
    metrics_file: Path | None = option(
        "--metrics-file",
        metavar="PATH.prom",
        type=FILE,
        help="Write metrics of the run to this file, for the textfile collector of node exporter.",
    )

    def may_delete(self, text: str) -> bool:
        """Return whether due objects are deleted; ask the operator unless an option answers.

        Raises:
            ConfigurationError: Standard input is not a terminal.
        """
        if self.dry_run or self.yes:
            return not self.dry_run
        if not sys.stdin.isatty():
            raise ConfigurationError(f"{text} would be deleted for good: give --yes or --dry-run")
        return click.confirm(f"Delete {text} for good?", err=True)


@kernel.command("gc")
def command(options: GcOptions) -> kernel.Outcome:
    """Delete archived segments that are past their retention on the store.

    Rules in retention.store set the retention by topic: a maximum age, the bytes that each
    partition keeps, and the consumers that must not lose records (keep_for). The archive of a topic
    without a rule is kept for good.

    Only the oldest segments of a partition are deleted, and never its newest one. The archive has
    no gap afterwards: it begins at a later offset. Deleted records cannot be restored.

    Nothing that a consumer in keep_for still needs is deleted. While the progress of one of them is
    unknown, nothing of the topic is deleted.

    With --tail-packs, a pack is dropped from the index object once the archive, a retired archive
    or another pack has its records. A run deletes it if it was dropped an hour ago or earlier.

    The sidecars may run meanwhile. The next run finishes an interrupted one. The command needs
    permission to delete objects.

    \b
    Example:
      sidetier gc --dry-run --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 done; 1 at least one partition failed; 2 a setting or an argument is wrong, such
    as a topic without a rule, and nothing was deleted; 3 nothing was deleted of a topic, because
    the progress of a consumer is unknown or because of the state of its archive, or records in tail
    packs stay.
    """  # noqa: D301 -- \b is click's marker and must be one character
    has_metrics = options.metrics_file is not None
    if options.orphans + options.multipart_uploads + options.tail_packs + has_metrics > 1:
        raise click.UsageError(
            "give one of --orphans, --multipart-uploads, --tail-packs and --metrics-file"
        )
    if options.quarantined and not options.orphans:
        raise click.UsageError("--quarantined needs --orphans")
    if options.deleted_topics and not options.tail_packs:
        raise click.UsageError("--deleted-topics needs --tail-packs")
    if options.tail_packs and options.topics:
        raise click.UsageError("--topic: a tail pack has records of many topics")
    loaded = options.call.load(needs_log_dirs=False)
    config = loaded.config
    if options.tail_packs:
        quiet_logs(loaded)
        return _tail_packs(config, options)
    from sidetier.archive.gc.run import CONNECTIONS, GarbageCollector, GcRequest  # noqa: PLC0415 -- `--help` must not load the stores
    from sidetier.cli.gc.consumers import retained_consumers  # noqa: PLC0415 -- as above

    request = GcRequest(options.topics, options.max_deletes_per_second)
    with (
        open_every_store(config, connections=CONNECTIONS) as archive,
        GarbageCollector(archive, config.storage, request) as collector,
    ):
        if options.orphans:
            return _orphans(collector, options)
        if options.multipart_uploads:
            return _uploads(collector, options)
        consumers = retained_consumers(config, archive)
        return _retention(partial(collector.retention, config.retention, consumers), options)


def _retention(collect: "Callable[..., RetentionReport]", options: GcOptions) -> int:
    from sidetier.cli.gc.results import GcResult  # noqa: PLC0415 -- `--help` must not load it

    # With --yes, nothing needs to be read twice.
    is_certain = options.yes and not options.dry_run
    report = None if is_certain else collect(dry_run=True)
    if report is None or (
        report.size_bytes
        and options.may_delete(f"{report.segments} segments, {size_text(report.size_bytes)}")
    ):
        report = collect(dry_run=False)
    code = kernel.finish(GcResult(report, bool(options.topics)), options.output)
    if options.metrics_file is not None and not options.dry_run:
        from sidetier.cli.gc.metrics import write_metrics  # noqa: PLC0415 -- only with the option

        write_metrics(options.metrics_file, report)
    return code


def _orphans(collector: "GarbageCollector", options: GcOptions) -> "OrphansResult":
    from sidetier.cli.gc.results import OrphansResult  # noqa: PLC0415 -- `--help` must not load it

    find = partial(collector.orphans, options.older_than, quarantined=options.quarantined)
    report = find(dry_run=True)
    if report.deleted and options.may_delete(f"{len(report.deleted)} objects"):
        report = find(dry_run=False)
    return OrphansResult(report)


def _tail_packs(config: "Config", options: GcOptions) -> "TailsResult":
    from sidetier.cli.gc.results import TailsResult  # noqa: PLC0415 -- `--help` must not load it
    from sidetier.cli.gc.tails import cleaning_tails  # noqa: PLC0415 -- as above

    with cleaning_tails(config, options.older_than, deleted_topics=options.deleted_topics) as clean:
        # With --yes, nothing needs to be read twice.
        is_certain = options.yes and not options.dry_run
        result = TailsResult(clean(dry_run=not is_certain), dry_run=not is_certain)
        if not is_certain and result.due and options.may_delete(result.due):
            result = TailsResult(clean(dry_run=False), dry_run=False)
    return result


def _uploads(collector: "GarbageCollector", options: GcOptions) -> "UploadsResult":
    from sidetier.cli.gc.results import UploadsResult  # noqa: PLC0415 -- `--help` must not load it

    report = collector.uploads(options.older_than, dry_run=True)
    if report.aborted and options.may_delete(f"{len(report.aborted)} unfinished uploads"):
        report = collector.uploads(options.older_than, dry_run=False)
    return UploadsResult(report)
