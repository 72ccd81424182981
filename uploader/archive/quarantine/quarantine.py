"""Quarantine: move archived records that the cluster has discarded out of the archive."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.quarantine import Cut, MoveKind, MovePlan, quarantine_name, write_plan
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.headers import HEADER_BYTES, BatchHeader, parse_batch_header, walk_headers
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.quarantine.mover import (
    MoveContext,
    PieceReader,
    carry_out,
    probe_removal,
)
from sidetier.uploader.errors import DivergedError
from sidetier.uploader.gates.divergence import LocalHistory

# Find the exact offset at which the archive and the leader's log diverge.
#
# A leader epoch that starts too early, or a log that ends too early, proves a divergence and gives
# the highest offset at which it can be. The stored batches have their own leader epochs: a batch
# with the same epoch at the same offset was written by the same leader, and everything before it
# is the same, too (KIP-101).


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the histories diverge.

    Attributes:
        next_offset: First offset that archive and log do not have in common.
        kept: Base offset of the last stored segment that is common as a whole; None for none.
        cut: The segment of which only the first part is common; None for none.
        proof: First stored batch at or above the divergence; None where none is stored.
    """

    next_offset: Offset
    kept: BaseOffset | None
    cut: Cut | None
    proof: BatchHeader | None


def find_divergence(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    last: BaseOffset,
    latest: Offset,
    local: LocalHistory,
) -> Divergence:
    """Find the divergence of an archive.

    Args:
        store: The store.
        layout: The keys on it.
        tp: The partition.
        last: Base offset of the last committed segment.
        latest: Highest offset at which the divergence can be.
        local: The history of the leader's log.

    Raises:
        DamagedSegmentError: a stored segment is not whole record batches.
        MalformedObjectError: `_metadata` does not parse.
    """
    finder = _Finder(store, layout, tp, local)
    return finder.find(finder.committed(last), latest)


@dataclass(frozen=True, slots=True)
class _Border:
    """The first batch of a segment that archive and log do not have in common.

    Attributes:
        position: Its byte position; the end of the segment if all batches are common.
        size: Size of the segment, in bytes.
        header: Its header; None if all batches are common.
    """

    position: int
    size: int
    header: BatchHeader | None


@dataclass(frozen=True, slots=True)
class _Finder:
    store: RemoteStorage
    layout: ArchiveLayout
    tp: TopicPartition
    local: LocalHistory

    def committed(self, last: BaseOffset) -> list[BaseOffset]:
        """Return the base offsets of the archive's segments, rising.

        These are the segments in `_metadata`; all stored segments if it names none of them.
        """
        partition = StoredPartition(self.store, self.layout, self.tp)
        stored = [segment.base_offset for segment in partition.logs(end=last + 1)]
        # The store may also have segments of a sidecar that lost a race: they were stored after
        # another sidecar had archived their offsets, and are not readable.
        named = partition.names()
        return [base for base in stored if base in named] or stored

    def find(self, bases: Sequence[BaseOffset], latest: Offset) -> Divergence:
        """Search downwards from `latest` until a segment begins with a common batch."""
        at = bisect_left(bases, latest) - 1
        proof = self._first_header(bases[at + 1]) if at + 1 < len(bases) else None
        while at >= 0:
            border = self._border(bases[at], latest)
            proof = border.header or proof
            # The segment begins with a common batch, so
            # everything before this segment is common too.
            if border.position > 0:
                return self._divergence(bases, at, border, latest, proof)
            # Not even the first batch is common: the divergence
            # is at the segment's beginning or below.
            latest = min(latest, Offset(bases[at]))
            at -= 1
        return Divergence(latest, None, None, proof)

    def _divergence(
        self,
        bases: Sequence[BaseOffset],
        at: int,
        border: _Border,
        latest: Offset,
        proof: BatchHeader | None,
    ) -> Divergence:
        if border.header is None:
            return Divergence(latest, bases[at], None, proof)
        end = min(latest, border.header.base_offset)
        kept = bases[at - 1] if at > 0 else None
        return Divergence(end, kept, Cut(bases[at], border.position), proof)

    def _border(self, base: BaseOffset, latest: Offset) -> _Border:
        key = self.layout.object_key(self.tp, base, FileKind.LOG)
        size = self.store.head_object(key).size
        reader = PieceReader(self.store, key, size)
        for position, header in walk_headers(reader, size):
            # A batch that contains `latest` is discarded
            # whole: the log cannot hold a part of a batch.
            if header.next_offset > latest or self.local.has_another_at(header):
                return _Border(position, size, header)
        return _Border(size, size, None)

    def _first_header(self, base: BaseOffset) -> BatchHeader:
        key = self.layout.object_key(self.tp, base, FileKind.LOG)
        with self.store.get_object_input_stream(key, 0, HEADER_BYTES) as stream:
            return parse_batch_header(stream.read())


@dataclass(frozen=True, slots=True)
class SuspectedDivergence:
    """An archive and a log that have diverged at `latest` or below.

    Attributes:
        topic_partition: The partition.
        archive: The archive as it was read.
        local: The history of the leader's log.
        latest: Highest offset at which the divergence can be.
        leader: The leader that writes the archive.
        reason: The reason for the suspicion, for errors and the plan.
        in_epoch_history_only: Whether only the stored epoch history shows the divergence, and
            `offset.wm` does not.
    """

    topic_partition: TopicPartition
    archive: ArchiveState
    local: LocalHistory
    latest: Offset
    leader: Leader
    reason: str
    in_epoch_history_only: bool = False


def plan_quarantine(context: MoveContext, suspected: SuspectedDivergence) -> MovePlan:
    """Find the divergence in the stored segments, and plan which of them move.

    Raises:
        DivergedError: the stored batches do not contradict the log, so nothing may be moved.
        DamagedSegmentError: a stored segment is not whole record batches.
        ArchiveConflictError: `offset.wm` has been written since it was read.
    """
    tp, archive = suspected.topic_partition, suspected.archive
    kept: BaseOffset | None = None
    cut, end = None, suspected.latest
    # A divergence at or above the archive end offset is one of orphan segments: every committed
    # segment stays, and there is no need to read them.
    if archive.watermark is not None and suspected.latest < (archive.next_offset or 0):
        last = archive.watermark.base_offset
        divergence = find_divergence(
            context.store, context.layout, tp, last, suspected.latest, suspected.local
        )
        if divergence.proof is None and suspected.in_epoch_history_only:
            raise DivergedError(
                f"{suspected.reason}; but no stored record batch is of another history than the "
                "log: nothing is moved; compare both"
            )
        if divergence.proof is not None and not suspected.local.lacks(divergence.proof):
            raise DivergedError(
                f"{suspected.reason}; but the records stored from offset "
                f"{divergence.proof.base_offset} on are of this log's epoch history: nothing is "
                "moved; compare both"
            )
        kept, cut, end = divergence.kept, divergence.cut, divergence.next_offset
    elif archive.watermark is not None:
        kept, end = archive.watermark.base_offset, archive.next_offset or end
    # The plan must not describe segments that another sidecar has committed in the meantime.
    mark = StoredPartition(context.store, context.layout, tp).watermark()
    if (mark.etag if mark else None) != archive.etag:
        raise ArchiveConflictError(f"{context.layout.watermark_key(tp)} was written meanwhile")
    leader = suspected.leader
    name = quarantine_name(end, leader.leader_epoch)
    return MovePlan(
        kind=MoveKind.QUARANTINE,
        topic_partition=tp,
        target=f"{context.layout.quarantine_prefix(tp)}{name}/",
        next_offset=end,
        kept=kept,
        cut=cut,
        leader_epoch=leader.leader_epoch,
        broker_id=leader.broker_id,
        watermark=mark.text if mark else None,
        reason=suspected.reason,
    )


def quarantine(
    context: MoveContext, plan: MovePlan, archive: ArchiveState, leader: Leader
) -> MovePlan:
    """Carry out a new plan, or the one that `offset.wm` names as pending.

    Returns:
        The plan as it is stored.

    Raises:
        AccessDeniedError: objects cannot be deleted; nothing has been changed.
        ArchiveConflictError: as `carry_out`.
    """
    pending = archive.watermark is not None and archive.watermark.pending == plan.target
    if not pending:
        # Before the first write: a move that can copy but not delete
        # would leave the archive cut back, with the objects in place.
        probe_removal(context.store, plan)
        plan = write_plan(context.store, plan)
    carry_out(context, plan, _in_name_of(leader, plan, archive), archive.etag)
    return plan


def _in_name_of(leader: Leader, plan: MovePlan, archive: ArchiveState) -> Watermark:
    """Return the present content of `offset.wm`, with this leader as the writer."""
    base, end = plan.moved_to
    mark = archive.watermark or Watermark(base, end, LeaderEpoch(-1))
    return replace(
        mark,
        next_offset=archive.next_offset if archive.watermark is not None else end,
        leader_epoch=leader.leader_epoch,
        broker_id=leader.broker_id,
        topic_id=leader.topic_id or mark.topic_id,
        epoch_history=None,  # the move cuts the stored epoch history
    )
