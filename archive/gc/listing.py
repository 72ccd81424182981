"""Read an archive for a collection, and refuse one from which nothing may be deleted."""

from collections.abc import Iterable

from sidetier.archive.inventory.contents import Inventory
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.notes import noted_next_offset
from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.objects.watermark import StoredWatermark
from sidetier.archive.pinterest import Ends
from sidetier.segments.errors import ArchiveError
from sidetier.segments.offsets import OffsetRange
from sidetier.storage.port import RemoteStorage


class NotCollectableError(ArchiveError):
    """The archive of a partition is in a state in which nothing may be deleted. Says why."""


class AbsentArchiveError(NotCollectableError):
    """Nothing of the partition is stored. Markers without a `.log` can keep its directory."""


def list_archive(stored: StoredPartition) -> tuple[StoredWatermark, Inventory]:
    """Read `offset.wm`, list all objects, and read `_metadata`.

    Raises:
        AbsentArchiveError: Nothing is stored.
        NotCollectableError: Nothing may be deleted.
        MalformedObjectError: `offset.wm` or `_metadata` does not parse.
    """
    mark = stored.watermark()
    if mark is None and stored.is_empty():
        raise AbsentArchiveError(f"nothing is stored below {stored.prefix}")
    mark = _collectable(mark, stored.layout.watermark_key(stored.tp))
    inventory = stored.committed(mark)
    if inventory.logs and not inventory.names:
        # Segments may overlap, and a late sidecar's must not be kept instead of the archive's.
        raise NotCollectableError(
            f"{stored.layout.metadata_key(stored.tp)} has no entry, so it is unknown which stored "
            "segments belong to the archive; run `sidetier repair`"
        )
    return mark, inventory


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
