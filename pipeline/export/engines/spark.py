"""Tasks on the executors of Spark, one for each Kafka partition.

Nothing of what is read or written passes through the driver or the JVM: a task opens both stores
itself. Run again, or twice at once by speculation, it makes the same files.
"""

import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.export.engines.places import Places
from sidetier.pipeline.export.engines.tasks import carry_out
from sidetier.pipeline.export.files.ports import Done, Task
from sidetier.segments.errors import SidetierError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA: Final = "outcome binary"
_ARROW: Final = pa.schema([pa.field("outcome", pa.binary())])
_COMMON_FAILURES: Final = "4"
"""Spark's default of `spark.task.maxFailures`; a local master has its own, or none."""
_LOCAL_TRIES: Final = re.compile(r"local\[[^,]+,\s*(\d+)\]")


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """A session, which is left open."""

    spark: "SparkSession"
    places: Places
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """See `Engine`."""
        if not tasks:
            return []
        count = len(tasks)
        self._describe(tasks)
        work = _Work(tuple(tasks), self.places, self._tries(), self.max_batch_bytes)
        rows = self.spark.range(0, count, 1, count).mapInArrow(work, _SCHEMA).collect()
        outcomes = [pickle.loads(row.outcome) for row in rows]  # noqa: S301 -- our own executors'
        for outcome in outcomes:
            if isinstance(outcome, SidetierError):
                raise outcome
        return outcomes

    def cancel(self) -> None:
        """See `Engine`."""
        self.spark.sparkContext.cancelAllJobs()

    def _describe(self, tasks: Sequence[Task]) -> None:
        """What Spark's UI shows of the job."""
        offsets = sum(task.span.until - task.span.first for task in tasks)
        text = f"sidetier: {tasks[0].tp.topic} to files, {offsets} offsets"
        self.spark.sparkContext.setJobDescription(text)

    def _tries(self) -> int:
        master = str(self.spark.sparkContext.master)
        if master.startswith("local"):
            given = _LOCAL_TRIES.fullmatch(master)
            return 1 if given is None else int(given[1])
        return int(self.spark.conf.get("spark.task.maxFailures", _COMMON_FAILURES) or 1)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is sent to executors: with every row comes the number of a task."""

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
        """What was done, or the error; one that may pass is Spark's to try again, but for the
        last time.
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
    from pyspark import TaskContext  # noqa: PLC0415 -- only where there is one

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _packed(error: SidetierError) -> bytes:
    """The error, or its words where it cannot be sent."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301 -- made in the line before
    except Exception:  # noqa: BLE001 -- whatever its constructor makes of it
        return pickle.dumps(SidetierError(str(error)))
    return data
