"""Move records that only tail packs have, and that the cluster has lost, to the quarantine.

The archive has other records at their offsets, of a later leader: after an unclean election, or
after a power failure of all replicas. Or it has none: the broker has deleted them before they were
archived. The folder is as that of archived records (`uploader.archive.quarantine`), so the same
alert, acknowledgement, restore and gc apply.

1. The plan: a folder without a segment. The next cleaning finds it in place.
2. The segments: those batches again that no segment has yet. The others are compared.
3. Only then cleaning drops the rows, and copies the packs that have others, too: records that are
   in the quarantine and in a pack.

So a repeat stores what is new, also if it begins with other rows, or has more of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sidetier.archive.objects.quarantine import MoveKind, MovePlan, quarantine_name, write_plan
from sidetier.archive.tail.merge import PackedRow
from sidetier.archive.tail.pack import TailBatch, TailRow, split_range
from sidetier.archive.tail.read import read_rows
from sidetier.segments.batches import split_batches
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import ArchiveConflictError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.notes import (
    BROKER_ID_KEY,
    CHECKSUM_KEY,
    LEADER_EPOCH_KEY,
    MAX_TIMESTAMP_KEY,
    NEXT_OFFSET_KEY,
    TOPIC_ID_KEY,
    epochs_note,
    object_note,
)
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, PutOptions, RemoteStorage

SEGMENT_BYTES: Final = 16 << 20
"""A segment ends with the batch that reaches this size."""


def runs_in(rows: Iterable[PackedRow]) -> Iterator[list[PackedRow]]:
    """Yield the rows of one partition and leader epoch that follow each other or overlap."""
    run: list[PackedRow] = []
    end = 0
    for source in sorted(rows, key=lambda source: source.row.log_order):
        row = source.row
        if run and (row.leader_key != run[0].row.leader_key or row.start > end):
            yield run
            run, end = [], 0
        run.append(source)
        end = max(end, row.end)
    if run:
        yield run


def store_run(
    store: RemoteStorage,
    layout: ArchiveLayout,
    broker: BrokerId,
    run: Sequence[PackedRow],
    replaced_by: LeaderEpoch,
) -> str:
    """Store the records of rows that follow each other in a folder of the quarantine.

    Args:
        store: The store of the packs, and of the archive.
        layout: How keys are made.
        broker: This broker.
        run: The rows, as `runs_in` returns them.
        replaced_by: Newest leader epoch of which the archive has records.

    Returns:
        The prefix of the folder.

    Raises:
        StorageError: A request failed, or a pack is damaged.
        ArchiveConflictError: The folder has other bytes.
    """
    row = run[0].row
    name = quarantine_name(row.start, replaced_by)
    plan = MovePlan(
        MoveKind.QUARANTINE,
        row.tp,
        f"{layout.quarantine_prefix(row.tp)}{name}/",
        row.start,
        leader_epoch=row.leader_epoch,
        broker_id=broker,
        reason=(
            f"records in tail packs, of leader epoch {row.leader_epoch}, which the archive of the "
            f"log of the leader of epoch {replaced_by} does not have"
        ),
    )
    prefix = write_plan(store, plan).target
    for batches in _segments(store, run, prefix):
        _put(store, prefix, broker, run[0].row, batches)
    return prefix


class _Stored(NamedTuple):
    """A batch in the folder."""

    next_offset: Offset
    crc64nvme: int


def _stored_batches(store: RemoteStorage, prefix: str) -> dict[Offset, _Stored]:
    """Read which batches a folder has, by their first offset."""
    stored: dict[Offset, _Stored] = {}
    for listed in store.list_objects(prefix):
        if not listed.key.endswith(FileKind.LOG.value):
            continue
        data = store.get_object(listed.key).data
        for batch, header in split_batches(memoryview(data)):
            stored[header.base_offset] = _Stored(header.next_offset, crc64nvme(batch))
    return stored


def _batches(store: RemoteStorage, run: Iterable[PackedRow]) -> Iterator[tuple[str, TailBatch]]:
    """Yield the batches of a run, each once, with the key of the pack."""
    reached = 0
    for source, data in read_rows(store, run):
        key = source.stored_in.key
        for batch in split_range(source.row, data, key):
            if batch.header.base_offset >= reached:  # else the same record in another row
                reached = batch.header.next_offset
                yield key, batch


def _segments(
    store: RemoteStorage, run: Iterable[PackedRow], prefix: str
) -> Iterator[list[TailBatch]]:
    """Yield the batches that the folder does not have, those of each new segment."""
    stored = _stored_batches(store, prefix)
    pieces: list[TailBatch] = []
    size = 0
    for key, batch in _batches(store, run):
        known = stored.get(batch.header.base_offset)
        if known is None:
            pieces.append(batch)
            size += len(batch.data)
        elif known != (batch.header.next_offset, crc64nvme(batch.data)):
            raise ArchiveConflictError(
                f"{prefix} has another batch at offset {batch.header.base_offset} than {key}: move "
                "the folder away"
            )
        # A segment does not reach over what another one has.
        if pieces and (known is not None or size >= SEGMENT_BYTES):
            yield pieces
            pieces, size = [], 0
    if pieces:
        yield pieces


def _put(
    store: RemoteStorage, prefix: str, broker: BrokerId, row: TailRow, batches: Sequence[TailBatch]
) -> None:
    first, last = batches[0].header, batches[-1].header
    key = prefix + segment_file_name(BaseOffset(first.base_offset), FileKind.LOG)
    data = b"".join(batch.data for batch in batches)
    metadata = {
        **object_note(key, len(data)),
        NEXT_OFFSET_KEY: str(last.next_offset),
        MAX_TIMESTAMP_KEY: str(max(batch.header.max_timestamp for batch in batches)),
        LEADER_EPOCH_KEY: str(row.leader_epoch),
        BROKER_ID_KEY: str(broker),
        TOPIC_ID_KEY: row.topic_id,
        CHECKSUM_KEY: f"{crc64nvme(data):016x}",
        **epochs_note(
            (epoch, Offset(max(start, first.base_offset)))
            for epoch, start in row.epochs.up_to(last.next_offset).entries
        ),
    }
    try:
        store.put_object(key, BytesBody(data), PutOptions(metadata, condition=IfAbsent()))
    except PreconditionFailedError:
        if store.get_object(key).data != data:
            raise ArchiveConflictError(
                f"{key} was stored by another sidecar of this broker; the next cleaning compares"
            ) from None
