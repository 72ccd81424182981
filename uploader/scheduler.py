"""Decides what a partition does next: lists its directory, and carries out what its state needs."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from sidetier.config.uploader import UploaderConfig
from sidetier.segments.errors import SegmentError
from sidetier.segments.listing import ClosedSegment, PartitionListing, read_listing
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.uploader.effects import Effects
from sidetier.uploader.followers import Followers
from sidetier.uploader.gates.cleaner import CleanerCheckpoints
from sidetier.uploader.gates.high_watermark import Closed, CommittedGate, HighWatermarkAsker
from sidetier.uploader.gates.topic_rules import TopicRules
from sidetier.uploader.led_partitions import LedPartitions, latest_epoch
from sidetier.uploader.pinning.pins import log_size
from sidetier.uploader.pinning.spooling import keep_unstored, take_spooled
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.running.clock import Clock
from sidetier.uploader.running.loop import Timers
from sidetier.uploader.state.leading import Knowledge, LeaderRules, lead
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import (
    DEFAULT_RETENTION,
    Timeline,
    TrackedSegment,
    release,
)
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.disk import list_names

if TYPE_CHECKING:
    from sidetier.uploader.pinning.spool import Spool

log: Final = structlog.get_logger()
_SETTLED_SECONDS: Final = 1.0


class PartitionScheduler:
    """Moves partitions on; every call is made on the daemon's thread.

    An unexpected exception in a step of a partition holds back that partition alone.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
        self,
        config: UploaderConfig,
        clock: Clock,
        broker_id: BrokerId,
        partitions: LedPartitions,
        effects: Effects,
        pins: PinTable,
        timers: Timers,
        gate: CommittedGate,
        asker: HighWatermarkAsker,
        rules: TopicRules,
        errors: UnexpectedErrors,
    ) -> None:
        self._config = config
        self._clock = clock
        self._partitions = partitions
        self._effects = effects
        self._pins = pins
        self._timers = timers
        self._gate = gate
        self._asker = asker
        self._rules = rules
        self._errors = errors
        self._cleaner = CleanerCheckpoints(clock.monotonic, errors.file_was_read)
        self._followers = Followers(config, clock, broker_id)
        self._leader_rules = LeaderRules(
            config.max_queued_segments_per_partition,
            config.offset_reset == "latest",
            config.on_gap,
            broker_id,
        )
        self.spool: Spool | None = None
        """Where open segments get second names, which outlive this process."""

    def expect_rescues(self) -> None:
        """From now on followers stand in for each other, and a gap may be filled by one of them."""
        patience = self._config.rescue.patience
        self._leader_rules = replace(self._leader_rules, rescue_patience=patience)

    def look(self, partition: Partition, rolled: float | None = None) -> None:
        """Find the partition's directory and list it.

        Args:
            partition: Led or followed.
            rolled: When a file system event named the directory, in monotonic seconds.
        """

        def listing() -> None:
            self._partitions.locate(partition)
            self._list(partition, rolled)

        self._attempt(_listing_of(partition), partition, listing)

    def look_if_changed(self, partition: Partition) -> None:
        """For rescans: a directory that nothing was created in or removed from needs no listing."""

        def listing() -> None:
            self._partitions.locate(partition)
            if self._may_have_changed(partition):
                self._list(partition)

        self._attempt(_listing_of(partition), partition, listing)

    def advance(self, partition: Partition) -> None:
        """Queue the segments that may be uploaded, and ask the store for what is needed next."""
        self._asker.waiting.pop(partition.topic_partition, None)
        if self._errors.error_of(_listing_of(partition)) is not None:
            return  # part of the directory was taken over, and the rest would seem to be a gap
        subject = Subject("planning", partition.topic_partition)
        self._attempt(subject, partition, lambda: self._advance(partition))

    def forget(self, tp: TopicPartition) -> None:
        """The partition's role has changed: a step that was held back is tried again."""
        self._asker.waiting.pop(tp, None)
        for name in ("listing", "planning"):
            self._errors.clear(Subject(name, tp))

    def _attempt(self, subject: Subject, partition: Partition, step: Callable[[], None]) -> None:
        errors = self._errors
        if not errors.attempt(subject, step):
            partition.step_failed(errors.error_of(subject))
            self._timers.at(errors.retry_at(subject), partition.topic_partition)
        elif partition.held_error is not None:
            partition.step_succeeded(errors.error_of(_listing_of(partition)))

    def _list(self, partition: Partition, rolled: float | None = None) -> None:
        if partition.directory is None:
            return
        if partition.refused is not None:
            release(partition.untrack_all())  # the topic must not be archived
            return
        now, directory = self._clock.monotonic(), partition.directory
        partition.listing_begins(_modified_ns(directory))
        # The broker drops epochs from its checkpoint, and a later step may need them: the sidecar
        # remembers them. A request or an upload that cannot read the file reports that.
        with suppress(SegmentError, OSError):
            partition.epochs.read(directory)
        try:
            listing = read_listing(list_names(directory))
        except OSError as error:  # a failing disk, or too many open files: not the end of us all
            partition.listing_failed(error, now)
            self._timers.at(partition.hold.until, partition.topic_partition)
            return
        if partition.follows:
            listing = self._followers.hold(partition, listing)
        self._observe(partition, directory, listing, Timeline(now, rolled))
        self._note_committed(partition, listing)
        self._note_cleaned(partition)
        partition.note_marked_for_deletion(self._clock.wall())
        if partition.active is not None:
            active_size = log_size(directory, partition.active)
            partition.note_due_by_size(active_size, self._clock.wall())
        self._pins.refill(directory, partition)
        if partition.follows:
            self._followers.count_at_risk(partition)
        if self.spool is not None:
            keep_unstored(self.spool, partition)

    def _observe(
        self, partition: Partition, directory: str, listing: PartitionListing, timeline: Timeline
    ) -> None:
        retention, follows = self._retention(partition), partition.follows
        if self.spool is not None:
            take_spooled(self.spool, partition, self._pins, timeline, retention)

        def track(segment: ClosedSegment) -> TrackedSegment | None:
            return self._pins.track(
                directory, segment, replace(timeline), retention, followed=follows
            )

        release(partition.observe(listing, timeline.noticed, track))

    def _may_have_changed(self, partition: Partition) -> bool:
        if partition.directory is None:
            return False
        modified = _modified_ns(partition.directory)
        fresh = self._clock.wall() - modified / 1e9 < _SETTLED_SECONDS
        waits = bool(partition.gap or partition.tracked) and not partition.follows
        return fresh or waits or modified != partition.directory_ns

    def _retention(self, partition: Partition) -> float:
        configured = self._config.local_retention
        known = partition.config.retention if partition.config is not None else None
        if known is not None:
            return known
        return DEFAULT_RETENTION if configured is None else configured

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
                tracked.note_epochs(epochs.known.up_to(end))
            if tracked.epochs is None or not tracked.epochs.entries:
                continue
            if self._is_committed(partition, tracked):
                passed.append((tracked, Offset(end)))
        if not passed:
            return
        # Read after the high watermark: a leader writes its epoch before it appends, so a segment
        # that was truncated before the high watermark passed its end shows in the epochs.
        with suppress(SegmentError, OSError):
            latest = epochs.read(directory)
            for tracked, next_offset in passed:
                tracked.note_committed(latest.up_to(next_offset))

    def _note_cleaned(self, partition: Partition) -> None:
        start, log_dir = partition.log_start(), partition.log_dir
        if start is not None and log_dir is not None:
            tp = partition.topic_partition
            partition.note_cleaned(cleaned=self._cleaner.has_cleaned(log_dir, tp, start))

    def _advance(self, partition: Partition) -> None:
        if partition.lost:
            return
        self._apply_rules(partition)
        knowledge = self._knowledge(partition)
        if partition.follows:
            actions = self._followers.steps(partition, knowledge)
        else:
            release(partition.forget_stored())
            actions = lead(partition, self._clock.monotonic(), self._leader_rules, knowledge)
        self._effects.carry_out(partition, actions)

    def _knowledge(self, partition: Partition) -> Knowledge:
        def is_committed(tracked: TrackedSegment) -> bool:
            return self._is_committed(partition, tracked)

        def is_confirmed_since(moment: float) -> bool:
            tp, epoch = partition.topic_partition, partition.leader_epoch
            return self._gate.confirms_lead(tp, epoch, moment)

        return Knowledge(
            is_committed, is_confirmed_since, lambda: latest_epoch(partition.directory or "")
        )

    def _apply_rules(self, partition: Partition) -> None:
        tp, rules = partition.topic_partition, self._rules
        config = rules.config(tp.topic) if rules.is_known(tp.topic, partition.topic_id) else None
        refused = rules.refusal(tp.topic, cleaned=partition.cleaned)
        if refused is not None and partition.refused is None and not partition.follows:
            log.error("topic.refused", topic=tp.topic, reason=refused)
        if partition.describe_topic(config, refused):
            self._timers.at(self._clock.monotonic(), tp)
        if partition.retain(self._retention(partition)):
            self._pins.rank_again(partition)

    def _is_committed(self, partition: Partition, tracked: TrackedSegment) -> bool:
        end = tracked.segment.next_base
        if end is None or partition.log_dir is None:
            return False
        return self._gate.is_committed(
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
