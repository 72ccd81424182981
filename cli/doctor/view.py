"""Output of `sidetier doctor`: a summary line, and every finding, the worst first."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from sidetier.cli.doctor.facts import DoctorFacts
from sidetier.cli.doctor.findings import Finding, Level
from sidetier.cli.doctor.host_checks import check_host
from sidetier.cli.doctor.store_checks import check_sidecar, check_stores
from sidetier.cli.doctor.topic_checks import check_topics
from sidetier.cli.output import Cell, Table


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """Findings, the worst first."""

    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, facts: DoctorFacts) -> "DoctorResult":
        """Run all checks."""
        checks = (check_topics, check_host, check_stores, check_sidecar)
        findings = (finding for check in checks for finding in check(facts))
        order = list(Level)
        return cls(tuple(sorted(findings, key=lambda finding: order.index(finding.level))))

    @property
    def has_problems(self) -> bool:
        """Whether a finding costs records."""
        return self._count(Level.PROBLEM) > 0

    def as_json(self) -> object:
        """Return the counts by level, and the findings."""
        counts = {level.value: self._count(level) for level in Level}
        return {**counts, "findings": [asdict(finding) for finding in self.findings]}

    def as_tables(self) -> Sequence[Table]:
        """Return the summary, and a row for each finding."""
        rows = [_cells(finding) for finding in self.findings]
        return (Table((), footer=self._summary()), Table(("RESULT", "CHECK", "FOUND"), rows))

    def _summary(self) -> str:
        problems, advised = self._count(Level.PROBLEM), self._count(Level.ADVICE)
        return (
            f"{problems or 'no'} problem{'' if problems == 1 else 's'}, {advised} to consider, "
            f"{self._count(Level.OK)} as it should be"
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
