"""The event loop of the daemon: one thread takes events, decides, and starts work on workers."""

import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import LeadershipView
from sidetier.segments.cluster_state import SnapshotKind
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.archive.history import Histories
from sidetier.uploader.archive.requests import Requests, RequestWork
from sidetier.uploader.archive.unresolved import (
    StoreRecords,
    StoreRecordsUnavailable,
    UnresolvedReader,
)
from sidetier.uploader.chapters import Chapters, ChaptersFailed, ChaptersWritten
from sidetier.uploader.clock import LONGEST_WAIT, Timers
from sidetier.uploader.cluster_snapshots import (
    ClusterSnapshots,
    SnapshotWriter,
    TurnFailed,
    TurnResult,
)
from sidetier.uploader.context import DaemonContext
from sidetier.uploader.early import EarlyRangesFound, EarlySegments, EarlyUnavailable
from sidetier.uploader.effects import Effects, planning_of
from sidetier.uploader.gates.high_watermark import (
    CommittedGate,
    HighWatermarkAsker,
    HighWatermarksReceived,
    HighWatermarksUnavailable,
)
from sidetier.uploader.gates.topic_rules import (
    TopicConfigsReceived,
    TopicConfigsUnavailable,
    TopicRules,
)
from sidetier.uploader.hung_requests import HungRequests
from sidetier.uploader.led_partitions import LedPartitions
from sidetier.uploader.log_tail import LogTail, LogTails
from sidetier.uploader.pinning import spooling
from sidetier.uploader.pinning.spool import Spool, late_home, spool_homes
from sidetier.uploader.pinning.table import PinTable, allowed_files, enforce_bounds
from sidetier.uploader.scheduler import PartitionScheduler, PartitionSweep
from sidetier.uploader.sending.queue import UploadQueue
from sidetier.uploader.sending.throttle import capped
from sidetier.uploader.sending.upload import ReadingRules, Uploader
from sidetier.uploader.state.events import ArchiveMoves, Event, SituationChanged
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.status_board import (
    DeletionEstimate,
    StatusBoard,
    Totals,
    readiness,
    totals_of,
)
from sidetier.uploader.stores import StoresHealth
from sidetier.uploader.trim.events import (
    ArchivesVerified,
    LocalRetentionEvent,
    PassFailed,
    RecordsDeleted,
    SurveyEnded,
)
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.watch import HintBoard, Watcher
from sidetier.uploader.workers import Finished, SharedPool, WorkerDied, WorkerPool

if TYPE_CHECKING:
    from sidetier.uploader.trim.local_retention import LocalRetention

_TOTALS_SECONDS: Final = 0.25
_TAILS_SECONDS: Final = 5.0
"""The broker's default interval between two writes of its high watermarks."""
_MAX_SHARE_OF_TIME: Final = 0.1
"""The share of the thread's time that each of them may take, however many partitions there are."""
_HOUSEKEEPING_SECONDS: Final = 5.0
_AT_ONCE: Final = float("-inf")
_LED_AT_ONCE: Final = 100
"""Directories that are listed before the store is asked for these partitions' `offset.wm`."""
_MAX_DIRECTORIES: Final = 100_000
"""Maximum number of directories with a hint; with more of them, everything is listed again."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Nothing has happened; the daemon begins its next step."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A request thread begins or ends a move to quarantine."""

    topic_partition: TopicPartition
    event: ArchiveMoves


Outcome = (
    Event
    | HighWatermarksReceived
    | HighWatermarksUnavailable
    | TopicConfigsReceived
    | TopicConfigsUnavailable
    | StoreRecords
    | StoreRecordsUnavailable
    | TurnResult
    | TurnFailed
    | ChaptersWritten
    | ChaptersFailed
    | LocalRetentionEvent
    | EarlyRangesFound
    | EarlyUnavailable
)
"""The results of tasks of worker threads."""
Incoming = Finished[Outcome] | WorkerDied | LeadershipView | Moved | Wake
"""An event that another thread delivers to the daemon's thread."""
NewPool = Callable[[str, int, Callable[[Incoming], None]], WorkerPool[Any]]


def _partition_of(event: Incoming) -> Partition | None:
    admission = event.task.admission if isinstance(event, Finished) else None
    return None if admission is None else admission.partition


def pool_sizes(config: UploaderConfig) -> Mapping[str, int]:
    """The worker pools of the daemon, and how many threads each has."""
    return {
        "upload": config.threads,
        "request": config.request_threads,
        # One thread each: a request that hangs in them delays no upload and no commit.
        "high-watermark": 1,
        "topic-config": 1,
        "unresolved": 1,
        "cluster-snapshot": 1,
        "chapter": 1,
    }


def snapshot_writer(config: UploaderConfig, context: DaemonContext) -> SnapshotWriter | None:
    """Writes snapshots of the cluster's state; None where that is off, or has no source."""
    source, place = context.cluster_state, context.cluster_place
    if source is None or place is None or not config.cluster_snapshots.enabled:
        return None
    return SnapshotWriter(config.cluster_snapshots, source, place, context.broker_id, context.clock)


def capped_uploader(config: UploaderConfig, context: DaemonContext) -> Uploader:
    """Return an uploader with one bandwidth cap for sending and another for verifying.

    Without the second, a segment that is verified and then not sent would be read, and its CRCs
    computed, as fast as disk and CPU allow.
    """

    def cap() -> Callable[[int], None]:
        return capped(
            config.max_bytes_per_second,
            context.clock.monotonic,
            context.abandoned,
            context.metrics.throttled,
        )

    give_back = config.page_cache == "give_back_cold"
    return Uploader(ReadingRules(cap(), give_back, cap()), context.log_offsets)


class Engine:
    """Single-threaded event loop of the daemon. The owner calls `step` repeatedly.

    Any thread may call `wake` and `deliver`. Only the owner's thread may call the other methods.

    Args:
        config: The section `uploader` of the configuration.
        context: The log dirs, the source of leadership, the stores and the metrics.
        new_pool: Makes a worker pool with a name and a size, which hands its events to a function.
    """

    def __init__(
        self, config: UploaderConfig, context: DaemonContext, new_pool: NewPool = WorkerPool
    ) -> None:
        now, metrics, places = context.clock.monotonic, context.metrics, context.places
        self._config = config
        self._context = context
        self._now = now
        self._touched: dict[TopicPartition, Partition] = {}
        """Partitions that decide again at the end of the step."""
        self._shown: dict[TopicPartition, Partition] = {}
        """Partitions whose status is updated at the end of the step."""
        self._next_report = self._next_totals = self._next_tails = _AT_ONCE
        self._next_rescan = self._next_housekeeping = self._next_ask = _AT_ONCE
        self._totals = Totals()
        self._followed_pins = 0
        self._deletion = DeletionEstimate(config.local_delete_delay, config.local_retention)
        self.status = StatusBoard(
            context.cluster, context.broker_id, context.clock, context.warnings
        )
        self._expect_snapshots()

        # Its writers bound its length: each worker has one task, the hint board wakes the daemon
        # once until it is emptied, and a leadership source delivers one view per change.
        self._incoming: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._pools = {
            name: new_pool(name, size, self._incoming.put)
            for name, size in pool_sizes(config).items()
        }
        # Only these two make requests for partitions, and are shared by the stores.
        self._shared = {name: SharedPool(self._pools[name], now) for name in ("upload", "request")}
        self._timers = Timers(now)
        self._errors = errors = UnexpectedErrors(metrics, context.clock)
        self._board = HintBoard(self.wake, now, _MAX_DIRECTORIES)
        self._watcher = Watcher(context.log_dirs.paths, self._board, config.watch, metrics)
        self._leads = LedPartitions(context.log_dirs, metrics, errors, self._dropped, now)
        self._pins = PinTable(allowed_files(config.pins.max_files))
        self._gate = CommittedGate(
            now,
            use_checkpoint=config.high_watermark.checkpoint,
            asks_brokers=context.high_watermarks is not None,
            on_checkpoint=errors.file_was_read,
        )
        self._tails = LogTails(self._gate)
        self._asker = HighWatermarkAsker(
            context.high_watermarks,
            self._pools["high-watermark"],
            self._gate,
            now,
            metrics,
            errors,
        )
        self._rules = TopicRules(
            context.topic_configs,
            self._pools["topic-config"],
            now,
            metrics,
            errors,
            context.topics.compacted,
        )
        self._health = StoresHealth(places)
        self._uploads = UploadQueue(
            capped_uploader(config, context),
            self._shared["upload"],
            self._pins,
            places,
            context.broker_id,
            now,
            self._show,
        )
        self._requests = self._new_requests()
        self._hung = HungRequests(
            context.store_calls,
            self._shared.values(),
            self._leads,
            places,
        )
        self._effects = Effects(
            self._uploads, self._requests, self._timers, self._asker, metrics, errors
        )
        self._scheduler = PartitionScheduler(
            config,
            context.clock,
            context.broker_id,
            self._leads,
            self._effects,
            self._pins,
            self._timers,
            self._gate,
            self._asker,
            self._rules,
            self._health,
            errors,
        )
        self._followed = PartitionSweep(self._scan_followed, now)
        self._unresolved = UnresolvedReader(
            places,
            context.cluster_place,
            self._pools["unresolved"],
            now,
            metrics,
            errors,
        )
        self._cluster_snapshots = ClusterSnapshots(
            snapshot_writer(config, context),
            config.cluster_snapshots.interval,
            self._pools["cluster-snapshot"],
            now,
            metrics,
            errors,
        )
        self._chapters = Chapters(
            context.long_archives, self._pools["chapter"], now, metrics, errors
        )
        self._local_retention = self._new_local_retention(new_pool)
        self._early = self._new_early(new_pool)
        self._tail = context.tail
        if self._tail is not None:
            tail = self._tail
            self.status.observe_safe(lambda: tail.safe)
        self._tails_seconds = _TAILS_SECONDS
        if self._early is not None:
            self._tails_seconds = min(_TAILS_SECONDS, config.early.shortest_age)

    def _new_early(self, new_pool: NewPool) -> EarlySegments | None:
        """Return None where no topic is archived early: then there is not even a thread."""
        rules, source, context = self._config.early, self._context.log_offsets, self._context
        if not rules.enabled or source is None:
            return None
        pool = self._pools["early"] = new_pool("early", 1, self._incoming.put)
        return EarlySegments(rules, source, pool, context.clock, context.metrics, self._errors)

    def _expect_snapshots(self) -> None:
        source, snapshots = self._context.cluster_state, self._config.cluster_snapshots
        if source is not None and snapshots.enabled:
            wanted = set(source.kinds) - set(snapshots.exclude)
            self.status.expect_cluster_snapshots(kind for kind in SnapshotKind if kind in wanted)

    def _new_local_retention(self, new_pool: NewPool) -> "LocalRetention | None":
        """Return None where no topic has local retention: then there is not even a thread."""
        context, local = self._context, self._context.local_retention
        deleter, topic_configs = context.record_deleter, context.topic_configs
        if not local.enabled or deleter is None or topic_configs is None:
            return None
        # Half a megabyte: only where a topic has local retention.
        from sidetier.uploader.trim.local_retention import LocalRetention  # noqa: PLC0415
        from sidetier.uploader.trim.trimmer import Trimmer  # noqa: PLC0415 - as above

        pool = self._pools["local-retention"] = new_pool("local-retention", 1, self._incoming.put)
        return LocalRetention(
            Trimmer(
                local,
                deleter,
                topic_configs,
                context.places,
                context.clock.wall,
                # The process waits for these threads, and a store may have to return gigabytes.
                before_read=capped(None, self._now, context.abandoned, lambda _: None),
            ),
            pool,
            self._now,
            context.metrics,
            self._errors,
            self.status.set_local_retention,
        )

    def _new_requests(self) -> Requests:
        context, config = self._context, self._config
        histories = Histories(
            config.on_divergence,
            config.on_recreated,
            self._now,
            context.metrics,
            self._archive_moves,
            context.clock.wall,
        )
        return Requests(
            self._shared["request"],
            context.places,
            RequestWork(
                context.broker_id,
                self._gate.named_at,
                histories,
                from_latest=config.offset_reset == "latest",
            ),
        )

    # -- for its owner ----------------------------------------------------------------------------

    def deliver(self, view: LeadershipView) -> None:
        """Take a leadership view. The source calls this on its own thread."""
        self._incoming.put(view)

    def wake(self) -> None:
        """Make `step` return soon."""
        self._incoming.put(Wake())

    def watch(self) -> None:
        """Begin to watch the log dirs, and to follow partitions that other brokers lead.

        Raises:
            ConfigurationError: the log dirs can never be watched, or the spool cannot be used.
        """
        # Before the watch: links that an earlier process has left count against the bounds
        # of pins, and the broker's free disk must be safe before new pins are taken.
        self._open_spool()
        self._watcher.start()
        self.begin_to_follow()
        if self._tail is not None:
            self._tail.start()

    def begin_to_follow(self) -> None:
        """Pin segments of followed partitions too, if `uploader.rescue` is enabled. `watch` does
        this.
        """
        if self._config.rescue.enabled:
            self._leads.begin_to_follow()
            self._scheduler.expect_rescues()

    def _open_spool(self) -> None:
        spools, log_dirs = self._config.pins.spool, self._context.log_dirs.paths
        if spools:
            known = [str(path) for path in spools]
            spool = Spool(
                spool_homes(log_dirs, known),
                self._context.cluster,
                lambda log_dir: late_home(log_dir, known),
            )
            self._scheduler.spool = spool
            spooling.begin(spool, log_dirs)
            self._enforce_bounds()  # the free disk of the broker wins, also at a start

    def step(self) -> None:
        """Wait for something to happen, or for a time to come, and act on it."""
        self._take_incoming(self.wait_seconds())
        self._take_hints()
        self._run_due()
        self._work()

    def wait_seconds(self) -> float:
        """Return the seconds until the next periodic task is due."""
        moments = [self._next_rescan, self._next_housekeeping, self._followed.next_at]
        if self._asker.waiting:
            moments.append(self._next_ask)
        return min(self._timers.next_in(), *(moment - self._now() for moment in moments))

    def is_settled(self) -> bool:
        """Whether every closed segment of the led partitions is stored, or cannot be stored now."""
        # A touched partition has not decided yet, so it may still begin something.
        if not self._leads.known or self.busy or self._touched:
            return False
        return all(partition.is_settled() for partition in self._leads)

    def stop_accepting(self) -> None:
        """Take no more hints, and start no more uploads."""
        self._watcher.stop()
        self._requests.commits_only()
        self._chapters.stop()
        if self._local_retention is not None:
            self._local_retention.stop()

    @property
    def busy(self) -> int:
        """Number of uploads under way, and of requests under way or queued."""
        return self._uploads.busy + self._requests.waiting

    @property
    def hung(self) -> int:
        """Number of these uploads and requests that hang, and may never end."""
        return self._hung.of_partitions

    def drain_step(self, longest: float) -> None:
        """Wait `longest` seconds at most for events, and commit the uploads that have ended."""
        # No hints and no new uploads. Decisions still run:
        # they ask for the commits of uploads that have ended.
        self._take_incoming(longest)
        self._decide_anew()
        self._handle_all(self._requests.start_some())

    def abandon(self) -> None:
        """Give up uploads and requests under way, and close all files."""
        # First: it ends the pauses between attempts and the
        # reads of running uploads, so that the pools can stop.
        self._context.abandoned.set()
        self._requests.abandon()
        self._watcher.stop()
        for pool in self._pools.values():
            pool.stop()
        if self._tail is not None:
            self._tail.stop()
        for partition in self._leads.with_parked():
            # The links in the spool stay for the next process.
            partition.close(for_good=False)
        self._asker.close()
        self._rules.close()
        if self._context.log_offsets is not None:
            self._context.log_offsets.close()
        if self._context.cluster_state is not None:
            self._context.cluster_state.close()

    def deaths(self) -> Mapping[str, BaseException | None]:
        """Return the worker threads by name, each with the error that has ended it."""
        pools = self._pools.items()
        return {f"a thread named {name}": pool.death for name, pool in pools}

    # -- periodic tasks ---------------------------------------------------------------------------

    def _run_due(self) -> None:
        for tp in self._timers.due():
            partition = self._leads.get(tp)
            if partition is not None:
                self._scheduler.scan(partition)
                self._touch(partition)
        now = self._now()
        if now >= self._next_housekeeping:
            self._next_housekeeping = now + _HOUSEKEEPING_SECONDS
            if self._watcher.keep_alive():
                self._next_rescan = _AT_ONCE  # events were lost while the watch was dead
            self._run_housekeeping()
        if now >= self._next_rescan:
            self._rescan()
        if self._asker.waiting and now >= self._next_ask:
            self._ask_high_watermarks()
        self._followed.go_on(slowly=bool(self._requests.waiting))

    def _rescan(self) -> None:
        """List all log dirs and partitions, because file system events may be missing."""
        polling = self._watcher.polling
        interval = self._config.poll_interval if polling else self._config.rescan_interval
        self._context.log_dirs.rescan()
        for partition in self._leads:
            self._scan_if_changed(partition)
        self._scan_all_followed()
        self._next_rescan = self._now() + interval

    def _scan_all_followed(self) -> None:
        """Begin a round over all followed partitions, after an update of which these are."""
        self._leads.find_followed()
        self._followed.begin(self._leads.followed())
        self._rules.ask_for(self._leads.all())

    def _scan_followed(self, partition: Partition) -> None:
        if partition.follows and not partition.lost:
            self._scan_if_changed(partition)

    def _scan_if_changed(self, partition: Partition) -> None:
        self._scheduler.scan_if_changed(partition)
        self._touch(partition)

    def _ask_high_watermarks(self) -> None:
        """Ask the brokers for the partitions that still wait for a high watermark.

        They decide again first, because the broker may have written its checkpoint since.
        """
        self._next_ask = self._now() + self._config.high_watermark.poll_interval
        # A copy: `_advance` changes the dict.
        for partition in list(self._asker.waiting.values()):
            self._advance(partition)
        self._asker.ask()

    def _run_housekeeping(self) -> None:
        self._leads.release_parked()
        self._unresolved.read_if_due(partition.topic_partition for partition in self._leads)
        self._cluster_snapshots.take_if_due()
        self._chapters.write_if_due()
        if self._local_retention is not None:
            self._local_retention.begin_if_due(self._leads)
        self._rules.ask_for(self._leads.all())
        self._followed_pins = sum(partition.log.pins() for partition in self._leads.followed())
        self._enforce_bounds()

    def _enforce_bounds(self) -> None:
        """Release pins and names in the spool beyond the bounds of `uploader.pins`."""
        spool = self._scheduler.spool
        untaken = [] if spool is None else spool.untaken.values()
        enforce_bounds(
            self._pins,
            self._config.pins,
            self._context.log_dirs.paths,
            [*self._leads.with_parked(), *untaken],
            self._context.clock,
            self._context.metrics,
        )

    # -- what comes in --------------------------------------------------------------------------

    def _take_incoming(self, timeout: float) -> None:
        """Wait for an event, `timeout` seconds or 1 s at most; then handle all that are queued."""
        try:
            event = self._incoming.get(timeout=max(0.0, min(timeout, LONGEST_WAIT)))
        except queue.Empty:
            return
        # An event that is put in meanwhile waits for the next step, so that no step is endless.
        events = [event, *(self._incoming.get() for _ in range(self._incoming.qsize()))]
        more = Counter(id(_partition_of(event)) for event in events)
        for event in events:
            more[id(_partition_of(event))] -= 1
            try:
                self._take(event, more_follow=more[id(_partition_of(event))] > 0)
            except Exception as error:  # noqa: BLE001 - one event must not end the loop
                self._errors.note(Subject("an outcome"), error)

    def _take(self, event: Incoming, *, more_follow: bool) -> None:
        match event:
            case Finished():
                self._take_finished(event, more_follow=more_follow)
            case LeadershipView():
                self._lead(event)
            case Moved(tp, moves):
                partition = self._leads.get(tp)
                if partition is not None:
                    self._handle(partition, moves)
            case WorkerDied() | Wake():
                pass  # the owner looks for dead threads after each step

    def _take_finished(self, finished: Finished[Outcome], *, more_follow: bool) -> None:
        """Free the worker, note whether the store has answered, and handle the event.

        If more events of the partition follow, it decides only after the last one: a decision reads
        all of its tracked segments.
        """
        # Before anything that can raise: a worker that is not released would never get work again.
        self._pools[finished.pool].release()
        admission, error = finished.task.admission, finished.error
        if admission is not None:
            self._shared[finished.pool].left(admission, error)
            self._health.note(admission.gate, error)
        partition = None if admission is None else admission.partition
        try:
            self._handle_outcome(partition, finished.event, decides=not more_follow)
        except Exception as unhandled:  # noqa: BLE001 - becomes an error of the task
            self._handle_outcome(partition, finished.task.failed(unhandled))

    def _handle_outcome(  # noqa: C901 - one case for each kind of task
        self, partition: Partition | None, event: Outcome, *, decides: bool = True
    ) -> None:
        match event:
            case HighWatermarksReceived() | HighWatermarksUnavailable():
                self._touch_all_of(self._asker.handle(event))
            case TopicConfigsReceived() | TopicConfigsUnavailable():
                self._touch_topics(self._rules.handle(event))
            case StoreRecords() | StoreRecordsUnavailable():
                if (records := self._unresolved.handle(event)) is not None:
                    self.status.set_store_records(records)
            case TurnResult() | TurnFailed():
                self._cluster_snapshots.handle(event)
                if isinstance(event, TurnResult):
                    self._snapshots_taken(event)
            case ChaptersWritten() | ChaptersFailed():
                self._chapters.handle(event)
            case EarlyRangesFound() | EarlyUnavailable():
                self._early_found(event)
            case SurveyEnded() | ArchivesVerified() | RecordsDeleted() | PassFailed():
                if self._local_retention is not None:
                    self._local_retention.handle(event, self._leads.get)
                if isinstance(event, RecordsDeleted):
                    self._touch_all_of(trim.topic_partition for trim in event.trims)
            case _ if partition is not None:
                self._handle(partition, event, decides=decides)

    def _early_found(self, event: EarlyRangesFound | EarlyUnavailable) -> None:
        if self._early is not None:
            for tp, found in self._early.handle(event):
                partition = self._leads.get(tp)
                if partition is not None:
                    self._handle(partition, found)
            self._early.ask()

    def _handle(self, partition: Partition, event: Event, *, decides: bool = True) -> None:
        """Give an event to a partition, and carry out the actions that it returns.

        Raises an exception only if the partition cannot handle the event.
        """
        # The event may have changed what the partition waits
        # for. If it still waits, `AskBroker` adds it again.
        if self._asker.waiting.get(partition.topic_partition) is partition:
            del self._asker.waiting[partition.topic_partition]
        situation = self._scheduler.situation(partition, event, decides=decides)
        actions = partition.handle(event, situation)
        self._effects.carry_out(partition, actions, decided=situation.decides)
        if partition.released:
            partition.close(for_good=not self._context.abandoned.is_set())
        self._show(partition)

    def _show(self, partition: Partition) -> None:
        """Update the partition's status at the end of the step."""
        if not partition.lost:
            self._shown[partition.topic_partition] = partition

    def _advance(self, partition: Partition) -> None:
        """Decide again what a partition does next."""
        try:
            self._handle(partition, SituationChanged())
        except Exception as error:  # noqa: BLE001 - holds back this partition alone
            self._effects.hold_back(partition, planning_of(partition), error)

    def _decide_anew(self) -> None:
        touched, self._touched = self._touched, {}
        for partition in touched.values():
            self._advance(partition)

    def _handle_all(self, events: Iterable[tuple[Partition, Event]]) -> None:
        for partition, event in events:
            try:
                self._handle(partition, event)
            except Exception as error:  # noqa: BLE001 - the other partitions get their events
                self._effects.hold_back(partition, planning_of(partition), error)

    def _lead(self, view: LeadershipView) -> None:
        self._errors.tell_of_leadership(view.unreadable)
        was_known = self._leads.known
        for number, partition in enumerate(self._leads.follow(view), 1):
            if self._tail is not None:
                stored = self._tail.board.selects(partition.topic_partition.topic)
                partition.note_tail(stored=stored)
            self._scheduler.scan(partition)
            self._touch(partition)
            if number % _LED_AT_ONCE == 0:  # the store answers while more directories are listed
                self._advance_touched()
        # Partitions decide otherwise while leadership is unknown.
        if self._leads.known != was_known:
            self._touch_all_of([partition.topic_partition for partition in self._leads.all()])
        self._scan_all_followed()
        self._next_tails = _AT_ONCE

    def _dropped(self, partition: Partition) -> None:
        """Forget a partition in the role that it had. From now on it may be followed."""
        tp = partition.topic_partition
        if self._early is not None:
            self._early.forget(tp)
        self._requests.forget(tp)
        self._pins.rank_again(partition)
        self._gate.forget(tp)
        self._scheduler.forget(tp)
        self._tails.forget(tp)
        if self._tail is not None:
            self._tail.board.forget(tp)
        self._touched.pop(tp, None)
        self._shown.pop(tp, None)
        self.status.forget(tp)
        self._context.metrics.forget(tp)

    def _take_hints(self) -> None:
        hints = self._board.take()
        if hints.everything:
            self._next_rescan = _AT_ONCE
        for directory, moment in hints.directories.items():
            hint = Subject(f"a hint at {directory}")
            self._errors.attempt(hint, partial(self._take_hint, directory, moment))

    def _take_hint(self, directory: str, moment: float) -> None:
        tp = self._context.log_dirs.resolve(directory)
        partition = self._leads.get(tp) or self._leads.follow_if_new(tp)
        # The directory of a followed partition may be gone: `is_gone` then stops following it.
        if partition is not None and not self._leads.is_gone(partition):
            self._scheduler.scan(partition, rolled=moment)
            self._touch(partition)

    def _snapshots_taken(self, result: TurnResult) -> None:
        snapshots = {} if result.index is None else result.index.snapshots
        confirmed = {kind: entry.confirmed_ms for kind, entry in snapshots.items()}
        self.status.set_cluster_snapshots(confirmed, result.problems)

    def _archive_moves(self, tp: TopicPartition, what: str | None) -> None:
        """Notify the main thread of a move to quarantine. Runs on the thread that moves objects."""
        self._incoming.put(Moved(tp, ArchiveMoves(what)))

    # -- work -------------------------------------------------------------------------------------

    def _touch(self, partition: Partition) -> None:
        if not partition.lost:
            self._touched[partition.topic_partition] = partition

    def _touch_all_of(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            partition = self._leads.get(tp)
            if partition is not None:
                self._touch(partition)

    def _touch_topics(self, topics: Iterable[str]) -> None:
        changed = set(topics)
        for partition in self._leads.all():
            if partition.topic_partition.topic in changed:
                self._touch(partition)

    def _work(self) -> None:
        reports = self._now() >= self._next_report
        if reports:
            # Before the decisions, so that no partition begins
            # a request to a store that does not answer.
            self._handle_all(self._hung.check())
        self._advance_touched()
        if reports:
            self._report()

    def _advance_touched(self) -> None:
        self._decide_anew()
        self._handle_all(self._requests.start_some())
        self._handle_all(self._uploads.start_some())
        shown, self._shown = self._shown, {}
        for partition in shown.values():
            tp = partition.topic_partition
            subject = Subject("status", tp)
            self._errors.attempt(subject, partial(self.status.update, partition, self._deletion))
            if self._tail is not None:
                note = partial(self._tail.board.note, partition)
                self._errors.attempt(Subject("the tail", tp), note)

    def _report(self) -> None:
        """Update readiness, totals and log ends in the status.

        Totals and log ends take longer the more partitions there are. They are put off if the last
        update took more than its share of the thread's time.
        """
        began = self._now()
        self._next_report = began + _TOTALS_SECONDS
        if began >= self._next_totals:
            self._totals = totals_of(
                self._uploads,
                self._pins,
                self._leads,
                self._errors,
                self._followed_pins,
                self._context.log_dirs,
                self._hung,
            )
            self._next_totals = self._after(began, _TOTALS_SECONDS)
        ready = readiness(self._leads, self._health, self._hung.reason)
        self.status.set_totals(self._totals, ready)
        began = self._now()
        if began >= self._next_tails:
            self.status.set_tails(dict(self._measure_tails()))
            if self._early is not None:
                self._early.ask()
            self._next_tails = self._after(began, self._tails_seconds)

    def _measure_tails(self) -> Iterator[tuple[TopicPartition, LogTail]]:
        """Measure the unarchived end of each led log, and note which is to be archived early."""
        for partition in self._leads:
            tail = self._tails.measure(partition)
            if self._early is not None and self._early.consider(partition, tail):
                self._touch(partition)
            if tail is not None:
                yield partition.topic_partition, tail

    def _after(self, began: float, seconds: float) -> float:
        """Return the next time of a task that began at `began` and has just ended."""
        return began + max(seconds, (self._now() - began) / _MAX_SHARE_OF_TIME)
