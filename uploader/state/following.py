"""What a partition that another broker leads needs now: pure decisions.

Nothing is asked of the store before a segment of this copy nears its deletion. Then the watermark
is read, at most once per patience. When it has not moved in between, what is at risk is uploaded in
the epoch of this copy's epoch history, under the same conditions as by a leader: two that do it at
once disturb each other, and harm nothing.
"""

from dataclasses import dataclass
from typing import Final
from zlib import crc32

from sidetier.segments.offsets import UNKNOWN_EPOCH, BrokerId, LeaderEpoch, TopicPartition
from sidetier.uploader.state.events import Action, AskStore, LookAt, Request, TellRescue
from sidetier.uploader.state.leading import Knowledge, offer
from sidetier.uploader.state.next_request import storable, stored_prefix
from sidetier.uploader.state.partition import Partition, WatermarkStall
from sidetier.uploader.state.risk import Risk
from sidetier.uploader.state.segment import SegmentState

_UNDER_WAY: Final = frozenset({SegmentState.QUEUED, SegmentState.UPLOADING, SegmentState.STORED})
_AT_ONCE: Final = 1
"""Segments of a partition: what lies ahead of the watermark is in a slow leader's way."""


@dataclass(frozen=True, slots=True)
class FollowerRules:
    """What the configuration says of every followed partition; `patience` in seconds."""

    patience: float
    from_latest: bool
    broker_id: BrokerId

    def patience_of(self, tp: TopicPartition) -> float:
        """A little more on one broker than on another, so that one of them goes first."""
        spread = crc32(f"{self.broker_id} {tp}".encode()) % 256 / 1024
        return self.patience * (1 + spread)


def follow(
    partition: Partition,
    now: float,
    wall: float,
    rules: FollowerRules,
    risk: Risk,
    knowledge: Knowledge,
) -> list[Action]:
    """What to do for a partition that another broker leads.

    Args:
        partition: It is followed.
        now: Monotonic seconds.
        wall: Seconds since 1970.
        rules: What is configured.
        risk: Which of its segments the broker is about to delete.
        knowledge: As for a led partition.
    """
    stall = partition.watermark_stall
    if stall is None:
        return []
    partition.plan_again()
    partition.at_risk = risk.segments
    wake = [] if risk.next_at == float("inf") else [LookAt(now + max(0.0, risk.next_at - wall))]
    if not risk.segments:
        # No request is made, and what was read is out of date next time.
        stall.rescuing = False
        if not partition.requesting and not _is_under_way(partition):
            partition.archive = None
        return [*wake]
    if partition.requesting:
        return []
    return [*wake, *_mind(partition, now, rules, risk, knowledge)]


def _mind(
    partition: Partition,
    now: float,
    rules: FollowerRules,
    risk: Risk,
    knowledge: Knowledge,
) -> list[Action]:
    stall, patience = partition.watermark_stall, rules.patience_of(partition.topic_partition)
    if stall is None:
        return []
    read_again = stall.read_at + patience
    held = min(partition.hold.until, read_again)  # a leader that sees a gap does not wait longer
    if now < held:
        return [LookAt(held)]
    is_fresh = now < read_again or _is_under_way(partition)
    actions: list[Action] = []
    if partition.archive is not None and is_fresh and stall.lasts(patience):
        actions = _rescue(partition, now, rules, risk, knowledge)
    elif now >= read_again:
        return _read(partition, now, knowledge)
    return [*actions, LookAt(read_again if now < read_again else now + patience)]


def _read(partition: Partition, now: float, knowledge: Knowledge) -> list[Action]:
    if partition.directory is None:
        return []
    forget_old_news(partition, knowledge.latest_epoch())
    if partition.watermark_stall is not None:
        partition.watermark_stall.read_at = now
    return [] if partition.leader_epoch == UNKNOWN_EPOCH else [AskStore(Request.LOAD)]


def _rescue(
    partition: Partition, now: float, rules: FollowerRules, risk: Risk, knowledge: Knowledge
) -> list[Action]:
    """What a leader would do, but for gaps, and as far as is at risk: another replica may hold what
    is gone here.
    """
    if not rules.from_latest:  # or else only the leader says where to begin
        partition.begin_with_log()
    archive, stall = partition.archive, partition.watermark_stall
    if archive is None or archive.next_offset is None or risk.end is None or stall is None:
        return []
    actions: list[Action] = []
    if not stall.rescuing:
        stall.rescuing = True
        still = now - (stall.since or now)
        actions.append(TellRescue(archive.next_offset, risk.segments, still))
    if not archive.start_is_kept and (archive.start or archive.kept_start is not None):
        # Another log may begin lower than ours, or than the record: who has it lowers that.
        return [*actions, AskStore(Request.START)]
    if stored_prefix(partition):
        return [*actions, AskStore(Request.COMMIT)]
    wanted = storable(partition, _AT_ONCE)
    wanted = [planned for planned in wanted if planned.segment.base_offset < risk.end]
    if wanted and archive.present is None:
        return [*actions, AskStore(Request.PREPARE)]
    for planned in wanted:
        actions += offer(partition, planned, now, knowledge)
    return actions


def notice_watermark(partition: Partition) -> None:
    """Compare the watermark of the last reading with the one before."""
    archive, stall = partition.archive, partition.watermark_stall
    if archive is not None and stall is not None:
        done = archive.next_offset if archive.watermark is not None else None
        stall.saw(done, ours=archive.claimed)


def forget_old_news(partition: Partition, epoch: LeaderEpoch) -> None:
    """Another leader since we read: after an unclean election what was stored is set aside, and the
    watermark goes back. Nothing of an earlier epoch is believed.

    Args:
        partition: It is followed.
        epoch: The last leader epoch of the log on this broker; -1 where none is told.
    """
    stall = partition.watermark_stall
    if stall is not None and epoch not in {UNKNOWN_EPOCH, partition.leader_epoch}:
        partition.leader_epoch = epoch
        partition.reset()
        partition.watermark_stall = WatermarkStall(read_at=stall.read_at)


def _is_under_way(partition: Partition) -> bool:
    return any(tracked.stage in _UNDER_WAY for tracked in partition.tracked.values())
