"""Read a segment's transactions from the files beside it, without reading its `.log`.

The `.txnindex` of a segment has its aborted transactions. The producer snapshot of the next segment
has the transactions that were open at its end. Together they say the same as the segment's control
records. A file is used only if its checksum equals the one in the metadata of its `.log`. Segments
of Pinterest's uploader and slices of segments have no such checksum.
"""

from dataclasses import dataclass

from sidetier.archive.objects.notes import noted_next_offset
from sidetier.archive.objects.segment import StoredLog
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    DamagedSegmentError,
    ObjectNotFoundError,
    UnsupportedFormatError,
)
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NONE, NOTE_KEYS
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction, open_transactions
from sidetier.segments.txn_index import AbortedTxn, parse_txn_index
from sidetier.storage.port import ObjectHead, RemoteStorage


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """The transactions of one segment.

    Attributes:
        below: End of the segment, exclusive.
        aborted: The aborted transactions.
        still_open: The transactions that are open at `below`.
    """

    below: Offset
    aborted: tuple[AbortedTxn, ...]
    still_open: tuple[OpenTransaction, ...]


def transactions_of(
    store: RemoteStorage, log: StoredLog, following: StoredLog
) -> SegmentTransactions | None:
    """Read a segment's transactions from the files beside it and beside its successor.

    Needs two requests, and one for each file.

    Returns:
        None if the files are not usable. Then the segment's control records must be read.

    Raises:
        StorageError: As `RemoteStorage` says.
    """
    try:
        head, successor = store.head_object(log.key), store.head_object(following.key)
        end = noted_next_offset(head)
        # With a gap or an overlap behind the segment, the successor's
        # snapshot describes another offset than the segment's end.
        if end is None or int(end) != int(following.base_offset):
            return None
        aborted = _noted(store, head, FileKind.TXNINDEX)
        producers = _noted(store, successor, FileKind.SNAPSHOT)
        if aborted is None or producers is None:
            return None
        return SegmentTransactions(
            end, parse_txn_index(aborted), open_transactions(producers) if producers else ()
        )
    except (ObjectNotFoundError, DamagedSegmentError, UnsupportedFormatError):
        return None


def open_at_base(store: RemoteStorage, log: StoredLog) -> tuple[OpenTransaction, ...] | None:
    """Read the transactions that were open at a segment's base offset. At most two requests.

    Returns:
        None if no usable producer snapshot is stored.

    Raises:
        StorageError: As `RemoteStorage` says.
    """
    try:
        producers = _noted(store, store.head_object(log.key), FileKind.SNAPSHOT)
        if producers is None:
            return None
        return open_transactions(producers) if producers else ()
    except (ObjectNotFoundError, DamagedSegmentError, UnsupportedFormatError):
        return None


def _noted(store: RemoteStorage, head: ObjectHead, kind: FileKind) -> bytes | None:
    """Read an optional file of a segment; empty if the broker had none, None if not usable."""
    noted = head.metadata.get(NOTE_KEYS[kind])
    if noted == NONE:
        return b""
    if noted is None:
        return None
    data = store.get_object(head.key.removesuffix(FileKind.LOG.value) + kind.value).data
    # Another attempt may have stored another version of the file, for example before compaction.
    return data if f"{crc64nvme(data):016x}" == noted else None
