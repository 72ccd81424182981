"""`sidetier gc`: delete what is past its retention on the store."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from enum import Enum
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
    from sidetier.cli.gc.session import GcSession
    from sidetier.config.model import Config


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
    with _session(config, topics, max_deletes_per_second) as session:
        session.check()
        if orphans:
            code = _orphans(session, older_than, output, quarantined=quarantined, mode=mode)
        elif multipart_uploads:
            code = _uploads(session, older_than, output, mode)
        else:
            code = _retention(session, metrics_file, output, mode)
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
    session: "GcSession", metrics_file: Path | None, output: OutputFormat, mode: _Mode
) -> int:
    # With --yes, nothing needs to be read twice.
    result = None if mode is _Mode.DELETE else session.retention(dry_run=True)
    if result is None or (
        result.size_bytes
        and mode.may_delete(f"{result.segments} segments, {size_text(result.size_bytes)}")
    ):
        result = session.retention(dry_run=False)
    emit(result, output)
    if metrics_file is not None and mode is not _Mode.SHOW:
        from sidetier.cli.gc.metrics import write_metrics  # noqa: PLC0415 -- only with the option

        write_metrics(metrics_file, result)
    if any(row.problem for row in result.rows):
        return exits.FAILED
    return exits.FINDINGS if any(row.blocked for row in result.rows) else exits.OK


def _orphans(
    session: "GcSession", older_than: float, output: OutputFormat, *, quarantined: bool, mode: _Mode
) -> int:
    result = session.orphans(older_than, quarantined=quarantined, dry_run=True)
    if result.deleted and mode.may_delete(f"{len(result.deleted)} objects"):
        result = session.orphans(older_than, quarantined=quarantined, dry_run=False)
    emit(result, output)
    return exits.FINDINGS if result.problems else exits.OK


def _uploads(session: "GcSession", older_than: float, output: OutputFormat, mode: _Mode) -> int:
    result = session.uploads(older_than, dry_run=True)
    if result.aborted and mode.may_delete(f"{len(result.aborted)} unfinished uploads"):
        result = session.uploads(older_than, dry_run=False)
    emit(result, output)
    return exits.OK


@contextmanager
def _session(config: "Config", topics: Sequence[str], rate: float) -> Iterator["GcSession"]:
    from sidetier.cli.gc.session import AT_ONCE, GcSession  # noqa: PLC0415 -- `--help` must not load the stores

    with ExitStack() as stack:
        stores = stack.enter_context(open_every_store(config, connections=AT_ONCE))
        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gc")
        deletes = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gc-delete")
        session = GcSession(config, stores, pool, deletes, rate, topics=topics)
        # An interrupted command must not begin with what waits in the pools. Threads of the first
        # pool wait for the second one, so that is ended before it.
        stack.callback(lambda: pool.shutdown(cancel_futures=True))
        stack.callback(lambda: deletes.shutdown(cancel_futures=True))
        stack.callback(session.stop)
        yield session
