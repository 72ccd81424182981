"""What lies on a store: the partitions of a cluster, and the segments of a partition.

A store is asked by listings, one object after the other in the order of their keys; on S3 that is a
request for every 1,000 objects. What all keys of a cluster begin with: see `archive.topics`.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from sidetier.archive.objects.segment import derive_next_offset
from sidetier.archive.objects.watermark import Watermark, read_watermark
from sidetier.archive.topics import cluster_prefixes, live_partition, stored_partitions
from sidetier.config.problems import suggestion
from sidetier.segments.errors import (
    ArchiveError,
    ConfigurationError,
    ObjectNotFoundError,
    SegmentError,
)
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.names import FileKind
from sidetier.segments.notes import MAX_TIMESTAMP_KEY, NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage

_NEEDED: Final = frozenset({FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX})


NO_WATERMARK: Final = "no offset.wm"
"""The problem of a partition of which nothing is committed."""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """What a listing shows of one partition; `size` is in bytes over all of its objects."""

    topic_partition: TopicPartition
    size: int = 0
    bases: "array[int]" = field(default_factory=lambda: array("q"))
    """Base offsets of the stored `.log`s, rising."""
    incomplete: "array[int]" = field(default_factory=lambda: array("q"))
    """Base offsets of the segments that lack one of their three files."""
    has_watermark: bool = False


@dataclass(frozen=True, slots=True)
class ArchiveEnd:
    """A partition's watermark and next offset, and what is wrong with them."""

    watermark: Watermark | None = None
    next_offset: Offset | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StoredSegmentFiles:
    """The files of one segment, by kind, with their sizes in bytes."""

    base_offset: BaseOffset
    sizes: dict[FileKind, int]

    @property
    def is_complete(self) -> bool:
        """All three files that a reader needs are there."""
        return self.sizes.keys() >= _NEEDED


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a stored `.log` says of itself; None where Pinterest's uploader wrote it, and says
    nothing.
    """

    next_offset: Offset | None = None
    max_timestamp: int | None = None


def list_partitions(
    store: RemoteStorage, layout: ArchiveLayout, cluster_prefix: str, topic: str | None = None
) -> Iterator[StoredPartition]:
    """The partitions below one of `cluster_prefixes`, of one topic only where it is given."""
    wanted = cluster_prefix if topic is None else f"{cluster_prefix}{topic}-"
    rows = store.list_objects(wanted)
    for directory, group in groupby(rows, lambda row: _directory(row, cluster_prefix)):
        tp = live_partition(directory, layout, cluster_prefix)
        if tp is not None and topic in {None, tp.topic}:
            yield _summarized(tp, f"{cluster_prefix}{directory}/", group)


def not_archived(
    store: RemoteStorage, layout: ArchiveLayout, url: str, topic: str, partition: int | None = None
) -> ConfigurationError:
    """The error for a topic, or a partition, that was named and of which nothing is archived.

    Costs a listing of all partitions of the cluster, to suggest a topic with a similar name.
    """
    stored = {
        tp
        for prefix in cluster_prefixes(store, layout)
        for tp in stored_partitions(store, layout, prefix)
    }
    topics = sorted({tp.topic for tp in stored})
    where = f"in the archive of cluster {layout.cluster} at {url}"
    if partition is not None and topic in topics:
        numbers = sorted(tp.partition for tp in stored if tp.topic == topic)
        return ConfigurationError(
            f"there is no partition {topic}-{partition} {where}; partitions of {topic} there: "
            f"{first_of(numbers)}"
        )
    if not topics:
        return ConfigurationError(f"there is no topic {topic} {where}, which is empty")
    near = suggestion(topic, topics) or f"; topics there: {first_of(topics)}"
    return ConfigurationError(f"there is no topic {topic} {where}{near}")


def first_of(names: Sequence[object], most: int = 5) -> str:
    """The first names, and how many more there are: `a, b and 7 more`."""
    shown = ", ".join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _directory(row: ObjectSummary, prefix: str) -> str:
    directory, slash, _ = row.key.removeprefix(prefix).partition("/")
    return directory if slash else ""


def _summarized(tp: TopicPartition, prefix: str, rows: Iterable[ObjectSummary]) -> StoredPartition:
    size, bases, incomplete = 0, array("q"), array("q")
    has_watermark = False
    for base, group in groupby(rows, lambda row: _base_of(row, prefix)):
        files = list(group)
        size += sum(row.size for row in files)
        if base is None:
            has_watermark |= any(row.key == f"{prefix}offset.wm" for row in files)
            continue
        segment = _segment(base, files, prefix)
        if FileKind.LOG in segment.sizes:
            bases.append(base)
        if not segment.is_complete:
            incomplete.append(base)
    return StoredPartition(tp, size, bases, incomplete, has_watermark)


def list_segments(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> Iterator[StoredSegmentFiles]:
    """The segments of one partition by rising base offset, from one listing."""
    prefix = layout.partition_prefix(tp)
    for base, group in groupby(store.list_objects(prefix), lambda row: _base_of(row, prefix)):
        if base is not None:
            yield _segment(base, list(group), prefix)


def _base_of(row: ObjectSummary, prefix: str) -> BaseOffset | None:
    parsed = parse_object_key(row.key, prefix)
    return None if parsed is None else parsed[0]


def _segment(base: BaseOffset, rows: list[ObjectSummary], prefix: str) -> StoredSegmentFiles:
    parsed = ((parse_object_key(row.key, prefix), row.size) for row in rows)
    return StoredSegmentFiles(base, {found[1]: size for found, size in parsed if found})


def read_archive_end(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> ArchiveEnd:
    """The watermark: one request, and some more where Pinterest's uploader wrote it without a next
    offset.

    What is stored wrongly is told in `problem`; what the store refuses is raised.
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
    """What a stored `.log` says of itself: one request."""
    try:
        said = store.head_object(layout.object_key(tp, base, FileKind.LOG)).metadata
    except ObjectNotFoundError:
        return LogFacts()
    number: Callable[[str], int | None] = lambda name: _number(said.get(name))  # noqa: E731
    found = number(NEXT_OFFSET_KEY)
    return LogFacts(None if found is None else Offset(found), number(MAX_TIMESTAMP_KEY))


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
