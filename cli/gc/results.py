"""Results of `sidetier gc`, as tables and as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby

from sidetier.archive.gc.orphans import Orphan
from sidetier.cli.arguments import size_text
from sidetier.cli.output import Cell, Table
from sidetier.storage.port import UnfinishedUpload


@dataclass(frozen=True, slots=True)
class GcRow:
    """One partition.

    Attributes:
        start_offset: Start of the archive before; None if it is not known.
        new_start_offset: Start of the archive afterwards.
        segments: Number of segments that are deleted.
        size_bytes: Size of all objects that are deleted.
        reason: Why not more is deleted.
        blocked: Whether nothing may be deleted now.
        problem: What has failed; None for a success.
    """

    topic: str
    partition: int
    start_offset: int | None = None
    new_start_offset: int | None = None
    segments: int = 0
    size_bytes: int = 0
    reason: str | None = None
    blocked: bool = False
    problem: str | None = None

    @property
    def remark(self) -> str:
        """Why not more is deleted, and whether an operator has to act."""
        if self.problem is not None:
            return f"failed: {self.problem}"
        return f"nothing may be deleted: {self.reason}" if self.blocked else self.reason or ""


@dataclass(frozen=True, slots=True)
class GcResult:
    """The partitions of all topics with a retention, by topic and partition."""

    rows: Sequence[GcRow]
    dry_run: bool
    by_partition: bool = False

    @property
    def size_bytes(self) -> int:
        """Size of all objects that are deleted."""
        return sum(row.size_bytes for row in self.rows)

    @property
    def segments(self) -> int:
        """Number of all segments that are deleted."""
        return sum(row.segments for row in self.rows)

    def as_json(self) -> object:
        """Return all fields of each partition."""
        return {
            "dry_run": self.dry_run,
            "segments": self.segments,
            "size_bytes": self.size_bytes,
            "partitions": [asdict(row) for row in self.rows],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition if topics are named, else for each topic."""
        verb = "would be deleted" if self.dry_run else "deleted"
        footer = f"{self.segments} segments, {size_text(self.size_bytes)} {verb}"
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
                row.remark,
            )
            for row in self.rows
        ]
        return (Table(header, rows, footer=footer),)

    def _topics(self) -> Iterable[tuple[Cell, ...]]:
        for topic, group in groupby(self.rows, lambda row: row.topic):
            rows = list(group)
            # The reasons that need an operator first; those of other partitions with --topic.
            rows.sort(key=lambda row: (row.problem is None, not row.blocked, row.partition))
            first = rows[0]
            reason = first.remark
            if len(rows) > 1:
                reason = f"partition {first.partition}: {reason}"
            size = size_text(sum(row.size_bytes for row in rows))
            yield topic, len(rows), sum(row.segments for row in rows), size, reason


@dataclass(frozen=True, slots=True)
class OrphansResult:
    """Objects that are not part of an archive, and those among them that are deleted.

    Attributes:
        orphans: The objects.
        deleted: Keys of the objects that are deleted.
        dry_run: Whether they would be deleted.
        kept: Why the other objects are kept, by key.
        problems: Partitions that could not be read.
    """

    orphans: Sequence[Orphan]
    deleted: frozenset[str]
    dry_run: bool
    kept: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()

    def as_json(self) -> object:
        """Return each object."""
        return {
            "dry_run": self.dry_run,
            "orphans": [
                {
                    "key": orphan.row.key,
                    "kind": orphan.kind.value,
                    "size_bytes": orphan.row.size,
                    "modified_ms": orphan.row.modified_ms,
                    "deleted": orphan.row.key in self.deleted,
                }
                for orphan in self.orphans
            ],
            "problems": list(self.problems),
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each object."""
        verb = "would be deleted" if self.dry_run else "deleted"
        rows = [
            (orphan.row.key, orphan.kind.value, size_text(orphan.row.size), self._outcome(orphan))
            for orphan in self.orphans
        ]
        footer = "\n".join(
            [*self.problems, f"{len(rows)} objects found, {len(self.deleted)} {verb}"]
        )
        return (Table(("KEY", "KIND", "SIZE", "OUTCOME") if rows else (), rows, footer=footer),)

    def _outcome(self, orphan: Orphan) -> str:
        if orphan.row.key in self.deleted:
            return "would be deleted" if self.dry_run else "deleted"
        return f"kept: {self.kept.get(orphan.row.key, 'another object has replaced it')}"


@dataclass(frozen=True, slots=True)
class UploadsResult:
    """Unfinished multipart uploads, and those among them that are aborted."""

    uploads: Sequence[UnfinishedUpload]
    aborted: frozenset[str]
    dry_run: bool
    not_applicable: Sequence[str] = ()

    def as_json(self) -> object:
        """Return each upload."""
        return {
            "dry_run": self.dry_run,
            "not_applicable": list(self.not_applicable),
            "uploads": [
                {**asdict(upload), "aborted": upload.upload_id in self.aborted}
                for upload in self.uploads
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each upload."""
        verb = "would be aborted" if self.dry_run else "aborted"
        kept = "kept: younger than --older-than"
        rows = [
            (upload.key, upload.upload_id, verb if upload.upload_id in self.aborted else kept)
            for upload in self.uploads
        ]
        lines = [f"{url}: this store keeps no unfinished uploads" for url in self.not_applicable]
        footer = "\n".join(
            [*lines, f"{len(rows)} unfinished uploads found, {len(self.aborted)} {verb}"]
        )
        return (Table(("KEY", "UPLOAD", "OUTCOME") if rows else (), rows, footer=footer),)
