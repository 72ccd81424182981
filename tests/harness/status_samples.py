"""Snapshots of a sidecar's status, as the status page shows them."""

from dataclasses import replace

from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset
from sidetier.telemetry.status import (
    Condition,
    PartitionState,
    PartitionStatus,
    SegmentStatus,
    StatusSnapshot,
)

READY = (
    Condition("leadership known", holds=True),
    Condition("bootstrapped", holds=True),
    Condition("store reachable", holds=True),
)
ARCHIVED = PartitionStatus(
    "orders",
    0,
    PartitionState.ARCHIVED,
    leader_epoch=LeaderEpoch(7),
    watermark_base=BaseOffset(900_000),
    archive_start=Offset(100_000),
    next_offset=Offset(1_000_000),
    log_end=Offset(1_012_400),
    unarchived_records=12_400,
    unarchived_bytes=13_000_000,
    unarchived_age_seconds=95.0,
    local_start=Offset(600_000),
    local_closed_end=Offset(1_000_000),
    unresolved_gap_records=0,
    unresolved_quarantines=0,
    last_upload_ms=1_790_000_000_000,
    last_upload_bytes_per_second=48_000_000,
)
UPLOADING = replace(
    ARCHIVED,
    partition=1,
    state=PartitionState.UPLOADING,
    log_end=Offset(1_200_000),
    unarchived_records=200_000,
    unarchived_bytes=1_280_000_000,
    unarchived_age_seconds=1_260.0,
    local_closed_end=Offset(1_150_000),
    unstored_segments=2,
    unstored_bytes=1_200_000_000,
    oldest_unstored_age_seconds=340.0,
    seconds_until_local_deletion=86_400.0,
    segments=(
        SegmentStatus(
            BaseOffset(1_000_000),
            Offset(1_100_000),
            1_000_000_000,
            "uploading",
            pinned=True,
            marked_for_deletion=False,
            upload_started_ms=1_790_000_000_000,
            sent_bytes=610_000_000,
            send_bytes_per_second=48_000_000,
            send_seconds_left=8.125,
        ),
        SegmentStatus(
            BaseOffset(1_100_000),
            Offset(1_150_000),
            200_000_000,
            "queued",
            pinned=True,
            marked_for_deletion=False,
        ),
    ),
)
HELD = replace(
    UPLOADING,
    topic="payments",
    partition=4,
    state=PartitionState.WAITING,
    seconds_until_local_deletion=2_900.0,
    waiting_for="another try after: put payments-4/00000000000001000000.log: 403 AccessDenied",
    last_error="put payments-4/00000000000001000000.log: 403 AccessDenied",
    segments=(),
)
NEAR_DELETION = replace(
    UPLOADING,
    topic="clicks",
    partition=11,
    state=PartitionState.WAITING,
    seconds_until_local_deletion=210.0,
    waiting_for="segment 1000000 waits for a free upload thread",
    segments=(),
)
GAP = replace(
    ARCHIVED,
    topic="audit",
    partition=2,
    gaps=((Offset(300_000), Offset(340_000)),),
    gap_records=40_000,
    unresolved_gap_records=40_000,
    safe_to=Offset(1_010_000),
    unsafe_age_seconds=75.0,
)
HALTED = replace(
    ARCHIVED,
    topic="invoices",
    partition=0,
    state=PartitionState.HALTED,
    waiting_for="the topic was deleted and created again",
    last_error="the topic was deleted and created again: the archive has topic id A, the broker B",
    unarchived_records=412_400,
    unarchived_bytes=800_000_000,
    unarchived_age_seconds=9_000.0,
)
NEW = PartitionStatus(
    "fresh", 0, PartitionState.ARCHIVED, local_start=Offset(0), local_closed_end=Offset(0)
)
PROBLEMS = (HALTED, NEAR_DELETION, HELD, GAP, UPLOADING)


def many(number: int) -> tuple[PartitionStatus, ...]:
    """Return this number of archived partitions, of topics with 50 partitions each."""
    return tuple(
        replace(
            ARCHIVED,
            topic=f"events-{i // 50:04d}",
            partition=i % 50,
            unarchived_bytes=13_000_000 + i * 7919 % 1_000_000,
            unarchived_age_seconds=60.0 + i * 31 % 500,
        )
        for i in range(number)
    )


def snapshot_of(*partitions: PartitionStatus) -> StatusSnapshot:
    """Return the status of a ready sidecar with these partitions."""
    return StatusSnapshot(
        "prod-a",
        BrokerId(3),
        started_ms=1_789_000_000_000,
        conditions=READY,
        partitions=partitions,
        uploading_segments=1,
        queued_segments=2,
        queued_bytes=400_000_000,
        uploaded_bytes=5_000_000_000,
        pinned_bytes=1_200_000_000,
    )
