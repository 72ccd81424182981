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
from sidetier.uploader.followers import Followers
from sidetier.uploader.gates.cleaner import CleanerCheckpoints
from sidetier.uploader.gates.high_watermark import Closed, CommittedGate
from sidetier.uploader.gates.topic_rules import TopicRules
from sidetier.uploader.led_partitions import latest_epoch
from sidetier.uploader.pinning.pins import log_size
from sidetier.uploader.pinning.spooling import keep_unstored, take_spooled
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.running.clock import Clock
from sidetier.uploader.running.loop import Timers
from sidetier.uploader.sending.queue import UploadQueue
from sidetier.uploader.state.leading import (
    AskBroker,
    AskStore,
    Knowledge,
    LeaderRules,
    LookAt,
    Step,
    TellGapHalt,
    TellRescue,
    Upload,
    lead,
)
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import (
    DEFAULT_RETENTION,
    Timeline,
    TrackedSegment,
)
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.disk import list_names

if TYPE_CHECKING:
    from sidetier.uploader.pinning.spool import Spool

log: Final = structlog.get_logger()
_SETTLED_SECONDS: Final = 1.0


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
        self._rules = LeaderRules(
            shop.config.max_queued_segments_per_partition,
            shop.config.offset_reset == "latest",
            shop.config.on_gap,
            shop.broker_id,
        )
        self.waiting: dict[TopicPartition, Partition] = {}
        """Partitions with a closed segment that is not known to be committed."""
        self.spool: Spool | None = None
        """Where pinned segments get second names, that outlive this process."""
        self._followers = Followers(shop.config, shop.clock, shop.broker_id)

    def expect_rescues(self) -> None:
        """From now on followers stand in for each other, and a gap may be filled by one of them."""
        self._rules = replace(self._rules, rescue_patience=self._shop.config.rescue.patience)

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
            listing = self._followers.hold(partition, listing)
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
            self._followers.count_at_risk(partition)
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
            steps = self._followers.steps(partition, self._knowledge(partition))
            self._carry_out(partition, steps)
            return
        release_stored(partition)
        now = self._shop.clock.monotonic()
        steps = lead(partition, now, self._rules, self._knowledge(partition))
        self._carry_out(partition, steps)

    def _knowledge(self, partition: Partition) -> Knowledge:
        def is_committed(tracked: TrackedSegment) -> bool:
            return self._committed(partition, tracked.segment, tracked)

        def is_confirmed_since(moment: float) -> bool:
            tp, epoch = partition.topic_partition, partition.leader_epoch
            return self._shop.gate.confirms_lead(tp, epoch, moment)

        return Knowledge(
            is_committed, is_confirmed_since, lambda: latest_epoch(partition.directory or "")
        )

    def _carry_out(self, partition: Partition, steps: list[Step]) -> None:
        tp = partition.topic_partition
        for step in steps:
            match step:
                case Upload(segment, planned):
                    self._shop.uploads.offer(partition, segment, planned)
                case AskStore(request):
                    self._shop.requests.ask(partition, request)
                case AskBroker():
                    self.waiting[tp] = partition
                case LookAt(when):
                    self._shop.timers.at(when, tp)
                case TellRescue(next_offset, at_risk, still):
                    log.warning(
                        "rescue.began",
                        topic=tp.topic,
                        partition=tp.partition,
                        next_offset=next_offset,
                        segments_at_risk=at_risk,
                        watermark_still_seconds=round(still, 3),
                    )
                case TellGapHalt(gap):
                    log.error(
                        "partition.halted",
                        topic=tp.topic,
                        partition=tp.partition,
                        start_offset=gap.start,
                        end_offset=gap.end,
                    )

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


def _listing_of(partition: Partition) -> Subject:
    return Subject("listing", partition.topic_partition)


def _modified_ns(directory: str) -> int:
    try:
        return os.stat(directory).st_mtime_ns
    except OSError:
        return -1
