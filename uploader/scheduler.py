"""Looking at a partition's directory: list, pin, gate, queue, and ask for what is next."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import SegmentError
from sidetier.segments.listing import ClosedSegment, PartitionListing, read_listing
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.uploader.archive.requests import Requests
from sidetier.uploader.effects import release_stored
from sidetier.uploader.gates.cleaner import CleanerCheckpoints
from sidetier.uploader.gates.high_watermark import Closed, CommittedGate
from sidetier.uploader.gates.topic_rules import TopicRules
from sidetier.uploader.led_partitions import PARK_SECONDS
from sidetier.uploader.pinning.pins import log_size
from sidetier.uploader.pinning.spooling import keep_unstored, take_spooled
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.rescue.rescuer import Rescuer
from sidetier.uploader.running.clock import Clock
from sidetier.uploader.running.loop import Timers
from sidetier.uploader.sending.queue import UploadQueue
from sidetier.uploader.state.next_request import next_request, storable
from sidetier.uploader.state.partition import GAP_CONFIRM_SECONDS, Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import (
    DEFAULT_RETENTION,
    SegmentState,
    Timeline,
    TrackedSegment,
)
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.disk import list_names

if TYPE_CHECKING:
    from sidetier.uploader.pinning.spool import Spool

log: Final = structlog.get_logger()
_SETTLED_SECONDS: Final = 1.0
RESCUES_TAKE: Final = 4.0
"""So many patiences pass at most before a follower uploads what it alone holds: one until it asks a
store again that was away, a good one in which the watermark stands still, and then the uploads.
"""
_GAP_READINGS: Final = 4
"""How often the archive is read while a gap waits."""
READ_PAST_HALT_SECONDS: Final = 60.0
"""How often the archive of a partition that is halted at a gap is read."""


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """What a partition's work needs."""

    config: UploaderConfig
    clock: Clock
    gate: CommittedGate
    pins: PinTable
    timers: Timers
    uploads: UploadQueue
    requests: Requests
    rules: TopicRules
    broker_id: BrokerId
    errors: UnexpectedErrors
    locate: Callable[[Partition], None]
    cleaner: CleanerCheckpoints


class PartitionScheduler:
    """Moves partitions on; every call is made on the daemon's thread.

    An unexpected exception in a step of a partition holds back that partition alone.
    """

    def __init__(self, shop: SchedulerContext) -> None:
        self._shop = shop
        self._from_latest = shop.config.offset_reset == "latest"
        self.waiting: dict[TopicPartition, Partition] = {}
        """Partitions with a closed segment that is not known to be committed."""
        self.spool: Spool | None = None
        """Where pinned segments get second names, that outlive this process."""
        self.rescues = False
        """Whether followers stand in for each other, and a gap may be filled by one of them."""
        self._rescuer = Rescuer(
            shop.config, shop.clock, shop.timers, shop.requests, shop.broker_id, self._offer
        )

    def look(self, partition: Partition, rolled: float | None = None) -> None:
        """Find the directory and list it.

        Args:
            partition: What is in the directory.
            rolled: When an event told of it, in monotonic seconds.
        """

        def listing() -> None:
            self._shop.locate(partition)
            self._list(partition, rolled)

        self._attempt(_listing_of(partition), partition, listing)

    def look_if_changed(self, partition: Partition) -> None:
        """For rescans: a directory that nothing was created in or removed from needs no listing."""

        def listing() -> None:
            self._shop.locate(partition)
            if self._may_have_changed(partition):
                self._list(partition)

        self._attempt(_listing_of(partition), partition, listing)

    def advance(self, partition: Partition) -> None:
        """Queue what may go up now, and ask the store for what is needed next."""
        self.waiting.pop(partition.topic_partition, None)
        if self._shop.errors.error_of(_listing_of(partition)) is not None:
            return  # part of the directory was taken over, and the rest would seem to be a gap
        subject = Subject("planning", partition.topic_partition)
        self._attempt(subject, partition, lambda: self._advance(partition))

    def forget(self, tp: TopicPartition) -> None:
        """Its role has changed: what held it back is tried again."""
        self.waiting.pop(tp, None)
        for name in ("listing", "planning"):
            self._shop.errors.clear(Subject(name, tp))

    def _attempt(self, subject: Subject, partition: Partition, step: Callable[[], None]) -> None:
        errors = self._shop.errors
        if not errors.attempt(subject, step):
            partition.held_error = errors.error_of(subject)
            partition.directory_ns = -1  # what was listed was not taken over: list it again
            self._shop.timers.at(errors.retry_at(subject), partition.topic_partition)
        elif partition.held_error is not None:
            partition.held_error = errors.error_of(_listing_of(partition))

    def _list(self, partition: Partition, rolled: float | None = None) -> None:
        if partition.directory is None:
            return
        if partition.refused is not None:
            partition.release()  # nothing of it is wanted: nothing of it is held
            return
        now = self._shop.clock.monotonic()
        directory = partition.directory
        partition.directory_ns = _modified_ns(directory)
        # The broker drops epochs from its checkpoint: whatever needs one later asks the memory. A
        # request or an upload that cannot read the file reports that.
        with suppress(SegmentError, OSError):
            partition.epochs.read(directory)
        try:
            listing = read_listing(list_names(directory))
        except OSError as error:  # a failing disk, or too many open files: not the end of us all
            partition.hold.fail(str(error), now)
            self._shop.timers.at(partition.hold.until, partition.topic_partition)
            return
        if partition.follows:
            listing = self._rescuer.hold(partition, listing)
        timeline = Timeline(now, rolled)
        retention, follows = self._retention(partition), partition.follows
        if self.spool is not None:
            take_spooled(self.spool, partition, self._shop.pins, timeline, retention)
        partition.observe(
            listing,
            now,
            lambda segment: self._shop.pins.track(
                directory, segment, replace(timeline), retention, followed=follows
            ),
        )
        self._note_committed(partition, listing)
        self._note_cleaned(partition)
        self._note_marked_for_deletion(partition)
        self._note_due_by_size(partition)
        self._shop.pins.refill(directory, partition)
        if partition.follows:
            self._rescuer.count_at_risk(partition)
        if self.spool is not None:
            keep_unstored(self.spool, partition)

    def _may_have_changed(self, partition: Partition) -> bool:
        if partition.directory is None:
            return False
        modified = _modified_ns(partition.directory)
        fresh = self._shop.clock.wall() - modified / 1e9 < _SETTLED_SECONDS
        waits = bool(partition.gap or partition.tracked) and not partition.follows
        return fresh or waits or modified != partition.directory_ns

    def _retention(self, partition: Partition) -> float:
        configured = self._shop.config.local_retention
        known = partition.config.retention if partition.config is not None else None
        if known is not None:
            return known
        return DEFAULT_RETENTION if configured is None else configured

    def _apply_retention(self, partition: Partition) -> None:
        """To what was tracked before the topic's configuration was known, or was changed."""
        retention = self._retention(partition)
        others = [one for one in partition.tracked.values() if one.retention != retention]
        for tracked in others:
            tracked.retention = retention
        if others:
            self._shop.pins.rank_again(partition)

    def _note_committed(self, partition: Partition, listing: PartitionListing) -> None:
        """Note which segments are committed, while the log's epochs still prove it."""
        directory, epochs = partition.directory or "", partition.epochs
        live = {
            segment.base_offset for segment in listing.closed if not segment.marked_for_deletion
        }
        passed: list[tuple[TrackedSegment, Offset]] = []
        for base, tracked in partition.tracked.items():
            end = tracked.segment.next_base
            if tracked.committed or tracked.pinned is None or end is None:
                continue
            if tracked.epochs is None and base in live:
                tracked.epochs = epochs.known.up_to(end)
            if tracked.epochs is None or not tracked.epochs.entries:
                continue
            if self._committed(partition, tracked.segment, tracked):
                passed.append((tracked, Offset(end)))
        if not passed:
            return
        # Read after the high watermark: a leader writes its epoch before it appends, so a segment
        # that was truncated before the high watermark passed its end shows in the epochs.
        with suppress(SegmentError, OSError):
            now = epochs.read(directory)
            for tracked, next_offset in passed:
                tracked.committed = now.up_to(next_offset) == tracked.epochs

    def _note_cleaned(self, partition: Partition) -> None:
        start, log_dir = partition.log_start(), partition.log_dir
        if start is not None and log_dir is not None:
            tp = partition.topic_partition
            partition.cleaned = self._shop.cleaner.has_cleaned(log_dir, tp, start)

    def _note_marked_for_deletion(self, partition: Partition) -> None:
        for tracked in partition.tracked.values():
            if tracked.segment.marked_for_deletion and tracked.marked_for_deletion_at is None:
                tracked.marked_for_deletion_at = self._shop.clock.wall()

    def _note_due_by_size(self, partition: Partition) -> None:
        """As `RiskRule.end_by_size`, without a margin: what is uploaded is uploaded now."""
        limit = partition.config.retention_bytes if partition.config is not None else None
        if limit is None or partition.directory is None or partition.active is None:
            return
        behind = log_size(partition.directory, partition.active)
        for _, tracked in sorted(partition.tracked.items(), reverse=True):
            if tracked.segment.marked_for_deletion:
                continue
            if behind < limit:
                tracked.due_since = None
            elif tracked.due_since is None:
                tracked.due_since = self._shop.clock.wall()
            behind += tracked.size

    def _advance(self, partition: Partition) -> None:
        if partition.lost:
            return
        self._apply_rules(partition)
        if partition.follows:
            self._rescuer.advance(partition)
            return
        release_stored(partition)
        self._set_start(partition)
        partition.plan_again()
        now = self._shop.clock.monotonic()
        if self._may_upload(partition):
            window = self._shop.config.max_queued_segments_per_partition
            for planned in storable(partition, window):
                self._offer(partition, planned, now)
        self._mind_gap(partition, now)
        if partition.moving is not None and not partition.requesting:
            # Nothing is set aside before a broker has named us as the leader once more.
            self.waiting[partition.topic_partition] = partition
        request = next_request(partition, now, from_latest=self._from_latest)
        if request is not None:
            partition.read_again_at = now + _reading_pause(partition)
            self._shop.requests.ask(partition, request)
        elif partition.hold.until > now:
            self._shop.timers.at(partition.hold.until, partition.topic_partition)

    def _apply_rules(self, partition: Partition) -> None:
        topic = partition.topic_partition.topic
        rules = self._shop.rules
        known, partition.config = partition.config, rules.config(topic)
        if not rules.is_known(topic, partition.topic_id):
            partition.config = None
        elif partition.config.retention_bytes != (known or TopicConfig()).retention_bytes:
            self._look_soon(partition)  # what is due by size follows from sizes on the disk
        self._apply_retention(partition)
        refused = self._shop.rules.refusal(topic, cleaned=partition.cleaned)
        if refused is not None and partition.refused is None and not partition.follows:
            log.error("topic.refused", topic=topic, reason=refused)
        if refused is None and partition.refused is not None:
            self._look_soon(partition)  # it is wanted again
        partition.refused = refused

    def _look_soon(self, partition: Partition) -> None:
        partition.directory_ns = -1
        self._shop.timers.at(self._shop.clock.monotonic(), partition.topic_partition)

    def _may_upload(self, partition: Partition) -> bool:
        return (
            partition.archive is not None
            and partition.archive.present is not None
            and partition.halted is None
            and partition.refused is None
            and partition.unread is None
            and partition.config is not None
            and not partition.unsure
            and partition.unanswered is None
        )

    def _set_start(self, partition: Partition) -> None:
        """An archive begins where the log began at our first look: what is lost since is a gap."""
        archive = partition.archive
        if archive is None or archive.next_offset is not None or self._from_latest:
            return
        if archive.is_pinterest:
            return  # a follower has read it; the leader's sidecar takes it over
        if partition.first_start is not None and partition.tracked:
            partition.archive = archive.beginning_with_log(partition.first_start)

    def _offer(self, partition: Partition, planned: PlannedSegment, now: float) -> None:
        tracked = partition.tracked[planned.segment.base_offset]
        if tracked.stage is not SegmentState.CLOSED:
            return
        if now < tracked.hold.until:
            self._shop.timers.at(tracked.hold.until, partition.topic_partition)
        elif not self._committed(partition, planned.segment, tracked):
            self.waiting[partition.topic_partition] = partition
        else:
            self._shop.uploads.offer(partition, tracked, planned)

    def _committed(
        self, partition: Partition, segment: ClosedSegment, tracked: TrackedSegment
    ) -> bool:
        end = segment.next_base
        if end is None or partition.log_dir is None:
            return False
        return self._shop.gate.is_committed(
            Closed(
                partition.topic_partition,
                partition.log_dir,
                Offset(end),
                tracked.modified_ns,
                partition.leader_epoch,
            )
        )

    def _mind_gap(self, partition: Partition, now: float) -> None:
        if partition.watch_gap(now):
            partition.gap_patience = self._patience(partition)
        gap = partition.gap
        second_look = partition.gap_seen + partition.gap_patience
        if partition.gap_is_confirmed():
            self._ask_who_leads(partition, second_look)
        if gap is not None and now < second_look:
            again = partition.read_again_at
            next_look = min(second_look, again) if again > now else second_look
            self._shop.timers.at(next_look, partition.topic_partition)
        if partition.halted_at is not None:
            self._look_past_halt(partition)
        if self._shop.config.on_gap != "halt" or partition.halted:
            return
        if gap is None or not (partition.gap_is_confirmed() and partition.gap_vouched):
            return
        if partition.archive is None or not partition.archive.start_is_kept:
            return  # a restart would begin behind the gap, and not know of it
        partition.halted = (
            f"offsets {gap} are gone from this broker before they were "
            "stored, and uploader.on_gap is halt"
        )
        partition.halted_at, partition.read_again_at = gap, now + READ_PAST_HALT_SECONDS
        self._look_past_halt(partition)
        tp = partition.topic_partition
        log.error(
            "partition.halted",
            topic=tp.topic,
            partition=tp.partition,
            start_offset=gap.start,
            end_offset=gap.end,
        )

    def _look_past_halt(self, partition: Partition) -> None:
        """End the halt where the gap is no more: the sidecar of a follower that still held the
        records has stored them, or they are here again.
        """
        archive = partition.archive
        if archive is None or archive.next_offset is None:
            return
        if partition.gap != partition.halted_at:
            partition.halted = partition.halted_at = None
        elif partition.read_again_at > self._shop.clock.monotonic():
            self._shop.timers.at(partition.read_again_at, partition.topic_partition)

    def _ask_who_leads(self, partition: Partition, since: float) -> None:
        """What is gone here may be on the disk of a leader of whom we have not heard yet: nobody
        gives up records before a broker has named him as the leader once more.
        """
        tp = partition.topic_partition
        partition.gap_vouched = self._shop.gate.confirms_lead(tp, partition.leader_epoch, since)
        if not partition.gap_vouched:
            self.waiting[tp] = partition

    def _patience(self, partition: Partition) -> float:
        """Another broker's sidecar may still hold what is gone here: as a follower, which stores it
        soon, or in the pins that it keeps over a lost lead, should that broker lead again.
        """
        if self.rescues and not partition.is_sparse:
            return max(GAP_CONFIRM_SECONDS, RESCUES_TAKE * self._shop.config.rescue.patience)
        watermark = partition.archive.watermark if partition.archive else None
        ours = watermark is None or watermark.broker_id == self._shop.broker_id
        return GAP_CONFIRM_SECONDS if ours else PARK_SECONDS


def _reading_pause(partition: Partition) -> float:
    halted = partition.halted_at is not None
    return READ_PAST_HALT_SECONDS if halted else partition.gap_patience / _GAP_READINGS


def _listing_of(partition: Partition) -> Subject:
    return Subject("listing", partition.topic_partition)


def _modified_ns(directory: str) -> int:
    try:
        return os.stat(directory).st_mtime_ns
    except OSError:
        return -1
