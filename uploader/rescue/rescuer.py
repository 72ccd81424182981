"""Stands in for a leader's sidecar that does not store: reads, waits, and only then uploads.

Nothing is asked of the store before a segment of this copy nears its deletion. Then the watermark
is read, at most once per `patience`. When it has not moved in between, what is at risk is uploaded
in the epoch of this copy's epoch history, under the same conditions as by a leader: two that do it
at once disturb each other, and harm nothing.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import structlog

from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.listing import PartitionListing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, BrokerId, Offset, TopicPartition
from sidetier.uploader.archive.requests import Requests
from sidetier.uploader.effects import release_stored
from sidetier.uploader.led_partitions import latest_epoch
from sidetier.uploader.pinning.pins import log_size, read_largest_timestamp
from sidetier.uploader.rescue.risk import (
    Risk,
    RiskRule,
    is_below,
    risk_of,
    worth_holding,
)
from sidetier.uploader.running.clock import Clock
from sidetier.uploader.running.loop import Timers
from sidetier.uploader.state.events import Request
from sidetier.uploader.state.next_request import storable, stored_prefix
from sidetier.uploader.state.partition import Partition, WatermarkStall
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import SegmentState

log: Final = structlog.get_logger()
_UNDER_WAY: Final = frozenset({SegmentState.QUEUED, SegmentState.UPLOADING, SegmentState.STORED})
_AT_ONCE: Final = 1
"""Segments of a partition: what lies ahead of the watermark is in a slow leader's way."""

Offer = Callable[[Partition, PlannedSegment, float], None]
"""Queues a segment that is committed, or notes that it waits for the high watermark."""


@dataclass(frozen=True, slots=True)
class Rescuer:
    """Moves followed partitions on; every call is made on the daemon's thread."""

    config: UploaderConfig
    clock: Clock
    timers: Timers
    requests: Requests
    broker_id: BrokerId
    offer: Offer

    def hold(self, partition: Partition, listing: PartitionListing) -> PartitionListing:
        """What of a listing is to be held open."""
        _forget_old_news(partition)
        rule, directory = self._rule(partition), partition.directory or ""
        wall = self.clock.wall()

        end_by_size = partition.at_risk_by_size = _end_by_size(rule, directory, listing)

        def is_at_risk(base: BaseOffset) -> bool:
            if is_below(base, end_by_size):
                return True
            known = partition.tracked.get(base)
            largest = known.largest_timestamp if known else _largest_timestamp(directory, base)
            return rule.begins(largest) <= wall

        return worth_holding(listing, partition.stored_below(), is_at_risk)

    def count_at_risk(self, partition: Partition) -> None:
        """Count, right after a listing, the segments that the broker may delete before the next."""
        risk = risk_of(partition.tracked, self._rule(partition), self.clock.wall())
        partition.at_risk = risk.segments

    def advance(self, partition: Partition) -> None:
        """Do what a followed partition needs now, if it needs anything."""
        partition.at_risk = 0
        still = partition.watermark_stall
        if partition.config is None or partition.unsure or still is None:
            return
        if partition.is_sparse or partition.refused is not None:
            partition.release()  # each replica compacts for itself: their copies are not one
            return
        if partition.archive is not None:
            _notice(partition, still)
        release_stored(partition)
        partition.plan_again()
        rule, by_size = self._rule(partition), partition.at_risk_by_size
        risk = risk_of(partition.tracked, rule, self.clock.wall(), by_size)
        partition.at_risk = risk.segments
        if risk.segments and not partition.requesting:
            self._mind(partition, still, risk)
        elif not risk.segments:
            self._rest(partition, still, risk)

    def patience(self, tp: TopicPartition) -> float:
        """Seconds; a little more on one broker than on another, so that one of them goes first."""
        spread = crc32(f"{self.broker_id} {tp}".encode()) % 256 / 1024
        return self.config.rescue.patience * (1 + spread)

    def _rule(self, partition: Partition) -> RiskRule:
        known = partition.config or TopicConfig()
        retention = self.config.local_retention if known.retention is None else known.retention
        return RiskRule(self.config.rescue.before_deletion, retention, known.retention_bytes)

    def _rest(self, partition: Partition, still: WatermarkStall, risk: Risk) -> None:
        """Nothing is at risk: no request is made, and what was read is out of date next time."""
        still.rescuing = False
        if not partition.requesting and not _under_way(partition):
            partition.archive = None
        self._wake_at(partition, risk)

    def _wake_at(self, partition: Partition, risk: Risk) -> None:
        if risk.next_at != float("inf"):
            ahead = max(0.0, risk.next_at - self.clock.wall())
            self.timers.at(self.clock.monotonic() + ahead, partition.topic_partition)

    def _mind(self, partition: Partition, still: WatermarkStall, risk: Risk) -> None:
        now, tp = self.clock.monotonic(), partition.topic_partition
        self._wake_at(partition, risk)
        read_again = still.read_at + self.patience(tp)
        held = min(
            partition.hold.until, read_again
        )  # a leader that sees a gap does not wait longer
        if now < held:
            self.timers.at(held, tp)
            return
        fresh = now < read_again or _under_way(partition)
        if partition.archive is not None and fresh and still.lasts(self.patience(tp)):
            self._rescue(partition, still, risk, now)
        elif now >= read_again:
            self._read(partition, now)
            return
        self.timers.at(read_again if now < read_again else now + self.patience(tp), tp)

    def _read(self, partition: Partition, now: float) -> None:
        if partition.directory is None:
            return
        _forget_old_news(partition)
        if partition.watermark_stall is not None:
            partition.watermark_stall.read_at = now
        if partition.leader_epoch != UNKNOWN_EPOCH:
            self.requests.ask(partition, Request.LOAD)

    def _rescue(self, partition: Partition, still: WatermarkStall, risk: Risk, now: float) -> None:
        """What a leader would do, but for gaps, and as far as is at risk: another replica may hold
        what is gone here.
        """
        if self.config.offset_reset == "earliest":  # or else only the leader says where to begin
            partition.begin_with_log()
        archive = partition.archive
        if archive is None or archive.next_offset is None or risk.end is None:
            return
        if not still.rescuing:
            still.rescuing = True
            _tell(partition, archive.next_offset, risk, now - (still.since or now))
        if not archive.start_is_kept and (archive.start or archive.kept_start is not None):
            # Another log may begin lower than ours, or than the record: who has it lowers that.
            self.requests.ask(partition, Request.START)
            return
        if stored_prefix(partition):
            self.requests.ask(partition, Request.COMMIT)
            return
        wanted = storable(partition, _AT_ONCE)
        wanted = [planned for planned in wanted if planned.segment.base_offset < risk.end]
        if wanted and archive.present is None:
            self.requests.ask(partition, Request.PREPARE)
            return
        for planned in wanted:
            self.offer(partition, planned, now)


def _notice(partition: Partition, still: WatermarkStall) -> None:
    archive = partition.archive
    if archive is not None:
        done = archive.next_offset if archive.watermark is not None else None
        still.saw(done, ours=archive.claimed)


def _forget_old_news(partition: Partition) -> None:
    """Another leader since we read: after an unclean election what was stored is set aside, and the
    watermark goes back. Nothing of an earlier epoch is believed.
    """
    still, epoch = partition.watermark_stall, latest_epoch(partition.directory or "")
    if still is not None and epoch not in {UNKNOWN_EPOCH, partition.leader_epoch}:
        partition.leader_epoch = epoch
        partition.reset()
        partition.watermark_stall = WatermarkStall(read_at=still.read_at)


def _under_way(partition: Partition) -> bool:
    return any(tracked.stage in _UNDER_WAY for tracked in partition.tracked.values())


def _largest_timestamp(directory: str, base: BaseOffset) -> float:
    """As `SegmentTimes` has it, of a segment that is not pinned; 0 where it is gone: at risk."""
    with contextlib.suppress(OSError):
        path = os.path.join(directory, segment_file_name(base, FileKind.TIMEINDEX))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            largest = read_largest_timestamp(descriptor)
        finally:
            os.close(descriptor)
        if largest is not None:
            return largest
    try:
        return os.stat(os.path.join(directory, segment_file_name(base, FileKind.LOG))).st_mtime
    except OSError:
        return 0.0


def _end_by_size(rule: RiskRule, directory: str, listing: PartitionListing) -> Offset | None:
    if rule.retention_bytes is None or listing.active is None:
        return None
    live = (segment for segment in reversed(listing.closed) if not segment.marked_for_deletion)
    sizes = (
        (Offset(segment.next_base), log_size(directory, segment.base_offset))
        for segment in live
        if segment.next_base is not None
    )
    return rule.end_by_size(log_size(directory, listing.active), sizes)


def _tell(partition: Partition, next_offset: Offset, risk: Risk, still: float) -> None:
    tp = partition.topic_partition
    log.warning(
        "rescue.began",
        topic=tp.topic,
        partition=tp.partition,
        next_offset=next_offset,
        segments_at_risk=risk.segments,
        watermark_still_seconds=round(still, 3),
    )
