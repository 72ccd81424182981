"""The engine of the daemon: all of its state, changed on one thread, step by step."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidetier.config.topics import TopicsConfig
from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import LeadershipSource, LeadershipView, TopicConfigSource
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import BrokerId, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import Condition
from sidetier.uploader.archive.health import StoreHealth
from sidetier.uploader.archive.history import Histories
from sidetier.uploader.archive.known import Leader
from sidetier.uploader.archive.places import PlaceOf
from sidetier.uploader.archive.requests import Requests, RequestTies
from sidetier.uploader.foreman import Foreman, Shop
from sidetier.uploader.gates.high_watermark import CommittedGate, HighWatermarkSource
from sidetier.uploader.gates.high_watermark_asker import HighWatermarkAsker
from sidetier.uploader.gates.topic_rules import TopicRules
from sidetier.uploader.leads import Leads
from sidetier.uploader.look_round import LookRound
from sidetier.uploader.partition import Partition
from sidetier.uploader.pinning import spooling
from sidetier.uploader.pinning.bounds import allowed_files, enforce_bounds
from sidetier.uploader.pinning.spool import Spool
from sidetier.uploader.pinning.spool_homes import spool_homes
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.running.clock import Clock
from sidetier.uploader.running.loop import Inbox, Timers
from sidetier.uploader.running.sharing import StoreGate
from sidetier.uploader.running.workers import WorkerPool
from sidetier.uploader.sending.queue import Ties, UploadQueue
from sidetier.uploader.sending.throttle import Throttle
from sidetier.uploader.sending.upload import Destination, ReadingRules, Uploader
from sidetier.uploader.status_board import (
    DeletionEstimate,
    StatusBoard,
    Totals,
    pinned_ranges,
)
from sidetier.uploader.watching.hints import HintBoard
from sidetier.uploader.watching.log_dirs import LogDirs
from sidetier.uploader.watching.watcher import Watcher

_ENFORCE_SECONDS: Final = 5.0
_TOTALS_SECONDS: Final = 0.25
_NOW: Final = float("-inf")
_MOST_DIRECTORIES: Final = 100_000


class AbandonedError(SidetierError):
    """The daemon stops: the upload under way was given up."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the daemon works with, as ports."""

    log_dirs: LogDirs
    leadership: LeadershipSource
    places: PlaceOf
    high_watermarks: HighWatermarkSource | None
    broker_id: BrokerId
    cluster: str
    metrics: Metrics
    clock: Clock
    topic_configs: TopicConfigSource | None = None
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    abandoned: threading.Event = field(default_factory=threading.Event)
    """Set when what is under way is given up: ends pauses between tries, too."""


class Engine:
    """Moves closed segments on; whoever owns it gives it its life, step by step.

    `wake` and `deliver` may be called from any thread, everything else from the owner's alone.
    """

    def __init__(self, config: UploaderConfig, around: Surroundings) -> None:
        self._config = config
        self._around = around
        self._now = around.clock.monotonic
        self._inbox = Inbox()
        self._timers = Timers(self._now)
        self._board = HintBoard(self._inbox.wake, self._now, _MOST_DIRECTORIES)
        self._watcher = Watcher(around.log_dirs.paths, self._board, config.watch, around.metrics)
        self._abandoned = around.abandoned
        self._leads = Leads(around.log_dirs, around.metrics, self._dropped, self._now)
        self._touched: dict[TopicPartition, Partition] = {}
        self._followed = LookRound(self._look_at_followed, self._now)
        self._followed_pins = 0
        self._next_rescan = self._next_enforce = self._next_totals = self._next_ask = _NOW
        self._deletion = DeletionEstimate(config.local_delete_delay, config.local_retention)
        self.status = StatusBoard(around.cluster, around.broker_id, around.clock)
        self._pins = PinTable(allowed_files(config.pins.max_files))
        self._gate = CommittedGate(
            self._now,
            use_checkpoint=config.high_watermark.checkpoint,
            brokers_tell=around.high_watermarks is not None,
        )
        self._pools = {
            name: WorkerPool(name, size, self._inbox.put)
            for name, size in (
                ("upload", config.threads),
                ("request", config.request_threads),
                ("high-watermark", 1),
                ("topic-config", 1),
            )
        }
        self._health = StoreHealth()
        self._uploads = self._make_uploads()
        self._requests = Requests(
            self._pools["request"],
            around.places,
            RequestTies(
                self._leader,
                self._settle,
                self._health,
                Histories(
                    config.on_divergence,
                    config.on_recreated,
                    self._now,
                    around.metrics,
                    self._archive_moves,
                ),
            ),
            self._now,
            around.metrics,
        )
        self._rules = TopicRules(
            around.topic_configs,
            self._pools["topic-config"],
            self._touch_topics,
            self._now,
            around.metrics,
            around.topics.compacted,
        )
        self._foreman = Foreman(
            Shop(
                config,
                around.clock,
                self._gate,
                self._pins,
                self._timers,
                self._uploads,
                self._requests,
                self._rules,
                around.broker_id,
            )
        )
        self._asker = HighWatermarkAsker(
            around.high_watermarks,
            self._pools["high-watermark"],
            self._gate,
            self._touch_all_of,
            self._now,
            around.metrics,
        )

    def _make_uploads(self) -> UploadQueue:
        config, around = self._config, self._around
        before_read, before_walk = self._capped(), self._capped()
        return UploadQueue(
            Uploader(ReadingRules(before_read, config.page_cache == "give_back_cold", before_walk)),
            self._pools["upload"],
            self._pins,
            Ties(self._destination, self._gate_of, self._settle, self._health),
            around.clock,
            around.metrics,
        )

    def _capped(self) -> Callable[[int], None]:
        """What holds the cap before a read. Sending and verifying have one each: a segment that is
        only looked at must not come off the disk, and keep a CPU busy, as fast as it can.
        """
        throttle = Throttle(
            self._config.max_bytes_per_second,
            self._now,
            self._abandoned.wait,
            self._around.metrics.throttled,
        )

        def before_read(size: int) -> None:
            if self._abandoned.is_set():
                raise AbandonedError("the daemon stops")
            throttle.acquire(size)

        return before_read

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
        if self._config.rescue.enabled:
            self._leads.begin_to_follow()
            self._foreman.rescues = True

    def _open_spool(self) -> None:
        spools, log_dirs = self._config.pins.spool, self._around.log_dirs.paths
        if spools:
            homes = spool_homes(log_dirs, map(str, spools))
            self._foreman.spool = spool = Spool(homes, self._around.cluster)
            spooling.begin(spool, self._config.pins)

    def step(self) -> None:
        """Wait for something to happen, or for a time to come, and act on it."""
        self._inbox.run(self._wait_seconds())
        self._take_hints()
        self._keep_times()
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

    @property
    def busy(self) -> int:
        """Uploads and requests under way or due."""
        return self._uploads.busy + self._requests.waiting

    def drain_step(self, longest: float) -> None:
        """Take in what is finished, and commit it; waits for it `longest` seconds at most."""
        self._inbox.run(longest)
        for partition in self._take_touched():
            self._foreman.advance(partition)
        self._requests.start_some()

    def abandon(self) -> None:
        """Give up what is under way, and let all files go."""
        self._abandoned.set()
        self._requests.abandon()
        self._watcher.stop()
        for pool in self._pools.values():
            pool.stop()
        for partition in self._leads.with_parked():
            partition.close(for_good=False)
        self._asker.close()
        self._rules.close()

    def deaths(self) -> Mapping[str, BaseException | None]:
        """Threads by name, and why they died."""
        return {f"a thread named {name}": pool.death for name, pool in self._pools.items()}

    # -- what comes in --------------------------------------------------------------------------

    def _lead(self, view: LeadershipView) -> None:
        was_known = self._leads.known
        for partition in self._leads.follow(view):
            self._foreman.look(partition)
            self._touch(partition)
        if self._leads.known != was_known:
            self._touch_all_of([partition.topic_partition for partition in self._leads.all()])
        self._look_at_all_followed()

    def _look_at_all_followed(self) -> None:
        self._leads.find_followed()
        self._followed.begin(self._leads.followed())
        self._ask_topic_configs()

    def _ask_topic_configs(self) -> None:
        self._rules.ask({partition.topic_partition.topic for partition in self._leads.all()})

    def _dropped(self, partition: Partition) -> None:
        """In the role that it had; it may be followed from now on."""
        tp = partition.topic_partition
        self._requests.forget(tp)
        self._pins.demoted(partition)
        self._gate.forget(tp)
        self._foreman.waiting.pop(tp, None)
        self._touched.pop(tp, None)
        self.status.forget(tp)
        self._around.metrics.forget(tp)

    def _take_hints(self) -> None:
        hints = self._board.take()
        if hints.everything:
            self._next_rescan = _NOW
        for directory, moment in hints.directories.items():
            tp = self._around.log_dirs.resolve(directory)
            partition = self._leads.get(tp) or self._leads.follow_if_new(tp)
            if partition is not None and not self._leads.is_gone(partition):
                self._leads.locate(partition)
                self._foreman.look(partition, rolled=moment)
                self._touch(partition)

    def _look_at_followed(self, partition: Partition) -> None:
        if partition.follows and not partition.lost:
            self._leads.locate(partition)
            self._foreman.look_if_changed(partition)
            self._touch(partition)

    # -- times ----------------------------------------------------------------------------------

    def _wait_seconds(self) -> float:
        moments = [self._next_rescan, self._next_enforce, self._followed.next_at]
        if self._foreman.waiting:
            moments.append(self._next_ask)
        return min(self._timers.next_in(), *(moment - self._now() for moment in moments))

    def _keep_times(self) -> None:
        for tp in self._timers.due():
            partition = self._leads.get(tp)
            if partition is not None:
                self._foreman.look(partition)
                self._touch(partition)
        now = self._now()
        if now >= self._next_enforce:
            self._enforce_bounds()
        if now >= self._next_rescan:
            self._rescan()
        if self._foreman.waiting and now >= self._next_ask:
            self._ask_high_watermarks()
        self._followed.go_on(slowly=bool(self._requests.waiting))

    def _rescan(self) -> None:
        """The listing is the truth, whatever the events said."""
        polling = self._watcher.polling
        interval = self._config.poll_interval if polling else self._config.rescan_interval
        self._around.log_dirs.rescan()
        for partition in self._leads:
            self._leads.locate(partition)
            self._foreman.look_if_changed(partition)
            self._touch(partition)
        self._look_at_all_followed()
        self._next_rescan = self._now() + interval

    def _enforce_bounds(self) -> None:
        """Hints go on coming, and what is held open stays within its bounds."""
        self._next_enforce = self._now() + _ENFORCE_SECONDS
        if self._watcher.keep_alive():
            self._next_rescan = _NOW
        self._leads.release_parked()
        self._ask_topic_configs()
        self._followed_pins = sum(partition.pins() for partition in self._leads.followed())
        partitions = list(self._leads.with_parked())
        enforce_bounds(self._pins, self._config.pins, self._around.log_dirs.paths, partitions)

    def _ask_high_watermarks(self) -> None:
        """A checkpoint may have been written since; for those that still wait, ask the brokers."""
        self._next_ask = self._now() + self._config.high_watermark.poll_interval
        for partition in list(self._foreman.waiting.values()):
            self._foreman.advance(partition)
            self._touch(partition)
        self._asker.ask(list(self._foreman.waiting))

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

    def _settle(self, partition: Partition) -> None:
        """An outcome has changed the partition."""
        if partition.released:
            partition.close(for_good=not self._abandoned.is_set())
        self._touch(partition)

    def _take_touched(self) -> list[Partition]:
        touched, self._touched = self._touched, {}
        return list(touched.values())

    def _work(self) -> None:
        for partition in self._take_touched():
            self._foreman.advance(partition)
            self.status.update(partition, self._deletion)
        self._requests.start_some()
        self._uploads.start_some()
        if self._now() >= self._next_totals:
            self._tell_totals()

    def _tell_totals(self) -> None:
        """Over all partitions, so not at every step."""
        self._next_totals = self._now() + _TOTALS_SECONDS
        pinned = self._pins.totals
        totals = Totals(
            queued=self._uploads.length,
            queued_bytes=self._uploads.bytes,
            uploading=self._uploads.busy,
            pinned_files=pinned.files,
            pinned_bytes=pinned.bytes,
            deleted_bytes=pinned.deleted_bytes,
            followed=self._leads.followed_count,
            followed_pinned=self._followed_pins,
            pins=tuple(pinned_ranges(filter(_tells_of_pins, self._leads.with_parked()))),
        )
        self.status.set_totals(totals, readiness(self._leads, self._health))

    def _archive_moves(self, tp: TopicPartition, what: str | None) -> None:
        """On the thread that moves it."""
        self._inbox.put(lambda: self._note_move(tp, what))

    def _note_move(self, tp: TopicPartition, what: str | None) -> None:
        partition = self._leads.get(tp)
        if partition is not None:
            partition.moving = what
            self._touch(partition)

    def _leader(self, partition: Partition) -> Leader:
        return Leader(self._around.broker_id, partition.leader_epoch, partition.topic_id)

    def _gate_of(self, partition: Partition) -> StoreGate:
        return self._around.places(partition.topic_partition.topic).gate

    def _destination(self, partition: Partition) -> Destination:
        place = self._around.places(partition.topic_partition.topic)
        return Destination(
            place.store,
            place.layout,
            partition.topic_partition,
            partition.leader_epoch,
            self._around.broker_id,
            compacted=partition.config is not None and partition.config.compacted,
            directory=partition.directory,
            topic_id=partition.topic_id,
        )


def _tells_of_pins(partition: Partition) -> bool:
    """A follower's pins on what is no nearer deletion than the leader's copy tell nothing."""
    return not partition.follows or partition.at_risk > 0


def readiness(leads: Leads, health: StoreHealth) -> tuple[Condition, ...]:
    """Bootstrapped, leadership known, store reachable; what does not hold says why.

    One partition that is halted or held makes nobody unready: it shows in its own state.
    """
    unread = sum(1 for partition in leads if partition.is_unread())
    return (
        _condition("leadership known", None if leads.known else "no source of leadership answers"),
        _condition("bootstrapped", f"{unread} watermarks are still to be read" if unread else None),
        _condition("store reachable", health.reason),
    )


def _condition(name: str, problem: str | None) -> Condition:
    return Condition(name, problem is None, problem or "")
