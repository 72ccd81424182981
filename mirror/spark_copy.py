"""Run a bounded copy as Spark tasks, one for each target partition.

A task reads its range of the source and writes it to the target; records do not pass through the
driver or the JVM. There is one task for each partition because the records of a partition must be
written in order and its progress is one offset: two ranges of one partition would have to wait for
each other.

Other writers of a partition are fenced in one of two ways. A restore's task fences the
transactional id of a restore without Spark. A mirror's driver is the only worker of the mirror, and
its tasks commit with its membership, which the coordinator refuses as soon as another worker joins.

Spark starts an attempt of a task again when it fails, and starts a second attempt beside a slow
one. All attempts use the partition's transactional id: the newest attempt fences the others and
continues from the progress. A fenced attempt must not fence the newest one back at once, or both
would abort each other's transactions forever. A fenced attempt must not end either. If it fails,
Spark counts a failure and starts another attempt, which fences the one that writes. If it succeeds,
Spark kills the attempt that writes. So a fenced attempt waits (`Standby`).
"""

import pickle
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import structlog

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.archive.folders import ArchiveFolder, access_to_folders
from sidetier.archive.tailed_archive import SharedTails
from sidetier.config.storage import StorageConfig
from sidetier.config.types import References, resolved
from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.copy.engine import Copy, Counts, Engine, Limits, summed
from sidetier.mirror.copy.source import KafkaSource, OnGap
from sidetier.mirror.copy.target import MEMBERSHIP_LOST, TRANSACTION_TIMEOUT, KafkaTarget
from sidetier.mirror.topics.rules import MirrorNames, decode_lineage
from sidetier.segments.errors import (
    BrokerError,
    KafkaApiError,
    MirrorError,
    ProducerFencedError,
    SidetierError,
    UnsupportedVersionError,
)
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import monotonic
from sidetier.telemetry.logs import configure_logs
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import (
    EARLIEST,
    NO_MEMBER,
    Membership,
    committed_offsets,
    list_offsets,
    list_transactions,
)
from sidetier.wire.settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STANDBY_SECONDS: Final = 60.0
_LONGEST_STANDBY_SECONDS: Final = 960.0
_CHECK_SECONDS: Final = 1.0
_NEVER: Final = threading.Event()
_NOTHING_COPIED: Final = Offset(-1)
_SCHEMA: Final = "number long, counts binary, problem string"
_ARROW: Final = pa.schema(
    [("number", pa.int64()), ("counts", pa.binary()), ("problem", pa.string())]
)

log = structlog.get_logger("sidetier.mirror")


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """The bounded copy of one partition: the source offsets [`start`, `end`)."""

    copy: Copy
    start: Offset
    end: Offset
    is_begun: bool = False
    """Whether the partition had progress when the copy was planned."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result of a task.

    Attributes:
        counts: The counts of the attempt whose result Spark used; the work of killed attempts is
            not included.
        problem: Why the partition is incomplete; None if the attempt has reached its end.
    """

    counts: Counts
    problem: str | None = None


def plan_tasks(
    tasks: Iterable[PartitionTask], progress: Mapping[TopicPartition, Offset]
) -> tuple[PartitionTask, ...]:
    """Return the tasks that have offsets left, the largest first, so that no large one starts late.

    A partition without progress gets a task even if its range is empty, to commit where its copy
    begins.

    Args:
        tasks: All tasks of the copy.
        progress: The offset of the next source record, by target partition.
    """
    left = {task: task.end - progress.get(task.copy.target, task.start) for task in tasks}
    return tuple(
        task
        for task, offsets in sorted(left.items(), key=lambda pair: -pair[1])
        if offsets > 0 or task.copy.target not in progress
    )


def unfinished(
    tasks: Sequence[PartitionTask],
    progress: Mapping[TopicPartition, Offset],
    outcomes: Mapping[int, TaskOutcome],
) -> list[str]:
    """Return a line for each incomplete target partition: its position, and the reason if known.

    Args:
        tasks: All tasks, also of partitions that were complete when the copy was planned.
        progress: The offset of the next source record, by target partition.
        outcomes: The outcomes by task number; a task that did not run or end has none.
    """
    lines = []
    for number, task in enumerate(tasks):
        reached = progress.get(task.copy.target)
        if reached is not None and reached >= task.end:
            continue
        outcome = outcomes.get(number)
        reason = "" if outcome is None or outcome.problem is None else f": {outcome.problem}"
        if not reason and reached is None and task.is_begun:
            reason = ": its progress has disappeared since the copy was planned"
        position = task.start if reached is None else reached
        lines.append(
            f"{task.copy.target} is copied up to source offset {position} of {task.end}{reason}"
        )
    return lines


def rivals_of_one_process(
    cluster: Cluster, names: MirrorNames, partitions: Collection[TopicPartition]
) -> Collection[str]:
    """Return the transactional ids of tasks that may still write partitions of this restore.

    Args:
        cluster: The target.
        names: The names of the restore.
        partitions: The target partitions that a restore without Spark is about to write.
    """
    every = {names.partition_transactional_id(tp) for tp in partitions}
    try:
        known = {listed.transactional_id for listed in list_transactions(cluster)}
    except UnsupportedVersionError:  # brokers before 3.0 do not list transactions
        return every
    return every & known


PACK_SECONDS: Final = 60.0
"""Minimum time between two readings of the tail packs: the offsets to copy are fixed, and a pack is
deleted an hour after it is not needed.
"""


@dataclass(frozen=True, slots=True)
class TaskArchive:
    """The source's archive, as a task opens it.

    Attributes:
        cluster: Name of the archived cluster.
        storage: Configuration of the archive's stores.
        folders: The quarantined or retired folder of each partition that is read from one.
        abort_open: Whether transactions that are open at the archive's end count as aborted.
        with_tail: Whether the tail packs are read, too.
    """

    cluster: str
    storage: StorageConfig
    folders: Mapping[TopicPartition, ArchiveFolder] = field(default_factory=dict)
    abort_open: bool = False
    with_tail: bool = False


@dataclass(frozen=True, slots=True)
class SparkCopy:
    """The job that is sent to executors. It has references to secrets, which each process resolves.

    Attributes:
        names: The names of the mirror or restore.
        tasks: The tasks; a Spark task has the index of its entry.
        limits: Limits of each task.
        target: Client properties of the target cluster.
        source: Client properties of the source's brokers; None to read only the archive.
        archive: The source's archive; None to read only the brokers.
        membership: The driver's membership in the progress group, with which the tasks commit.
        rivals: Transactional ids of processes that write the same partitions.
        transaction_timeout: Seconds after which the target aborts the transaction of a lost task.
    """

    names: MirrorNames
    tasks: tuple[PartitionTask, ...]
    limits: Limits
    target: References
    source: References | None = None
    archive: TaskArchive | None = None
    membership: Membership = NO_MEMBER
    rivals: tuple[str, ...] = ()
    transaction_timeout: float = TRANSACTION_TIMEOUT

    def run(self, spark: "SparkSession") -> dict[int, TaskOutcome]:
        """Run the tasks on Spark, and return the outcomes by task number.

        Raises:
            Exception: An exception of Spark, if a task has failed too often or the job was
                cancelled.
        """
        count = len(self.tasks)
        if not count:
            return {}
        # As many Spark partitions as numbers, so that each Spark task gets one.
        rows = spark.range(0, count, 1, count).mapInArrow(self, _SCHEMA).collect()
        return {
            row.number: TaskOutcome(pickle.loads(row.counts), row.problem)  # noqa: S301 -- our own executors'
            for row in rows
        }

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the outcomes of the tasks with these numbers. Runs on an executor."""
        configure_logs("json", "warning")
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                outcome = self._outcome(self.tasks[number])
                row = {
                    "number": number,
                    "counts": pickle.dumps(outcome.counts),
                    "problem": outcome.problem,
                }
                yield pa.RecordBatch.from_pylist([row], schema=_ARROW)

    def _outcome(self, task: PartitionTask) -> TaskOutcome:
        """Run a task. Spark retries a transient error; any other error ends only this partition."""
        every: list[Counts] = []
        try:
            self._carry_out(task, every.append)
        except SidetierError as error:
            if error.retry:
                raise
            return TaskOutcome(summed(every), str(error))
        return TaskOutcome(summed(every))

    def _carry_out(self, task: PartitionTask, counted: Callable[[Counts], None]) -> None:
        with ExitStack() as stack:
            archive = self._open_archive(stack)
            source = None if self.source is None else _settings(self.source)
            target = _settings(self.target)
            watching = stack.enter_context(Cluster(target))
            run_attempt(
                lambda: self._copy(task, archive, source, target, counted),
                lambda: self._progress(task, watching),
                Standby(task.end),
            )

    def _open_archive(self, stack: ExitStack) -> ArchiveAccess | None:
        if self.archive is None:
            return None
        access = stack.enter_context(open_archive(self.archive.cluster, self.archive.storage))
        folders = self.archive.folders
        return access_to_folders(access, folders) if folders else access

    def _stored(
        self, task: PartitionTask, access: ArchiveAccess | None, *, reads_brokers: bool
    ) -> ArchiveSource | None:
        if access is None or self.archive is None:
            return None
        with_tail = self.archive.with_tail
        return ArchiveSource(
            access,
            abort_open=self.archive.abort_open,
            cluster_id=_source_cluster(task.copy) if reads_brokers else None,
            tails=SharedTails(access, monotonic, PACK_SECONDS) if with_tail else None,
        )

    def _copy(
        self,
        task: PartitionTask,
        archive: ArchiveAccess | None,
        source_settings: ClientSettings | None,
        target_settings: ClientSettings,
        counted: Callable[[Counts], None],
    ) -> None:
        tp = task.copy.source
        reads_brokers = source_settings is not None
        source = KafkaSource(
            None if source_settings is None else lambda: Cluster(source_settings),
            self._stored(task, archive, reads_brokers=reads_brokers),
            until={tp: task.end},
            on_gap=OnGap.STOP,
        )
        target = KafkaTarget(
            Cluster(target_settings),
            self.names.group,
            self.names.partition_transactional_id(task.copy.target),
            membership=lambda: self.membership,
            transaction_timeout=self.transaction_timeout,
            rivals=lambda: self.rivals,
        )

        def copies() -> Mapping[TopicPartition, Copy]:
            if source_settings is not None:
                _require_same_topic(task.copy, source_settings)
            return {tp: task.copy}

        with closing(target), closing(source):
            engine = Engine(
                source,
                target,
                copies,
                lambda tps: dict.fromkeys(tps, self._first_offset(task, source_settings)),
                offsets_topic=self.names.offsets_topic,
                limits=self.limits,
                refresh_seconds=None,
            )
            # Before the run, so that the work of a copy that is fenced counts, too.
            counted(engine.counts)
            try:
                engine.run()
            except KafkaApiError as error:
                if error.code not in MEMBERSHIP_LOST:
                    raise
                # Abort the open transaction. Otherwise the worker that copies the partition now,
                # and its consumers, would wait for its timeout.
                with suppress(SidetierError):
                    target.start()
                raise MirrorError(
                    "the driver is no longer a member of the progress group, so the target refuses "
                    f"commits of its tasks: {error}"
                ) from error

    def _first_offset(self, task: PartitionTask, source: ClientSettings | None) -> Offset:
        """Return where a partition without progress begins."""
        if task.is_begun:
            raise MirrorError(
                f"{task.copy.target}: the progress has disappeared since the copy was planned: the "
                "topic was deleted and created again on the target. Run the same command again: "
                "it prints the next steps"
            )
        if source is None or self.archive is not None:
            return task.start
        # The brokers may have deleted records since the task was planned.
        tp = task.copy.source
        with Cluster(source) as cluster:
            return max(task.start, list_offsets(cluster, {tp: EARLIEST})[tp].offset)

    def _progress(self, task: PartitionTask, cluster: Cluster) -> Offset | None:
        tp = task.copy.target
        try:
            # Stable offsets would be waited for while a transaction that changes them is open,
            # and a killed attempt may have left one.
            progress = committed_offsets(cluster, self.names.group, [tp], require_stable=False)
        except BrokerError:
            return None
        return progress[tp].offset if tp in progress else _NOTHING_COPIED


def _settings(properties: References) -> ClientSettings:
    return ClientSettings.from_properties(resolved(properties))


def _source_cluster(copy: Copy) -> str | None:
    """Return Kafka's id of the cluster whose brokers the driver has found the topic on."""
    lineage = decode_lineage(copy.lineage)
    return None if lineage is None else lineage.clusters[-1] or None


def _require_same_topic(copy: Copy, source: ClientSettings) -> None:
    """Raise MirrorError if the source topic was recreated since the copy was planned."""
    topic = copy.source.topic
    with Cluster(source) as cluster:
        now = cluster.metadata([topic]).topics.get(topic)
    if (
        now is not None
        and None not in (now.topic_id, copy.source_id)
        and (now.topic_id != copy.source_id)
    ):
        raise MirrorError(
            f"topic {topic} was deleted and created again on the source while it was copied "
            f"(topic id {now.topic_id}, the copied topic had {copy.source_id}): nothing of the new "
            "topic was copied. Run the same command again: it prints the next steps"
        )


class Step(Enum):
    """The next step of a fenced attempt."""

    WAIT = auto()
    TAKE_OVER = auto()
    END = auto()


@dataclass(slots=True)
class Standby:
    """Decides the next step of a fenced attempt. No I/O.

    The attempt takes over when the progress does not change: the attempt that fenced it may be
    dead, and Spark starts no other attempt while this one runs. Each takeover doubles the patience,
    so that two slow attempts do not keep each other from committing.

    Args:
        end: The end of the offsets to copy, exclusive.
        patience: Seconds without progress after which the attempt takes over.
    """

    end: Offset
    patience: float = STANDBY_SECONDS
    _position: Offset | None = field(default=None, init=False)
    _moved_at: float = field(default=0.0, init=False)

    def begin(self, now: float) -> None:
        """Start to wait after the attempt was fenced; `now` is in seconds of a monotonic clock."""
        self._position = None
        self._moved_at = now

    def step(self, position: Offset | None, now: float) -> Step:
        """Return the next step; `position` is the progress, None if it cannot be read now."""
        if position is not None and position >= self.end:
            return Step.END
        if position is not None and position != self._position:
            self._position = position
            self._moved_at = now
        if now - self._moved_at < self.patience:
            return Step.WAIT
        self.patience = min(2 * self.patience, _LONGEST_STANDBY_SECONDS)
        return Step.TAKE_OVER


def run_attempt(
    copy: Callable[[], None],
    progress: Callable[[], Offset | None],
    standby: Standby,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = _NEVER.wait,
) -> None:
    """Copy up to the end, or wait until another attempt has done it.

    Args:
        copy: Copies from the progress on, with a new producer at each call.
        progress: Returns the offset of the next source record; None if it cannot be read now.
        standby: Decides the next step of this attempt after it was fenced.
        clock: Returns seconds of a monotonic clock.
        pause: Waits for the given number of seconds.

    Raises:
        SidetierError: Any error of `copy` except ProducerFencedError.
    """
    while True:
        try:
            copy()
        except ProducerFencedError as error:
            log.warning("mirror.attempt_stands_by", reason=str(error))
        else:
            return
        standby.begin(clock())
        while (step := standby.step(progress(), clock())) is Step.WAIT:
            pause(_CHECK_SECONDS)
        if step is Step.END:
            return
        log.warning("mirror.attempt_takes_over", next_patience_seconds=standby.patience)
