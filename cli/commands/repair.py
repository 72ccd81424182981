"""`sidetier repair`: rebuild objects of the archive from the stored segments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import ArchivedPartitions, most_lines
from sidetier.cli.options import CommandOptions, group, option, options
from sidetier.cli.output import Table, range_text

if TYPE_CHECKING:
    from sidetier.uploader.archive.repair import RepairOutcome, RepairReport


@dataclass(frozen=True, slots=True)
class RepairResult:
    """View of a repair."""

    report: "RepairReport"

    @property
    def exit_code(self) -> int:
        """FAILED if something could not be read, else FINDINGS if something is left."""
        if self.report.unread:
            return exits.FAILED
        return exits.OK if self.report.is_clean else exits.FINDINGS

    def as_json(self) -> object:
        """Return all fields."""
        return {
            "dry_run": self.report.dry_run,
            "repairs": [
                {
                    **outcome.repair.topic_partition._asdict(),
                    "key": outcome.repair.key,
                    "written": outcome.written,
                    "problem": outcome.problem,
                }
                for outcome in self.report.outcomes
            ],
            "left": [finding.as_json() for finding in self.report.left],
            "unread": [{"key": unread.key, "error": unread.error} for unread in self.report.unread],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each object."""
        columns = ("PARTITION", "OBJECT", "OUTCOME")
        rows = [
            (str(outcome.repair.topic_partition), outcome.repair.key, _outcome_text(outcome))
            for outcome in self.report.outcomes
        ]
        lines = most_lines(
            [
                f"not repairable: {f.kind.value} {f.key}"
                + (f" {range_text(*f.offsets)}" if f.offsets else "")
                for f in self.report.left
            ]
        )
        lines += most_lines([f"could not be read: {u.key}: {u.error}" for u in self.report.unread])
        if not rows and not lines:
            lines = ["nothing to repair"]
        footer = "\n".join(lines) or None
        return (Table(columns if rows else (), rows, footer=footer),)


def _outcome_text(outcome: "RepairOutcome") -> str:
    if outcome.problem is not None:
        return f"not repaired: {outcome.problem}"
    return "would be rebuilt" if outcome.written is None else f"rebuilt: {outcome.written}"


@options
class RepairOptions(CommandOptions):
    """Options of `sidetier repair`."""

    archived: ArchivedPartitions = group("repair")
    deep: bool = option(
        "--deep", help="Read every segment first, to find indexes whose entries are wrong."
    )
    heads: bool = option(
        "--heads",
        help="Read the metadata of every segment first (one request each), to find lost markers of "
        "encrypted segments.",
    )
    dry_run: bool = option("--dry-run", help="Show what would be rebuilt; write nothing.")


@kernel.command("repair")
def command(options: RepairOptions) -> RepairResult:
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
    config = options.call.load(needs_log_dirs=False).config
    from sidetier.cli.stores import open_archive, reporting_waits  # noqa: PLC0415 -- `--help` must not load it
    from sidetier.uploader.archive.repair import RepairRequest, repair  # noqa: PLC0415 -- as above

    request = RepairRequest(
        options.archived.topics,
        frozenset(options.archived.partitions),
        deep=options.deep,
        heads=options.heads,
        dry_run=options.dry_run,
    )
    with reporting_waits() as calls, open_archive(config, calls=calls) as archive:
        return RepairResult(repair(archive, config.storage, request))
