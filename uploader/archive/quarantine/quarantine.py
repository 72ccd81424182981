"""Quarantine: what the cluster has thrown away is set aside, and the archive ends at the fork."""

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
    """An archive and a log that have parted at `latest` or below. Where only the epoch history that
    is stored beside the archive tells, it is `told_beside`.
    """

    topic_partition: TopicPartition
    archive: ArchiveState
    local: LocalHistory
    latest: Offset
    leader: Leader
    reason: str
    told_beside: bool = False


def plan_quarantine(shop: MoveContext, parting: SuspectedDivergence) -> MovePlan:
    """Find the fork in what is stored, and what has to go.

    Raises:
        DivergedError: what is stored there fits the log after all: nothing may be moved.
        DamagedSegmentError: a stored segment is not whole record batches.
        ArchiveConflictError: the watermark has been written since it was read.
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
    """Carry a new plan out, or one that the watermark names as pending; returns it as it stands.

    Raises:
        AccessDeniedError: objects may not be removed; nothing has been changed.
        ArchiveConflictError: as `carry_out`.
    """
    pending = archive.watermark is not None and archive.watermark.pending == plan.target
    if not pending:
        probe_removal(shop.store, plan)
        plan = write_plan(shop.store, plan)
    carry_out(shop, plan, _in_name_of(leader, plan, archive), archive.etag)
    return plan


def _in_name_of(leader: Leader, plan: MovePlan, archive: ArchiveState) -> Watermark:
    """Where the watermark stands, written by this leader."""
    base, end = plan.moved_to
    mark = archive.watermark or Watermark(base, end, LeaderEpoch(-1))
    return replace(
        mark,
        next_offset=archive.next_offset if archive.watermark is not None else end,
        leader_epoch=leader.leader_epoch,
        broker_id=leader.broker_id,
        topic_id=leader.topic_id or mark.topic_id,
        epoch_history=None,  # it is cut with the rest
    )
