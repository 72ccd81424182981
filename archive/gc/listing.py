"""List an archive with all of its files, and refuse one from which nothing may be deleted."""

from collections.abc import Iterable
from dataclasses import dataclass

from sidetier.archive.objects.gaps import recorded_gaps
from sidetier.archive.objects.notes import noted_next_offset
from sidetier.archive.objects.pinterest_metadata import read_metadata
from sidetier.archive.objects.segment import StoredLog, stored_logs
from sidetier.archive.objects.watermark import StoredWatermark, read_watermark
from sidetier.archive.orphan_segments import without_orphans
from sidetier.archive.partition_listing import partition_rows
from sidetier.archive.pinterest import Ends
from sidetier.archive.view import ArchiveView, view_of_ours
from sidetier.segments.errors import ArchiveError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage


class NotCollectableError(ArchiveError):
    """The archive of a partition is in a state in which nothing may be deleted. Says why."""


class AbsentArchiveError(NotCollectableError):
    """Nothing of the partition is stored. Markers without a `.log` can keep its directory."""


@dataclass(frozen=True, slots=True)
class ListedArchive:
    """An archive as it was read.

    Attributes:
        mark: `offset.wm`, as it was before the listing.
        view: The archive's segments.
        rows: All objects of the partition, by key.
        named: Base offsets in `_metadata`.
    """

    mark: StoredWatermark
    view: ArchiveView
    rows: list[ObjectSummary]
    named: frozenset[BaseOffset]


def list_archive(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> ListedArchive:
    """Read `offset.wm` and `_metadata`, and list all objects.

    Raises:
        AbsentArchiveError: Nothing is stored.
        NotCollectableError: Nothing may be deleted.
        MalformedObjectError: `offset.wm` or `_metadata` does not parse.
        StorageError: As `RemoteStorage` says.
    """
    prefix = layout.partition_prefix(tp)
    stored = read_watermark(store, layout.watermark_key(tp))
    if stored is None and next(iter(store.list_objects(prefix)), None) is None:
        raise AbsentArchiveError(f"nothing is stored below {prefix}")
    mark = _collectable(stored, layout.watermark_key(tp))
    last = mark.watermark.base_offset
    rows = partition_rows(store, prefix, last)
    metadata = read_metadata(store, layout.metadata_key(tp))
    entries = () if metadata is None else metadata.metadata.entries
    named = frozenset(entry.base_offset for entry in entries)

    def noted_end(log: StoredLog) -> Offset | None:
        return noted_next_offset(store.head_object(log.key))

    committed = [log for log in stored_logs(rows, prefix) if log.base_offset <= last]
    if committed and not named:
        # Segments may overlap, and a late sidecar's must not be kept instead of the archive's.
        raise NotCollectableError(
            f"{layout.metadata_key(tp)} has no entry, so it is unknown which stored segments "
            "belong to the archive; run `sidetier repair`"
        )
    logs = without_orphans(committed, named, noted_end)
    view = view_of_ours(prefix, mark.watermark, mark.etag, logs)
    return ListedArchive(mark, view, rows, named)


def gaps_from(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, start: Offset
) -> list[OffsetRange]:
    """List the recorded gaps at or above an offset. A gap around it begins there. One request."""
    gaps = recorded_gaps(store, layout, [tp])[tp]
    return [OffsetRange(max(gap.start, start), gap.end) for gap in gaps if gap.end > start]


def has_offsets_of(store: RemoteStorage, log: StoredLog, gaps: Iterable[OffsetRange]) -> bool:
    """Return whether a segment has offsets of a gap: it may be the only copy of their records.

    One request, and some more if Pinterest's uploader has stored the segment.
    """
    end = noted_next_offset(store.head_object(log.key))
    if end is None:
        end = Ends(store)(log)
    return any(log.base_offset < gap.end and end > gap.start for gap in gaps)


def _collectable(mark: StoredWatermark | None, key: str) -> StoredWatermark:
    if mark is None:
        raise NotCollectableError(f"{key} does not exist, so nothing is known to be archived")
    watermark = mark.watermark
    if watermark.next_offset is None:
        raise NotCollectableError(
            f"{key} was written by Pinterest's uploader; gc deletes nothing before a sidecar has "
            "taken the partition over"
        )
    if watermark.pending is not None:
        raise NotCollectableError(
            "segments of the partition are being moved to quarantine or to "
            "retired/; gc deletes nothing until the move has ended"
        )
    return mark
