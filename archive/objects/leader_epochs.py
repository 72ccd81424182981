"""The stored `leader-epoch-checkpoint`: the leader epoch of each range of archived offsets."""

from dataclasses import dataclass

from sidetier.segments.epoch_history import (
    NO_EPOCHS,
    EpochHistory,
    encode_leader_epoch_checkpoint,
    parse_leader_epoch_checkpoint,
)
from sidetier.segments.errors import MalformedObjectError, ObjectNotFoundError, SegmentError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage, unchanged


@dataclass(frozen=True, slots=True)
class StoredEpochHistory:
    """A stored epoch history and its etag; the etag is None if nothing is stored."""

    epoch_history: EpochHistory = NO_EPOCHS
    etag: str | None = None


def read_epoch_history(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> StoredEpochHistory:
    """Read the leader epochs of a partition. One request.

    Epochs that begin at or above the `next_offset` of `offset.wm` belong to a commit that may never
    be completed.

    Raises:
        MalformedObjectError: It does not parse.
    """
    key = layout.epoch_checkpoint_key(tp)
    try:
        stored = store.get_object(key)
    except ObjectNotFoundError:
        return StoredEpochHistory()
    try:
        epoch_history = parse_leader_epoch_checkpoint(stored.data.decode(), key)
    except (SegmentError, UnicodeDecodeError) as error:
        raise MalformedObjectError(
            f"{key}: not a leader epoch checkpoint: {error}; move it away, and the sidecar "
            "writes it again from the broker's epochs"
        ) from None
    return StoredEpochHistory(epoch_history, stored.head.etag)


def write_epoch_history(
    store: RemoteStorage, key: str, epoch_history: EpochHistory, etag: str | None
) -> StoredEpochHistory:
    """Replace the object that has this etag, or create it if `etag` is None.

    Raises:
        PreconditionFailedError: Another writer has changed it, or an earlier attempt of this writer
            succeeded and its answer was lost.
    """
    body = BytesBody(encode_leader_epoch_checkpoint(epoch_history).encode())
    return StoredEpochHistory(
        epoch_history, store.put_object(key, body, PutOptions(condition=unchanged(etag)))
    )
