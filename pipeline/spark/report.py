"""Progress of a read, sent from the tasks to the driver."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TextIO

from pyspark.accumulators import AccumulatorParam

from sidetier.config.units import format_size
from sidetier.pipeline.planning.split import Missing, Plan, Split
from sidetier.pipeline.spark.tasks import Counts

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

_MIB: Final = 1024**2
_SplitKey = tuple[str, int, int]
_Done = dict[_SplitKey, tuple[int, Counts]]


class MergedByKey(AccumulatorParam[dict[Any, Any]]):
    """Merges dictionaries: a key counts once, even if its task is retried, speculated, or used
    twice.
    """

    def zero(self, value: dict[Any, Any]) -> dict[Any, Any]:  # noqa: ARG002 -- Spark's signature
        """Return an empty dictionary."""
        return {}

    def addInPlace(  # noqa: N802 -- the name is Spark's
        self, value1: dict[Any, Any], value2: dict[Any, Any]
    ) -> dict[Any, Any]:
        """Add the items of the second dictionary to the first one."""
        value1.update(value2)  # not a sum: Spark may add the result of a task more than once
        return value1


@dataclass(frozen=True, slots=True)
class TaskReporter:
    """Sends a task's counts to the driver. Sent to executors."""

    done: "Accumulator[_Done]"

    def __call__(self, split: Split, counts: Counts) -> None:
        """Report a split that was read completely."""
        self.done.add({_key(split): (split.size, counts)})


@dataclass(slots=True)
class _Planned:
    splits: int = 0
    size: int = 0
    missing: tuple[Missing, ...] = field(default=())


class ReadReport:
    """Progress of the reads that use this report, and the offsets that they have missed.

    Counts only splits that were read completely by a task that has finished.
    """

    def __init__(self, spark: "SparkSession") -> None:
        nothing: _Done = {}
        self._done: Accumulator[Any] = spark.sparkContext.accumulator(nothing, MergedByKey())
        self._planned = _Planned()

    @property
    def records(self) -> int:
        """Number of returned records."""
        return sum(counts.records for _, counts in self._done.value.values())

    @property
    def missing(self) -> tuple[Missing, ...]:
        """Requested offsets that are not stored, found by the planner or by tasks.

        Sorted by topic, partition and offset.
        """
        read = (gap for _, counts in self._done.value.values() for gap in counts.missing)
        by_start = {(gap.tp, gap.range.start): gap for gap in (*self._planned.missing, *read)}
        return tuple(by_start[key] for key in sorted(by_start))

    @property
    def missing_offsets(self) -> int:
        """Number of missing offsets."""
        return sum(gap.range.end - gap.range.start for gap in self.missing)

    def line(self) -> str:
        """Return, for example, `3 of 12 splits, 1 of 4 MiB, 9000 records, 0 offsets missing`."""
        done = self._done.value
        size = sum(size for size, _ in done.values()) // _MIB
        return (
            f"{len(done)} of {self._planned.splits} splits, {size} of "
            f"{self._planned.size // _MIB} MiB, {self.records} records, "
            f"{self.missing_offsets} offsets missing"
        )

    @contextmanager
    def shown(self, stream: TextIO | None = None, every: float = 1.0) -> Iterator[None]:
        """Write the line every `every` seconds while the block runs an action, and once at its end.

        Args:
            stream: output; standard error by default.
            every: interval in seconds.
        """
        out = stream or sys.stderr
        ended = threading.Event()

        def show() -> None:
            while not ended.wait(every):
                out.write(f"\r{self.line()}")
                out.flush()

        thread = threading.Thread(target=show, name="sidetier-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            out.write(f"\r{self.line()}\n")
            out.flush()

    def task_reporter(self) -> TaskReporter:
        """Return the object with which the tasks of a read report."""
        return TaskReporter(self._done)

    def expect(self, plan: Plan) -> None:
        """Add the plan of a read."""
        self._planned.splits += len(plan.splits)
        self._planned.size += plan.size
        self._planned.missing += plan.missing


def describe_plan(plan: Plan) -> str:
    """Return, for example, `orders (3 partitions), payments (1 partition): 12 splits, 1.5GiB`."""
    topics: dict[str, int] = {}
    for tp in plan.ranges:
        topics[tp.topic] = topics.get(tp.topic, 0) + 1
    named = ", ".join(f"{topic} ({_count(number)})" for topic, number in sorted(topics.items()))
    splits = f"{len(plan.splits)} split{'' if len(plan.splits) == 1 else 's'}"
    return f"{named or 'nothing'}: {splits}, {format_size(plan.size // _MIB * _MIB or plan.size)}"


def _count(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"


def _key(split: Split) -> _SplitKey:
    return split.tp.topic, split.tp.partition, split.range.start
