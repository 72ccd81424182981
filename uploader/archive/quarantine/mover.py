"""Carries a plan out, from wherever an earlier try has left it.

Each step is one that may be done again, and after each the archive holds what its watermark says.
What a kill right after it leaves:

1. the plan is written: an intent that nobody follows; planned anew, it is found there again;
2. `offset.wm` names the plan, and stands where it stood: whoever loads it goes on here;
3. everything is copied: copies that the next try compares;
4. `offset.wm` stands before all that moves: objects and entries above the watermark;
5. `_metadata` loses the entries: objects above the watermark that it does not name;
6. the segment with the fork is cut: the same, with another end;
7. what moves is removed, gap records and the stored epoch history are cut: fewer of them;
8. `_metadata` names the cut segment, above the watermark still;
9. `offset.wm` stands at the fork and names no plan, or is removed where nothing stays: done.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from sidetier.archive.objects.gaps import shorten_gap
from sidetier.archive.objects.leader_epochs import read_epoch_history
from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    encode_metadata,
    read_metadata,
)
from sidetier.archive.objects.quarantine import Cut, MovePlan
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.epoch_history import (
    encode_leader_epoch_checkpoint,
)
from sidetier.segments.errors import (
    ArchiveConflictError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout, parse_gap_key, parse_object_key
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfMatch, ObjectSummary, RemoteStorage
from sidetier.uploader.archive.quarantine.claim import Claim
from sidetier.uploader.archive.quarantine.cut import store_cut
from sidetier.uploader.archive.quarantine.relocation import ForEach, Move, MovedOne, Relocation

_GAPS: Final = "gaps/"
_START: Final = "start.json"


@dataclass(frozen=True, slots=True)
class MoveContext:
    """Where an archive lies, and how its objects are moved."""

    store: RemoteStorage
    layout: ArchiveLayout
    for_each: ForEach = map
    moved_one: MovedOne = field(default=lambda _: None)


def probe_removal(store: RemoteStorage, plan: MovePlan) -> None:
    """Delete a key that does not exist, so that missing permission shows before the move begins.

    Raises:
        AccessDeniedError: objects cannot be deleted.
    """
    store.delete_object(plan.target + "probe")


def carry_out(shop: MoveContext, plan: MovePlan, before: Watermark, etag: str | None) -> None:
    """Set aside what the plan says; `before` is what stands in `offset.wm`, or is to stand there
    where its etag is None, in the name of whoever carries it out.

    Raises:
        ArchiveConflictError: another has written the watermark; read it again.
        DamagedSegmentError: the segment that holds the fork cannot be cut.
        StorageError: as the port says.
    """
    _Mover(shop, plan, before, etag).run()


class _Mover:
    def __init__(
        self, shop: MoveContext, plan: MovePlan, before: Watermark, etag: str | None
    ) -> None:
        self._store, self._layout, self._plan = shop.store, shop.layout, plan
        self._tp = plan.topic_partition
        self._prefix = shop.layout.partition_prefix(self._tp)
        self._mark = replace(before, pending=plan.target)
        self._claim = Claim(shop.store, shop.layout, self._tp, etag)
        self._relocation = Relocation(shop.store, self._claim, shop.for_each, shop.moved_one)

    def run(self) -> None:
        plan = self._plan
        self._claim.write(self._mark)
        base, end = plan.moved_to
        if (self._mark.base_offset, self._mark.next_offset) != (base, end):
            self._relocation.copy(self._everything())
            if not plan.whole:
                shorten_gap(self._store, self._layout, self._tp, plan.next_offset)
            self._claim.write(replace(self._mark, base_offset=base, next_offset=end))
        if not plan.whole:
            self._name_segments(plan.kept, None)
        if plan.cut is not None:
            store_cut(self._store, self._layout, plan, plan.cut, self._claim)
        self._relocation.remove(self._going())
        self._relocation.remove(self._gaps())
        if plan.whole:
            self._relocation.remove(self._start())
            self._claim.remove()
            return
        self._cut_epoch_history()
        if plan.cut is not None:
            self._name_segments(plan.cut.base_offset, plan.cut)
        self._finish(plan.final_base)

    def _finish(self, base: BaseOffset | None) -> None:
        """In the epoch of the plan, whoever has carried it out: up to here the archive was compared
        with the history of that epoch's leader.
        """
        last = replace(
            self._mark,
            base_offset=self._mark.base_offset if base is None else base,
            next_offset=self._plan.next_offset,
            leader_epoch=self._plan.leader_epoch,
            pending=None,
        )
        self._claim.write(last)

    # -- what is moved ----------------------------------------------------------------------------

    def _everything(self) -> Iterator[Move]:
        """All that is copied: what goes, and what will be changed."""
        yield from self._going(also_changed=True)
        yield from self._gaps()
        if self._plan.whole:
            yield from self._start()

    def _going(self, *, also_changed: bool = False) -> Iterator[Move]:
        """`_metadata` goes first, if it goes; a `.log` before its indexes: a reader that
        lists it finds them.
        """
        every = self._rows(self._prefix)
        rows = [row for row in every if self._goes(row, also_changed=also_changed)]
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
            return self._plan.whole or also_changed
        cut = self._plan.cut
        changed = also_changed and cut is not None and parsed[0] == cut.base_offset
        return changed or self._plan.moves(parsed[0])

    def _gaps(self) -> Iterator[Move]:
        """Records of gaps that reach beyond the new end."""
        prefix = self._layout.gap_prefix(self._tp)
        for row in self._rows(prefix):
            gap = parse_gap_key(row.key, prefix)
            if self._plan.whole or (gap is not None and gap[1] > self._plan.next_offset):
                yield Move(row, self._plan.target + _GAPS + row.key.removeprefix(prefix))

    def _start(self) -> Iterator[Move]:
        key = self._layout.start_key(self._tp)
        for row in self._rows(key):
            if row.key == key:
                yield Move(row, self._plan.target + _START)

    def _rows(self, prefix: str) -> list[ObjectSummary]:
        return list(self._store.list_objects(prefix))

    # -- what is changed --------------------------------------------------------------------------

    def _name_segments(self, last: BaseOffset | None, cut: Cut | None) -> None:
        """Have `_metadata` name what stays up to `last`, and nothing else; and the cut segment,
        with the time that it had there before.
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
        known = {entry.base_offset: entry.timestamp for entry in entries}
        log = self._layout.object_key(self._tp, cut.base_offset, FileKind.LOG)
        return known.get(cut.base_offset) or self._store.head_object(log).modified_ms

    def _cut_epoch_history(self) -> None:
        """The stored `leader-epoch-checkpoint` ends where the archive does."""
        key = self._layout.epoch_checkpoint_key(self._tp)
        stored = read_epoch_history(self._store, self._layout, self._tp)
        left = stored.epoch_history.up_to(self._plan.next_offset)
        if stored.etag is not None and left != stored.epoch_history:
            data = encode_leader_epoch_checkpoint(left).encode()
            self._replace(key, data, stored.etag)

    def _replace(self, key: str, data: bytes, etag: str) -> None:
        """The move is ours still, after the object was read, and nobody has written it since."""
        self._claim.check()
        try:
            self._store.put_object(key, BytesBody(data), condition=IfMatch(etag))
        except PreconditionFailedError:
            raise ArchiveConflictError(f"{key} was written while the archive was moved") from None
