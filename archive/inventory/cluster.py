"""Summarize the partitions of a cluster from one listing of all their objects.

`archive.topics` finds the partitions without a listing of their objects.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from sidetier.archive.objects.segment import segment_files
from sidetier.archive.topics import live_partition
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage


@dataclass(frozen=True, slots=True)
class ListedPartition:
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


def list_partitions(
    store: RemoteStorage, layout: ArchiveLayout, cluster_prefix: str, topic: str | None = None
) -> Iterator[ListedPartition]:
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


def _summarized(tp: TopicPartition, prefix: str, rows: Iterable[ObjectSummary]) -> ListedPartition:
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
    return ListedPartition(tp, size, bases, incomplete, has_watermark)
