"""`sidetier doctor`: find settings of this broker and host that can lose records."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import sidecar_url
from sidetier.cli.inspect.consumer_groups import GroupFacts
from sidetier.cli.inspect.doctor import (
    Finding,
    Level,
    check_encryption,
    check_host,
    check_sidecar,
    check_stores,
    check_topics,
)
from sidetier.cli.inspect.facts import DoctorFacts, gather_host
from sidetier.cli.inspect.local_retention import group_json
from sidetier.cli.options import CommandOptions, option, options
from sidetier.cli.output import Cell, Table


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """Findings, the worst first, and the consumer groups that are behind."""

    findings: tuple[Finding, ...]
    groups: GroupFacts = field(default_factory=GroupFacts)

    @classmethod
    def of(cls, facts: DoctorFacts) -> "DoctorResult":
        """Run all checks."""
        checks = (check_topics, check_host, check_stores, check_encryption, check_sidecar)
        findings = (finding for check in checks for finding in check(facts))
        order = list(Level)
        found = sorted(findings, key=lambda finding: order.index(finding.level))
        return cls(tuple(found), facts.groups or GroupFacts())

    @property
    def exit_code(self) -> int:
        """FINDINGS if a finding costs records."""
        return exits.FINDINGS if self._count(Level.PROBLEM) else exits.OK

    def as_json(self) -> object:
        """Return the counts by level, the findings, and the groups."""
        counts = {level.value: self._count(level) for level in Level}
        groups = {
            "below_log_start": [group_json(row) for row in self.groups.below_log_start],
            "within_reach": [group_json(row) for row in self.groups.within_reach],
        }
        findings = [asdict(finding) for finding in self.findings]
        return {**counts, "findings": findings, "groups": groups}

    def as_tables(self) -> Sequence[Table]:
        """Return the summary, and a row for each finding."""
        rows = [_cells(finding) for finding in self.findings]
        return (Table((), footer=self._summary()), Table(("RESULT", "CHECK", "FOUND"), rows))

    def _summary(self) -> str:
        problems, advised = self._count(Level.PROBLEM), self._count(Level.ADVICE)
        return (
            f"{problems or 'no'} problem{'' if problems == 1 else 's'}, {advised} to consider, "
            f"{self._count(Level.OK)} checks passed"
        )

    def _count(self, level: Level) -> int:
        return sum(finding.level is level for finding in self.findings)


def _cells(finding: Finding) -> Sequence[Cell]:
    return finding.level.value, finding.check, "\n".join(_lines(finding))


def _lines(finding: Finding) -> Iterator[str]:
    yield finding.found
    if finding.todo is not None:
        yield f"-> {finding.todo}"
    if finding.setting is not None:
        yield f"   {finding.setting}"


@options
class DoctorOptions(CommandOptions):
    """Options of `sidetier doctor`."""

    sidecar: str | None = sidecar_url()
    try_conditions: bool = option(
        "--try-conditions",
        help="Test that the store honours conditional writes: overwrite its layout note with "
        "itself under two conditions that the store must refuse, and one that it must accept.",
    )
    back_to_pinterest: bool = option(
        "--back-to-pinterest",
        help="Test whether Pinterest's uploader can continue the archives of the partitions that "
        "this broker leads. One request to the store for each partition.",
    )


@kernel.command("doctor")
def command(options: DoctorOptions) -> DoctorResult:
    """Find settings of this broker and host that can lose records.

    Checks the topics' settings (retention, segment and delete times, compaction, elections), this
    host (open files, inotify, disk, permissions, page cache), the store (reachable, layout, clock)
    and the running sidecar, and names the settings to change. It names consumer groups that skip
    archived records if they read from the brokers. With local retention it also checks topic ids
    and the permission to delete records; with encryption, each key and a few stored segments. Run
    it on the broker's host, as the sidecar's user. It changes nothing.

    \b
    Example:
      sidetier doctor --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 no problem (there may be recommendations); 3 at least one problem.
    """  # noqa: D301 -- \b is click's marker and must be one character
    facts = gather_host(
        options.call.load().config,
        options.sidecar,
        try_conditions=options.try_conditions,
        back_to_pinterest=options.back_to_pinterest,
    )
    return DoctorResult.of(facts)
