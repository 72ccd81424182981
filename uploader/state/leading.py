"""What a partition that this broker leads needs now: pure decisions, in one pass over its state."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sidetier.config.uploader import OnGap
from sidetier.segments.offsets import UNKNOWN_EPOCH, BrokerId, LeaderEpoch
from sidetier.uploader.state.events import (
    Action,
    AskBroker,
    AskStore,
    LookAt,
    TellGapHalt,
    Upload,
)
from sidetier.uploader.state.next_request import next_request, storable
from sidetier.uploader.state.partition import GAP_CONFIRM_SECONDS, Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import SegmentState, TrackedSegment

PARK_SECONDS: Final = 300.0
"""How long the pins of a partition outlive the lead."""
RESCUES_TAKE: Final = 4.0
"""So many patiences pass at most before a follower uploads what it alone holds: one until it asks a
store again that was away, a good one in which the watermark stands still, and then the uploads.
"""
_GAP_READINGS: Final = 4
"""How often the archive is read while a gap waits."""
READ_PAST_HALT_SECONDS: Final = 60.0
"""How often the archive of a partition that is halted at a gap is read."""


@dataclass(frozen=True, slots=True)
class LeaderRules:
    """What the configuration says of every led partition.

    At most `window` segments of one wait for a thread. Where `rescue_patience` is not None, in
    seconds, the sidecars of followers stand in for a leader's.
    """

    window: int
    from_latest: bool
    on_gap: OnGap
    broker_id: BrokerId
    rescue_patience: float | None = None


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known beside the partition's state: whether the high watermark has passed a segment,
    whether a broker has named this one as the leader since a moment in monotonic seconds, and the
    last leader epoch of the log on this broker (a follower asks for it before a reading).
    """

    is_committed: Callable[[TrackedSegment], bool]
    is_confirmed_since: Callable[[float], bool]
    latest_epoch: Callable[[], LeaderEpoch] = lambda: UNKNOWN_EPOCH


def lead(
    partition: Partition, now: float, rules: LeaderRules, knowledge: Knowledge
) -> list[Action]:
    """What to do for a partition that this broker leads; `now` in monotonic seconds."""
    if not rules.from_latest:
        partition.begin_with_log()
    partition.plan_again()
    actions: list[Action] = []
    if partition.may_upload():
        for planned in storable(partition, rules.window):
            actions += offer(partition, planned, now, knowledge)
    actions += mind_gap(partition, now, rules, knowledge)
    if partition.moving is not None and not partition.requesting:
        # Nothing is set aside before a broker has named us as the leader once more.
        actions.append(AskBroker())
    request = next_request(partition, now, from_latest=rules.from_latest)
    if request is not None:
        partition.read_again_at = now + _reading_pause(partition)
        actions.append(AskStore(request))
    elif partition.hold.until > now:
        actions.append(LookAt(partition.hold.until))
    return actions


def offer(
    partition: Partition, planned: PlannedSegment, now: float, knowledge: Knowledge
) -> list[Action]:
    """Queue a segment if it is committed, and look again later if it is not, or is held back."""
    segment = partition.tracked[planned.segment.base_offset]
    if segment.stage is not SegmentState.CLOSED:
        return []
    if now < segment.hold.until:
        return [LookAt(segment.hold.until)]
    if knowledge.is_committed(segment):
        return [Upload(segment, planned)]
    return [AskBroker()]


def mind_gap(
    partition: Partition, now: float, rules: LeaderRules, knowledge: Knowledge
) -> list[Action]:
    """Wait until a gap behind the watermark may be recorded; halt there, where that is wanted."""
    actions: list[Action] = []
    if partition.watch_gap(now):
        partition.gap_patience = _patience(partition, rules)
    second_look = partition.gap_seen + partition.gap_patience
    if partition.gap_is_confirmed():
        # What is gone here may be on the disk of a leader of whom we have not heard yet: nobody
        # gives up records before a broker has named him as the leader once more.
        partition.gap_vouched = knowledge.is_confirmed_since(second_look)
        if not partition.gap_vouched:
            actions.append(AskBroker())
    if partition.gap is not None and now < second_look:
        again = partition.read_again_at
        actions.append(LookAt(min(second_look, again) if again > now else second_look))
    if partition.halted_at is not None:
        actions += _look_past_halt(partition, now)
    if rules.on_gap == "halt" and not partition.halted:
        actions += _halt_at_gap(partition, now)
    return actions


def _halt_at_gap(partition: Partition, now: float) -> list[Action]:
    gap = partition.gap
    if gap is None or not (partition.gap_is_confirmed() and partition.gap_vouched):
        return []
    if partition.archive is None or not partition.archive.start_is_kept:
        return []  # a restart would begin behind the gap, and not know of it
    partition.halted = (
        f"offsets {gap} are gone from this broker before they were stored, and uploader.on_gap is "
        "halt"
    )
    partition.halted_at, partition.read_again_at = gap, now + READ_PAST_HALT_SECONDS
    return [*_look_past_halt(partition, now), TellGapHalt(gap)]


def _look_past_halt(partition: Partition, now: float) -> list[Action]:
    """End the halt where the gap is no more: the sidecar of a follower that still held the records
    has stored them, or they are here again.
    """
    archive = partition.archive
    if archive is None or archive.next_offset is None:
        return []
    if partition.gap != partition.halted_at:
        partition.halted = partition.halted_at = None
        return []
    return [LookAt(partition.read_again_at)] if partition.read_again_at > now else []


def _patience(partition: Partition, rules: LeaderRules) -> float:
    """Another broker's sidecar may still hold what is gone here: as a follower, which stores it
    soon, or in the pins that it keeps over a lost lead, should that broker lead again.
    """
    if rules.rescue_patience is not None and not partition.is_sparse:
        return max(GAP_CONFIRM_SECONDS, RESCUES_TAKE * rules.rescue_patience)
    watermark = partition.archive.watermark if partition.archive else None
    is_ours = watermark is None or watermark.broker_id == rules.broker_id
    return GAP_CONFIRM_SECONDS if is_ours else PARK_SECONDS


def _reading_pause(partition: Partition) -> float:
    is_halted = partition.halted_at is not None
    return READ_PAST_HALT_SECONDS if is_halted else partition.gap_patience / _GAP_READINGS
