"""The stored `leader-epoch-checkpoint`: which leader epoch wrote which of the stored offsets."""

from dataclasses import dataclass

from sidetier.segments.errors import MalformedObjectError, ObjectNotFoundError, SegmentError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.lineage import NO_LINEAGE, Lineage, parse_leader_epoch_checkpoint
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage


@dataclass(frozen=True, slots=True)
class StoredLineage:
    """What is stored, and as which version; no etag where there is none yet."""

    lineage: Lineage = NO_LINEAGE
    etag: str | None = None


def read_lineage(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> StoredLineage:
    """What is stored of a partition, in one request. Epochs that begin at the archive's next offset
    or above are those of a commit that may never come.

    Raises:
        MalformedObjectError: it does not parse.
        StorageError: as the port says.
    """
    key = layout.epoch_checkpoint_key(tp)
    try:
        found = store.get_object(key)
    except ObjectNotFoundError:
        return StoredLineage()
    try:
        lineage = parse_leader_epoch_checkpoint(found.data.decode(), key)
    except (SegmentError, UnicodeDecodeError) as error:
        raise MalformedObjectError(
            f"{key}: not a leader epoch checkpoint: {error}; move it away, and it is written "
            "anew from what the broker knows"
        ) from None
    return StoredLineage(lineage, found.head.etag)
