"""Run `sidetier verify`, and show its report."""

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry

from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.topics import cluster_prefixes, stored_partitions
from sidetier.archive.verify.findings import KINDS, Finding, FindingKind, Severity
from sidetier.archive.verify.progress_file import ProgressFile
from sidetier.archive.verify.run import Options, Report, Totals, Verification
from sidetier.cli import exits
from sidetier.cli.archive_listing import not_archived
from sidetier.cli.arguments import age_text, most_lines, size_text
from sidetier.cli.metrics_file import gauge, previous_value, write_metrics_file
from sidetier.cli.output import OutputFormat, Table, emit, range_text
from sidetier.cli.progress import Amount, shown
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive, require_directory, told_waits
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import is_legal_topic
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.token_bucket import TokenBucket
from sidetier.telemetry import verify_catalogue as catalogue
from sidetier.uploader.watching.disk import find_partitions

if TYPE_CHECKING:
    from sidetier.archive.access import ArchiveAccess
    from sidetier.config.model import Config
    from sidetier.storage.port import RemoteStorage
    from sidetier.telemetry.catalogue import Metric

_SHOWN_INFOS: Final = frozenset({FindingKind.ACKNOWLEDGED_GAP})
"""Kinds of severity info that the table shows without --all."""
_MOST_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one call.

    Attributes:
        topics: Regular expressions that match whole topic names; empty for all topics.
        partitions: Partition numbers; empty for all.
        options: What is checked.
        local: Whether to compare with the files in the broker's log dirs.
        rate: Maximum bytes read per second; None for no limit.
        resume: File that records finished segments; None to not record them.
        metrics_file: File for Prometheus' textfile collector; None to write none.
        show_all: Whether the table has every finding of severity info.
    """

    topics: tuple[str, ...]
    partitions: frozenset[int]
    options: Options
    local: bool = False
    rate: int | None = None
    resume: Path | None = None
    metrics_file: Path | None = None
    show_all: bool = False


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The report of a run."""

    cluster: str
    report: Report
    findings: Sequence[Finding]
    seconds: float
    show_all: bool

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
                    "topic": unread.topic_partition.topic,
                    "partition": unread.topic_partition.partition,
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
        columns = ("SEVERITY", "KIND", "PARTITION", "OFFSETS", "OBJECT", "DETAIL")
        cells = [
            (
                finding.severity.value,
                finding.kind.value,
                str(finding.topic_partition),
                None if finding.offsets is None else range_text(*finding.offsets),
                finding.key,
                finding.detail,
            )
            for finding in rows[:_MOST_ROWS]
        ]
        notes = [f"and {len(rows) - _MOST_ROWS} more"] if len(rows) > _MOST_ROWS else []
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
        return (Table(columns if cells else (), cells, footer="\n".join(notes)),)

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


def run_verify(config: "Config", request: Request, output: OutputFormat) -> int:
    """Verify the selected partitions; return the exit code.

    Raises:
        ConfigurationError: An option is wrong, or a named topic is not archived.
        StorageError: The partitions could not be listed.
    """
    started = time.monotonic()
    for url in {
        config.storage.url,
        *(other.url for other in config.storage.overrides if other.url),
    }:
        require_directory(url)
    # A thread keeps a connection; parallel listings of long partitions need a few more.
    connections = max(16, request.options.light_threads)
    with ExitStack() as stack:
        calls = stack.enter_context(told_waits())
        archive = stack.enter_context(open_archive(config, connections=connections, calls=calls))
        partitions = selected_partitions(archive, request)
        progress_file = None
        if request.resume is not None:
            progress_file = ProgressFile(request.resume, _identity(config, request))
            stack.callback(progress_file.close)
        report = _run(archive, request, partitions, _directories(config, request), progress_file)
        if progress_file is not None and not report.is_stopped:
            progress_file.remove()
    result = VerifyResult(
        config.cluster.name,
        report,
        report.findings(),
        time.monotonic() - started,
        request.show_all,
    )
    if request.metrics_file is not None:
        write_metrics(request.metrics_file, result)
    emit(result, output)
    return _exit_code(result)


def _run(
    archive: "ArchiveAccess",
    request: Request,
    partitions: Sequence[TopicPartition],
    directories: Mapping[TopicPartition, str],
    progress_file: ProgressFile | None,
) -> Report:
    bucket = None if request.rate is None else TokenBucket(request.rate, time.monotonic)

    def before_read(size: int) -> None:
        if bucket is not None:
            verification.pause(bucket.reserve(size))

    verification = Verification(
        archive,
        request.options,
        lambda: time.time_ns() // 1_000_000,
        before_read=before_read,
        progress_file=progress_file,
        directories=directories,
    )
    with handled_signals(verification.stop):
        verification.light(partitions)
        if verification.reads_segments:
            totals = verification.report.totals
            with shown(Amount(totals.segments, totals.size)) as progress:

                def show(totals: Totals) -> None:
                    progress.update(Amount(totals.checked_segments, totals.checked_size), 0)

                verification.segments(partitions, show)
    return verification.report


def selected_partitions(archive: "ArchiveAccess", request: Request) -> list[TopicPartition]:
    """List the archived partitions that the request selects, in order.

    Raises:
        ConfigurationError: A pattern matches no archived topic, or the entropy bits are wrong.
        StorageError: As `RemoteStorage` says.
    """
    layout = archive.layout
    note = read_note(archive.default_store, layout)
    if note is not None:
        check_note(note, layout, None)
    stored = {
        tp
        for endpoint in archive.provider.endpoints
        for tp in _in_store(archive, archive.stores.at(endpoint), request.topics)
    }
    for pattern in request.topics:
        if not any(re.fullmatch(pattern, tp.topic) for tp in stored):
            url = archive.provider.default.url
            raise not_archived(archive.default_store, layout, url, pattern)
    numbers = request.partitions
    chosen = [tp for tp in stored if not numbers or tp.partition in numbers]
    if numbers and not chosen:
        raise ConfigurationError(
            f"--partition {', '.join(map(str, sorted(numbers)))}: no selected topic has it"
        )
    return sorted(chosen)


def _in_store(
    archive: "ArchiveAccess",
    store: "RemoteStorage",
    patterns: tuple[str, ...],
) -> Iterator[TopicPartition]:
    layout = archive.layout
    # A pattern that is a plain name is listed alone: its topic's directories, not all of them.
    plain = patterns[0] if len(patterns) == 1 and is_legal_topic(patterns[0]) else None
    name = plain if plain is not None and "." not in plain else None
    for prefix in cluster_prefixes(store, layout):
        for tp in stored_partitions(store, layout, prefix, name):
            matches = not patterns or any(re.fullmatch(p, tp.topic) for p in patterns)
            if matches and archive.store(tp.topic) is store:
                yield tp


def _directories(config: "Config", request: Request) -> Mapping[TopicPartition, str]:
    if not request.local:
        return {}
    if not config.log_dirs:
        raise ConfigurationError("--local: set log_dirs to the log dirs of this host's broker")
    wanted = [re.compile(pattern) for pattern in request.topics]
    return find_partitions(
        [str(path) for path in config.log_dirs],
        lambda topic: not wanted or any(pattern.fullmatch(topic) for pattern in wanted),
    ).directories


def _identity(config: "Config", request: Request) -> dict[str, Any]:
    """Return what decides the result of a segment, for the file of --resume."""
    return {"cluster": config.cluster.name, "url": config.storage.url, "deep": request.options.deep}


def _exit_code(result: VerifyResult) -> int:
    if result.report.is_stopped:
        return exits.INTERRUPTED
    if any(finding.severity is not Severity.INFO for finding in result.findings):
        return exits.FINDINGS
    return exits.FAILED if result.report.unread else exits.OK


def write_metrics(path: Path, result: VerifyResult) -> None:
    """Write the metrics of the run.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    registry = CollectorRegistry()
    findings = gauge(catalogue.FINDINGS, registry)
    counts = Counter(finding.kind for finding in result.findings)
    for kind in FindingKind:  # all kinds, so that an alert sees a 0, too
        findings.labels(result.cluster, KINDS[kind].severity.value, kind.value).set(counts[kind])
    totals = result.report.totals
    values: Iterable[tuple[Metric, float]] = (
        (catalogue.UNREAD, len(result.report.unread)),
        (catalogue.PARTITIONS, totals.partitions),
        (catalogue.SEGMENTS, totals.checked_segments),
        (catalogue.READ_BYTES, totals.checked_size),
        (catalogue.DURATION, result.seconds),
    )
    for metric, value in values:
        gauge(metric, registry).labels(result.cluster).set(value)
    completed = gauge(catalogue.COMPLETED, registry).labels(result.cluster)
    if not result.report.is_stopped:
        completed.set_to_current_time()
    else:
        # Without a sample, the alert for runs that are interrupted each night would never fire.
        completed.set(previous_value(path, catalogue.COMPLETED, {"cluster": result.cluster}) or 0)
    write_metrics_file(path, registry)
