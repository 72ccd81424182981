"""What a read has done so far, told to the driver."""

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


class _Union(AccumulatorParam[_Done]):
    """A split counts once, however often it is read: tried again, speculated, used twice."""

    def zero(self, value: _Done) -> _Done:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: _Done, value2: _Done) -> _Done:  # noqa: N802
        value1.update(value2)
        return value1


@dataclass(frozen=True, slots=True)
class Teller:
    """What a task tells the driver with; it is sent to executors."""

    done: "Accumulator[_Done]"

    def __call__(self, split: Split, counts: Counts) -> None:
        """A split was read to its end."""
        self.done.add({_key(split): (split.size, counts)})


@dataclass(slots=True)
class _Planned:
    splits: int = 0
    size: int = 0
    missing: tuple[Missing, ...] = field(default=())


class ReadReport:
    """How far the reads that were given it have come, and what they have missed.

    Numbers are those of splits that have been read to their end by a task that ended.
    """

    def __init__(self, spark: "SparkSession") -> None:
        nothing: _Done = {}
        self._done: Accumulator[Any] = spark.sparkContext.accumulator(nothing, _Union())
        self._planned = _Planned()

    @property
    def records(self) -> int:
        """Records that were handed out."""
        return sum(counts.records for _, counts in self._done.value.values())

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What was asked for and is not stored, by topic, partition and offset: what planning has
        found, and what reading has met.
        """
        met = (one for _, counts in self._done.value.values() for one in counts.missing)
        found = {(one.tp, one.range.start): one for one in (*self._planned.missing, *met)}
        return tuple(found[key] for key in sorted(found))

    @property
    def missing_offsets(self) -> int:
        """How many offsets that are."""
        return sum(one.range.end - one.range.start for one in self.missing)

    def line(self) -> str:
        """One line: `3 of 12 splits, 100 of 400 MiB, 102400 records, 0 offsets missing`."""
        done = self._done.value
        size = sum(size for size, _ in done.values()) // _MIB
        return (
            f"{len(done)} of {self._planned.splits} splits, {size} of "
            f"{self._planned.size // _MIB} MiB, {self.records} records, "
            f"{self.missing_offsets} offsets missing"
        )

    @contextmanager
    def shown(self, stream: TextIO | None = None, every: float = 1.0) -> Iterator[None]:
        """Write the line again and again while the block runs an action, and once at its end."""
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

    def teller(self) -> Teller:
        """For the tasks of one read."""
        return Teller(self._done)

    def expect(self, plan: Plan) -> None:
        """One more read of this plan."""
        self._planned.splits += len(plan.splits)
        self._planned.size += plan.size
        self._planned.missing += plan.missing


def describe_plan(plan: Plan) -> str:
    """`orders (3 partitions), payments (1 partition): 12 splits, 1.5GiB`."""
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
