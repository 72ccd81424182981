"""What the files beside segments tell of transactions, without reading a `.log`.

The `.txnindex` of a segment has what was aborted in it, the producer snapshot of the next one which
transactions were open at its end. Together they say all that the segment's markers do. Each is
believed only where its checksum is the one that is noted with its `.log`; of Pinterest's, and of
slices, nothing is.
"""

from dataclasses import dataclass

from sidetier.archive.objects.segment import StoredLog, noted_next_offset
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
    """The transactions of one segment, up to, not including, the offset `below`."""

    below: Offset
    aborted: tuple[AbortedTxn, ...]
    still_open: tuple[OpenTransaction, ...]


def transactions_of(
    store: RemoteStorage, log: StoredLog, following: StoredLog
) -> SegmentTransactions | None:
    """What is known of a segment from the files beside it and its successor; None where they do not
    say, and its markers must be read. Two requests, and one for each file.

    Raises:
        StorageError: as the port says.
    """
    try:
        head, successor = store.head_object(log.key), store.head_object(following.key)
        end = noted_next_offset(head)
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
    """The transactions that were open where a segment begins; None where nothing says. Two requests
    at most.

    Raises:
        StorageError: as the port says.
    """
    try:
        producers = _noted(store, store.head_object(log.key), FileKind.SNAPSHOT)
        if producers is None:
            return None
        return open_transactions(producers) if producers else ()
    except (ObjectNotFoundError, DamagedSegmentError, UnsupportedFormatError):
        return None


def _noted(store: RemoteStorage, head: ObjectHead, kind: FileKind) -> bytes | None:
    """The bytes of a file that only some segments have; empty where the broker had none."""
    noted = head.metadata.get(NOTE_KEYS[kind])
    if noted == NONE:
        return b""
    if noted is None:
        return None
    data = store.get_object(head.key.removesuffix(FileKind.LOG.value) + kind.value).data
    return data if f"{crc64nvme(data):016x}" == noted else None
