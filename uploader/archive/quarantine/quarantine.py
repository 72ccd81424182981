"""Quarantine: move archived records that the cluster has discarded out of the archive."""

from dataclasses import dataclass, replace

from sidetier.archive.objects.quarantine import MoveKind, MovePlan, quarantine_name, write_plan
from sidetier.archive.objects.watermark import Watermark, read_watermark
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.quarantine.fork import find_divergence
from sidetier.uploader.archive.quarantine.mover import MoveContext, carry_out, probe_removal
from sidetier.uploader.errors import DivergedError
from sidetier.uploader.gates.divergence import LocalHistory


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
        told_beside: Whether only the stored epoch history shows the divergence, not `offset.wm`.
    """

    topic_partition: TopicPartition
    archive: ArchiveState
    local: LocalHistory
    latest: Offset
    leader: Leader
    reason: str
    told_beside: bool = False


def plan_quarantine(shop: MoveContext, parting: SuspectedDivergence) -> MovePlan:
    """Find the divergence in the stored segments, and plan which of them move.

    Raises:
        DivergedError: the stored batches do not contradict the log, so nothing may be moved.
        DamagedSegmentError: a stored segment is not whole record batches.
        ArchiveConflictError: `offset.wm` has been written since it was read.
    """
    tp, archive = parting.topic_partition, parting.archive
    kept: BaseOffset | None = None
    cut, end = None, parting.latest
    if archive.watermark is not None and parting.latest < (archive.next_offset or 0):
        last = archive.watermark.base_offset
        divergence = find_divergence(
            shop.store, shop.layout, tp, last, parting.latest, parting.local
        )
        if divergence.proof is None and parting.told_beside:
            raise DivergedError(
                f"{parting.reason}; but no stored record batch is of another history than the log: "
                "nothing is moved, look at both"
            )
        if divergence.proof is not None and not parting.local.lacks(divergence.proof):
            raise DivergedError(
                f"{parting.reason}; but the records stored from offset "
                f"{divergence.proof.base_offset} on are of this log's epoch history: nothing is "
                "moved, look at both"
            )
        kept, cut, end = divergence.kept, divergence.cut, divergence.next_offset
    elif archive.watermark is not None:
        kept, end = archive.watermark.base_offset, archive.next_offset or end
    mark = read_watermark(shop.store, shop.layout.watermark_key(tp))
    if (mark.etag if mark else None) != archive.etag:
        raise ArchiveConflictError(f"{shop.layout.watermark_key(tp)} was written meanwhile")
    leader = parting.leader
    name = quarantine_name(end, leader.leader_epoch)
    return MovePlan(
        kind=MoveKind.QUARANTINE,
        topic_partition=tp,
        target=f"{shop.layout.quarantine_prefix(tp)}{name}/",
        next_offset=end,
        kept=kept,
        cut=cut,
        leader_epoch=leader.leader_epoch,
        broker_id=leader.broker_id,
        watermark=mark.text if mark else None,
        reason=parting.reason,
    )


def quarantine(
    shop: MoveContext, plan: MovePlan, archive: ArchiveState, leader: Leader
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
        probe_removal(shop.store, plan)
        plan = write_plan(shop.store, plan)
    carry_out(shop, plan, _in_name_of(leader, plan, archive), archive.etag)
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
