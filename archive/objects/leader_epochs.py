"""The stored `leader-epoch-checkpoint`: which leader epoch wrote which of the stored offsets."""

from dataclasses import dataclass

from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory, parse_leader_epoch_checkpoint
from sidetier.segments.errors import MalformedObjectError, ObjectNotFoundError, SegmentError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage


@dataclass(frozen=True, slots=True)
class StoredEpochHistory:
    """What is stored, and as which version; no etag where there is none yet."""

    epoch_history: EpochHistory = NO_EPOCHS
    etag: str | None = None


def read_epoch_history(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> StoredEpochHistory:
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
        return StoredEpochHistory()
    try:
        epoch_history = parse_leader_epoch_checkpoint(found.data.decode(), key)
    except (SegmentError, UnicodeDecodeError) as error:
        raise MalformedObjectError(
            f"{key}: not a leader epoch checkpoint: {error}; move it away, and it is written "
            "anew from what the broker knows"
        ) from None
    return StoredEpochHistory(epoch_history, found.head.etag)
