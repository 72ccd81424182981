"""Local retention of the daemon: passes over the led partitions, one step at a time."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from sidetier.segments.offsets import UNKNOWN_EPOCH, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import LocalRetentionStatus
from sidetier.uploader.periodic import PeriodicTask
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.trim.archive_check import LedPartition
from sidetier.uploader.trim.decision import EXPECTED_HINDRANCES, Held, Hindrance, Trim
from sidetier.uploader.trim.events import (
    ArchivesVerified,
    LocalRetentionEvent,
    PassFailed,
    RecordsDeleted,
    SurveyEnded,
)
from sidetier.uploader.trim.trimmer import AT_ONCE, Trimmer
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.workers import WorkerPool

log: Final = structlog.get_logger()

Verified = tuple[LedPartition, Trim]
FindPartition = Callable[[TopicPartition], Partition | None]


def led_partition(partition: Partition) -> LedPartition | None:
    """Return the facts about a partition for a pass; None while its directory is not known."""
    if partition.directory is None:
        return None
    archive = partition.archive
    return LedPartition(
        partition.topic_partition,
        partition.directory,
        partition.leader_epoch,
        partition.topic_id,
        partition.generation,
        None if archive is None else archive.etag,
        None if archive is None or archive.watermark is None else archive.next_offset,
        partition.epochs,
        None if archive is None else archive.epoch_history,
        _held(partition),
        None if archive is None else archive.watermark,
        partition.log.trimmed_to,
    )


def _held(partition: Partition) -> Held | None:
    if partition.lost or partition.follows:
        return Held(Hindrance.LEADERSHIP_UNCONFIRMED, "this broker no longer leads the partition")
    if partition.unsure or partition.leader_epoch == UNKNOWN_EPOCH:
        return Held(
            Hindrance.LEADERSHIP_UNCONFIRMED, "the sidecar does not know the leader epoch now"
        )
    if partition.refused is not None or partition.cleaned:
        return Held(Hindrance.TOPIC_REFUSED, partition.refused or "the log has been compacted")
    reason = (
        partition.unread
        or partition.halted
        or partition.moving
        or partition.held_error
        or partition.unanswered
        or ("archive and log have diverged" if partition.diverged else None)
    )
    return _archive_held(partition) if reason is None else Held(Hindrance.PARTITION_HELD, reason)


def _archive_held(partition: Partition) -> Held | None:
    archive = partition.archive
    if archive is None or archive.watermark is None or archive.etag is None:
        return Held(Hindrance.ARCHIVE_UNKNOWN, "the sidecar has not read offset.wm")
    if archive.watermark.pending is not None or archive.is_pinterest:
        return Held(Hindrance.ARCHIVE_CHANGED, "the archive is being moved or taken over")
    return None


class LocalRetention:
    """Begins a pass at each interval. Only the daemon's thread calls it.

    A pass surveys all partitions. Then it verifies and deletes 500 partitions at a time. Before
    each step, partitions that have changed since the last one are dropped.

    Args:
        trimmer: Makes the steps, on a worker thread.
        pool: A pool with one worker: a store or a broker that hangs delays only the pass.
        now: Monotonic seconds.
        metrics: Counts bytes and failures.
        errors: Delays the next pass after an unexpected error.
        report: Called at the end of a pass with the bytes that stay beyond local retention.
    """

    def __init__(
        self,
        trimmer: Trimmer,
        pool: WorkerPool[LocalRetentionEvent],
        now: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
        report: Callable[[tuple[LocalRetentionStatus, ...]], None],
    ) -> None:
        self.trimmer = trimmer
        self._local = local = trimmer.local
        self._metrics = metrics
        self._report = report
        self._task = PeriodicTask(
            "local retention",
            pool,
            now,
            metrics,
            errors,
            expected=(),
            first=min(local.interval, 30.0),
            interval=local.interval,
        )
        self._under_way = self._stopped = False
        self._waiting: list[Trim] = []
        self._ended: list[Trim] = []
        self._held: dict[TopicPartition, Hindrance] = {}

    def begin_if_due(self, partitions: Iterable[Partition]) -> None:
        """Begin a pass over the led partitions if it is due and none is under way."""
        if self._under_way or self._stopped or not self._task.is_due:
            return
        led = [
            facts
            for partition in partitions
            if self._local.selects(partition.topic_partition.topic)
            and (facts := led_partition(partition)) is not None
        ]
        self._under_way, self._ended, self._waiting = True, [], []
        self._task.begin(lambda: SurveyEnded(self.trimmer.survey(led)), PassFailed)

    def stop(self) -> None:
        """Begin no further step."""
        self._stopped = True

    def handle(self, event: LocalRetentionEvent, find: FindPartition) -> None:
        """Take the result of a step, and begin the next one.

        Args:
            event: The result.
            find: Returns a led or followed partition.
        """
        match event:
            case SurveyEnded(survey):
                for problem in survey.groups_problems:
                    log.warning("local_retention.groups_unknown", error=problem)
                self._waiting = [trim for trim in survey.trims if trim.size]
                self._ended = [trim for trim in survey.trims if not trim.size]
                self._verify_next(find)
            case ArchivesVerified(trims):
                self._delete(trims, find)
            case RecordsDeleted(trims):
                for trim in trims:
                    self._deleted(trim, find)
                self._verify_next(find)
            case PassFailed(error):
                self._under_way = False
                self._task.failed(error)

    def _submit(self, step: Callable[[], LocalRetentionEvent]) -> None:
        if self._stopped:
            self._under_way = False
            return
        self._task.go_on(step, PassFailed)

    def _verify_next(self, find: FindPartition) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            current = [(led, trim) for trim in batch if (led := self._current(trim, find))]
            if current:
                self._submit(partial(self._verified, current))
                return
        self._end()

    def _verified(self, current: Sequence[Verified]) -> LocalRetentionEvent:
        return ArchivesVerified(self.trimmer.verify(current))

    def _current(self, trim: Trim, find: FindPartition) -> LedPartition | None:
        """Return the facts about a partition now; None if it must not be trimmed any more."""
        partition = find(trim.topic_partition)
        led = None if partition is None else led_partition(partition)
        gone = Held(Hindrance.LEADERSHIP_UNCONFIRMED, "this broker no longer leads the partition")
        held = gone if led is None else led.held
        if held is not None:
            self._ended.append(trim.none(held))
            return None
        return led

    def _delete(self, trims: Sequence[Verified], find: FindPartition) -> None:
        current: list[Verified] = []
        for before, trim in trims:
            if trim.end == trim.start:
                self._ended.append(trim)
                continue
            led = self._current(trim, find)
            if led is None:
                continue
            # The archive was verified for this leader, this topic and this generation.
            if _identity(led) == _identity(before):
                current.append((led, trim))
            else:
                text = "the partition has changed while its archive was verified"
                self._ended.append(trim.none(Held(Hindrance.ARCHIVE_CHANGED, text)))
        if current:
            self._submit(lambda: RecordsDeleted(self.trimmer.delete(current)))
        else:
            self._verify_next(find)

    def _deleted(self, trim: Trim, find: FindPartition) -> None:
        self._ended.append(trim)
        if trim.end == trim.start:
            return
        tp = trim.topic_partition
        partition = find(tp)
        if partition is not None:
            partition.log.trimmed_to = trim.end
        self._metrics.trimmed(tp.topic, trim.size)
        log.info(
            "local_retention.trimmed",
            topic=tp.topic,
            partition=tp.partition,
            log_start_offset=trim.end,
            bytes=trim.size,
        )

    def _end(self) -> None:
        self._under_way = False
        self._task.succeeded()
        held = {}
        excess: Counter[tuple[str, str]] = Counter()
        for trim in self._ended:
            reason = trim.held
            if reason is None:
                continue
            tp = trim.topic_partition
            held[tp] = reason.hindrance
            excess[tp.topic, reason.hindrance.value] += trim.excess
            if reason.hindrance not in EXPECTED_HINDRANCES:
                self._metrics.trim_failed(reason.hindrance.value)
            if self._held.get(tp) is not reason.hindrance:
                (log.info if reason.hindrance in EXPECTED_HINDRANCES else log.warning)(
                    "local_retention.held",
                    topic=tp.topic,
                    partition=tp.partition,
                    reason=reason.hindrance.value,
                    error=reason.text,
                    bytes=trim.excess,
                )
        self._held = held
        self._report(
            tuple(
                LocalRetentionStatus(topic, hindrance, size)
                for (topic, hindrance), size in sorted(excess.items())
            )
        )


def _identity(led: LedPartition) -> tuple[object, ...]:
    return led.directory, led.leader_epoch, led.topic_id, led.generation
