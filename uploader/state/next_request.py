"""What a partition needs from the store next: pure decisions over its state."""

from itertools import islice

from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.state.events import Asked, Request
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import SegmentState, StoredSegment


def storable(partition: Partition, window: int) -> list[PlannedSegment]:
    """The next segments in order that are not stored, as many as may be under way at once.

    Those that are stored wait for one before them: they must not hold up what comes behind.
    """
    tracked, segments = partition.tracked, partition.plan().segments
    left = (p for p in segments if tracked[p.segment.base_offset].stage is not SegmentState.STORED)
    return list(islice(left, window))


def stored_prefix(partition: Partition) -> list[StoredSegment]:
    """The stored segments that follow on the watermark without a gap."""
    prefix = []
    for planned in partition.plan().segments:
        tracked = partition.tracked[planned.segment.base_offset]
        if tracked.stage is not SegmentState.STORED or tracked.stored is None:
            break
        if not tracked.is_as_planned(planned):
            break
        prefix.append(tracked.stored)
    return prefix


def next_request(partition: Partition, now: float, *, from_latest: bool) -> Request | None:
    """What the partition needs from the store now; None also while it must wait."""
    busy = partition.requesting is not None or partition.unanswered is not None
    if busy or partition.unsure or now < partition.hold.until:
        return None
    if partition.halted is not None or partition.refused is not None:
        looks = partition.halted_at is not None and now >= partition.read_again_at
        return Request.LOAD if looks else None
    if partition.listed_at is None or not (partition.tracked or partition.archive):
        return None  # nothing is closed: an idle partition costs no request
    archive = partition.archive
    if archive is None:
        return Request.LOAD
    if archive.next_offset is None:
        begins = from_latest and partition.first_active is not None and not archive.is_pinterest
        return Request.START if begins else None
    return _next_write(partition, archive) or _next_reading(partition, now)


def _next_write(partition: Partition, archive: ArchiveState) -> Request | None:
    kept_higher = archive.kept_start is not None and archive.watermark is None
    if (partition.gap is not None or kept_higher) and not archive.start_is_kept:
        return Request.START
    if stored_prefix(partition):
        return Request.COMMIT
    if partition.plan().segments:
        return Request.PREPARE if archive.present is None else None
    if not (partition.gap_is_confirmed() and partition.gap_vouched):
        return None
    # What is stored there is compared with this log before it is taken for what is missing.
    return Request.PREPARE if archive.present is None else Request.GAP


def _next_reading(partition: Partition, now: float) -> Request | None:
    """While a gap waits for others' sidecars, it is asked whether the store answers at all, and
    whether they have stored something. Not without a watermark: what was stepped over before the
    first is known from this archive alone.
    """
    archive = partition.archive
    waits = partition.gap is not None and partition.gap_waits_for_others()
    waits = waits and archive is not None and archive.watermark is not None
    due = waits and not partition.gap_is_confirmed() and now >= partition.read_again_at
    return Request.LOAD if due else None


def asked(partition: Partition, request: Request) -> Asked | None:
    """The request as it begins now; None where there is nothing left to do, as when a new listing
    came while it waited for a thread.
    """
    archive, gap = partition.archive, None
    stored: tuple[StoredSegment, ...] = ()
    if request is not Request.LOAD and archive is None:
        return None
    if request is Request.COMMIT:
        stored = tuple(stored_prefix(partition))
        if not stored:
            return None
    if request is Request.GAP:
        gap = partition.gap
        if not (partition.gap_is_confirmed() and partition.gap_vouched):
            return None
    return Asked(request, partition.generation, partition.follows, archive, stored, gap)
