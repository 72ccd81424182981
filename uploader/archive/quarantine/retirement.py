"""Retirement: move the whole archive of a deleted or recreated topic to the retired archives."""

from dataclasses import replace

from sidetier.archive.objects.quarantine import (
    MoveKind,
    MovePlan,
    read_pending_plan,
    retired_name,
    write_plan,
)
from sidetier.archive.objects.watermark import StoredWatermark, Watermark
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.quarantine.mover import MoveContext, carry_out, probe_removal

_NOWHERE = (BaseOffset(0), Offset(0))


def is_there(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> bool:
    """Return whether an archive, a gap record or a start record of a partition is stored."""
    places = (layout.partition_prefix(tp), layout.gap_prefix(tp), *layout.start_keys(tp))
    return any(next(iter(store.list_objects(place)), None) is not None for place in places)


def plan_retirement(
    layout: ArchiveLayout, tp: TopicPartition, mark: StoredWatermark | None, reason: str
) -> MovePlan:
    """Plan to move a partition's whole archive, with its gap records, acknowledgements and start
    record.
    """
    watermark = mark.watermark if mark else None
    name = retired_name(
        watermark.topic_id if watermark else None, watermark.base_offset if watermark else None
    )
    return MovePlan(
        kind=MoveKind.RETIRE,
        topic_partition=tp,
        target=f"{layout.retired_prefix(tp)}{name}/",
        next_offset=_NOWHERE[1],
        watermark=mark.text if mark else None,
        reason=reason,
    )


def retire(
    context: MoveContext, tp: TopicPartition, mark: StoredWatermark | None, reason: str
) -> MovePlan | None:
    """Retire a partition's archive, or finish a retirement that was begun.

    Args:
        context: The store, and how objects are moved.
        tp: The partition.
        mark: The `offset.wm` on which the decision is based; None where there was none. It is not
            read again, and only this version of it is overwritten: meanwhile another process may
            have retired the archive and begun the next one, which must stay.
        reason: The reason, for the plan.

    Returns:
        The plan that was carried out; None where nothing is stored.

    Raises:
        AccessDeniedError: objects cannot be deleted; nothing has been changed.
        ArchiveConflictError: `offset.wm` has been written since it was read.
    """
    store, layout = context.store, context.layout
    if mark is not None and mark.watermark.pending is not None:
        plan = read_pending_plan(store, mark.watermark.pending)
        if plan.kind is MoveKind.RETIRE:
            carry_out(context, plan, mark.watermark, mark.etag)
            return plan
    if mark is None and not is_there(store, layout, tp):
        return None
    plan = plan_retirement(layout, tp, mark, reason)
    probe_removal(store, plan)
    plan = write_plan(store, plan)
    before = mark.watermark if mark else Watermark(*_NOWHERE)
    carry_out(context, plan, replace(before, pending=None), mark.etag if mark else None)
    return plan
