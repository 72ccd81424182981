"""Carry out a move plan, from wherever an earlier attempt has left it.

Each step may be repeated. After each step the archive holds every record below its `offset.wm`. The
steps, and what a kill right after each one leaves:

1. Write the plan: an intent that no sidecar has to follow. A new attempt finds it in place.
2. Name the plan in `offset.wm`, without another change: the next sidecar that loads the archive
   continues the move.
3. Copy all objects: copies that the next attempt compares.
4. Set `offset.wm` below everything that moves: objects and `_metadata` entries above `offset.wm`.
5. Remove the entries from `_metadata`: objects above `offset.wm` that `_metadata` does not name.
6. Cut the segment that contains the divergence: the same objects, one of them shorter.
7. Remove the objects that move, cut gap records, their acknowledgements and the stored epoch
   history: fewer objects.
8. Name the cut segment in `_metadata`: it is still above `offset.wm`.
9. Set `offset.wm` to the divergence and remove the plan's name from it, or delete it where no
   segment stays: the move is complete.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final, cast

from sidetier.archive.objects.gaps import shorten_gap
from sidetier.archive.objects.leader_epochs import read_epoch_history
from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    encode_metadata,
    read_metadata,
)
from sidetier.archive.objects.quarantine import Cut, MovePlan
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.crc import crc64nvme
from sidetier.segments.epoch_history import (
    encode_leader_epoch_checkpoint,
)
from sidetier.segments.errors import (
    ArchiveConflictError,
    DamagedSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnsupportedFormatError,
)
from sidetier.segments.keys import ArchiveLayout, parse_gap_key, parse_object_key
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
    object_note,
    records_note,
)
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset
from sidetier.segments.txn_index import encode_txn_index, parse_txn_index
from sidetier.segments.walker import BatchWalker, SegmentFacts
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import (
    Condition,
    IfAbsent,
    IfMatch,
    ObjectSummary,
    PutOptions,
    RemoteStorage,
)
from sidetier.uploader.archive.quarantine.relocation import (
    Claim,
    ForEach,
    Move,
    MovedOne,
    Relocation,
)
from sidetier.uploader.sending.conditional_put import Existing, FileToStore, compare, put_file

# -- reading a stored `.log` in pieces ----------------------------------------------------------

PIECE: Final = 4 * 1024**2
"""Bytes of one request."""


@dataclass(slots=True)
class PieceReader:
    """Reads an object at any position, as `os.pread` does. Keeps the last piece in memory."""

    store: RemoteStorage
    key: str
    size: int
    _start: int = 0
    _piece: bytes = b""

    def __call__(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position` on."""
        at = position - self._start
        if at < 0 or at + length > len(self._piece):
            end = min(self.size, position + max(length, PIECE))
            with self.store.get_object_input_stream(self.key, position, end) as stream:
                # The walk over batch headers jumps ahead. A jump beyond the
                # piece costs one request, and the bytes in between are not read.
                self._piece = stream.read()
            self._start, at = position, 0
        return self._piece[at : at + length]


def pieces(store: RemoteStorage, key: str, end: int) -> Iterator[memoryview]:
    """Yield the bytes from the start up to `end`, exclusive, in order."""
    reader = PieceReader(store, key, end)
    for start in range(0, end, PIECE):
        yield memoryview(reader(start, min(PIECE, end - start)))


@dataclass(frozen=True, slots=True)
class BeginningOf:
    """The first `size` bytes of a stored object: a Body of the storage port, and a `PartOfObject`.

    It is streamed, because a segment can be larger than the memory.
    """

    store: RemoteStorage
    source: str
    size: int

    def open(self) -> BinaryIO:
        """Return a new stream, at the first byte."""
        reader = PieceReader(self.store, self.source, self.size)
        return cast("BinaryIO", io.BufferedReader(_Stream(reader), PIECE))


class _Stream(io.RawIOBase):
    def __init__(self, reader: PieceReader) -> None:
        super().__init__()
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size}
        self._position = max(0, origin[whence] + offset)
        return self._position

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._reader.size - self._position)
        data = self._reader(self._position, wanted) if wanted > 0 else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


# -- the move -------------------------------------------------------------------------------------

_GAPS: Final = "gaps/"
_ACKNOWLEDGED_GAPS: Final = "acknowledged/gaps/"
_START: Final = "start.json"
_FORMER_START: Final = "start-former-key.json"


@dataclass(frozen=True, slots=True)
class MoveContext:
    """The store of an archive, and how its objects are moved.

    `for_each` sets how many requests are made at once; `moved_one` is called after each copy.
    """

    store: RemoteStorage
    layout: ArchiveLayout
    for_each: ForEach = map
    moved_one: MovedOne = field(default=lambda _: None)


def probe_removal(store: RemoteStorage, plan: MovePlan) -> None:
    """Delete a key that does not exist; raises AccessDeniedError if deletes are not allowed."""
    store.delete_object(plan.target + "probe")


def carry_out(context: MoveContext, plan: MovePlan, before: Watermark, etag: str | None) -> None:
    """Move the objects of the plan.

    Args:
        context: The store, and how objects are moved.
        plan: The plan.
        before: The content of `offset.wm` before the move, with this broker as the writer.
        etag: Etag of `offset.wm`; None where there is no object, and `before` is written first.

    Raises:
        ArchiveConflictError: another process has written `offset.wm`; read it again.
        DamagedSegmentError: the segment that contains the divergence cannot be cut.
    """
    _Mover(context, plan, before, etag).run()


class _Mover:
    def __init__(
        self, context: MoveContext, plan: MovePlan, before: Watermark, etag: str | None
    ) -> None:
        self._store, self._layout, self._plan = context.store, context.layout, plan
        self._tp = plan.topic_partition
        self._prefix = context.layout.partition_prefix(self._tp)
        # Every write of `offset.wm` during the move names the plan, so that a
        # kill at any step leaves an archive whose next reader continues the move.
        self._mark = replace(before, pending=plan.target)
        self._claim = Claim(context.store, context.layout, self._tp, etag)
        self._relocation = Relocation(
            context.store, self._claim, context.for_each, context.moved_one
        )

    def run(self) -> None:
        plan = self._plan
        # The first write makes this process the owner:
        # the etag of all others is outdated from here on.
        self._claim.write(self._mark)
        base, end = plan.moved_to
        # `offset.wm` must end below the divergence before an object is removed: otherwise a reader
        # would look for records that are gone. If it already does, an earlier attempt of this move
        # was interrupted after its copies.
        if (self._mark.base_offset, self._mark.next_offset) != (base, end):
            # Copies before the archive end offset moves back: from then on, readers do
            # not look for these records in the archive, and the objects may be removed.
            self._relocation.copy(self._everything())
            if not plan.whole:
                # The record of a gap that reaches beyond the divergence moves
                # away later. The part below gets a record of its own first.
                shorten_gap(self._store, self._layout, self._tp, plan.next_offset)
            self._claim.write(replace(self._mark, base_offset=base, next_offset=end))
        if not plan.whole:
            # Entries before objects: Pinterest's consumer
            # must never be sent to a segment that is gone.
            self._name_segments(plan.kept, None)
        if plan.cut is not None:
            # Cut before the removals, from the quarantined copy:
            # a kill leaves either the whole or the cut object.
            store_cut(self._store, self._layout, plan, plan.cut, self._claim)
        self._relocation.remove(self._going())
        self._relocation.remove(self._gaps())
        if plan.whole:
            self._relocation.remove(self._start())
            # `offset.wm` goes last. As long as it exists,
            # another sidecar finds the plan in it and continues.
            self._claim.remove()
            return
        self._cut_epoch_history()
        if plan.cut is not None:
            self._name_segments(plan.cut.base_offset, plan.cut)
        self._finish(plan.final_base)

    def _finish(self, base: BaseOffset | None) -> None:
        """Write the final `offset.wm`.

        It gets the leader epoch of the plan, also if a later leader finishes the move: the archive
        was compared with the history of that epoch's leader.
        """
        start, end = self._mark.start_offset, self._plan.next_offset
        last = replace(
            self._mark,
            base_offset=self._mark.base_offset if base is None else base,
            next_offset=end,
            # `sidetier gc` may have moved the start beyond the divergence, and been killed before
            # it deleted the segments below. Otherwise the new history up to that start would not
            # belong to the archive, and the next `sidetier gc` would delete it.
            start_offset=None if start is None else min(start, end),
            leader_epoch=self._plan.leader_epoch,
            pending=None,
        )
        self._claim.write(last)

    # -- objects to move --------------------------------------------------------------------------

    def _everything(self) -> Iterator[Move]:
        """Return all objects to copy: those that move, and those that will be changed."""
        yield from self._going(also_changed=True)
        yield from self._gaps()
        if self._plan.whole:
            yield from self._start()

    def _going(self, *, also_changed: bool = False) -> Iterator[Move]:
        """Return the objects of the archive that move, in the order of their removal.

        `_metadata` goes first, if it goes. A `.log` goes before its indexes, so a reader that lists
        a `.log` finds them.
        """
        stored = self._rows(self._prefix)
        rows = [row for row in stored if self._goes(row, also_changed=also_changed)]
        for row in sorted(rows, key=self._order):
            yield Move(row, self._plan.target + row.key.removeprefix(self._prefix))

    def _order(self, row: ObjectSummary) -> tuple[bool, bool]:
        metadata = self._layout.metadata_key(self._tp)
        return row.key != metadata, not row.key.endswith(FileKind.LOG.value)

    def _goes(self, row: ObjectSummary, *, also_changed: bool) -> bool:
        if row.key == self._layout.watermark_key(self._tp):
            return False
        parsed = parse_object_key(row.key, self._prefix)
        if parsed is None:
            # `_metadata` and `leader-epoch-checkpoint`: a quarantine copies
            # them, because it changes them, and leaves them in place.
            return self._plan.whole or also_changed
        cut = self._plan.cut
        changed = also_changed and cut is not None and parsed[0] == cut.base_offset
        return changed or self._plan.moves(parsed[0])

    def _gaps(self) -> Iterator[Move]:
        """Return the gap records that reach beyond the new archive end offset, then their
        acknowledgements.

        An acknowledgement that stayed would accept a gap of the next history with the same offsets.
        It goes after its gap: a kill between them does not make the gap unresolved again.
        """
        records = self._layout.gap_prefix(self._tp)
        accepted = self._layout.acknowledgement_key(records)
        for prefix, folder in ((records, _GAPS), (accepted, _ACKNOWLEDGED_GAPS)):
            for row in self._rows(prefix):
                gap = parse_gap_key(row.key, prefix)
                if self._plan.whole or (gap is not None and gap[1] > self._plan.next_offset):
                    yield Move(row, self._plan.target + folder + row.key.removeprefix(prefix))

    def _start(self) -> Iterator[Move]:
        # A record of an earlier version goes to another name, because a kill may have left both.
        names = (_START, _FORMER_START)
        for key, name in zip(self._layout.start_keys(self._tp), names, strict=False):
            for row in self._rows(key):
                if row.key == key:
                    yield Move(row, self._plan.target + name)

    def _rows(self, prefix: str) -> list[ObjectSummary]:
        return list(self._store.list_objects(prefix))

    # -- objects to change ------------------------------------------------------------------------

    def _name_segments(self, last: BaseOffset | None, cut: Cut | None) -> None:
        """Keep only the `_metadata` entries up to `last`, and add the cut segment.

        The cut segment gets the time of its former entry.
        """
        key = self._layout.metadata_key(self._tp)
        stored = read_metadata(self._store, key)
        if stored is None:
            return
        metadata = stored.metadata
        left = tuple(e for e in metadata.entries if last is not None and e.base_offset <= last)
        changed = PartitionMetadata(metadata.topic_partition, left)
        if cut is not None:
            changed = changed.with_segment(cut.base_offset, self._time_of(cut))
        if changed != metadata:
            self._replace(key, encode_metadata(changed), stored.etag)

    def _time_of(self, cut: Cut) -> int:
        key = self._plan.target + self._layout.metadata_key(self._tp).removeprefix(self._prefix)
        before = read_metadata(self._store, key)
        entries = () if before is None else before.metadata.entries
        times = {entry.base_offset: entry.timestamp for entry in entries}
        log = self._layout.object_key(self._tp, cut.base_offset, FileKind.LOG)
        # The former time keeps the order of times in `_metadata`: the cut object's own
        # modification time is now, later than the times of the segments behind it.
        return times.get(cut.base_offset) or self._store.head_object(log).modified_ms

    def _cut_epoch_history(self) -> None:
        """Cut the stored `leader-epoch-checkpoint` at the new archive end offset."""
        key = self._layout.epoch_checkpoint_key(self._tp)
        stored = read_epoch_history(self._store, self._layout, self._tp)
        left = stored.epoch_history.up_to(self._plan.next_offset)
        if stored.etag is not None and left != stored.epoch_history:
            data = encode_leader_epoch_checkpoint(left).encode()
            self._replace(key, data, stored.etag)

    def _replace(self, key: str, data: bytes, etag: str) -> None:
        """Replace an object if the move is still ours and the object was not written meanwhile."""
        # The condition alone does not suffice: another process may have finished
        # the move and begun to archive again, with the same bytes in this object.
        self._claim.check()
        try:
            self._store.put_object(key, BytesBody(data), PutOptions(condition=IfMatch(etag)))
        except PreconditionFailedError:
            raise ArchiveConflictError(f"{key} was written while the archive was moved") from None


# -- the cut segment -----------------------------------------------------------------------------


def store_cut(
    store: RemoteStorage, layout: ArchiveLayout, plan: MovePlan, cut: Cut, claim: Claim
) -> None:
    """Store the part of the segment that stays, with rebuilt indexes.

    Raises:
        DamagedSegmentError: the quarantined copy is not whole record batches up to the cut.
        ArchiveConflictError: another process has taken over the move, or written the object.
    """
    source = plan.target + segment_file_name(cut.base_offset, FileKind.LOG)
    walker = BatchWalker(source, rebuild_indexes=True)
    # From the copy: the object in the archive may be cut already by an earlier attempt.
    for piece in pieces(store, source, cut.size):
        walker.feed(piece)
    facts = walker.finish()
    before = store.head_object(source).metadata
    # A snapshot is the state at the segment's first offset, which a cut does not change.
    stay = (NOTE_KEYS[FileKind.SNAPSHOT], TOPIC_ID_KEY)
    kept = {name: before[name] for name in stay if name in before}
    notes = kept | _cut_transactions(store, layout, plan, cut, claim, before)
    # The indexes come before the `.log`, as in an upload.
    for file in _files(layout, plan, cut, BeginningOf(store, source, cut.size), facts, notes):
        _store(store, file, claim)


def _store(store: RemoteStorage, file: FileToStore, claim: Claim) -> None:
    """Store one file of the cut segment, and replace the uncut file.

    No other code replaces a sidecar's `.log`. It is safe here, because our `offset.wm` ends below
    the segment during the move.
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

    def key(kind: FileKind) -> str:
        return layout.object_key(plan.topic_partition, cut.base_offset, kind)

    noted = {
        **object_note(key(FileKind.LOG), log.size),
        NEXT_OFFSET_KEY: str(plan.next_offset),
        MAX_TIMESTAMP_KEY: str(facts.max_timestamp),
        LEADER_EPOCH_KEY: str(UNKNOWN_EPOCH if epoch is None else epoch),
        BROKER_ID_KEY: str(plan.broker_id),
        **epochs_note(facts.epochs),
        # As in an upload: no count if compaction has removed the last records.
        **records_note(facts.plain_records if facts.next_offset == plan.next_offset else None),
        **notes,
    }

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
    """Store the transaction index without entries that have their abort marker at the divergence
    or above it.

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
    # The stored index is not the one that belongs to this `.log`, so nothing is claimed about it.
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
