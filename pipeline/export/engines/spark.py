"""Engine that runs tasks on Spark executors, one for each Kafka partition.

Records pass neither through the driver nor through the JVM: each task opens both stores itself. A
task that Spark runs again, or twice at once by speculation, writes the same files.
"""

import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.export.engines.tasks import Places, carry_out
from sidetier.pipeline.export.files.ports import Done, Task
from sidetier.segments.errors import SidetierError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA: Final = "outcome binary"
_ARROW: Final = pa.schema([pa.field("outcome", pa.binary())])
_COMMON_FAILURES: Final = "4"
"""Spark's default of `spark.task.maxFailures`. A `local` master ignores that setting."""
_LOCAL_TRIES: Final = re.compile(r"local\[[^,]+,\s*(\d+)\]")


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Engine on a Spark session. The session stays open."""

    spark: "SparkSession"
    places: Places
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """See `Engine.run`."""
        if not tasks:
            return []
        count = len(tasks)
        self._describe(tasks)
        work = _Work(tuple(tasks), self.places, self._tries(), self.max_batch_bytes)
        rows = self.spark.range(0, count, 1, count).mapInArrow(work, _SCHEMA).collect()
        outcomes = [pickle.loads(row.outcome) for row in rows]  # noqa: S301 -- pickled by our executors
        for outcome in outcomes:
            if isinstance(outcome, SidetierError):
                raise outcome
        return outcomes

    def cancel(self) -> None:
        """See `Engine.cancel`."""
        self.spark.sparkContext.cancelAllJobs()

    def _describe(self, tasks: Sequence[Task]) -> None:
        """Set the job description that Spark's UI shows."""
        offsets = sum(task.span.until - task.span.first for task in tasks)
        text = f"sidetier: {tasks[0].tp.topic} to files, {offsets} offsets"
        self.spark.sparkContext.setJobDescription(text)

    def _tries(self) -> int:
        master = str(self.spark.sparkContext.master)
        if master.startswith("local"):
            match = _LOCAL_TRIES.fullmatch(master)
            return 1 if match is None else int(match[1])
        return int(self.spark.conf.get("spark.task.maxFailures", _COMMON_FAILURES) or 1)


@dataclass(frozen=True, slots=True)
class _Work:
    """The function that Spark runs on executors. Each row that it gets is the number of a task."""

    tasks: tuple[Task, ...]
    places: Places
    tries: int
    max_batch_bytes: int

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                outcome = self._outcome(self.tasks[number])
                yield pa.RecordBatch.from_arrays([pa.array([outcome])], schema=_ARROW)

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
