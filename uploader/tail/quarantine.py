"""Move records that only tail packs have, and that the cluster has lost, to the quarantine.

The archive has other records at their offsets, of a later leader: after an unclean election, or
after a power failure of all replicas. The folder is as that of archived records
(`uploader.archive.quarantine`), so the same alert, acknowledgement, restore and gc apply.

1. The plan: a folder without a segment. The next cleaning finds it in place.
2. The segments: the same objects again, with the same bytes.
3. Only then cleaning drops the rows: records that are in the quarantine and in a pack.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sidetier.archive.objects.quarantine import MoveKind, MovePlan, quarantine_name, write_plan
from sidetier.archive.tail.merge import PackedRow
from sidetier.archive.tail.pack import split_range
from sidetier.archive.tail.read import read_rows
from sidetier.segments.errors import ArchiveConflictError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, PutOptions, RemoteStorage

SEGMENT_BYTES: Final = 16 << 20
"""A segment ends with the row that reaches this size."""


def runs_in(rows: Iterable[PackedRow]) -> Iterator[list[PackedRow]]:
    """Yield the rows of one partition and leader epoch that follow each other or overlap."""
    run: list[PackedRow] = []
    key: tuple[object, ...] | None = None
    end = 0
    for source in sorted(rows, key=_by_place):
        row = source.row
        mine = row.tp, row.topic_id, row.leader_epoch
        if run and (mine != key or row.start > end):
            yield run
            run, end = [], 0
        run.append(source)
        key, end = mine, max(end, row.end)
    if run:
        yield run


def _by_place(source: PackedRow) -> tuple[object, ...]:
    row = source.row
    return row.tp, row.topic_id, row.leader_epoch, row.start, row.end


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
        replaced_by: Leader epoch of which the archive has records instead.

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
            f"records in tail packs, of leader epoch {row.leader_epoch}, which the log of the "
            f"leader of epoch {replaced_by} does not have"
        ),
    )
    prefix = write_plan(store, plan).target
    for base, data in _segments(store, run):
        _put(store, prefix + segment_file_name(base, FileKind.LOG), data)
    return prefix


def _segments(store: RemoteStorage, run: Iterable[PackedRow]) -> Iterator[tuple[BaseOffset, bytes]]:
    pieces: list[bytes] = []
    base = reached = BaseOffset(0)
    for source, data in read_rows(store, run):
        key = "" if source.pack is None else source.pack.key
        for header, batch in split_range(source.row, data, key):
            if header.base_offset < reached:
                continue  # the same record in another row
            if not pieces:
                base = BaseOffset(header.base_offset)
            pieces.append(bytes(batch))
            reached = BaseOffset(header.next_offset)
        if sum(map(len, pieces)) >= SEGMENT_BYTES:
            yield base, b"".join(pieces)
            pieces = []
    if pieces:
        yield base, b"".join(pieces)


def _put(store: RemoteStorage, key: str, data: bytes) -> None:
    try:
        store.put_object(key, BytesBody(data), PutOptions(condition=IfAbsent()))
    except PreconditionFailedError:
        if store.get_object(key).data != data:
            raise ArchiveConflictError(
                f"{key} has other records than the tail packs: move the folder away"
            ) from None
