"""Output of `sidetier ls`: partitions with their totals, or the segments of one partition."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from sidetier.cli.archive_listing import (
    ArchiveEnd,
    LogFacts,
    StoredPartition,
    StoredSegmentFiles,
    first_of,
)
from sidetier.cli.arguments import size_text
from sidetier.cli.output import Cell, Table
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One archived partition; sizes in bytes over all of its objects."""

    topic: str
    partition: int
    segments: int
    size_bytes: int
    first_offset: int | None
    next_offset: int | None
    watermark: int | None
    segments_above_watermark: int
    problem: str | None

    def cells(self) -> Sequence[Cell]:
        """Return the cells of the table row."""
        return (
            self.topic,
            self.partition,
            self.segments,
            size_text(self.size_bytes),
            self.first_offset,
            self.next_offset,
            self.watermark,
            self.segments_above_watermark,
            self.problem,
        )


@dataclass(frozen=True, slots=True)
class PartitionsResult:
    """The listed partitions, sorted."""

    cluster: str
    rows: Sequence[PartitionRow]

    def as_json(self) -> object:
        """Return the rows, with sizes in bytes."""
        return {"cluster": self.cluster, "partitions": [asdict(row) for row in self.rows]}

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, and totals. Problems add a PROBLEM column."""
        columns = (
            "TOPIC",
            "PARTITION",
            "SEGMENTS",
            "SIZE",
            "FIRST OFFSET",
            "ARCHIVED UP TO",
            "LAST SEGMENT",
            "NOT COMMITTED",
            "PROBLEM",
        )
        if not self.rows:
            return (Table((), footer=f"the archive of cluster {self.cluster} is empty"),)
        segments = sum(row.segments for row in self.rows)
        size = size_text(sum(row.size_bytes for row in self.rows))
        footer = f"{len(self.rows)} partitions, {segments} segments, {size}"
        width = len(columns) if self.has_problems else len(columns) - 1
        cells = [row.cells()[:width] for row in self.rows]
        return (Table(columns[:width], cells, footer=footer),)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is stored."""
        return not self.rows

    @property
    def has_problems(self) -> bool:
        """Whether any partition has a problem."""
        return any(row.problem for row in self.rows)


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One archived segment; `size_bytes` is the size of its `.log`."""

    base_offset: int
    next_offset: int | None
    size_bytes: int | None
    max_timestamp_ms: int | None
    files: tuple[str, ...]
    above_watermark: bool
    complete: bool

    def cells(self) -> Sequence[Cell]:
        """Return the cells of the table row."""
        return (
            self.base_offset,
            self.next_offset,
            size_text(self.size_bytes),
            _time_text(self.max_timestamp_ms),
            " ".join(self.files),
            "no" if self.above_watermark else "yes",
        )


@dataclass(frozen=True, slots=True)
class SegmentsResult:
    """The segments of one partition."""

    topic_partition: TopicPartition
    uri: str
    watermark: ArchiveEnd
    rows: Sequence[SegmentRow]

    def as_json(self) -> object:
        """Return the segments and the content of `offset.wm`."""
        watermark = self.watermark.watermark
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "uri": self.uri,
            "watermark": None if watermark is None else watermark.base_offset,
            "next_offset": self.watermark.next_offset,
            "problem": self.problem,
            "segments": [asdict(row) for row in self.rows],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each segment. The footer shows the archive end offset."""
        columns = ("BASE OFFSET", "NEXT OFFSET", "SIZE", "LAST RECORD (UTC)", "FILES", "COMMITTED")
        size = size_text(sum(row.size_bytes or 0 for row in self.rows))
        watermark = self.watermark.watermark
        footer = f"{len(self.rows)} segments, {size} below {self.uri}; "
        if watermark is None:
            footer += "no offset.wm"
        elif self.watermark.next_offset is None:
            footer += f"last committed segment {watermark.base_offset}"
        else:
            footer += f"archived up to {self.watermark.next_offset}"
        if self.problem is not None:
            footer += f"\nproblem: {self.problem}"
        return (Table(columns, [row.cells() for row in self.rows], footer=footer),)

    @property
    def is_empty(self) -> bool:
        """Whether the partition has neither a segment nor an `offset.wm`."""
        return not self.rows and self.watermark.watermark is None

    @property
    def problem(self) -> str | None:
        """Description of the problems; None without a problem."""
        broken = [row.base_offset for row in self.rows if not row.complete]
        broken = [base for base in broken if self._is_below(base)]
        missing = f"segments without all of their files: {first_of(broken, 3)}" if broken else None
        mark = self.watermark.problem if self.rows else None
        return "; ".join(part for part in (mark, missing) if part) or None

    def _is_below(self, base: int) -> bool:
        watermark = self.watermark.watermark
        return watermark is not None and base <= watermark.base_offset


def partition_row(stored: StoredPartition, mark: ArchiveEnd, *, quick: bool) -> PartitionRow:
    """Return a partition's row. With `quick`, no segment counts as uncommitted."""
    watermark = mark.watermark.base_offset if mark.watermark else None
    above = 0
    if not quick:
        above = sum(watermark is None or base > watermark for base in stored.bases)
    tp = stored.topic_partition
    return PartitionRow(
        topic=tp.topic,
        partition=tp.partition,
        segments=len(stored.bases),
        size_bytes=stored.size,
        first_offset=min(stored.bases, default=None),
        next_offset=mark.next_offset,
        watermark=watermark,
        segments_above_watermark=above,
        problem=_problem(stored, mark, watermark),
    )


def _problem(stored: StoredPartition, mark: ArchiveEnd, watermark: int | None) -> str | None:
    problems = [mark.problem] if mark.problem else []
    if watermark is not None:
        if watermark not in stored.bases:
            problems.append(f"offset.wm names segment {watermark}, which is not stored")
        broken = [base for base in stored.incomplete if base <= watermark]
        if broken:
            problems.append(f"segments without all of their files: {first_of(broken, 3)}")
    return "; ".join(problems) or None


def segment_row(segment: StoredSegmentFiles, said: LogFacts, mark: ArchiveEnd) -> SegmentRow:
    """Return the row of a segment."""
    watermark = mark.watermark
    return SegmentRow(
        base_offset=segment.base_offset,
        next_offset=said.next_offset,
        size_bytes=segment.sizes.get(FileKind.LOG),
        max_timestamp_ms=said.max_timestamp,
        files=tuple(kind.value.removeprefix(".") for kind in FileKind if kind in segment.sizes),
        above_watermark=watermark is None or segment.base_offset > watermark.base_offset,
        complete=segment.is_complete,
    )


def _time_text(milliseconds: int | None) -> str | None:
    if milliseconds is None or milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return str(milliseconds)  # a producer can send any timestamp
