"""Lists the directories of partitions, and collects what their next decision depends on."""

import contextlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog

from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import SegmentError
from sidetier.segments.listing import ClosedSegment, PartitionListing, read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, BrokerId, Offset, TopicPartition
from sidetier.uploader.clock import Clock, Timers
from sidetier.uploader.effects import Effects, listing_of, planning_of
from sidetier.uploader.gates.high_watermark import CommittedGate, HighWatermarkAsker
from sidetier.uploader.gates.topic_rules import CleanerCheckpoints, TopicRules
from sidetier.uploader.led_partitions import LedPartitions, latest_epoch
from sidetier.uploader.pinning.pins import log_size, read_largest_timestamp
from sidetier.uploader.pinning.spooling import keep_unstored, take_spooled
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.state.decisions import HighWatermarks, Rules, Situation
from sidetier.uploader.state.events import Event, RequestSucceeded
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.risk import RiskRule, is_below, risk_of, worth_holding
from sidetier.uploader.state.segment import (
    DEFAULT_RETENTION,
    Timeline,
    TrackedSegment,
    release,
)
from sidetier.uploader.stores import StoresHealth
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.disk import list_names

if TYPE_CHECKING:
    from sidetier.uploader.pinning.spool import Spool


log: Final = structlog.get_logger()
_SETTLED_SECONDS: Final = 1.0
_SWEPT_AT_ONCE: Final = 50
_SWEEP_PAUSE: Final = 0.25


class PartitionSweep:
    """Calls `scan` for partitions in turn: 50 per step of the daemon, or 200 a second if slowed."""

    def __init__(self, scan: Callable[[Partition], None], now: Callable[[], float]) -> None:
        self._scan = scan
        self._now = now
        self._left: dict[TopicPartition, Partition] = {}
        self._not_before = float("-inf")

    @property
    def next_at(self) -> float:
        """When to continue, in monotonic seconds; infinity if no partition is left."""
        return self._not_before if self._left else float("inf")

    def begin(self, partitions: Iterable[Partition]) -> None:
        """Add partitions. Those left from an earlier round keep their turn."""
        for partition in partitions:
            self._left[partition.topic_partition] = partition

    def go_on(self, *, slowly: bool) -> None:
        """Call `scan` for the next partitions if that is due."""
        now = self._now()
        if not self._left or now < self._not_before:
            return
        for tp in list(islice(self._left, _SWEPT_AT_ONCE)):
            self._scan(self._left.pop(tp))
        self._not_before = now + (_SWEEP_PAUSE if slowly else 0.0)


class PartitionScheduler:
    """Lists directories, and describes the situation in which a partition decides.

    Every call is made on the daemon's thread. An unexpected exception in a listing holds back its
    partition alone.
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
        health: StoresHealth,
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
        self._topic_rules = rules
        self._health = health
        self._errors = errors
        self._cleaner = CleanerCheckpoints(clock.monotonic, errors.file_was_read)
        self._followers = Followers(config, clock)
        self._rules = Rules(
            config.max_queued_segments_per_partition,
            config.offset_reset == "latest",
            config.on_gap,
            broker_id,
        )
        self.spool: Spool | None = None
        """Hard links to the files of pinned segments, which survive a restart; None if they are
        off.
        """

    def expect_rescues(self) -> None:
        """Wait longer at gaps from now on: sidecars of followers may store the missing records."""
        patience = self._config.rescue.patience
        self._rules = replace(self._rules, rescue_patience=patience)

    def scan(self, partition: Partition, rolled: float | None = None) -> None:
        """Find the partition's directory and list it.

        `rolled` is when a file system event named the directory, in monotonic seconds.
        """

        def listing() -> None:
            self._partitions.locate(partition)
            self._list(partition, rolled)

        self._attempt(listing_of(partition), partition, listing)

    def scan_if_changed(self, partition: Partition) -> None:
        """List the directory if a file was created in it or removed from it; for rescans."""

        def listing() -> None:
            self._partitions.locate(partition)
            if self._may_have_changed(partition):
                self._list(partition)

        self._attempt(listing_of(partition), partition, listing)

    def forget(self, tp: TopicPartition) -> None:
        """Try steps that are held back again, because the partition's role has changed."""
        self._asker.waiting.pop(tp, None)
        for name in ("listing", "planning"):
            self._errors.clear(Subject(name, tp))

    def _attempt(self, subject: Subject, partition: Partition, step: Callable[[], None]) -> None:
        errors = self._errors
        if not errors.attempt(subject, step):
            self._effects.hold_back(partition, subject)
        elif partition.held_error is not None:
            partition.step_succeeded(errors.error_of(listing_of(partition)))

    def _list(self, partition: Partition, rolled: float | None = None) -> None:
        if partition.directory is None:
            return
        if partition.refused is not None:
            release(partition.log.untrack_all())  # the topic must not be archived
            return
        now, directory = self._clock.monotonic(), partition.directory
        # The time before the listing: a file that is created while it runs makes the
        # directory younger than the remembered time, and so is seen by the next rescan.
        partition.listing_begins(_modified_ns(directory))
        # The broker drops epochs from its checkpoint, and a later step may need them: the sidecar
        # remembers them. A request or an upload that cannot read the file reports that.
        with suppress(SegmentError, OSError):
            partition.epochs.read(directory)
        try:
            listing = read_listing(list_names(directory))
        except OSError as error:  # a failing disk, or too many open files, concerns only this one
            partition.listing_failed(error, now)
            self._timers.at(partition.hold.until, partition.topic_partition)
            return
        if partition.follows:
            listing = self._followers.hold(partition, listing)
        self._observe(partition, directory, listing, Timeline(now, rolled))
        # After `_observe`, which has pinned new segments:
        # only a pinned file is known to stay the same.
        self._note_committed(partition, listing)
        self._note_cleaned(partition)
        partition.log.note_marked_for_deletion(self._clock.wall())
        limit = None if partition.config is None else partition.config.retention_bytes
        if partition.log.active is not None and limit is not None:
            active_size = log_size(directory, partition.log.active)
            partition.log.note_due_by_size(limit, active_size, self._clock.wall())
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
        # The time of a directory has the granularity of the kernel's clock tick, or
        # worse. A change within the same tick as the last listing would not show.
        fresh = self._clock.wall() - modified / 1e9 < _SETTLED_SECONDS
        waits = bool(partition.gap.gap or partition.log.tracked) and not partition.follows
        return fresh or waits or modified != partition.directory_state.modified_ns

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
        high_watermarks = self._high_watermarks(partition)
        for base, tracked in partition.log.tracked.items():
            end = tracked.segment.next_base
            if tracked.committed or tracked.pinned is None or end is None:
                continue
            # Only while the segment is in the log: a `.deleted` file may come
            # from truncation, and the epochs of the log do not describe it.
            if tracked.epochs is None and base in live:
                tracked.note_epochs(epochs.known.up_to(end))
            if tracked.epochs is None or not tracked.epochs.entries:
                continue
            if high_watermarks.cover(end, tracked.modified_ns):
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
        start, log_dir = partition.log.unstored_start, partition.log_dir
        if start is not None and log_dir is not None:
            tp = partition.topic_partition
            partition.note_cleaned(cleaned=self._cleaner.has_cleaned(log_dir, tp, start))

    def situation(self, partition: Partition, event: Event, *, decides: bool) -> Situation:
        """Return what a partition needs to know to handle an event now.

        `decides` is False if more of its events follow at once.
        """
        situation = Situation(
            self._clock.monotonic(),
            self._clock.wall(),
            self._rules,
            outages=self._outages(partition) if isinstance(event, RequestSucceeded) else None,
            decides=False,
        )
        if decides and not partition.lost and not self._is_held(partition):
            try:
                return self._with_facts(partition, situation)
            except Exception as error:  # noqa: BLE001 - the event must be applied all the same
                self._effects.hold_back(partition, planning_of(partition), error)
        return situation

    def _with_facts(self, partition: Partition, situation: Situation) -> Situation:
        """Add what a decision depends on."""
        self._apply_rules(partition)
        return replace(
            situation,
            high_watermarks=self._high_watermarks(partition),
            lead_confirmed_at=self._gate.named_at(
                partition.topic_partition, partition.leader_epoch
            ),
            risk_rule=self._followers.rule_of(partition),
            unlinked=_unlinked(partition) if partition.follows else (),
            decides=True,
        )

    def _is_held(self, partition: Partition) -> bool:
        if self._errors.error_of(listing_of(partition)) is not None:
            return True  # the rest of a directory that was listed in part would seem to be a gap
        planning = planning_of(partition)
        if self._errors.holds(planning):
            # The timer for the retry may have fired early, for another reason: set it again.
            self._effects.hold_back(partition, planning)
            return True
        return False

    def _outages(self, partition: Partition) -> int | None:
        """Return how many outages of its store have ended. Asks the endpoint provider, which may be
        a slow plug-in.
        """
        try:
            return self._health.of(partition.topic_partition).outages
        except Exception:  # noqa: BLE001 - an endpoint provider may raise anything; the event must be applied
            return None

    def _apply_rules(self, partition: Partition) -> None:
        tp, rules = partition.topic_partition, self._topic_rules
        config = rules.config(tp.topic) if rules.is_known(tp.topic, partition.topic_id) else None
        refused = rules.refusal(tp.topic, cleaned=partition.cleaned)
        if refused is not None and partition.refused is None and not partition.follows:
            log.error("topic.refused", topic=tp.topic, reason=refused)
        if partition.describe_topic(config, refused):
            self._timers.at(self._clock.monotonic(), tp)
        if partition.log.retain(self._retention(partition)):
            self._pins.rank_again(partition)

    def _high_watermarks(self, partition: Partition) -> HighWatermarks:
        if partition.log_dir is None:
            return HighWatermarks()
        return self._gate.known(
            partition.topic_partition, partition.log_dir, partition.leader_epoch
        )


def _unlinked(partition: Partition) -> frozenset[BaseOffset]:
    return frozenset(base for base, t in partition.log.tracked.items() if t.unlinked())


def _modified_ns(directory: str) -> int:
    try:
        return os.stat(directory).st_mtime_ns
    except OSError:
        return -1


@dataclass(frozen=True, slots=True)
class Followers:
    """Reads the files of followed partitions. Every call is made on the daemon's thread."""

    config: UploaderConfig
    clock: Clock

    def hold(self, partition: Partition, listing: PartitionListing) -> PartitionListing:
        """Return the segments of a listing whose files the sidecar should hold open."""
        partition.enter_epoch(latest_epoch(partition.directory or ""))
        rule, directory = self.rule_of(partition), partition.directory or ""
        wall = self.clock.wall()

        end_by_size = _end_by_size(rule, directory, listing)
        partition.note_risk_by_size(end_by_size)

        def is_at_risk(base: BaseOffset) -> bool:
            if is_below(base, end_by_size):
                return True
            known = partition.log.tracked.get(base)
            largest = known.largest_timestamp if known else _largest_timestamp(directory, base)
            return rule.begins(largest) <= wall

        return worth_holding(listing, partition.stored_below(), is_at_risk)

    def count_at_risk(self, partition: Partition) -> None:
        """Count, right after a listing, the segments that the broker may delete before the next."""
        risk = risk_of(
            partition.log.tracked,
            self.rule_of(partition),
            self.clock.wall(),
            unlinked=_unlinked(partition),
        )
        partition.note_risk(risk.segments)

    def rule_of(self, partition: Partition) -> RiskRule:
        """Return when the broker deletes segments of a partition."""
        known = partition.config or TopicConfig()
        retention = self.config.local_retention if known.retention is None else known.retention
        return RiskRule(self.config.rescue.before_deletion, retention, known.retention_bytes)


def _largest_timestamp(directory: str, base: BaseOffset) -> float:
    """Return the largest timestamp of a segment without a pin, as `SegmentTimes` does."""
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
