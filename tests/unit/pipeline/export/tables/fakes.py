"""A table and a source in memory that can fail."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from pyspark.sql import DataFrame

from sidetier.pipeline.export.epoch_history import Positions, Truncated, position_at, truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.sinks.tables.commit_metadata import (
    Progress,
    from_properties,
    is_at,
    last_progress,
    to_properties,
)
from sidetier.pipeline.export.sinks.tables.frames import Rows
from sidetier.pipeline.export.sinks.tables.row_checks import RowCheck
from sidetier.pipeline.export.source import ranges_left
from sidetier.pipeline.export.state import Offsets, Ranges, Tail
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition


@dataclass
class FakeFrame:
    """Stand in for a DataFrame: offsets of records by partition."""

    offsets: list[tuple[TopicPartition, int]]

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's name
        return not self.offsets


def fake_rows(offsets: list[tuple[TopicPartition, int]]) -> Rows:
    """Return rows that stand for records."""
    return Rows(cast("DataFrame", FakeFrame(offsets)), lambda: len(offsets))


@dataclass
class FakeTable:
    """A table that raises the errors in `faults`, one per write, before or after the commit."""

    rows: list[tuple[TopicPartition, int]] = field(default_factory=list)
    commits: list[Progress] = field(default_factory=list)
    before: list[Callable[[], None]] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    recovered: int = 0
    name: str = "lake.db.t"

    def row_checks(self) -> tuple[RowCheck, ...]:
        return ()

    def recover(self) -> None:
        self.recovered += 1

    def progress(self) -> Progress | None:
        said = (from_properties(to_properties(one), self.name) for one in reversed(self.commits))
        return last_progress(said)

    def write(
        self, frame: DataFrame, progress: Progress, seconds: float, rows: Callable[[], int]
    ) -> None:
        assert seconds > 0
        assert rows() == len(cast("FakeFrame", frame).offsets)
        assert is_at(self.progress, progress.since)
        if self.before:
            self.before.pop(0)()
        self.rows += cast("FakeFrame", frame).offsets
        self.commits.append(progress)
        if self.after:
            self.after.pop(0)()


@dataclass
class FakeSource:
    """A source where every offset is a record of 10 bytes, except those in `aborted`."""

    ranges: dict[TopicPartition, OffsetRange]
    aborted: set[int] = field(default_factory=set)
    cluster: str = "prod-a"
    cut: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets above it are only on the brokers."""
    ids: dict[str, str] = field(default_factory=dict)
    epoch_history: EpochHistory = NO_EPOCHS
    """The epoch history of every partition."""
    open: dict[TopicPartition, UndecidedTail] = field(default_factory=dict)

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        found = [truncated(tp, at, self.epoch_history) for tp, at in positions.items()]
        return tuple(one for one in found if one is not None)

    def available(
        self,
        next_offsets: Offsets,
        tail: Offsets | None = None,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        assert isinstance(next_offsets, dict)
        assert tail is None or tail.keys() <= next_offsets.keys()
        assert behind is None or not behind
        ends = {tp: span.end for tp, span in self.ranges.items()}
        return ranges_left(self.ranges, ends, next_offsets, tail or {}, behind)

    def undecided(self, next_offsets: Offsets) -> dict[TopicPartition, UndecidedTail]:
        return {
            tp: tail
            for tp, tail in self.open.items()
            if next_offsets.get(tp, Offset(-1)) >= tail.first
        }

    def tail(self, ranges: Ranges) -> Tail:
        ends = {tp: span.end for tp, span in ranges.items() if span.start < span.end}
        known = {tp: position_at(end, self.epoch_history).epoch_history for tp, end in ends.items()}
        epoch_histories = {tp: one for tp, one in known.items() if one.entries}
        above = {tp: end for tp, end in ends.items() if end > self.cut.get(tp, end)}
        return Tail(above, self.ids, epoch_histories)

    def topic_ids(self, tps: Iterable[TopicPartition]) -> Mapping[str, str]:
        return {topic: self.ids[topic] for topic, _ in tps if topic in self.ids}

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        ends = {tp: min(span.end, span.start + most_bytes // 10) for tp, span in ranges.items()}
        return {tp: OffsetRange(span.start, Offset(ends[tp])) for tp, span in ranges.items()}

    def plan(
        self,
        ranges: Ranges,
        tail: Offsets | None = None,
        *,
        isolation: IsolationLevel | None = None,
        fail_on_data_loss: bool | None = None,
    ) -> Plan:
        assert (tail, isolation, fail_on_data_loss) == (None, None, None)
        return Plan(ranges, ())

    def frame(self, plan: Plan) -> Rows:
        offsets = [
            (tp, offset)
            for tp, span in plan.ranges.items()
            for offset in range(span.start, span.end)
            if offset not in self.aborted
        ]
        return fake_rows(offsets)


def grow(source: FakeSource, tp: TopicPartition, until: int) -> None:
    """Store more offsets of a partition."""
    source.ranges[tp] = OffsetRange(source.ranges[tp].start, Offset(until))
