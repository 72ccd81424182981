"""Run `sidetier verify`, and show its report."""

import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidetier.archive.verify.findings import KINDS, Finding, FindingKind, Severity
from sidetier.archive.verify.run import VerifyReport, VerifyRequest, verify
from sidetier.cli import exits
from sidetier.cli.arguments import age_text, most_lines, size_text
from sidetier.cli.metrics_file import previous_value, write_metrics_file
from sidetier.cli.output import Columns, Table, range_text, table_of
from sidetier.cli.progress import shown
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive, reporting_waits
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry import verify_catalogue as catalogue
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.watching.disk import find_partitions

if TYPE_CHECKING:
    from sidetier.config.model import Config
    from sidetier.telemetry.catalogue import Metric

_SHOWN_INFOS: Final = frozenset({FindingKind.ACKNOWLEDGED_GAP})
"""Kinds of severity info that the table shows without --all."""
_MAX_ROWS: Final = 1000
_COLUMNS: Final[Columns[Finding]] = {
    "SEVERITY": lambda finding: finding.severity.value,
    "KIND": lambda finding: finding.kind.value,
    "PARTITION": lambda finding: str(finding.topic_partition),
    "OFFSETS": lambda finding: range_text(*finding.offsets) if finding.offsets else None,
    "OBJECT": lambda finding: finding.key,
    "DETAIL": lambda finding: finding.detail,
}


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The report of a run."""

    cluster: str
    report: VerifyReport
    findings: Sequence[Finding]
    seconds: float
    show_all: bool

    @property
    def exit_code(self) -> int:
        """INTERRUPTED by a signal; FINDINGS for an error or a warning; else FAILED if something
        could not be read.
        """
        if self.report.is_stopped:
            return exits.INTERRUPTED
        if any(finding.severity is not Severity.INFO for finding in self.findings):
            return exits.FINDINGS
        return exits.FAILED if self.report.unread else exits.OK

    def as_json(self) -> object:
        """Return totals, findings and what could not be read."""
        totals = self.report.totals
        return {
            "cluster": self.cluster,
            "complete": not self.report.is_stopped,
            "seconds": round(self.seconds, 3),
            "partitions": totals.partitions,
            "segments": totals.segments,
            "size_bytes": totals.size,
            "read_segments": totals.checked_segments,
            "read_bytes": totals.checked_size,
            "compared_segments": totals.compared_segments,
            "findings": [finding.as_json() for finding in self.findings],
            "unread": [
                {
                    **unread.topic_partition._asdict(),
                    "key": unread.key,
                    "error": unread.error,
                }
                for unread in self.report.unread.values()
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each finding, the remedies, and what could not be read."""
        rows = [f for f in self.findings if self.show_all or _is_shown(f)]
        hidden = Counter(f.kind.value for f in self.findings if f not in set(rows))
        notes = [f"and {len(rows) - _MAX_ROWS} more"] if len(rows) > _MAX_ROWS else []
        notes += [
            f"{kind.value}: {next(f.remedy for f in rows if f.kind is kind)}"
            for kind in dict.fromkeys(f.kind for f in rows)
        ]
        notes += most_lines(
            [f"could not be read: {u.key}: {u.error}" for u in self.report.unread.values()]
        )
        if hidden:
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(hidden.items()))
            notes.append(f"not shown (--all): {counts}")
        notes.append(self._summary())
        return (table_of(rows[:_MAX_ROWS], _COLUMNS, "\n".join(notes)),)

    def _summary(self) -> str:
        totals = self.report.totals
        counts = Counter(finding.severity for finding in self.findings)
        text = f"{totals.partitions} partitions, {totals.segments} segments"
        if totals.checked_segments:
            text += f", {totals.checked_segments} of them read ({size_text(totals.checked_size)})"
        if totals.compared_segments:
            text += f", {totals.compared_segments} compared with the broker's files"
        text += f" in {age_text(self.seconds)}: "
        text += f"{counts[Severity.ERROR]} errors, {counts[Severity.WARNING]} warnings"
        if self.report.unread:
            text += f", {len(self.report.unread)} not read"
        return f"{text}, interrupted" if self.report.is_stopped else text


def _is_shown(finding: Finding) -> bool:
    return finding.severity is not Severity.INFO or finding.kind in _SHOWN_INFOS


def run_verify(
    config: "Config",
    request: VerifyRequest,
    *,
    local: bool,
    metrics_file: Path | None,
    show_all: bool,
) -> VerifyResult:
    """Verify the selected partitions.

    Args:
        config: The configuration.
        request: What is checked.
        local: Whether to compare with the files in the broker's log dirs.
        metrics_file: File for Prometheus' textfile collector; None to write none.
        show_all: Whether the table has every finding of severity info.

    Raises:
        ConfigurationError: An option is wrong, or a named topic is not archived.
        StorageError: The partitions could not be listed.
    """
    started, stop = time.monotonic(), threading.Event()
    directories = _directories(config, request.topics) if local else {}
    # A thread keeps a connection; parallel listings of long partitions need a few more.
    connections = max(16, request.light_threads)
    with (
        reporting_waits() as calls,
        open_archive(config, connections=connections, calls=calls) as archive,
        handled_signals(stop.set),
        shown() as on_progress,
    ):
        report = verify(
            archive, request, directories=directories, stop=stop, on_progress=on_progress
        )
    seconds = time.monotonic() - started
    result = VerifyResult(config.cluster.name, report, report.findings(), seconds, show_all)
    if metrics_file is not None:
        write_metrics(metrics_file, result)
    return result


def _directories(config: "Config", topics: tuple[str, ...]) -> Mapping[TopicPartition, str]:
    if not config.log_dirs:
        raise ConfigurationError("--local: set log_dirs to the log dirs of this host's broker")
    wanted = [re.compile(pattern) for pattern in topics]
    return find_partitions(
        [str(path) for path in config.log_dirs],
        lambda topic: not wanted or any(pattern.fullmatch(topic) for pattern in wanted),
    ).directories


def write_metrics(path: Path, result: VerifyResult) -> None:
    """Write the metrics of the run.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    cluster, totals = result.cluster, result.report.totals
    counts = Counter(finding.kind for finding in result.findings)
    completed = SYSTEM_CLOCK.wall()
    if result.report.is_stopped:
        # Without a sample, the alert for runs that are interrupted each night would never fire.
        completed = previous_value(path, catalogue.COMPLETED, {"cluster": cluster}) or 0
    values: Mapping[Metric, float] = {
        catalogue.UNREAD: len(result.report.unread),
        catalogue.PARTITIONS: totals.partitions,
        catalogue.SEGMENTS: totals.checked_segments,
        catalogue.READ_BYTES: totals.checked_size,
        catalogue.DURATION: result.seconds,
        catalogue.COMPLETED: completed,
    }
    findings = [  # all kinds, so that an alert sees a 0, too
        ((cluster, KINDS[kind].severity.value, kind.value), counts[kind]) for kind in FindingKind
    ]
    samples = {metric: [((cluster,), value)] for metric, value in values.items()}
    write_metrics_file(path, {catalogue.FINDINGS: findings, **samples})
