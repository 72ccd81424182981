"""Overviews of an archive: its partitions, or the segments of one of them, and their problems.

Sends several requests at the same time.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from sidetier.archive.inventory.cluster import ListedPartition, list_partitions
from sidetier.archive.inventory.contents import ArchiveEnd, NotedSegment
from sidetier.archive.inventory.stored_partition import NO_WATERMARK, StoredPartition
from sidetier.archive.objects.layout import check_stored_note
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.topics import cluster_prefixes
from sidetier.config.problems import first_of
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition

if TYPE_CHECKING:
    from sidetier.archive.access import ArchiveAccess
    from sidetier.storage.port import RemoteStorage

REQUESTS: Final = 16
"""Maximum number of concurrent requests."""
_SHOWN_BASES: Final = 3


@dataclass(frozen=True, slots=True)
class PartitionOverview:
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


@dataclass(frozen=True, slots=True)
class SegmentOverview:
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


@dataclass(frozen=True, slots=True)
class SegmentsOverview:
    """The segments of one partition; `uri` ends in a slash."""

    topic_partition: TopicPartition
    uri: str
    end: ArchiveEnd
    segments: Sequence[SegmentOverview]

    @property
    def is_empty(self) -> bool:
        """Whether the partition has neither a segment nor an `offset.wm`."""
        return not self.segments and self.end.watermark is None

    @property
    def problem(self) -> str | None:
        """Description of the problems; None without a problem."""
        committed = [segment for segment in self.segments if not segment.above_watermark]
        broken = [s.base_offset for s in committed if not s.complete and not s.below_start]
        return _joined([self.end.problem if self.segments else None, *_incomplete(broken)])


def list_archive(
    archive: "ArchiveAccess", topic: str | None = None, *, quick: bool = False
) -> list[PartitionOverview]:
    """List the partitions in all stores, or those of one topic, in order.

    Args:
        archive: The archive.
        topic: The name of the topic; None for all.
        quick: Whether to leave out what costs a request for each partition: `next_offset` and
            `watermark` are None then, and no segment counts as uncommitted.

    Raises:
        ConfigurationError: A store has another layout than configured.
        StorageError: A store could not be listed.
    """
    with _pool() as pool:
        rows = [
            row
            for store in archive.by_endpoint.values()
            for row in _in_store(archive, store, topic, pool, quick=quick)
        ]
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def list_segments(
    archive: "ArchiveAccess", tp: TopicPartition, *, quick: bool = False
) -> SegmentsOverview:
    """List the segments of one partition.

    Args:
        archive: The archive.
        tp: The partition.
        quick: Whether to leave out what costs a request for each segment: `next_offset` and
            `max_timestamp_ms` are None then.

    Raises:
        ConfigurationError: The store has another layout than configured.
        StorageError: The partition could not be listed.
    """
    check_stored_note(archive.store(tp.topic), archive.layout, None)
    # read first: a sidecar may move it during the listing
    stored = archive.partition(tp)
    end = stored.end()
    segments = list(stored.segments())

    def noted(segment: SegmentFiles) -> NotedSegment:
        if quick or FileKind.LOG not in segment.files:
            return NotedSegment(segment.base_offset)
        return stored.noted(segment)

    lowest = _lowest_base((segment.base_offset for segment in segments), end)
    with _pool() as pool:
        rows = [
            _segment(segment, facts, end, lowest)
            for segment, facts in zip(segments, pool.map(noted, segments), strict=True)
        ]
    return SegmentsOverview(tp, f"{archive.url(tp.topic)}/{stored.prefix}", end, rows)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=REQUESTS, thread_name_prefix="overview")


def _in_store(
    archive: "ArchiveAccess",
    store: "RemoteStorage",
    topic: str | None,
    pool: ThreadPoolExecutor,
    *,
    quick: bool,
) -> Iterator[PartitionOverview]:
    layout = archive.layout
    check_stored_note(store, layout, None)

    def listed(prefix: str) -> list[ListedPartition]:
        return list(list_partitions(store, layout, prefix, topic))

    def read(listed: ListedPartition) -> tuple[ListedPartition, ArchiveEnd]:
        if quick:
            return listed, ArchiveEnd(problem=None if listed.has_watermark else NO_WATERMARK)
        stored = StoredPartition(store, layout, listed.topic_partition)
        end = stored.end()
        return _as_of(end, listed, stored), end

    partitions = [
        partition
        for partition in chain.from_iterable(pool.map(listed, cluster_prefixes(store, layout)))
        if archive.store(partition.topic_partition.topic) is store
    ]
    for partition, end in pool.map(read, partitions):
        yield _partition(partition, end, quick=quick)


def _as_of(end: ArchiveEnd, listed: ListedPartition, stored: StoredPartition) -> ListedPartition:
    """List the partition again if a sidecar has moved `offset.wm` beyond the first listing."""
    if end.watermark is None or end.watermark.base_offset in listed.bases:
        return listed
    prefix = stored.prefix.removesuffix(f"{stored.tp}/")
    again = list_partitions(stored.store, stored.layout, prefix, stored.tp.topic)
    return next(
        (partition for partition in again if partition.topic_partition == stored.tp), listed
    )


def _partition(stored: ListedPartition, end: ArchiveEnd, *, quick: bool) -> PartitionOverview:
    watermark = end.watermark.base_offset if end.watermark else None
    start = end.watermark.start_offset if end.watermark else None
    above = 0
    if not quick:
        above = sum(watermark is None or base > watermark for base in stored.bases)
    return PartitionOverview(
        topic=stored.topic_partition.topic,
        partition=stored.topic_partition.partition,
        segments=len(stored.bases),
        size_bytes=stored.size,
        first_offset=max(min(stored.bases), start or 0) if stored.bases else None,
        next_offset=end.next_offset,
        watermark=watermark,
        segments_above_watermark=above,
        problem=_joined([end.problem, *_problems(stored, end, watermark)]),
    )


def _problems(stored: ListedPartition, end: ArchiveEnd, watermark: int | None) -> Iterator[str]:
    if watermark is None:
        return
    if watermark not in stored.bases:
        yield f"offset.wm names segment {watermark}, which is not stored"
    lowest = _lowest_base(chain(stored.bases, stored.incomplete), end)
    yield from _incomplete([base for base in stored.incomplete if lowest <= base <= watermark])


def _incomplete(bases: Sequence[int]) -> Iterator[str]:
    if bases:
        yield f"segments without all of their files: {first_of(bases, _SHOWN_BASES)}"


def _joined(problems: Iterable[str | None]) -> str | None:
    return "; ".join(filter(None, problems)) or None


def _lowest_base(bases: Iterable[int], end: ArchiveEnd) -> int:
    """Return the base offset of the segment with the start of the archive; 0 if it is not known.

    Segments below it, which a killed `sidetier gc` has left, are not part of the archive.
    """
    start = end.watermark.start_offset if end.watermark else None
    return 0 if start is None else max((base for base in bases if base <= start), default=0)


def _segment(
    segment: SegmentFiles, noted: NotedSegment, end: ArchiveEnd, lowest: int
) -> SegmentOverview:
    watermark, log = end.watermark, segment.files.get(FileKind.LOG)
    return SegmentOverview(
        base_offset=segment.base_offset,
        next_offset=noted.next_offset,
        size_bytes=None if log is None else log.size,
        max_timestamp_ms=noted.largest_timestamp,
        files=tuple(kind.value.removeprefix(".") for kind in FileKind if kind in segment.files),
        above_watermark=watermark is None or segment.base_offset > watermark.base_offset,
        below_start=segment.base_offset < lowest,
        complete=not segment.missing,
    )
