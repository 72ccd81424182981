"""The daemon: hints and leadership in, segments and watermarks out, all decided on one thread.

Its life: `run` starts watch and leadership, then works until `stop` is called from any thread. Then
it stops accepting (no watch, no new upload), drains what is under way until the grace period ends,
and abandons the rest; a restart finds it again.
"""

import os
import resource
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import HighWatermark, LeadershipSource, LeadershipView, diff
from sidetier.segments.errors import LeadershipError, SegmentError, SidetierError
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BrokerId,
    LeaderEpoch,
    TopicPartition,
)
from sidetier.segments.properties import parse_partition_metadata
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import Condition
from sidetier.uploader.archive import Leader
from sidetier.uploader.clock import Clock
from sidetier.uploader.disk import free_bytes, read_text
from sidetier.uploader.foreman import Foreman, Shop
from sidetier.uploader.high_watermark import CommittedGate, HighWatermarkSource
from sidetier.uploader.hints import HintBoard
from sidetier.uploader.log_dirs import LogDirs
from sidetier.uploader.loop import Inbox, Timers
from sidetier.uploader.partition import Partition
from sidetier.uploader.pin_policy import HoldLimits
from sidetier.uploader.pin_table import PinTable
from sidetier.uploader.pins import PINNED_KINDS
from sidetier.uploader.places import PlaceOf
from sidetier.uploader.requests import Requests
from sidetier.uploader.status_board import DeletionEstimate, StatusBoard, Totals
from sidetier.uploader.throttle import Throttle
from sidetier.uploader.upload import Destination, ReadingRules, Uploader
from sidetier.uploader.uploads import UploadQueue
from sidetier.uploader.verify import read_lineage
from sidetier.uploader.watcher import Watcher
from sidetier.uploader.workers import Job, WorkerPool

log: Final = structlog.get_logger()

_OTHER_FILES: Final = 512
"""Descriptors left for connections, logs and the like."""
_ENFORCE_SECONDS: Final = 5.0
_TOTALS_SECONDS: Final = 0.25


class AbandonedError(SidetierError):
    """The daemon stops: the upload under way was given up."""


class DaemonDiedError(SidetierError):
    """A thread of the daemon died; the process must end, and be started again."""


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


class Daemon:
    """Archives the closed segments of the partitions that this broker leads."""

    def __init__(self, config: UploaderConfig, around: Surroundings) -> None:
        self._config = config
        self._around = around
        self._now = around.clock.monotonic
        self._inbox = Inbox()
        self._timers = Timers(self._now)
        self._board = HintBoard(self._inbox.wake, self._now, capacity=100_000)
        self._watcher = Watcher(around.log_dirs.paths, self._board, config.watch, around.metrics)
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._view = LeadershipView()
        self._partitions: dict[TopicPartition, Partition] = {}
        self._touched: dict[TopicPartition, Partition] = {}
        self._next_rescan = self._next_enforce = self._next_high_watermarks = float("-inf")
        self._next_totals = float("-inf")
        self._pool = WorkerPool("upload", config.threads, self._inbox.put)
        self._request_pool = WorkerPool("request", config.request_threads, self._inbox.put)
        self._asker = WorkerPool("high-watermark", 1, self._inbox.put)
        self._pins = PinTable(_allowed_files(config.pins.max_files))
        self._gate = CommittedGate(self._now, use_checkpoint=config.high_watermark.checkpoint)
        self._deletion = DeletionEstimate(config.local_delete_delay, config.local_retention)
        self.status = StatusBoard(around.cluster, around.broker_id, around.clock)
        self._uploads = UploadQueue(
            Uploader(ReadingRules(self._before_read, config.page_cache == "give_back_cold")),
            self._pool,
            self._destination,
            self._settle,
            around.clock,
            around.metrics,
        )
        self._requests = Requests(
            self._request_pool,
            around.places,
            self._leader,
            self._settle,
            self._now,
            around.metrics,
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
            )
        )
        self._throttle = Throttle(
            config.max_bytes_per_second,
            self._now,
            self._abandoned.wait,
            around.metrics.throttled,
        )

    # -- life ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `stop` is called; returns when nothing is under way any more.

        Raises:
            ConfigurationError: it can never work as it is configured.
            DaemonDiedError: one of its threads died.
        """
        try:
            self._watcher.start()  # before the first listing, so that nothing falls in between
            self._around.leadership.start(lambda view: self._inbox.put(lambda: self._lead(view)))
            while not self._stopping.is_set():
                self._step()
            self._drain()
        finally:
            self._shut_down()

    def run_until_settled(self) -> None:
        """Work until every closed segment of the led partitions is stored, or cannot be now."""
        try:
            self._around.leadership.start(lambda view: self._inbox.put(lambda: self._lead(view)))
            while not (self._stopping.is_set() or self._settled()):
                self._step()
            self._drain()
        finally:
            self._shut_down()

    def stop(self) -> None:
        """Begin to stop; from any thread or a signal handler, more than once."""
        self._stopping.set()
        self._inbox.wake()

    def _step(self) -> None:
        self._inbox.run(self._wait_seconds())
        self._check_threads()
        self._take_hints()
        self._keep_times()
        self._work()

    def _drain(self) -> None:
        """What is under way may finish, and its watermark move, until the grace period ends."""
        log.info("daemon.draining", uploads=self._uploads.busy, grace=self._config.shutdown_grace)
        self._watcher.stop()
        self._around.leadership.stop()
        self._requests.commits_only()
        deadline = self._now() + self._config.shutdown_grace
        while self._uploads.busy or self._requests.waiting:
            if self._now() >= deadline:
                log.warning("daemon.abandoned", uploads=self._uploads.busy)
                return
            self._inbox.run(deadline - self._now())
            for partition in self._take_touched():
                self._foreman.advance(partition)
            self._requests.start_some()

    def _shut_down(self) -> None:
        self._abandoned.set()
        self._watcher.stop()
        self._around.leadership.stop()
        for pool in (self._pool, self._request_pool, self._asker):
            pool.stop()
        for partition in self._partitions.values():
            partition.close()
        if self._around.high_watermarks is not None:
            self._around.high_watermarks.close()
        log.info("daemon.stopped")

    def _check_threads(self) -> None:
        deaths: Mapping[str, BaseException | None] = {
            "the leadership source": self._around.leadership.failure(),
            "an upload thread": self._pool.death,
            "a request thread": self._request_pool.death,
            "the high watermark thread": self._asker.death,
        }
        for what, death in deaths.items():
            if death is not None:
                reason = f"{what} died: {type(death).__name__}: {death}"
                self.status.died(reason)
                raise DaemonDiedError(reason) from death

    # -- hints and times ------------------------------------------------------------------------

    def _wait_seconds(self) -> float:
        moments = [self._next_rescan, self._next_enforce]
        if self._foreman.waiting:
            moments.append(self._next_high_watermarks)
        return min(self._timers.next_in(), *(moment - self._now() for moment in moments))

    def _take_hints(self) -> None:
        hints = self._board.take()
        if hints.everything:
            self._next_rescan = float("-inf")
        for directory, moment in hints.directories.items():
            tp = self._around.log_dirs.resolve(directory)
            partition = self._partitions.get(tp) if tp is not None else None
            if partition is not None:
                self._locate(partition)
                self._foreman.look(partition, rolled=moment)
                self._touch(partition)

    def _keep_times(self) -> None:
        now = self._now()
        for tp in self._timers.due():
            partition = self._partitions.get(tp)
            if partition is not None:
                self._foreman.look(partition)
                self._touch(partition)
        if now >= self._next_rescan:
            self._rescan()
        if now >= self._next_enforce:
            self._enforce_bounds()
        if self._foreman.waiting and now >= self._next_high_watermarks:
            self._ask_high_watermarks()

    def _rescan(self) -> None:
        """The listing is the truth, whatever the events said."""
        polling = self._watcher.polling
        interval = self._config.poll_interval if polling else self._config.rescan_interval
        self._around.log_dirs.rescan()
        for partition in self._partitions.values():
            self._locate(partition)
            self._foreman.look_if_changed(partition)
            self._touch(partition)
        self._next_rescan = self._now() + interval

    def _enforce_bounds(self) -> None:
        """The broker never runs full because of what is held open here; hints go on coming."""
        self._next_enforce = self._now() + _ENFORCE_SECONDS
        if self._watcher.keep_alive():
            self._next_rescan = float("-inf")
        for log_dir in self._around.log_dirs.paths:
            self._enforce_on(log_dir)

    def _enforce_on(self, log_dir: str) -> None:
        try:
            free, total = free_bytes(log_dir)
        except OSError:
            return  # offline: nothing can be freed there
        pins = self._config.pins
        limits = HoldLimits(pins.max_deleted_bytes, pins.min_free_disk.of(total))
        here = [p for p in self._partitions.values() if p.log_dir == log_dir]
        for let_go in self._pins.enforce(here, limits, lambda: free):
            log.error(
                "pin.released",
                topic=let_go.topic_partition.topic,
                partition=let_go.topic_partition.partition,
                base_offset=let_go.base_offset,
                bytes=let_go.size,
                free_bytes=free,
            )
            self._touch(self._partitions[let_go.topic_partition])

    # -- high watermarks --------------------------------------------------------------------------

    def _ask_high_watermarks(self) -> None:
        """The checkpoint file may have been written since; those that still wait are asked for."""
        self._next_high_watermarks = self._now() + self._config.high_watermark.poll_interval
        for partition in list(self._foreman.waiting.values()):
            self._touch(partition)
            self._foreman.advance(partition)
        source = self._around.high_watermarks
        wanted = list(self._foreman.waiting)
        if source is None or not wanted or not self._asker.free:
            return
        self._asker.submit(
            Job(lambda: source.high_watermarks(wanted), self._learn, self._high_watermarks_failed)
        )

    def _learn(self, answers: Mapping[TopicPartition, HighWatermark]) -> None:
        self._gate.learn(answers)
        for tp in answers:
            partition = self._partitions.get(tp)
            if partition is not None:
                self._touch(partition)

    def _high_watermarks_failed(self, error: Exception) -> None:
        if not isinstance(error, LeadershipError):
            raise error
        self._around.metrics.error(type(error).__name__)
        self._next_high_watermarks = self._now() + 1.0
        log.warning("high_watermark.unavailable", error=str(error))

    # -- leadership -------------------------------------------------------------------------------

    def _lead(self, view: LeadershipView) -> None:
        change = diff(self._view, view)
        self._view = view
        if not change:
            return
        self._around.metrics.leadership_changed(
            len(change.gained), len(change.lost), len(change.renewed)
        )
        log.info(
            "leadership.changed",
            gained=len(change.gained),
            lost=len(change.lost),
            renewed=len(change.renewed),
            leads=len(view.leads),
        )
        for tp in (*change.lost, *change.renewed):
            self._drop(tp)
        self._around.log_dirs.rescan()
        for tp in (*change.gained, *change.renewed):
            if self._around.log_dirs.wanted(tp.topic):
                self._take_over(tp, view.leads[tp], view.topic_ids.get(tp.topic))

    def _drop(self, tp: TopicPartition) -> None:
        partition = self._partitions.pop(tp, None)
        if partition is None:
            return
        partition.lost = True
        partition.close()
        self._gate.forget(tp)
        self._foreman.waiting.pop(tp, None)
        self._touched.pop(tp, None)
        self.status.forget(tp)
        self._around.metrics.forget(tp)

    def _take_over(self, tp: TopicPartition, epoch: LeaderEpoch, topic_id: str | None) -> None:
        partition = Partition(tp, epoch, topic_id)
        self._partitions[tp] = partition
        self._locate(partition)
        self._foreman.look(partition)
        self._touch(partition)

    def _locate(self, partition: Partition) -> None:
        """Where the partition lies now: a directory may come late, or move to another log dir."""
        directory = self._around.log_dirs.directory(partition.topic_partition)
        if directory is None or directory == partition.directory:
            return
        partition.directory = directory
        partition.log_dir = os.path.dirname(directory)
        partition.directory_ns = -1
        if partition.topic_id is None:
            partition.topic_id = _topic_id(directory)
        if partition.leader_epoch == UNKNOWN_EPOCH:
            partition.leader_epoch = _latest_epoch(directory)

    def _leader(self, partition: Partition) -> Leader:
        return Leader(self._around.broker_id, partition.leader_epoch, partition.topic_id)

    def _destination(self, partition: Partition) -> Destination:
        place = self._around.places(partition.topic_partition.topic)
        return Destination(
            place.store,
            place.layout,
            partition.topic_partition,
            partition.leader_epoch,
            self._around.broker_id,
        )

    # -- work -------------------------------------------------------------------------------------

    def _touch(self, partition: Partition) -> None:
        if not partition.lost:
            self._touched[partition.topic_partition] = partition

    def _settle(self, partition: Partition) -> None:
        """An outcome has changed the partition."""
        if partition.lost:
            partition.close()
        elif partition.tracked or partition.archive:
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
        self.status.set_totals(
            Totals(
                queued=self._uploads.length,
                uploading=self._uploads.busy,
                pinned_files=self._pins.totals.segments * len(PINNED_KINDS),
                deleted_bytes=self._pins.totals.deleted_bytes,
            ),
            self._conditions(),
        )

    def _conditions(self) -> tuple[Condition, ...]:
        starting = sum(
            1 for p in self._partitions.values() if p.archive is None and p.tracked and not p.halted
        )
        errors = [
            p.hold.error for p in self._partitions.values() if p.archive is None and p.hold.error
        ]
        return (
            Condition("leadership known", self._view.known, "no source of leadership answers yet"),
            Condition("bootstrapped", starting == 0, f"{starting} watermarks are still to be read"),
            Condition("store reachable", not errors, errors[0] if errors else ""),
        )

    def _settled(self) -> bool:
        if not self._view.known or self._uploads.busy or self._requests.waiting or self._touched:
            return False
        return all(_is_settled(partition) for partition in self._partitions.values())

    def _before_read(self, size: int) -> None:
        if self._abandoned.is_set():
            raise AbandonedError("the daemon stops")
        self._throttle.acquire(size)


def _is_settled(partition: Partition) -> bool:
    if partition.halted is not None:
        return True
    if partition.listed_at is None:
        return partition.directory is None
    return not partition.tracked and partition.gap is None


def _topic_id(directory: str) -> str | None:
    path = os.path.join(directory, "partition.metadata")
    try:
        return parse_partition_metadata(read_text(path), path)
    except (OSError, SegmentError):
        return None


def _latest_epoch(directory: str) -> LeaderEpoch:
    """A leader writes its epoch into the checkpoint when it takes over."""
    try:
        entries = read_lineage(directory).entries
    except (OSError, SegmentError):
        return UNKNOWN_EPOCH
    return entries[-1][0] if entries else UNKNOWN_EPOCH


def _allowed_files(wanted: int) -> int:
    """Raise the soft limit of open files as far as is needed and allowed; what pins may use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = wanted + _OTHER_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < min(wanted + _OTHER_FILES, ceiling):
        soft = min(wanted + _OTHER_FILES, ceiling)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - _OTHER_FILES)
    if allowed < wanted:
        log.warning("pins.limited", wanted_files=wanted, allowed_files=allowed, ulimit=soft)
    return max(len(PINNED_KINDS), allowed)
