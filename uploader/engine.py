"""The engine of the daemon: all of its state, changed on one thread, step by step."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import LeadershipView
from sidetier.segments.cluster_state import SnapshotKind
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry.status import Condition
from sidetier.uploader.archive.health import StoresHealth
from sidetier.uploader.archive.history import Histories
from sidetier.uploader.archive.requests import Requests, RequestWork
from sidetier.uploader.archive.unresolved import UnresolvedReader
from sidetier.uploader.chapters import Chapters
from sidetier.uploader.cluster_snapshots import ClusterSnapshots, SnapshotWriter, TurnResult
from sidetier.uploader.context import DaemonContext
from sidetier.uploader.effects import Effects
from sidetier.uploader.gates.high_watermark import CommittedGate, HighWatermarkAsker
from sidetier.uploader.gates.topic_rules import TopicRules
from sidetier.uploader.hung_requests import HungRequests
from sidetier.uploader.led_partitions import LedPartitions
from sidetier.uploader.log_tail import LogTails
from sidetier.uploader.periodic_tasks import PeriodicTasks
from sidetier.uploader.pinning import spooling
from sidetier.uploader.pinning.bounds import allowed_files, enforce_bounds
from sidetier.uploader.pinning.spool import Spool
from sidetier.uploader.pinning.spool_homes import late_home, spool_homes
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.running.loop import Inbox, Timers
from sidetier.uploader.running.workers import Outcome, WorkerPool
from sidetier.uploader.scheduler import PartitionScheduler
from sidetier.uploader.sending.queue import UploadQueue
from sidetier.uploader.sending.throttle import capped
from sidetier.uploader.sending.upload import ReadingRules, Uploader
from sidetier.uploader.state.events import ArchiveMoves, Event
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.status_board import DeletionEstimate, StatusBoard, Totals, pinned_ranges
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.hints import HintBoard
from sidetier.uploader.watching.log_dirs import LogDirs
from sidetier.uploader.watching.watch import Watcher


def totals_of(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
    uploads: UploadQueue,
    pins: PinTable,
    leads: LedPartitions,
    errors: UnexpectedErrors,
    followed_pinned: int,
    log_dirs: LogDirs,
    hung: HungRequests,
) -> Totals:
    """Over all partitions, so not to be asked for at every step; `followed_pinned` are the segments
    that are held open for partitions of others.
    """
    pinned = pins.totals
    return Totals(
        queued=uploads.length,
        queued_bytes=uploads.bytes,
        uploading=uploads.busy,
        pinned_files=pinned.files,
        pinned_bytes=pinned.bytes,
        deleted_bytes=pinned.deleted_bytes,
        followed=leads.followed_count,
        followed_pinned=followed_pinned,
        pins=tuple(pinned_ranges(filter(_tells_of_pins, leads.with_parked()))),
        held_errors=errors.held(),
        log_dir_problems=log_dirs.problems,
        hung_requests=hung.count,
    )


def _tells_of_pins(partition: Partition) -> bool:
    """A follower's pins on what is no nearer deletion than the leader's copy tell nothing."""
    return not partition.follows or partition.at_risk > 0


def readiness(
    leads: LedPartitions, health: StoresHealth, hung_request: str | None = None
) -> tuple[Condition, ...]:
    """Bootstrapped, leadership known, stores reachable; what does not hold says why.

    One partition that is halted or held makes nobody unready: it shows in its own state. A request
    that hangs does, whatever other requests come to: `hung_request` says which one.
    """
    unread = sum(1 for partition in leads if partition.is_unread())
    return (
        _condition("leadership known", None if leads.known else "no source of leadership answers"),
        _condition("bootstrapped", f"{unread} watermarks are still to be read" if unread else None),
        _condition("store reachable", hung_request or health.reason),
    )


def _condition(name: str, problem: str | None) -> Condition:
    return Condition(name, problem is None, problem or "")


_TOTALS_SECONDS: Final = 0.25
_TAILS_SECONDS: Final = 5.0
"""As often as a broker writes its high watermarks down, by default."""
_MOST_OF_THE_TIME: Final = 0.1
"""The share of the thread's time that each of them may take, however many partitions there are."""
_LED_AT_ONCE: Final = 100
"""Partitions whose directories are listed before the store is asked for their watermarks."""
_MOST_DIRECTORIES: Final = 100_000
"""Directories with a hint that are remembered at most; beyond that everything is listed again."""

NewPool = Callable[[str, int, Callable[[Outcome], None]], WorkerPool]


def pool_sizes(config: UploaderConfig) -> Mapping[str, int]:
    """The worker pools of the daemon, and how many threads each has."""
    return {
        "upload": config.threads,
        "request": config.request_threads,
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
    """Sending and verifying have a cap each: a segment that is only looked at must not come off the
    disk, and keep a CPU busy, as fast as it can.
    """

    def cap() -> Callable[[int], None]:
        return capped(
            config.max_bytes_per_second,
            context.clock.monotonic,
            context.abandoned,
            context.metrics.throttled,
        )

    give_back = config.page_cache == "give_back_cold"
    return Uploader(ReadingRules(cap(), give_back, cap()))


class Engine:
    """The daemon's state, changed on one thread; the owner calls `step` again and again.

    `wake` and `deliver` may be called from any thread, everything else from the owner's alone.

    Args:
        config: The configuration's section `uploader`.
        context: The log dirs, the source of leadership, the stores, and what is told of all that.
        new_pool: Makes a worker pool of a name and a size, which hands its outcomes to a function.
    """

    def __init__(
        self, config: UploaderConfig, context: DaemonContext, new_pool: NewPool = WorkerPool
    ) -> None:
        now, metrics, places = context.clock.monotonic, context.metrics, context.places
        self._config = config
        self._context = context
        self._now = now
        self._touched: dict[TopicPartition, Partition] = {}
        self._next_told = self._next_totals = self._next_tails = float("-inf")
        self._totals = Totals()
        self._followed_pins = 0
        self._deletion = DeletionEstimate(config.local_delete_delay, config.local_retention)
        self.status = StatusBoard(context.cluster, context.broker_id, context.clock)
        self._expect_snapshots()

        self._inbox = Inbox(self._outcome_failed)
        self._pools = {
            name: new_pool(name, size, self._inbox.put) for name, size in pool_sizes(config).items()
        }
        self._timers = Timers(now)
        self._errors = errors = UnexpectedErrors(metrics, context.clock)
        self._board = HintBoard(self._inbox.wake, now, _MOST_DIRECTORIES)
        self._watcher = Watcher(context.log_dirs.paths, self._board, config.watch, metrics)
        self._leads = LedPartitions(context.log_dirs, metrics, errors, self._dropped, now)
        self._pins = PinTable(allowed_files(config.pins.max_files))
        self._gate = CommittedGate(
            now,
            use_checkpoint=config.high_watermark.checkpoint,
            brokers_tell=context.high_watermarks is not None,
            on_checkpoint=errors.file_was_read,
        )
        self._tails = LogTails(self._gate)
        self._asker = HighWatermarkAsker(
            context.high_watermarks,
            self._pools["high-watermark"],
            self._gate,
            self._touch_all_of,
            now,
            metrics,
            errors,
        )
        self._rules = TopicRules(
            context.topic_configs,
            self._pools["topic-config"],
            self._touch_topics,
            now,
            metrics,
            errors,
            context.topics.compacted,
        )
        self._health = StoresHealth(places)
        self._uploads = UploadQueue(
            capped_uploader(config, context),
            self._pools["upload"],
            self._pins,
            places,
            context.broker_id,
            self._health,
            self._happened,
            now,
        )
        self._requests = self._new_requests()
        self._hung = HungRequests(
            context.store_calls,
            lambda thread: (
                self._uploads.partition_on(thread) or self._requests.partition_on(thread)
            ),
            self._leads.get,
            lambda tp: places(tp.topic).gate,
            self._happened,
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
            errors,
        )
        self._tasks = PeriodicTasks(
            config,
            now,
            self._leads,
            self._scheduler,
            self._timers,
            self._asker,
            self._rules,
            self._watcher,
            context.log_dirs,
            self._keep_house,
            self._touch,
        )
        self._unresolved = UnresolvedReader(
            places,
            context.cluster_place,
            self._pools["unresolved"],
            self.status.set_store_records,
            now,
            metrics,
        )
        self._cluster_snapshots = ClusterSnapshots(
            snapshot_writer(config, context),
            config.cluster_snapshots.interval,
            self._pools["cluster-snapshot"],
            self._snapshots_taken,
            now,
            metrics,
            errors,
        )
        self._chapters = Chapters(
            context.long_archives, self._pools["chapter"], now, metrics, errors
        )

    def _expect_snapshots(self) -> None:
        source, snapshots = self._context.cluster_state, self._config.cluster_snapshots
        if source is not None and snapshots.enabled:
            wanted = set(source.kinds) - set(snapshots.exclude)
            self.status.expect_cluster_snapshots(kind for kind in SnapshotKind if kind in wanted)

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
            self._pools["request"],
            context.places,
            RequestWork(context.broker_id, self._gate.named_at, histories),
            self._health,
            self._happened,
            self._now,
        )

    # -- for its owner ----------------------------------------------------------------------------

    def deliver(self, view: LeadershipView) -> None:
        """A view of the leadership source's, on the source's thread."""
        self._inbox.put(lambda: self._lead(view))

    def wake(self) -> None:
        """Have `step` return soon."""
        self._inbox.wake()

    def watch(self) -> None:
        """Begin to collect hints, and to follow what others lead; raises ConfigurationError where
        hints can never come, or the spool cannot be used.
        """
        self._open_spool()
        self._watcher.start()
        self.begin_to_follow()

    def begin_to_follow(self) -> None:
        """Hold what other brokers lead, if that is asked for; `watch` does it, too."""
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
        self._inbox.run(self._tasks.wait_seconds())
        self._take_hints()
        self._tasks.run_due(slowly=bool(self._requests.waiting))
        self._work()

    def is_settled(self) -> bool:
        """Every closed segment of the led partitions is stored, or cannot be now."""
        if not self._leads.known or self.busy or self._touched:
            return False
        return all(partition.is_settled() for partition in self._leads)

    def stop_accepting(self) -> None:
        """No further hint, and no upload that is not under way already."""
        self._watcher.stop()
        self._requests.commits_only()
        self._chapters.stop()

    @property
    def busy(self) -> int:
        """Uploads and requests under way or due."""
        return self._uploads.busy + self._requests.waiting

    @property
    def hung(self) -> int:
        """Those of them that hang: nobody knows whether they will ever end."""
        return self._hung.of_partitions

    def drain_step(self, longest: float) -> None:
        """Take in what is finished, and commit it; waits for it `longest` seconds at most."""
        self._inbox.run(longest)
        for partition in self._take_touched():
            self._scheduler.advance(partition)
        self._requests.start_some()

    def abandon(self) -> None:
        """Give up what is under way, and let all files go."""
        self._context.abandoned.set()
        self._requests.abandon()
        self._watcher.stop()
        for pool in self._pools.values():
            pool.stop()
        for partition in self._leads.with_parked():
            partition.close(for_good=False)
        self._asker.close()
        self._rules.close()
        if self._context.cluster_state is not None:
            self._context.cluster_state.close()

    def deaths(self) -> Mapping[str, BaseException | None]:
        """Threads by name, and why they died."""
        pools = self._pools.items()
        return {f"a thread named {name}": pool.death for name, pool in pools}

    # -- again and again --------------------------------------------------------------------------

    def _keep_house(self) -> None:
        """Every few seconds, whatever happens."""
        self._leads.release_parked()
        self._unresolved.read_if_due(partition.topic_partition.topic for partition in self._leads)
        self._cluster_snapshots.take_if_due()
        self._chapters.write_if_due()
        self._rules.ask_for(self._leads.all())
        self._followed_pins = sum(partition.pins() for partition in self._leads.followed())
        self._enforce_bounds()

    def _enforce_bounds(self) -> None:
        """Hold open, and keep in the spool, no more than the bounds allow."""
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

    def _lead(self, view: LeadershipView) -> None:
        self._errors.tell_of_leadership(view.unreadable)
        was_known = self._leads.known
        for number, partition in enumerate(self._leads.follow(view), 1):
            self._scheduler.look(partition)
            self._touch(partition)
            if number % _LED_AT_ONCE == 0:  # the store answers while further directories are listed
                self._advance_touched()
        if self._leads.known != was_known:
            self._touch_all_of([partition.topic_partition for partition in self._leads.all()])
        self._tasks.look_at_all_followed()
        self._next_tails = float("-inf")

    def _dropped(self, partition: Partition) -> None:
        """In the role that it had; it may be followed from now on."""
        tp = partition.topic_partition
        self._requests.forget(tp)
        self._pins.rank_again(partition)
        self._gate.forget(tp)
        self._scheduler.forget(tp)
        self._tails.forget(tp)
        self._touched.pop(tp, None)
        self.status.forget(tp)
        self._context.metrics.forget(tp)

    def _take_hints(self) -> None:
        hints = self._board.take()
        if hints.everything:
            self._tasks.rescan_soon()
        for directory, moment in hints.directories.items():
            hint = Subject(f"a hint at {directory}")
            self._errors.attempt(hint, partial(self._take_hint, directory, moment))

    def _take_hint(self, directory: str, moment: float) -> None:
        tp = self._context.log_dirs.resolve(directory)
        partition = self._leads.get(tp) or self._leads.follow_if_new(tp)
        if partition is not None and not self._leads.is_gone(partition):
            self._scheduler.look(partition, rolled=moment)
            self._touch(partition)

    def _outcome_failed(self, error: Exception) -> None:
        """What a thread has handed over could not be taken in. Its own owner has let go of it."""
        self._errors.note(Subject("an outcome"), error)

    def _snapshots_taken(self, result: TurnResult) -> None:
        snapshots = {} if result.index is None else result.index.snapshots
        confirmed = {kind: entry.confirmed_ms for kind, entry in snapshots.items()}
        self.status.set_cluster_snapshots(confirmed, result.problems)

    def _archive_moves(self, tp: TopicPartition, what: str | None) -> None:
        """On the thread that moves it."""
        self._inbox.put(lambda: self._note_move(tp, what))

    def _note_move(self, tp: TopicPartition, what: str | None) -> None:
        partition = self._leads.get(tp)
        if partition is not None:
            self._happened(partition, ArchiveMoves(what))

    def _happened(self, partition: Partition, event: Event) -> None:
        """The partition takes it in, and what it wants done is done."""
        clock = self._context.clock
        actions = partition.handle(event, clock.monotonic(), clock.wall())
        self._effects.carry_out(partition, actions)
        if partition.released:
            partition.close(for_good=not self._context.abandoned.is_set())
        self._touch(partition)

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

    def _take_touched(self) -> list[Partition]:
        touched, self._touched = self._touched, {}
        return list(touched.values())

    def _work(self) -> None:
        tells = self._now() >= self._next_told
        if tells:
            self._hung.look()
        self._advance_touched()
        if tells:
            self._tell()

    def _advance_touched(self) -> None:
        for partition in self._take_touched():
            self._scheduler.advance(partition)
            shown = Subject("status", partition.topic_partition)
            self._errors.attempt(shown, partial(self.status.update, partition, self._deletion))
        self._requests.start_some()
        self._uploads.start_some()

    def _tell(self) -> None:
        """Whether the daemon is ready; and its totals and tails, which cost more the more
        partitions there are, unless they have cost too much lately.
        """
        began = self._now()
        self._next_told = began + _TOTALS_SECONDS
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
            measured = ((one.topic_partition, self._tails.measure(one)) for one in self._leads)
            self.status.set_tails({tp: tail for tp, tail in measured if tail is not None})
            self._next_tails = self._after(began, _TAILS_SECONDS)

    def _after(self, began: float, seconds: float) -> float:
        """When to do again what was begun at this time and is done now."""
        return began + max(seconds, (self._now() - began) / _MOST_OF_THE_TIME)
