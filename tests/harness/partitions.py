"""Partitions in a given state, and the situations in which they decide: no threads, no files."""

from dataclasses import replace

from sidetier.archive.objects.watermark import Watermark
from sidetier.leadership.port import TopicConfig
from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.state.decisions import HighWatermarks, Rules, Situation
from sidetier.uploader.state.events import (
    Action,
    Asked,
    Request,
    SituationChanged,
    UploadSucceeded,
)
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.risk import RiskRule
from sidetier.uploader.state.segment import (
    SegmentState,
    StoredSegment,
    Timeline,
    TrackedSegment,
)

TP = TopicPartition("orders", 0)
NOW, WALL = 100.0, 1_700_000_000.0
RULES = Rules(8, from_latest=False, on_gap="step_over", broker_id=BrokerId(1))
ALL_COMMITTED = Situation(NOW, WALL, RULES, HighWatermarks(1_000), float("inf"))
CHANGED = SituationChanged()
EVENT_ALONE = replace(ALL_COMMITTED, decides=False)
"""Shows the actions of an event without the decision that follows."""

FOLLOWER_RULES = Rules(
    8, from_latest=False, on_gap="step_over", broker_id=BrokerId(2), rescue_patience=60.0
)
PATIENCE = FOLLOWER_RULES.patience_of(TP)
AT_RISK_IN_30_SECONDS = RiskRule(before=0.0, retention=WALL + 30)
FIRST_AT_RISK = RiskRule(before=0.0, retention=None)
"""Nothing by time; `steps_of` sets what is at risk by size."""


def made(*bases: int, next_offset: int = 0, active: int | None = None) -> Partition:
    """Return a led partition with closed segments of ten records at `bases`."""
    partition = Partition(TP, LeaderEpoch(3), config=TopicConfig())
    end = max(bases, default=-10) + 10 if active is None else active
    listed(partition, *bases, active=end, at=NOW)
    partition.archive = archive(next_offset)
    return partition


def listed(partition: Partition, *bases: int, active: int, at: float) -> None:
    """Let a listing at this time show closed segments of ten records."""
    closed = tuple(
        ClosedSegment(BaseOffset(b), BaseOffset(b + 10), marked_for_deletion=False) for b in bases
    )
    partition.observe(
        PartitionListing(closed, BaseOffset(active)),
        at,
        lambda segment: TrackedSegment(segment, 1000, 0, Timeline(NOW)),
    )


def at(now: float) -> Situation:
    """Return a situation in which all segments are committed."""
    return replace(ALL_COMMITTED, now=now)


def archive(
    next_offset: int, base: int | None = None, *, broker: int = 1, kept: bool = True
) -> ArchiveState:
    """Return an archive that ends at this offset; with `base`, an `offset.wm` of a broker."""
    watermark = None
    if base is not None:
        watermark = Watermark(
            base_offset=BaseOffset(base),
            next_offset=Offset(next_offset),
            broker_id=BrokerId(broker),
            leader_epoch=LeaderEpoch(3),
        )
    offset = Offset(next_offset)
    start = offset if kept else None
    return ArchiveState(watermark, "etag", offset, frozenset(), start=offset, kept_start=start)


def stored(base: int) -> StoredSegment:
    """Return what an upload of the segment has stored."""
    return StoredSegment(BaseOffset(base), Offset(base + 10), 0, 1000, 1000)


def upload(partition: Partition, base: int, situation: Situation = ALL_COMMITTED) -> list[Action]:
    """Handle the successful upload of the segment."""
    segment = partition.log.tracked[BaseOffset(base)]
    segment.queue(PlannedSegment(segment.segment, Offset(base)), NOW)
    segment.stage = SegmentState.UPLOADING
    event = UploadSucceeded(segment, partition.generation, stored(base))
    return partition.handle(event, situation)


def begin(partition: Partition, request: Request) -> Asked:
    """Begin a request."""
    partition.requesting = request
    begun = partition.asked(request)
    assert begun is not None
    return begun


def kinds(actions: list[Action]) -> list[type]:
    """Return the classes of actions."""
    return [type(action) for action in actions]


def as_follower(now: float, rule: RiskRule = FIRST_AT_RISK) -> Situation:
    """Return a situation of a follower."""
    return replace(at(now), rules=FOLLOWER_RULES, risk_rule=rule)


def followed(*bases: int) -> Partition:
    """Return a followed partition, whose archive is not known."""
    partition = made(*(bases or (0, 10)))
    partition.follow()
    partition.directory = "/kafka/orders-0"
    return partition


def steps_of(partition: Partition, now: float, rule: RiskRule = FIRST_AT_RISK) -> list[Action]:
    """Let a follower decide; with `FIRST_AT_RISK` the segments below offset 10 are at risk."""
    by_size = Offset(10) if rule is FIRST_AT_RISK else None
    partition.note_risk_by_size(by_size)
    return partition.handle(CHANGED, as_follower(now, rule))
