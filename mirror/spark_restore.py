"""A restore as tasks of Spark, one for each partition of the target.

A task reads its range of the archive and writes it to the target; nothing of the records passes
through the driver or the JVM. Why one task for each partition: the records of a partition must be
written in order, and its progress is one offset. Two ranges of one partition would have to wait
for each other.
"""

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sidetier.archive.folders import ArchiveFolder, access_to_folders
from sidetier.config.storage import StorageConfig
from sidetier.config.types import SecretRef
from sidetier.mirror.archive_source import ArchiveSource
from sidetier.mirror.attempts import Standby, run_attempt
from sidetier.mirror.engine import Copy, Counts, Engine, Limits, summed
from sidetier.mirror.restore import PartitionRestore
from sidetier.mirror.source import KafkaSource, OnGap
from sidetier.mirror.target import KafkaTarget
from sidetier.mirror.topics import MirrorNames
from sidetier.segments.errors import BrokerError, SidetierError, UnsupportedVersionError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.endpoints import ArchiveAccess, open_archive
from sidetier.telemetry.logs import configure_logs
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import committed_offsets, list_transactions
from sidetier.wire.settings import ClientSettings, PropertyValue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Reference = PropertyValue | SecretRef
References = Mapping[str, Reference]
"""A client's properties; secrets are references, which each process resolves."""
_SCHEMA: Final = "number long, counts binary, problem string"
_ARROW: Final = pa.schema(
    [("number", pa.int64()), ("counts", pa.binary()), ("problem", pa.string())]
)


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """The bounded copy of one partition: the source offsets from `start` up to `end`, exclusive."""

    copy: Copy
    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """How a task has ended.

    Attributes:
        counts: Of the attempt that Spark took; what an attempt did that was killed is not in it.
        problem: Why the partition is not whole; None where the attempt has seen its end.
    """

    counts: Counts
    problem: str | None = None


def plan_tasks(
    partitions: Iterable[PartitionRestore], copies: Mapping[TopicPartition, Copy]
) -> tuple[PartitionTask, ...]:
    """The tasks for what is left to restore; the largest come first, so that none starts late.

    A partition without progress has a task even if its range is empty: where the restore begins is
    committed.
    """
    left = [
        partition
        for partition in partitions
        if partition.restored_to is None or partition.offsets_left
    ]
    left.sort(key=lambda partition: -partition.offsets_left)
    return tuple(
        PartitionTask(copies[partition.source], partition.start, partition.end)
        for partition in left
    )


def unfinished(
    tasks: Sequence[PartitionTask],
    progress: Mapping[TopicPartition, Offset],
    outcomes: Mapping[int, TaskOutcome],
) -> list[str]:
    """The partitions that are not whole on the target: how far each is, and why where known.

    Args:
        tasks: What was to be copied.
        progress: By target partition, the offset of the next source record.
        outcomes: By number of the task; none where the task has not ended.
    """
    lines = []
    for number, task in enumerate(tasks):
        reached = progress.get(task.copy.target)
        if reached is not None and reached >= task.end:
            continue
        outcome = outcomes.get(number)
        reason = "" if outcome is None or outcome.problem is None else f": {outcome.problem}"
        position = task.start if reached is None else reached
        lines.append(
            f"{task.copy.target} is restored up to source offset {position} of {task.end}{reason}"
        )
    return lines


def rivals_of_one_process(
    cluster: Cluster, names: MirrorNames, partitions: Collection[TopicPartition]
) -> Collection[str]:
    """The transactional ids of tasks that may still write partitions of this restore.

    Args:
        cluster: The target.
        names: Of the restore.
        partitions: The target partitions that a restore without Spark is about to write.
    """
    every = {names.partition_transactional_id(tp) for tp in partitions}
    try:
        known = {listed.transactional_id for listed in list_transactions(cluster)}
    except UnsupportedVersionError:  # brokers before 3.0
        return every
    return every & known


@dataclass(frozen=True, slots=True)
class SparkRestore:
    """What is sent to executors. It has references to secrets, which each process resolves.

    Attributes:
        names: Of the restore.
        cluster: Name of the archived cluster.
        storage: Where its archive is.
        folders: Where partitions are read from quarantined or retired folders.
        target: Client properties of the target cluster.
        abort_open: Whether transactions that are open at the archive's end count as aborted.
        limits: Bounds of each task.
        tasks: The partitions; Spark's tasks have their numbers.
    """

    names: MirrorNames
    cluster: str
    storage: StorageConfig
    folders: Mapping[TopicPartition, ArchiveFolder]
    target: References
    abort_open: bool
    limits: Limits
    tasks: tuple[PartitionTask, ...]

    def run(self, spark: "SparkSession") -> dict[int, TaskOutcome]:
        """Have Spark carry the tasks out; the outcomes by number.

        Raises:
            Exception: Spark's own, where a task has failed too often or the job was cancelled.
        """
        count = len(self.tasks)
        if not count:
            return {}
        rows = spark.range(0, count, 1, count).mapInArrow(self, _SCHEMA).collect()
        return {
            row.number: TaskOutcome(pickle.loads(row.counts), row.problem)  # noqa: S301 -- our own executors'
            for row in rows
        }

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """On an executor: the outcomes of the tasks with these numbers."""
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
        """An error that may pass is Spark's to try again. Another one ends this partition alone."""
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
            archive = stack.enter_context(open_archive(self.cluster, self.storage))
            if self.folders:
                archive = access_to_folders(archive, self.folders)
            settings = ClientSettings.from_properties(resolved(self.target))
            watching = stack.enter_context(Cluster(settings))
            run_attempt(
                lambda: self._copy(task, archive, settings, counted),
                lambda: self._progress(task, watching),
                Standby(task.end),
            )

    def _copy(
        self,
        task: PartitionTask,
        archive: ArchiveAccess,
        settings: ClientSettings,
        counted: Callable[[Counts], None],
    ) -> None:
        tp = task.copy.source
        source = KafkaSource(
            None,
            ArchiveSource(archive, abort_open=self.abort_open),
            until={tp: task.end},
            on_gap=OnGap.STOP,
        )
        target = KafkaTarget(
            Cluster(settings),
            self.names.group,
            self.names.partition_transactional_id(task.copy.target),
            rivals=lambda: (self.names.transactional_id(),),
        )
        with closing(target), closing(source):
            engine = Engine(
                source,
                target,
                lambda: {tp: task.copy},
                lambda tps: dict.fromkeys(tps, task.start),
                offsets_topic=self.names.offsets_topic,
                limits=self.limits,
                refresh_seconds=None,
            )
            counted(engine.counts)
            engine.run()

    def _progress(self, task: PartitionTask, cluster: Cluster) -> Offset | None:
        tp = task.copy.target
        try:
            found = committed_offsets(cluster, self.names.group, [tp], require_stable=False)
        except BrokerError:
            return None
        return found[tp].offset if tp in found else task.start


def resolved(properties: References) -> dict[str, PropertyValue]:
    """The same with the secrets: keep it out of logs.

    Raises:
        ConfigurationError: a secret cannot be read in this process.
    """
    return {
        name: value.resolve() if isinstance(value, SecretRef) else value
        for name, value in properties.items()
    }
