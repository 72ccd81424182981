"""This broker's copies of partitions that others lead: what of them is held open, and at risk."""

import contextlib
import os
from dataclasses import dataclass

from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.listing import PartitionListing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, BrokerId, Offset
from sidetier.uploader.led_partitions import latest_epoch
from sidetier.uploader.pinning.pins import log_size, read_largest_timestamp
from sidetier.uploader.running.clock import Clock
from sidetier.uploader.state.events import Action
from sidetier.uploader.state.following import (
    FollowerRules,
    follow,
    forget_old_news,
    notice_watermark,
)
from sidetier.uploader.state.leading import Knowledge
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.risk import RiskRule, is_below, risk_of, worth_holding
from sidetier.uploader.state.segment import release


@dataclass(frozen=True, slots=True)
class Followers:
    """Looks at followed partitions' files; every call is made on the daemon's thread."""

    config: UploaderConfig
    clock: Clock
    broker_id: BrokerId

    def hold(self, partition: Partition, listing: PartitionListing) -> PartitionListing:
        """What of a listing is to be held open."""
        forget_old_news(partition, latest_epoch(partition.directory or ""))
        rule, directory = self._rule(partition), partition.directory or ""
        wall = self.clock.wall()

        end_by_size = _end_by_size(rule, directory, listing)
        partition.note_risk_by_size(end_by_size)

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
        partition.note_risk(risk.segments)

    def steps(self, partition: Partition, knowledge: Knowledge) -> list[Action]:
        """What a followed partition needs now."""
        partition.note_risk(0)
        if partition.config is None or partition.unsure or partition.watermark_stall is None:
            return []
        if partition.is_sparse or partition.refused is not None:
            release(partition.untrack_all())  # each replica compacts its copy for itself
            return []
        notice_watermark(partition)
        release(partition.forget_stored())
        now, wall = self.clock.monotonic(), self.clock.wall()
        rule, by_size = self._rule(partition), partition.at_risk_by_size
        return follow(
            partition,
            now,
            wall,
            FollowerRules(
                self.config.rescue.patience, self.config.offset_reset == "latest", self.broker_id
            ),
            risk_of(partition.tracked, rule, wall, by_size),
            knowledge,
        )

    def _rule(self, partition: Partition) -> RiskRule:
        known = partition.config or TopicConfig()
        retention = self.config.local_retention if known.retention is None else known.retention
        return RiskRule(self.config.rescue.before_deletion, retention, known.retention_bytes)


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
