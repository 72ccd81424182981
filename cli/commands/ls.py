"""`sidetier ls`: list partitions and segments on the store."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.inventory.cluster import ListedPartition, list_partitions
from sidetier.archive.inventory.contents import ArchiveEnd, NotedSegment
from sidetier.archive.inventory.stored_partition import NO_WATERMARK, StoredPartition
from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.topics import cluster_prefixes, not_archived
from sidetier.cli import exits, kernel
from sidetier.cli.arguments import PARTITION, size_text, topic_name
from sidetier.cli.options import CommandOptions, argument, option, options
from sidetier.cli.output import Cell, Table
from sidetier.cli.stores import layout_of, open_every_store, with_short_timeouts
from sidetier.config.problems import first_of
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition

if TYPE_CHECKING:
    from sidetier.config.model import Config
    from sidetier.segments.keys import ArchiveLayout
    from sidetier.storage.port import RemoteStorage


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

    @property
    def exit_code(self) -> int:
        """FINDINGS for a problem."""
        return exits.FINDINGS if self.has_problems else exits.OK


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One stored segment.

    `size_bytes` is the size of its `.log`. `below_start` is True if it is not part of the archive,
    because it begins below the archive's start: a killed `sidetier gc`, or a late request of a
    former leader's sidecar, has left it.
    """

    base_offset: int
    next_offset: int | None
    size_bytes: int | None
    max_timestamp_ms: int | None
    files: tuple[str, ...]
    above_watermark: bool
    below_start: bool
    complete: bool

    def cells(self) -> Sequence[Cell]:
        """Return the cells of the table row."""
        return (
            self.base_offset,
            self.next_offset,
            size_text(self.size_bytes),
            _time_text(self.max_timestamp_ms),
            " ".join(self.files),
            "below start" if self.below_start else "no" if self.above_watermark else "yes",
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
        rows = [row for row in self.rows if not row.complete and not row.below_start]
        broken = [row.base_offset for row in rows if self._is_below(row.base_offset)]
        missing = f"segments without all of their files: {first_of(broken, 3)}" if broken else None
        mark = self.watermark.problem if self.rows else None
        return "; ".join(part for part in (mark, missing) if part) or None

    @property
    def exit_code(self) -> int:
        """FINDINGS for a problem."""
        return exits.OK if self.problem is None else exits.FINDINGS

    def _is_below(self, base: int) -> bool:
        watermark = self.watermark.watermark
        return watermark is not None and base <= watermark.base_offset


def _lowest_base(bases: Iterable[int], mark: ArchiveEnd) -> int:
    """Return the base offset of the segment with the start of the archive. Segments below it, which
    a killed `sidetier gc` has left, are not part of the archive.
    """
    start = mark.watermark.start_offset if mark.watermark else None
    return 0 if start is None else max((base for base in bases if base <= start), default=0)


def partition_row(stored: ListedPartition, mark: ArchiveEnd, *, quick: bool) -> PartitionRow:
    """Return a partition's row. With `quick`, no segment counts as uncommitted."""
    watermark = mark.watermark.base_offset if mark.watermark else None
    start = mark.watermark.start_offset if mark.watermark else None
    above = 0
    if not quick:
        above = sum(watermark is None or base > watermark for base in stored.bases)
    tp = stored.topic_partition
    return PartitionRow(
        topic=tp.topic,
        partition=tp.partition,
        segments=len(stored.bases),
        size_bytes=stored.size,
        first_offset=max(min(stored.bases), start or 0) if stored.bases else None,
        next_offset=mark.next_offset,
        watermark=watermark,
        segments_above_watermark=above,
        problem=_problem(stored, mark, watermark),
    )


def _problem(stored: ListedPartition, mark: ArchiveEnd, watermark: int | None) -> str | None:
    problems = [mark.problem] if mark.problem else []
    if watermark is not None:
        if watermark not in stored.bases:
            problems.append(f"offset.wm names segment {watermark}, which is not stored")
        lowest = _lowest_base(chain(stored.bases, stored.incomplete), mark)
        broken = [base for base in stored.incomplete if lowest <= base <= watermark]
        if broken:
            problems.append(f"segments without all of their files: {first_of(broken, 3)}")
    return "; ".join(problems) or None


def segment_row(
    segment: SegmentFiles, noted: NotedSegment, mark: ArchiveEnd, lowest: int
) -> SegmentRow:
    """Return the row of a segment. `lowest` is the base offset of the archive's first segment."""
    watermark, log = mark.watermark, segment.files.get(FileKind.LOG)
    return SegmentRow(
        base_offset=segment.base_offset,
        next_offset=noted.next_offset,
        size_bytes=None if log is None else log.size,
        max_timestamp_ms=noted.largest_timestamp,
        files=tuple(kind.value.removeprefix(".") for kind in FileKind if kind in segment.files),
        above_watermark=watermark is None or segment.base_offset > watermark.base_offset,
        below_start=segment.base_offset < lowest,
        complete=not segment.missing,
    )


def _time_text(milliseconds: int | None) -> str | None:
    if milliseconds is None or milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return str(milliseconds)  # a producer can send any timestamp


_AT_ONCE: Final = 16
"""Maximum number of concurrent requests."""

T = TypeVar("T")
V = TypeVar("V")


@options
class LsOptions(CommandOptions):
    """Options of `sidetier ls`."""

    topic: str | None = argument(parse=topic_name)
    partition: int | None = argument(type=PARTITION)
    quick: bool = option(
        "--quick", help="Omit columns that cost a request for each partition or segment."
    )


@kernel.command("ls")
def command(options: LsOptions) -> PartitionsResult | SegmentsResult:
    """List the partitions on the store, or the segments of one partition.

    NOT COMMITTED counts stored segments above the offset that is archived up to: readers do not see
    them yet. In the list of segments, COMMITTED is "below start" for a leftover below the start of
    the archive, which is not part of it.

    Requests on S3: one listing for every 1,000 objects, at least one for each entropy prefix (32
    with 5 bits; one for a single partition), and without --quick one more for each partition, or
    for each segment of a named partition.

    \b
    Example:
      sidetier ls orders 3 --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 no problem; 2 nothing is archived of the named topic or partition; 3 something is
    missing or cannot be parsed.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = options.call.load(needs_log_dirs=False).config
    topic, partition = options.topic, options.partition
    result: PartitionsResult | SegmentsResult
    with (
        open_every_store(with_short_timeouts(config), connections=_AT_ONCE) as stores,
        _pool() as pool,
    ):
        lister = _Lister(config, layout_of(config), stores, pool, quick=options.quick)
        if topic is not None and partition is not None:
            result = lister.segments(TopicPartition(topic, partition))
        else:
            result = lister.partitions(topic)
        if topic is not None and result.is_empty:
            url = config.storage.target(topic).url
            raise not_archived(stores.store(topic), lister.layout, url, topic, partition)
    return result


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="ls")


@dataclass(frozen=True, slots=True)
class _Lister:
    """Lists the stores, with several requests at the same time."""

    config: "Config"
    layout: "ArchiveLayout"
    stores: ArchiveAccess
    pool: ThreadPoolExecutor
    quick: bool

    def partitions(self, topic: str | None) -> PartitionsResult:
        """List all partitions, or only the partitions of one topic."""
        rows = [
            row
            for store in self.stores.by_endpoint.values()
            for row in self._in_store(store, topic)
        ]
        rows.sort(key=lambda row: (row.topic, row.partition))
        return PartitionsResult(self.layout.cluster, rows)

    def _in_store(self, store: "RemoteStorage", topic: str | None) -> Iterator[PartitionRow]:
        self._check(store)

        def listed(prefix: str) -> list[ListedPartition]:
            return list(list_partitions(store, self.layout, prefix, topic))

        prefixes = cluster_prefixes(store, self.layout)
        partitions = [
            partition
            for prefix_partitions in self._map(listed, prefixes)
            for partition in prefix_partitions
        ]
        partitions = [
            partition
            for partition in partitions
            if self.stores.store(partition.topic_partition.topic) is store
        ]
        read = partial(self._watermark_of, store)
        for stored, mark in zip(partitions, self._map(read, partitions), strict=True):
            yield partition_row(self._as_of(mark, stored, store), mark, quick=self.quick)

    def _as_of(
        self, mark: ArchiveEnd, stored: ListedPartition, store: "RemoteStorage"
    ) -> ListedPartition:
        """List the partition again if a sidecar has moved `offset.wm` beyond the first listing."""
        if mark.watermark is None or mark.watermark.base_offset in stored.bases:
            return stored
        tp = stored.topic_partition
        prefix = self.layout.partition_prefix(tp).removesuffix(f"{tp}/")
        again = list_partitions(store, self.layout, prefix, tp.topic)
        return next((partition for partition in again if partition.topic_partition == tp), stored)

    def _watermark_of(self, store: "RemoteStorage", stored: ListedPartition) -> ArchiveEnd:
        if self.quick:
            return ArchiveEnd(problem=None if stored.has_watermark else NO_WATERMARK)
        return StoredPartition(store, self.layout, stored.topic_partition).end()

    def segments(self, tp: TopicPartition) -> SegmentsResult:
        """List the segments of one partition."""
        store = self.stores.store(tp.topic)
        self._check(store)
        # read first: a sidecar may move it during the listing
        stored = StoredPartition(store, self.layout, tp)
        archive_end = stored.end()
        segments = list(stored.segments())

        def noted(segment: SegmentFiles) -> NotedSegment:
            if self.quick or FileKind.LOG not in segment.files:
                return NotedSegment(segment.base_offset)
            return stored.noted(segment)

        lowest = _lowest_base((segment.base_offset for segment in segments), archive_end)
        rows = [
            segment_row(segment, facts, archive_end, lowest)
            for segment, facts in zip(segments, self._map(noted, segments), strict=True)
        ]
        url = self.config.storage.target(tp.topic).url
        return SegmentsResult(tp, f"{url}/{self.layout.partition_prefix(tp)}", archive_end, rows)

    def _map(self, function: Callable[[T], V], items: Iterable[T]) -> Iterator[V]:
        return self.pool.map(function, items)

    def _check(self, store: "RemoteStorage") -> None:
        """Refuse other entropy bits: the listing would be empty, although the store has objects."""
        note = read_note(store, self.layout)
        if note is not None:
            check_note(note, self.layout, None)
