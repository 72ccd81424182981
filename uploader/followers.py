"""This broker's copies of partitions that others lead: what of them is held open, and at risk."""

import contextlib
import os
from dataclasses import dataclass

from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.listing import PartitionListing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.clock import Clock
from sidetier.uploader.led_partitions import latest_epoch
from sidetier.uploader.pinning.pins import log_size, read_largest_timestamp
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.risk import RiskRule, is_below, risk_of, worth_holding


@dataclass(frozen=True, slots=True)
class Followers:
    """Looks at followed partitions' files; every call is made on the daemon's thread."""

    config: UploaderConfig
    clock: Clock

    def hold(self, partition: Partition, listing: PartitionListing) -> PartitionListing:
        """What of a listing is to be held open."""
        partition.forget_earlier_epoch(latest_epoch(partition.directory or ""))
        rule, directory = self.rule_of(partition), partition.directory or ""
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
        risk = risk_of(partition.tracked, self.rule_of(partition), self.clock.wall())
        partition.note_risk(risk.segments)

    def rule_of(self, partition: Partition) -> RiskRule:
        """Return when the broker deletes segments of a partition."""
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
