"""Objects that are not part of any archive: what kills, late writers and quarantines have left."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from sidetier.archive.gc.listing import (
    AbsentArchiveError,
    ListedArchive,
    gaps_from,
    has_offsets_of,
    list_archive,
)
from sidetier.archive.objects.segment import segment_files
from sidetier.archive.objects.watermark import read_watermark
from sidetier.segments.errors import MalformedObjectError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import IfMatch, ObjectSummary, RemoteStorage
from sidetier.storage.retrying import unused_markers


class OrphanKind(StrEnum):
    """Why an object is not part of an archive."""

    BELOW_START = "below_start"
    """Its segment begins below the start of the archive: a killed `gc`, or a late sidecar."""
    DUPLICATE = "duplicate"
    """A late sidecar has stored its segment, whose offsets another segment has."""
    WITHOUT_LOG = "without_log"
    """A file of a segment without `.log`, below the archive end."""
    ABOVE_END = "above_end"
    """Its segment is above the archive end. It may be the only copy of its records, and a sidecar
    may still adopt it."""
    IN_GAP = "in_gap"
    """A late sidecar has stored its segment, which has offsets of a recorded gap at or above the
    start of the archive: it may be the only copy of their records."""
    MARKER = "marker"
    """Marker of an encrypted `.log` that is not stored, or that has another size."""
    QUARANTINED = "quarantined"
    """A record that the cluster has discarded in an unclean election, in the quarantine."""


NEVER_DELETED: Final = frozenset({OrphanKind.ABOVE_END, OrphanKind.IN_GAP})


@dataclass(frozen=True, slots=True)
class Orphan:
    """One object that is not part of an archive."""

    topic_partition: TopicPartition | None
    row: ObjectSummary
    kind: OrphanKind


def find_orphans(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> Iterator[Orphan]:
    """Yield the orphans among the files of a partition's segments, then those among the markers.

    Raises:
        As `list_archive`, but not AbsentArchiveError.
    """
    try:
        listed = list_archive(store, layout, tp)
    except AbsentArchiveError:
        pass
    else:
        yield from _orphans_of_segments(store, layout, tp, listed)
    for row in unused_markers(store, layout.partition_prefix(tp)):
        yield Orphan(tp, row, OrphanKind.MARKER)


def _orphans_of_segments(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, listed: ListedArchive
) -> Iterator[Orphan]:
    view = listed.view
    members = {log.base_offset for log in view.logs}
    lowest = min(members, default=view.end)
    last = view.watermark.base_offset
    gaps = gaps_from(store, layout, tp, view.start)
    for segment in segment_files(listed.rows, layout.partition_prefix(tp)):
        base = segment.base_offset
        if base in members:
            continue
        if base > last:
            kind = OrphanKind.ABOVE_END
        elif FileKind.LOG not in segment.files:
            kind = OrphanKind.WITHOUT_LOG
        elif gaps and has_offsets_of(store, segment.stored_log, gaps):
            kind = OrphanKind.IN_GAP
        else:
            kind = OrphanKind.BELOW_START if base < lowest else OrphanKind.DUPLICATE
        for row in segment.files.values():
            yield Orphan(tp, row, kind)


def find_quarantined(
    store: RemoteStorage, layout: ArchiveLayout, topics: Collection[str] = ()
) -> Iterator[Orphan]:
    """Yield the objects in the quarantine of the cluster, in the order of their keys.

    Those of a move that is not finished are left out: the sidecar needs its plan and its copies.

    Args:
        store: The store.
        layout: How keys are made.
        topics: Names of the topics; empty for all.
    """
    prefix = layout.quarantines_prefix()
    rows = store.list_objects(prefix)
    for name, group in groupby(rows, lambda row: row.key.removeprefix(prefix).partition("/")[0]):
        directory = parse_partition_directory(name)
        topic = None if directory is None else directory.topic_partition.topic
        if topics and topic not in topics:
            continue
        pending = None
        if directory is not None:
            try:
                mark = read_watermark(store, layout.watermark_key(directory.topic_partition))
            except MalformedObjectError:
                continue  # whether a move is pending is not known
            pending = None if mark is None else mark.watermark.pending
        for row in group:
            if pending is None or not row.key.startswith(pending):
                yield Orphan(None, row, OrphanKind.QUARANTINED)


def delete_orphan(store: RemoteStorage, orphan: Orphan) -> bool:
    """Delete an orphan in the version that was listed; return False if there is another one.

    A kill leaves the other orphans, which the next call finds again.
    """
    try:
        store.delete_object(orphan.row.key, condition=IfMatch(orphan.row.etag))
    except PreconditionFailedError:
        return False
    return True
