"""Cut the segment that contains the divergence: store its first part anew under its own name.

The part is read from the quarantined copy, which no process changes any more. It replaces the whole
segment, which is above `offset.wm` by then, so no reader uses it. A repeated cut finds its own
objects in place.
"""

import contextlib
from collections.abc import Mapping

from sidetier.archive.objects.quarantine import Cut, MovePlan
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    ArchiveConflictError,
    DamagedSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnsupportedFormatError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.notes import (
    BROKER_ID_KEY,
    LEADER_EPOCH_KEY,
    MAX_TIMESTAMP_KEY,
    NEXT_OFFSET_KEY,
    NONE,
    NOTE_KEYS,
    TOPIC_ID_KEY,
    epochs_note,
    records_note,
)
from sidetier.segments.offsets import UNKNOWN_EPOCH
from sidetier.segments.txn_index import encode_txn_index, parse_txn_index
from sidetier.segments.walker import BatchWalker, SegmentFacts
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Condition, IfAbsent, IfMatch, RemoteStorage
from sidetier.uploader.archive.quarantine.relocation import Claim
from sidetier.uploader.archive.quarantine.stored_log import BeginningOf, pieces
from sidetier.uploader.sending.conditional_put import Existing, FileToStore, compare, put_file


def store_cut(
    store: RemoteStorage, layout: ArchiveLayout, plan: MovePlan, cut: Cut, claim: Claim
) -> None:
    """Store the part of the segment that stays, with rebuilt indexes.

    Raises:
        DamagedSegmentError: the quarantined copy is not whole record batches up to the cut.
        ArchiveConflictError: another process has taken over the move, or written the object.
        StorageError: as the port says.
    """
    source = plan.target + segment_file_name(cut.base_offset, FileKind.LOG)
    walker = BatchWalker(source, rebuild_indexes=True)
    for piece in pieces(store, source, cut.size):
        walker.feed(piece)
    facts = walker.finish()
    before = store.head_object(source).metadata
    stay = (NOTE_KEYS[FileKind.SNAPSHOT], TOPIC_ID_KEY)
    kept = {name: before[name] for name in stay if name in before}
    notes = kept | _cut_transactions(store, layout, plan, cut, claim, before)
    for file in _files(layout, plan, cut, BeginningOf(store, source, cut.size), facts, notes):
        _store(store, file, claim)


def _store(store: RemoteStorage, file: FileToStore, claim: Claim) -> None:
    """Store one file, also over the whole one.

    This is the only code that replaces a sidecar's `.log`. It may, because our `offset.wm` ends
    below the segment during the move.
    """
    condition: Condition = IfAbsent()
    with contextlib.suppress(ObjectNotFoundError):
        head = store.head_object(file.key)
        if compare(head, file) is Existing.GOOD and head.size == file.body.size:
            return
        condition = IfMatch(head.etag)
    claim.check()
    try:
        put_file(store, file, condition)
    except PreconditionFailedError:
        raise ArchiveConflictError(f"{file.key} was written while it was to be cut") from None


def _files(
    layout: ArchiveLayout,
    plan: MovePlan,
    cut: Cut,
    log: BeginningOf,
    facts: SegmentFacts,
    notes: Mapping[str, str],
) -> list[FileToStore]:
    if facts.indexes is None:
        raise RuntimeError("the walk was to rebuild the indexes")
    epoch = facts.last_leader_epoch
    noted = {
        NEXT_OFFSET_KEY: str(plan.next_offset),
        MAX_TIMESTAMP_KEY: str(facts.max_timestamp),
        LEADER_EPOCH_KEY: str(UNKNOWN_EPOCH if epoch is None else epoch),
        BROKER_ID_KEY: str(plan.broker_id),
        **epochs_note(facts.epochs),
        **records_note(facts.plain_records),
        **notes,
    }

    def key(kind: FileKind) -> str:
        return layout.object_key(plan.topic_partition, cut.base_offset, kind)

    def small(kind: FileKind, data: bytes) -> FileToStore:
        return FileToStore(key(kind), BytesBody(data), crc64nvme(data), {}, plan.leader_epoch)

    return [
        small(FileKind.INDEX, facts.indexes.index),
        small(FileKind.TIMEINDEX, facts.indexes.timeindex),
        FileToStore(key(FileKind.LOG), log, facts.crc64nvme, noted, plan.leader_epoch),
    ]


def _cut_transactions(
    store: RemoteStorage,
    layout: ArchiveLayout,
    plan: MovePlan,
    cut: Cut,
    claim: Claim,
    before: Mapping[str, str],
) -> dict[str, str]:
    """Store the transaction index without the entries whose abort marker is at the divergence or
    above it.

    Returns:
        The metadata that the `.log` gets about the transaction index. Empty where the whole
        segment's `.log` had none, or the stored index does not match it.
    """
    note, name = NOTE_KEYS[FileKind.TXNINDEX], segment_file_name(cut.base_offset, FileKind.TXNINDEX)
    noted = before.get(note)
    key = layout.object_key(plan.topic_partition, cut.base_offset, FileKind.TXNINDEX)
    try:
        whole = store.get_object(plan.target + name).data
        entries = parse_txn_index(whole, name)
    except (ObjectNotFoundError, DamagedSegmentError, UnsupportedFormatError):
        return {note: NONE} if noted == NONE else {}
    if noted != f"{crc64nvme(whole):016x}":
        return {}
    data = encode_txn_index(e for e in entries if e.last_offset < plan.next_offset)
    if data:
        file = FileToStore(key, BytesBody(data), crc64nvme(data), {}, plan.leader_epoch)
        _store(store, file, claim)
        return {note: f"{file.crc64nvme:016x}"}
    with contextlib.suppress(ObjectNotFoundError):
        head = store.head_object(key)
        claim.check()
        store.delete_object(key, condition=IfMatch(head.etag))
    return {note: NONE}
