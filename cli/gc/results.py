"""Results of `sidetier gc`, as tables and as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from sidetier.archive.gc.orphans import Orphan
from sidetier.archive.gc.run import (
    CollectedPartition,
    OrphansReport,
    RetentionReport,
    UploadsReport,
)
from sidetier.cli import exits
from sidetier.cli.arguments import most_lines, size_text
from sidetier.cli.output import Cell, Result, Table

if TYPE_CHECKING:
    from sidetier.uploader.tail.gone import CleanedTail


def _remark(row: CollectedPartition) -> str:
    """Return why not more is deleted, and whether an operator has to act."""
    if row.problem is not None:
        return f"failed: {row.problem}"
    return f"nothing may be deleted: {row.reason}" if row.blocked else row.reason or ""


@dataclass(frozen=True, slots=True)
class GcResult:
    """View of a retention run; with `by_partition`, a row for each partition."""

    report: RetentionReport
    by_partition: bool = False

    @property
    def exit_code(self) -> int:
        """FAILED if a partition failed, else FINDINGS if one is blocked."""
        if any(row.problem for row in self.report.rows):
            return exits.FAILED
        return exits.FINDINGS if any(row.blocked for row in self.report.rows) else exits.OK

    def as_json(self) -> object:
        """Return all fields of each partition."""
        return {
            "dry_run": self.report.dry_run,
            "segments": self.report.segments,
            "size_bytes": self.report.size_bytes,
            "partitions": [asdict(row) for row in self.report.rows],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition if topics are named, else for each topic."""
        verb = "would be deleted" if self.report.dry_run else "deleted"
        footer = f"{self.report.segments} segments, {size_text(self.report.size_bytes)} {verb}"
        if not self.by_partition:
            columns = ("TOPIC", "PARTITIONS", "SEGMENTS", "SIZE", "NOT MORE BECAUSE")
            return (Table(columns, [*self._topics()], footer=footer),)
        header = ("PARTITION", "START", "NEW START", "SEGMENTS", "SIZE", "NOT MORE BECAUSE")
        rows = [
            (
                f"{row.topic}-{row.partition}",
                row.start_offset,
                row.new_start_offset,
                row.segments,
                size_text(row.size_bytes),
                _remark(row),
            )
            for row in self.report.rows
        ]
        return (Table(header, rows, footer=footer),)

    def _topics(self) -> Iterable[tuple[Cell, ...]]:
        for topic, group in groupby(self.report.rows, lambda row: row.topic):
            rows = list(group)
            # Reasons that need an operator first, then those of other partitions with --topic.
            rows.sort(key=lambda row: (row.problem is None, not row.blocked, row.partition))
            first = rows[0]
            reason = _remark(first)
            if len(rows) > 1:
                reason = f"partition {first.partition}: {reason}"
            size = size_text(sum(row.size_bytes for row in rows))
            yield topic, len(rows), sum(row.segments for row in rows), size, reason


@dataclass(frozen=True, slots=True)
class OrphansResult:
    """View of the orphans."""

    report: OrphansReport

    @property
    def exit_code(self) -> int:
        """FINDINGS if something could not be read."""
        return exits.FINDINGS if self.report.problems else exits.OK

    def as_json(self) -> object:
        """Return each object."""
        return {
            "dry_run": self.report.dry_run,
            "orphans": [
                {
                    "key": orphan.row.key,
                    "kind": orphan.kind.value,
                    "size_bytes": orphan.row.size,
                    "modified_ms": orphan.row.modified_ms,
                    "deleted": orphan.row.key in self.report.deleted,
                }
                for orphan in self.report.orphans
            ],
            "problems": list(self.report.problems),
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each object."""
        verb = "would be deleted" if self.report.dry_run else "deleted"
        rows = [
            (orphan.row.key, orphan.kind.value, size_text(orphan.row.size), self._outcome(orphan))
            for orphan in self.report.orphans
        ]
        footer = "\n".join(
            [*self.report.problems, f"{len(rows)} objects found, {len(self.report.deleted)} {verb}"]
        )
        return (Table(("KEY", "KIND", "SIZE", "OUTCOME") if rows else (), rows, footer=footer),)

    def _outcome(self, orphan: Orphan) -> str:
        if orphan.row.key in self.report.deleted:
            return "would be deleted" if self.report.dry_run else "deleted"
        return f"kept: {self.report.kept.get(orphan.row.key, 'another object has replaced it')}"


@dataclass(frozen=True, slots=True)
class UploadsResult(Result):
    """View of the unfinished uploads."""

    report: UploadsReport

    def as_json(self) -> object:
        """Return each upload."""
        return {
            "dry_run": self.report.dry_run,
            "not_applicable": list(self.report.not_applicable),
            "uploads": [
                {**asdict(upload), "aborted": upload.upload_id in self.report.aborted}
                for upload in self.report.uploads
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each upload."""
        report = self.report
        verb = "would be aborted" if report.dry_run else "aborted"
        kept = "kept: younger than --older-than"
        rows = [
            (
                upload.key,
                upload.upload_id,
                verb if upload.upload_id in report.aborted else kept,
            )
            for upload in report.uploads
        ]
        lines = [f"{url}: this store keeps no unfinished uploads" for url in report.not_applicable]
        footer = "\n".join(
            [*lines, f"{len(rows)} unfinished uploads found, {len(report.aborted)} {verb}"]
        )
        return (Table(("KEY", "UPLOAD", "OUTCOME") if rows else (), rows, footer=footer),)


@dataclass(frozen=True, slots=True)
class TailsResult:
    """View of a cleaning of tail packs."""

    tails: "Sequence[CleanedTail]"
    dry_run: bool

    @property
    def exit_code(self) -> int:
        """FAILED if something failed, else FINDINGS if records or packs stay for a reason."""
        if any(tail.problem for tail in self.tails):
            return exits.FAILED
        return exits.FINDINGS if any(tail.kept for tail in self.tails) else exits.OK

    @property
    def due(self) -> str:
        """What is removed, for the question; empty if nothing is."""
        tails = self.tails
        packs = sum(tail.dropped_packs + tail.deleted_packs for tail in tails)
        size = size_text(sum(tail.dropped_bytes + tail.deleted_bytes for tail in tails))
        is_due = packs or any(tail.quarantined_offsets for tail in tails)
        return f"{packs} tail packs, {size}" if is_due else ""

    def as_json(self) -> object:
        """Return all fields of each broker."""
        return {"dry_run": self.dry_run, "brokers": [asdict(tail) for tail in self.tails]}

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each broker and store."""
        rows = [
            (tail.broker, tail.url, tail.packs, size_text(tail.size_bytes), self._outcome(tail))
            for tail in self.tails
        ]
        kept = [f"{what}: {why}" for tail in self.tails for what, why in tail.kept.items()]
        lines = [*most_lines(kept), f"all brokers: {self._done(self.tails)}"]
        if any(tail.dropped_packs for tail in self.tails):
            lines.append("dropped packs are deleted by the first run an hour later")
        if not rows:
            lines = ["there are no tail packs"]
        columns = ("BROKER", "STORE", "PACKS", "SIZE", "OUTCOME")
        return (Table(columns if rows else (), rows, footer="\n".join(lines)),)

    def _outcome(self, tail: "CleanedTail") -> str:
        if tail.problem is not None:
            return f"failed: {tail.problem}"
        if not tail.is_cleaned:
            return "kept: it has stored records within --older-than"
        return self._done([tail])

    def _done(self, tails: "Sequence[CleanedTail]") -> str:
        verbs = (
            ("would drop", "would delete", "would move")
            if self.dry_run
            else ("dropped", "deleted", "moved")
        )
        dropped, deleted = sum(t.dropped_packs for t in tails), sum(t.deleted_packs for t in tails)
        lost = sum(tail.quarantined_offsets for tail in tails)
        dropped_size = size_text(sum(tail.dropped_bytes for tail in tails))
        deleted_size = size_text(sum(tail.deleted_bytes for tail in tails))
        parts = [
            f"{verbs[0]} {dropped} packs ({dropped_size})" if dropped else "",
            f"{verbs[1]} {deleted} packs ({deleted_size})" if deleted else "",
            f"{verbs[2]} {lost} offsets to quarantine" if lost else "",
        ]
        return ", ".join(part for part in parts if part) or "nothing to remove"
