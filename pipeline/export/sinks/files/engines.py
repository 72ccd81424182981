"""Engines that run the tasks of an export to files: threads of this process, or Spark executors.

On Spark, records pass neither through the driver nor through the JVM: each task opens both stores
itself. A task that Spark runs again, or twice at once by speculation, writes the same files.
"""

import pickle
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

import pyarrow as pa

from sidetier.archive.access import ArchiveAccess
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.config.model import BrokerConfig
from sidetier.pipeline.export.sinks.files.tasks import Connections, Done, Task, carry_out
from sidetier.pipeline.export.values.registry import RegistryConfig
from sidetier.pipeline.spark.task_runner import task_rows
from sidetier.segments.errors import SidetierError
from sidetier.storage.port import RemoteStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _StoppedError(SidetierError):
    """Another task has failed, or the export is stopped."""


class Watcher(Protocol):
    """Receives the progress of tasks. Methods are called on the tasks' threads."""

    def begin(self, offsets: int) -> None:
        """Report that tasks begin which cover this number of offsets."""
        ...

    def advance(self, offsets: int, records: int) -> None:
        """Report that this number of further offsets is done, and how many records they held."""
        ...


class LocalEngine:
    """One thread pool for the tasks of all topics. Each task is one Kafka partition.

    `run` may be called from several threads at once. The first task that fails stops the other
    tasks of the same call.

    Args:
        archive: the archive to read from.
        target: the store to write files to.
        workers: number of tasks that run at once, over all calls of `run`.
        broker: connection for records that the archive does not have.
        watcher: receives the progress of tasks; None for none.
        max_batch_bytes: largest record batch that is read, in bytes.
        registry: connection to the schema registry.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- each argument is passed on to tasks
        self,
        archive: ArchiveAccess,
        target: RemoteStorage,
        workers: int = 2,
        broker: BrokerConfig | None = None,
        watcher: Watcher | None = None,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        registry: RegistryConfig | None = None,
    ) -> None:
        self._archive = archive
        self._target = target
        self._broker = BrokerConfig() if broker is None else broker
        self._watcher = watcher
        self._max_batch_bytes = max_batch_bytes
        self._registry = registry
        self._pool = ThreadPoolExecutor(workers, "export")
        self._cancelled = threading.Event()

    def __enter__(self) -> Self:
        """Return the engine."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel the tasks and wait for the threads to end."""
        self.cancel()
        self._pool.shutdown(cancel_futures=True)

    def cancel(self) -> None:
        """Each task ends with an error at its next batch."""
        self._cancelled.set()

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """Run the tasks in threads of this process; the first error ends the others."""
        failed = threading.Event()
        if self._watcher is not None:
            self._watcher.begin(sum(task.span.until - task.span.first for task in tasks))
        futures: list[Future[Done]] = [
            self._pool.submit(self._carry_out, task, failed) for task in tasks
        ]
        try:
            return [future.result() for future in as_completed(futures)]
        finally:
            # Tasks that run on see this at their next batch. Without the wait they could still
            # upload files while the caller withdraws the plan.
            failed.set()
            for future in futures:
                future.cancel()
            wait(futures)

    def _carry_out(self, task: Task, failed: threading.Event) -> Done:
        position = task.span.first

        def advance(records: int, next_offset: int) -> None:
            nonlocal position
            if failed.is_set() or self._cancelled.is_set():
                raise _StoppedError("the export was stopped, or another Kafka partition has failed")
            if self._watcher is not None:
                self._watcher.advance(next_offset - position, records)
            position = next_offset

        done = carry_out(
            task,
            self._archive,
            self._target,
            self._broker,
            advance,
            self._max_batch_bytes,
            self._registry,
        )
        advance(0, task.span.until)  # the last offsets of a range may hold no record
        return done


_SCHEMA: Final = "outcome binary"
_ARROW: Final = pa.schema([pa.field("outcome", pa.binary())])
_COMMON_FAILURES: Final = "4"
"""Spark's default of `spark.task.maxFailures`. A `local` master ignores that setting."""
_LOCAL_TRIES: Final = re.compile(r"local\[[^,]+,\s*(\d+)\]")


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Engine on a Spark session. The session stays open."""

    spark: "SparkSession"
    places: Connections
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """Run one Spark task for each task; errors come back as values and are raised here."""
        if not tasks:
            return []
        offsets = sum(task.span.until - task.span.first for task in tasks)
        name = f"sidetier: {tasks[0].tp.topic} to files, {offsets} offsets"
        self.spark.sparkContext.setJobDescription(name)  # shown in Spark's UI
        work = _Work(self.places, self._tries(), self.max_batch_bytes)
        rows = task_rows(self.spark, name, tasks, work, _SCHEMA).collect()
        outcomes = [pickle.loads(row.outcome) for row in rows]  # noqa: S301 -- pickled by our executors
        for outcome in outcomes:
            if isinstance(outcome, SidetierError):
                raise outcome
        return outcomes

    def cancel(self) -> None:
        """Cancel all jobs of the session, also jobs of others."""
        self.spark.sparkContext.cancelAllJobs()

    def _tries(self) -> int:
        master = str(self.spark.sparkContext.master)
        if master.startswith("local"):
            match = _LOCAL_TRIES.fullmatch(master)
            return 1 if match is None else int(match[1])
        return int(self.spark.conf.get("spark.task.maxFailures", _COMMON_FAILURES) or 1)


@dataclass(frozen=True, slots=True)
class _Work:
    """Carries out a task on an executor, and returns its outcome as a row."""

    places: Connections
    tries: int
    max_batch_bytes: int

    def __call__(self, task: Task) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array([self._outcome(task)])], schema=_ARROW)

    def _outcome(self, task: Task) -> bytes:
        """Return the pickled result of a task, or its pickled error.

        An error that a retry can solve is raised, so that Spark runs the task again, except in the
        last attempt.
        """
        try:
            with self.places.open() as (archive, target):
                done = carry_out(
                    task,
                    archive,
                    target,
                    self.places.broker,
                    max_batch_bytes=self.max_batch_bytes,
                    registry=self.places.registry,
                )
                return pickle.dumps(done)
        except SidetierError as error:
            if error.retry and _attempt() + 1 < self.tries:
                raise
            return _packed(error)


def _attempt() -> int:
    from pyspark import TaskContext  # noqa: PLC0415 -- pyspark is an optional dependency

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _packed(error: SidetierError) -> bytes:
    """Return the pickled error, or a pickled SidetierError with its text if it cannot be
    pickled.
    """
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301 -- pickled in the line before
    except Exception:  # noqa: BLE001 -- an error's constructor may raise anything
        return pickle.dumps(SidetierError(str(error)))
    return data
