"""Listings of a store: the partitions of a cluster, and the segments of a partition.

A listing returns objects in the order of their keys. On S3 it costs one request for every 1,000
objects. `archive.topics` describes the prefixes of a cluster's keys.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from sidetier.archive.objects.notes import noted_next_offset, noted_number
from sidetier.archive.objects.segment import SegmentFiles, derive_next_offset, segment_files
from sidetier.archive.objects.watermark import Watermark, read_watermark
from sidetier.archive.topics import live_partition
from sidetier.segments.errors import (
    ArchiveError,
    ObjectNotFoundError,
    SegmentError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import MAX_TIMESTAMP_KEY
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage

NO_WATERMARK: Final = "no offset.wm"
"""Problem text for a partition without `offset.wm`: no segment of it is committed."""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """One partition as a listing shows it.

    Attributes:
        size: Size of all objects of the partition, in bytes.
        has_watermark: Whether `offset.wm` exists.
    """

    topic_partition: TopicPartition
    size: int = 0
    bases: "array[int]" = field(default_factory=lambda: array("q"))
    """Base offsets of the stored `.log` files, ascending."""
    incomplete: "array[int]" = field(default_factory=lambda: array("q"))
    """Base offsets of segments that lack `.log`, `.index` or `.timeindex`."""
    has_watermark: bool = False


@dataclass(frozen=True, slots=True)
class ArchiveEnd:
    """A partition's `offset.wm` and archive end offset, or the problem with them."""

    watermark: Watermark | None = None
    next_offset: Offset | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Metadata of a stored `.log`. Both fields are None if Pinterest's uploader wrote it."""

    next_offset: Offset | None = None
    max_timestamp: int | None = None


def list_partitions(
    store: RemoteStorage, layout: ArchiveLayout, cluster_prefix: str, topic: str | None = None
) -> Iterator[StoredPartition]:
    """Yield the partitions below one of `cluster_prefixes`, optionally of one topic only."""
    wanted_prefix = cluster_prefix if topic is None else f"{cluster_prefix}{topic}-"
    rows = store.list_objects(wanted_prefix)
    for directory, group in groupby(rows, lambda row: _directory(row, cluster_prefix)):
        tp = live_partition(directory, layout, cluster_prefix)
        if tp is not None and topic in {None, tp.topic}:
            yield _summarized(tp, f"{cluster_prefix}{directory}/", group)


def _directory(row: ObjectSummary, prefix: str) -> str:
    directory, slash, _ = row.key.removeprefix(prefix).partition("/")
    return directory if slash else ""


def _summarized(tp: TopicPartition, prefix: str, rows: Iterable[ObjectSummary]) -> StoredPartition:
    size, has_watermark = 0, False

    def tallied() -> Iterator[ObjectSummary]:
        nonlocal size, has_watermark
        for row in rows:
            size += row.size
            has_watermark |= row.key == f"{prefix}offset.wm"
            yield row

    bases, incomplete = array("q"), array("q")
    for segment in segment_files(tallied(), prefix):
        if FileKind.LOG in segment.files:
            bases.append(segment.base_offset)
        if segment.missing:
            incomplete.append(segment.base_offset)
    return StoredPartition(tp, size, bases, incomplete, has_watermark)


def list_segments(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> Iterator[SegmentFiles]:
    """Yield the segments of one partition by ascending base offset, from one listing."""
    prefix = layout.partition_prefix(tp)
    return segment_files(store.list_objects(prefix), prefix)


def read_archive_end(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> ArchiveEnd:
    """Read a partition's `offset.wm`.

    Sends one request, and a few more if Pinterest's uploader wrote the object without a next
    offset.

    Returns:
        The archive end. `problem` describes an object that is absent or cannot be parsed.

    Raises:
        StorageError: The store refuses the request or does not answer.
    """
    key = layout.watermark_key(tp)
    try:
        stored = read_watermark(store, key)
    except ArchiveError as error:
        return ArchiveEnd(problem=str(error))
    if stored is None:
        return ArchiveEnd(problem=NO_WATERMARK)
    watermark = stored.watermark
    if watermark.next_offset is not None:
        return ArchiveEnd(watermark, watermark.next_offset)
    try:
        derived = derive_next_offset(store, layout, tp, watermark.base_offset)
    except (ArchiveError, SegmentError) as error:
        return ArchiveEnd(watermark, problem=str(error))
    return ArchiveEnd(watermark, derived)


def read_log_facts(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, base: BaseOffset
) -> LogFacts:
    """Read the metadata of a stored `.log`, with one request."""
    try:
        head = store.head_object(layout.object_key(tp, base, FileKind.LOG))
    except ObjectNotFoundError:
        return LogFacts()
    return LogFacts(noted_next_offset(head), noted_number(head, MAX_TIMESTAMP_KEY))
