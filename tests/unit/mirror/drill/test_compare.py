"""A difference of one byte is reported; retention on the live brokers is no difference."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from sidetier.mirror.drill.sample import compare_with_live, differences_from_archive
from sidetier.mirror.hydrate.digest import Digest
from sidetier.mirror.hydrate.plan import PlannedPartition, PlannedSegment
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition

PLAN = PlannedPartition(
    "orders",
    3,
    0,
    30,
    30,
    tuple(PlannedSegment(base, f"orders-3/{base}.log", "etag", 100) for base in (0, 10, 20)),
)


@dataclass
class Records:
    """Brokers with a record at each offset from `start` on; records the requested ranges."""

    values: dict[int, bytes] = field(default_factory=dict)
    start: int = 0
    hidden: frozenset[int] = frozenset()
    asked: list[tuple[int, int]] = field(default_factory=list)
    before: Callable[[], None] = lambda: None

    def digest(self, plan: PlannedPartition, isolation: IsolationLevel) -> Digest:
        self.before()
        self.asked.append((plan.start, plan.end))
        if plan.start < self.start:
            raise LeadershipUnavailableError(f"offset {plan.start} is out of range")
        shown = [
            offset
            for offset in range(plan.start, plan.end)
            if isolation is IsolationLevel.READ_UNCOMMITTED or offset not in self.hidden
        ]
        result = Digest()
        result.add(
            pa.RecordBatch.from_pydict(
                {
                    "offset": shown,
                    "timestamp": shown,
                    "timestamp_type": [0 for _ in shown],
                    "key": [None for _ in shown],
                    "value": [self.values.get(offset, b"value") for offset in shown],
                    "headers": [[] for _ in shown],
                }
            )
        )
        return result

    def log_start(self, _: TopicPartition) -> int:
        return self.start


def expected(records: Records) -> dict[IsolationLevel, Digest]:
    return {level: records.digest(PLAN, level) for level in IsolationLevel}


def test_equal_records_have_no_difference() -> None:
    live = Records()
    assert differences_from_archive(PLAN, expected(Records()), Records()) == []
    assert compare_with_live(PLAN, Records(), live, live.log_start).problems == ()
    assert live.asked == [(0, 10), (10, 20), (20, 30)]


def test_flipped_bit_is_found_on_either_side() -> None:
    flipped = Records({17: b"valud"})
    (uncommitted, committed) = differences_from_archive(PLAN, expected(Records()), flipped)
    assert uncommitted.startswith(
        "orders-3: offsets [0, 30), read_uncommitted: the restored broker"
    )
    assert "checksum" in committed
    live = Records()
    (problem,) = compare_with_live(PLAN, flipped, live, live.log_start).problems
    assert problem.startswith(
        "orders-3: offsets [10, 20), orders-3/10.log: the restored broker has"
    )
    live = Records({17: b"valud"})
    assert len(compare_with_live(PLAN, Records(), live, live.log_start).problems) == 1


def test_record_that_should_be_hidden_is_found() -> None:
    archive = Records(hidden=frozenset({4}))
    (problem,) = differences_from_archive(PLAN, expected(archive), Records())
    assert "read_committed: the restored broker has 30 records, expected 29" in problem


def test_only_records_that_the_live_brokers_have_are_compared() -> None:
    live = Records(start=14)
    result = compare_with_live(PLAN, Records({3: b"other"}), live, live.log_start)
    assert (result.start, result.problems) == (14, ())
    assert live.asked == [(14, 20), (20, 30)]
    gone = Records(start=30)
    assert compare_with_live(PLAN, Records(), gone, gone.log_start).start is None


def test_records_deleted_by_retention_during_the_comparison_are_no_difference() -> None:
    live = Records()

    def delete() -> None:
        live.start = 12

    live.before = delete
    result = compare_with_live(PLAN, Records(), live, live.log_start)
    assert (result.start, result.problems) == (12, ())


def test_unavailable_brokers_are_no_difference() -> None:
    live = Records(start=5)
    with pytest.raises(LeadershipUnavailableError, match="out of range"):
        compare_with_live(PLAN, Records(), live, lambda _: 0)
