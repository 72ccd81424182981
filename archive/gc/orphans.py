"""Objects that are not part of any archive: what kills, late writers and quarantines have left."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from sidetier.archive.gc.listing import (
    AbsentArchiveError,
    has_offsets_of,
    list_archive,
)
from sidetier.archive.inventory.contents import Inventory
from sidetier.archive.inventory.stored_partition import StoredPartition
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
    stored = StoredPartition(store, layout, tp)
    try:
        _, inventory = list_archive(stored)
    except AbsentArchiveError:
        pass
    else:
        yield from _orphans_of_segments(stored, inventory)
    for row in unused_markers(store, stored.prefix):
        yield Orphan(tp, row, OrphanKind.MARKER)


def _orphans_of_segments(stored: StoredPartition, inventory: Inventory) -> Iterator[Orphan]:
    view = inventory.view(stored.prefix)
    members = {log.base_offset for log in view.logs}
    lowest = min(members, default=view.end)
    last = view.watermark.base_offset
    gaps = stored.gaps_from(view.start)
    for segment in inventory.segments:
        base = segment.base_offset
        if base in members:
            continue
        if base > last:
            kind = OrphanKind.ABOVE_END
        elif FileKind.LOG not in segment.files:
            kind = OrphanKind.WITHOUT_LOG
        elif gaps and has_offsets_of(stored.store, segment.stored_log, gaps):
            kind = OrphanKind.IN_GAP
        else:
            kind = OrphanKind.BELOW_START if base < lowest else OrphanKind.DUPLICATE
        for row in segment.files.values():
            yield Orphan(stored.tp, row, kind)


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
                mark = StoredPartition(store, layout, directory.topic_partition).watermark()
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
