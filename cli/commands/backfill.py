"""`sidetier backfill`: archive the closed segments in the log dirs once, and exit."""

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import most_lines, size_text, topic_name
from sidetier.cli.extras import quiet_logs
from sidetier.cli.options import CommandOptions, option, options
from sidetier.cli.output import Columns, Table, range_text, say, table_of
from sidetier.cli.progress import shown
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import reporting_waits
from sidetier.uploader.backfill import (
    Backfill,
    BackfillPlan,
    BackfillReport,
    BackfillRequest,
    PartitionOutcome,
    PartitionPlan,
)
from sidetier.uploader.wiring import ConfiguredBackfill

UNCOMMITTED_HINT = (
    "the high watermark is unknown: start the broker, or use --assume-committed if these log dirs "
    "are complete (see --help)"
)


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Output of a dry run."""

    plan: BackfillPlan

    @property
    def exit_code(self) -> int:
        """FINDINGS if a segment would not be stored."""
        return exits.FINDINGS if self.plan.findings else exits.OK

    def as_json(self) -> object:
        """Return one mapping per partition, sizes in bytes."""
        return {
            "dry_run": True,
            "segments": self.plan.segments,
            "size_bytes": self.plan.size,
            "unreadable_log_dirs": list(self.plan.unreadable),
            "partitions": [_plan_fields(partition) for partition in self.plan.partitions],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition that has a closed segment or cannot be read."""
        shown = [
            partition
            for partition in self.plan.partitions
            if partition.log_start is not None or partition.problem
        ]
        total = f"{self.plan.segments} segments, {size_text(self.plan.size)}"
        footer = f"dry run, nothing was written: {total} to store of {len(shown)} partitions"
        idle = len(self.plan.partitions) - len(shown)
        if idle:
            footer += f"; {idle} without a closed segment are left out"
        if any(partition.uncommitted for partition in self.plan.partitions):
            footer += f"\n{UNCOMMITTED_HINT}"
        notes = [f"{p.topic_partition}: {'; '.join(_notes(p))}" for p in shown if _notes(p)]
        footer = "\n".join([*most_lines(notes), *self.plan.unreadable, footer])
        return (table_of(shown, _PLAN_COLUMNS, footer),)


@dataclass(frozen=True, slots=True)
class OutcomeResult:
    """Output of a run."""

    report: BackfillReport

    @property
    def exit_code(self) -> int:
        """FINDINGS if a segment could not be stored; INTERRUPTED by a signal."""
        if self.report.interrupted:
            return exits.INTERRUPTED
        return exits.FINDINGS if self.report.findings else exits.OK

    def as_json(self) -> object:
        """Return one mapping per partition, sizes in bytes."""
        return {
            "dry_run": False,
            "interrupted": self.report.interrupted,
            "segments": sum(partition.stored.segments for partition in self.report.partitions),
            "size_bytes": sum(partition.stored.size for partition in self.report.partitions),
            "left": sum(partition.left for partition in self.report.partitions),
            "unreadable_log_dirs": list(self.report.unreadable),
            "partitions": [_outcome_fields(partition) for partition in self.report.partitions],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition with segments to store, a gap or a problem."""
        partitions = self.report.partitions
        shown = [
            partition
            for partition in partitions
            if partition.plan.due or partition.gap_records or partition.why
        ]
        shown.sort(
            key=lambda partition: not (partition.left or partition.gap_records or partition.why)
        )
        problems = [f"{o.plan.topic_partition}: {text}" for o in shown if (text := _problem(o))]
        segments = sum(partition.stored.segments for partition in partitions)
        footer = f"{segments} segments, {size_text(sum(o.stored.size for o in partitions))} stored"
        idle = len(partitions) - len(shown)
        footer += f"; {idle} partitions had nothing to store" if idle else ""
        left = sum(partition.left for partition in partitions)
        if left:
            footer += f"; {left} segments are left"
        if self.report.interrupted:
            footer += "\ninterrupted: run the same command again to continue"
        elif any(partition.left and partition.plan.uncommitted for partition in partitions):
            footer += f"\n{UNCOMMITTED_HINT}"
        footer = "\n".join([*most_lines(problems), *self.report.unreadable, footer])
        return (table_of(shown, _OUTCOME_COLUMNS, footer),)


_PLAN_COLUMNS: Final[Columns[PartitionPlan]] = {
    "PARTITION": lambda plan: str(plan.topic_partition),
    "ON DISK": lambda plan: (
        None if plan.log_start is None else range_text(plan.log_start, plan.closed_end)
    ),
    "ARCHIVED UP TO": lambda plan: plan.next_offset,
    "TO STORE": lambda plan: len(plan.due) if plan.refused is None else 0,
    "SIZE": lambda plan: size_text(plan.size if plan.refused is None else 0),
}


def _notes(partition: PartitionPlan) -> Sequence[str]:
    if partition.refused or partition.problem:
        return [text for text in (partition.refused, partition.problem) if text]
    notes = [f"offsets {gap} were deleted before they were archived" for gap in partition.gaps]
    if partition.present:
        notes.append(f"{partition.present} are stored already, and not committed")
    if partition.uncommitted:
        notes.append(f"{partition.uncommitted} above the known high watermark")
    return notes


def _plan_fields(partition: PartitionPlan) -> dict[str, Any]:
    return {
        **partition.topic_partition._asdict(),
        "log_start": partition.log_start,
        "closed_end": partition.closed_end,
        "next_offset": partition.next_offset,
        "stored_segments": partition.stored_segments,
        "segments": [asdict(due) for due in partition.due],
        "size_bytes": partition.size,
        "present": partition.present,
        "uncommitted": partition.uncommitted,
        "gaps": [{"start_offset": gap.start, "end_offset": gap.end} for gap in partition.gaps],
        "refused": partition.refused,
        "problem": partition.problem,
    }


_OUTCOME_COLUMNS: Final[Columns[PartitionOutcome]] = {
    "PARTITION": lambda outcome: str(outcome.plan.topic_partition),
    "STORED": lambda outcome: outcome.stored.segments,
    "SIZE": lambda outcome: size_text(outcome.stored.size),
    "ARCHIVED UP TO": lambda outcome: outcome.next_offset,
    "LEFT": lambda outcome: outcome.left,
}


def _problem(partition: PartitionOutcome) -> str | None:
    gap = f"{partition.gap_records} records were deleted before they were archived"
    return (
        "; ".join(text for text in (gap if partition.gap_records else None, partition.why) if text)
        or None
    )


def _outcome_fields(partition: PartitionOutcome) -> dict[str, Any]:
    return {
        **partition.plan.topic_partition._asdict(),
        "segments": partition.stored.segments,
        "size_bytes": partition.stored.size,
        "next_offset": partition.next_offset,
        "left": partition.left,
        "gap_records": partition.gap_records,
        "why": partition.why,
    }


@options
class BackfillOptions(CommandOptions):
    """Options of `sidetier backfill`."""

    dry_run: bool = option("--dry-run", help="Show the plan, and write nothing.")
    topics: tuple[str, ...] = option(
        "-t", "--topic", parse=topic_name, help="Archive only this topic; repeatable."
    )
    partitions: tuple[str, ...] = option(
        "-p",
        "--partition",
        metavar="TOPIC-N",
        help="Archive only this partition, such as orders-3; repeatable.",
    )
    offline: bool = option(
        "--offline", help="Send no request to a broker, even if one is configured."
    )
    assume_committed: bool = option(
        "--assume-committed", help="Treat every closed segment as committed; see above."
    )


@kernel.command("backfill")
def command(options: BackfillOptions) -> PlanResult | OutcomeResult:
    """Archive the closed segments in the log dirs once, and exit.

    Stores the closed segments of every partition in log_dirs, whether or not this broker leads the
    partition. The broker may be running; with --offline, no broker is needed. A second run stores
    only what is missing. Ctrl-C and SIGTERM stop the command gracefully. The active segment is not
    stored.

    There is no --from and no --to: an archive has no gaps, so backfill begins with the oldest
    segment, or continues at the offset that is archived up to.

    Backfill stores only committed records. It takes the high watermark from
    replication-offset-checkpoint or from the broker. Copy log dirs with their time stamps (cp -a,
    rsync -t): a checkpoint that is older than a segment does not cover that segment.
    --assume-committed skips this check. Its risk: a broker that was killed, or lost leadership, may
    have closed segments whose last records were never committed. The cluster then has other records
    at these offsets, and the archive differs from Kafka. Each partition's directory also needs its
    file leader-epoch-checkpoint, with --assume-committed, too.

    \b
    Example:
      sidetier backfill --dry-run --topic orders --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 everything is stored; 3 at least one segment could not be stored, and the table
    shows the reason. With --dry-run, 3 means that at least one segment would not be stored.
    """  # noqa: D301 -- \b is click's marker and must be one character
    loaded = options.call.load()
    request = BackfillRequest(
        options.topics,
        options.partitions,
        offline=options.offline,
        assume_committed=options.assume_committed,
    )
    quiet_logs(loaded)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    with reporting_waits() as calls:
        adapters = partial(ConfiguredBackfill, origins=loaded.origins, calls=calls)
        backfill = Backfill(loaded.config, request, adapters)
        plan = backfill.plan(read_only=options.dry_run)
    if options.dry_run:
        return PlanResult(plan)
    stop = threading.Event()
    with shown() as on_progress, handled_signals(stop.set):
        return OutcomeResult(backfill.run(plan, stop=stop, on_progress=on_progress))
