"""`sidetier repair`: rebuild objects of the archive from the stored segments."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from sidetier.cli import exits
from sidetier.cli.arguments import archived_partitions_options, most_lines
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, Table, emit, output_option, range_text

if TYPE_CHECKING:
    from sidetier.archive.access import ArchiveAccess
    from sidetier.archive.verify.findings import Finding, Unread
    from sidetier.archive.verify.run import Options
    from sidetier.config.model import Config
    from sidetier.segments.offsets import TopicPartition
    from sidetier.uploader.archive.repair import RepairOutcome


@dataclass(slots=True)
class RepairResult:
    """The rebuilt objects, or with `dry_run` those that would be rebuilt, and what is left.

    Attributes:
        outcomes: The rebuilt objects.
        left: Findings of severity error or warning that a repair does not resolve.
        unread: What could not be read.
        dry_run: Whether nothing was written.
    """

    dry_run: bool
    outcomes: "list[RepairOutcome]" = field(default_factory=list)
    left: "list[Finding]" = field(default_factory=list)
    unread: "list[Unread]" = field(default_factory=list)

    def as_json(self) -> object:
        """Return all fields."""
        return {
            "dry_run": self.dry_run,
            "repairs": [
                {
                    "topic": outcome.repair.topic_partition.topic,
                    "partition": outcome.repair.topic_partition.partition,
                    "key": outcome.repair.key,
                    "written": outcome.written,
                    "problem": outcome.problem,
                }
                for outcome in self.outcomes
            ],
            "left": [finding.as_json() for finding in self.left],
            "unread": [{"key": unread.key, "error": unread.error} for unread in self.unread],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each object."""
        columns = ("PARTITION", "OBJECT", "OUTCOME")
        rows = [
            (str(outcome.repair.topic_partition), outcome.repair.key, _outcome_text(outcome))
            for outcome in self.outcomes
        ]
        lines = most_lines(
            [
                f"not repairable: {f.kind.value} {f.key}"
                + (f" {range_text(*f.offsets)}" if f.offsets else "")
                for f in self.left
            ]
        )
        lines += most_lines([f"could not be read: {u.key}: {u.error}" for u in self.unread])
        if not rows and not lines:
            lines = ["nothing to repair"]
        footer = "\n".join(lines) or None
        return (Table(columns if rows else (), rows, footer=footer),)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left to repair."""
        is_done = all(outcome.written is not None for outcome in self.outcomes)
        return is_done and not (self.left or self.unread)


def _outcome_text(outcome: "RepairOutcome") -> str:
    if outcome.problem is not None:
        return f"not repaired: {outcome.problem}"
    return "would be rebuilt" if outcome.written is None else f"rebuilt: {outcome.written}"


@click.command(name="repair")
@archived_partitions_options("repair")
@click.option(
    "--deep",
    is_flag=True,
    help="Read every segment first, to find indexes whose entries are wrong.",
)
@click.option(
    "--heads",
    is_flag=True,
    help="Read the metadata of every segment first (one request each), to find lost markers of "
    "encrypted segments.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be rebuilt; write nothing.")
@configuration_options
@output_option
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    deep: bool,
    heads: bool,
    dry_run: bool,
    output: OutputFormat,
) -> None:
    """Rebuild damaged indexes, _metadata and leader epochs from the stored segments.

    Verifies the partitions, as `sidetier verify` does, and rebuilds: a missing or damaged .index or
    .timeindex, lost markers of encrypted segments, entries that _metadata lacks, and
    leader-epoch-checkpoint. Each object is written only if it has not changed meanwhile, so
    sidecars may run. No .log and no offset.wm is written.

    \b
    Example:
      sidetier repair --topic orders --dry-run --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 nothing is left to repair; 1 a partition could not be read; 2 a setting or an
    argument is wrong; 3 something cannot be repaired or, with --dry-run, would be.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = invocation(context).load(needs_log_dirs=False).config
    from sidetier.archive.verify.run import Options  # noqa: PLC0415 -- `--help` must not load it

    options = Options(deep=deep, heads=heads)
    result = run_repair(config, topics, frozenset(partitions), options, dry_run=dry_run)
    emit(result, output)
    if result.unread:
        context.exit(exits.FAILED)
    context.exit(exits.OK if result.is_clean else exits.FINDINGS)


def run_repair(
    config: "Config",
    topics: tuple[str, ...],
    partitions: frozenset[int],
    options: "Options",
    *,
    dry_run: bool,
) -> RepairResult:
    """Verify the selected partitions, and repair them one after the other."""
    from sidetier.archive.verify.run import Verification  # noqa: PLC0415 -- `--help` must not load it
    from sidetier.cli.stores import open_archive, require_fencing, told_waits  # noqa: PLC0415 -- as above
    from sidetier.cli.verify import Request, selected_partitions  # noqa: PLC0415 -- as above

    result = RepairResult(dry_run)
    with told_waits() as calls, open_archive(config, calls=calls) as archive:
        chosen = selected_partitions(archive, Request(topics, partitions, options))
        for topic in {tp.topic for tp in chosen}:
            require_fencing(config, archive.store(topic), archive.url(topic))
        run = Verification(archive, options, lambda: time.time_ns() // 1_000_000)
        run.light(chosen)
        if options.deep:
            run.segments(chosen)
        result.unread = list(run.report.unread.values())
        by_partition: dict[TopicPartition, list[Finding]] = {}
        for finding in run.report.findings():
            by_partition.setdefault(finding.topic_partition, []).append(finding)
        for tp, findings in by_partition.items():
            _repair_partition(archive, tp, findings, result)
    return result


def _repair_partition(
    archive: "ArchiveAccess", tp: "TopicPartition", findings: "list[Finding]", result: RepairResult
) -> None:
    from sidetier.archive.verify.findings import FindingKind, Severity, Unread  # noqa: PLC0415 -- as above
    from sidetier.archive.verify.light import read_partition  # noqa: PLC0415 -- as above
    from sidetier.segments.errors import SidetierError  # noqa: PLC0415 -- as above
    from sidetier.uploader.archive.repair import (  # noqa: PLC0415 -- as above
        REPAIRABLE,
        Repairer,
        RepairOutcome,
        carry_out,
        planned_repairs,
    )

    accepted = {FindingKind.RECORDED_GAP}
    result.left += [
        finding
        for finding in findings
        if finding.severity is not Severity.INFO and finding.kind not in REPAIRABLE | accepted
    ]
    if not any(finding.kind in REPAIRABLE for finding in findings):
        return
    store, layout = archive.store(tp.topic), archive.layout
    try:
        # Again: the verification took time, and a sidecar may have written since.
        objects, _ = read_partition(store, layout, tp)
    except SidetierError as error:
        result.unread.append(Unread(tp, layout.partition_prefix(tp), str(error)))
        return
    repairs = planned_repairs(objects, findings, layout)
    if result.dry_run:
        result.outcomes += [RepairOutcome(repair) for repair in repairs]
        return
    carry_out(Repairer(store, layout, objects), repairs, result.outcomes.append)
