"""The next steps for a partition, computed from its listing and its watermark."""

import pytest

from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange
from sidetier.uploader.state.plan import Conflict, Plan, PlannedSegment, available, first_base, plan


def closed(base: int, end: int | None, *, marked_for_deletion: bool = False) -> ClosedSegment:
    return ClosedSegment(
        BaseOffset(base), None if end is None else BaseOffset(end), marked_for_deletion
    )


def listing(*segments: ClosedSegment, active: int | None) -> PartitionListing:
    return PartitionListing(segments, None if active is None else BaseOffset(active))


@pytest.mark.parametrize(
    ("following", "spans", "active", "expected", "gap"),
    [
        pytest.param(0, [(0, 10), (10, 20)], 20, [(0, 0), (10, 10)], None, id="all"),
        pytest.param(10, [(0, 10), (10, 20)], 20, [(10, 10)], None, id="the rest"),
        pytest.param(20, [(0, 10), (10, 20)], 20, [], None, id="nothing"),
        pytest.param(200, [(90, 210)], 210, [(90, 200)], None, id="a slice"),
        pytest.param(15, [(0, 10), (10, 20)], 20, [(10, 15)], None, id="a slice of the second"),
        pytest.param(0, [(10, 20)], 20, [], (0, 10), id="a gap at once"),
        pytest.param(0, [(0, 10), (20, 30)], 30, [(0, 0)], (10, 20), id="a gap behind one"),
        pytest.param(0, [(0, 10)], 30, [(0, 0)], (10, 30), id="a gap before the active one"),
        pytest.param(5, [], 30, [], (5, 30), id="all is gone"),
        pytest.param(30, [], 30, [], None, id="an empty partition"),
        pytest.param(90, [(0, 10)], 10, [], None, id="ahead of the disk"),
        pytest.param(0, [(0, None)], None, [], None, id="an end that nobody knows"),
        pytest.param(5, [(0, 10)], None, [(0, 5)], None, id="no active segment"),
        pytest.param(0, [(4, 12)], 0, [], None, id="the active one of a copy holds it all"),
        pytest.param(0, [(20, 30)], 10, [], (0, 10), id="the active one of a copy holds the rest"),
    ],
)
def test_plan_contains_the_segments_that_follow_the_archive_and_the_gap(
    following: int,
    spans: list[tuple[int, int | None]],
    active: int | None,
    expected: list[tuple[int, int]],
    gap: tuple[int, int] | None,
) -> None:
    segments = [closed(base, end) for base, end in spans]
    found = plan(Offset(following), segments, None if active is None else BaseOffset(active))
    by_base = {segment.base_offset: segment for segment in segments}
    chosen = tuple(PlannedSegment(by_base[BaseOffset(b)], Offset(s)) for b, s in expected)
    assert found == Plan(
        chosen, None if gap is None else OffsetRange(Offset(gap[0]), Offset(gap[1]))
    )
    assert [p.is_slice for p in found.segments] == [start > base for base, start in expected]


@pytest.mark.parametrize(
    ("segments", "active", "pinned", "expected"),
    [
        pytest.param([(0, 10, False)], 10, [], [0], id="a live one"),
        pytest.param([(0, 10, True), (10, 20, False)], 20, [], [0, 10], id="staged by retention"),
        pytest.param([(0, 10, True)], 10, [], [0], id="the whole active segment expired"),
        pytest.param(
            [(0, 20, False), (10, 20, True)], 20, [], [0], id="staged by compaction or truncation"
        ),
        pytest.param([(0, 10, False), (20, None, True)], 10, [], [0], id="staged above the active"),
        pytest.param([(10, 20, False)], 20, [(0, 10)], [0, 10], id="only a pin has it"),
        pytest.param([(0, 10, False)], 10, [(10, 20)], [0], id="pinned, then truncated away"),
        pytest.param([], None, [(0, 10)], [0], id="only pins are left"),
        pytest.param([(0, None, True)], None, [], [], id="staged, and no live one to compare"),
    ],
)
def test_available_segments_are_listed_or_pinned_and_belong_to_the_log(
    segments: list[tuple[int, int | None, bool]],
    active: int | None,
    pinned: list[tuple[int, int]],
    expected: list[int],
) -> None:
    found = available(
        listing(*(closed(b, e, marked_for_deletion=s) for b, e, s in segments), active=active),
        [closed(base, end) for base, end in pinned],
    )
    assert [segment.base_offset for segment in found] == expected


def test_listed_end_takes_precedence_over_the_pinned_end() -> None:
    found = available(listing(closed(0, 10), active=10), [closed(0, 99)])
    assert found == (closed(0, 10),)


@pytest.mark.parametrize(
    ("segments", "active", "expected"),
    [([closed(5, 9)], BaseOffset(9), 5), ([], BaseOffset(9), 9), ([], None, None)],
)
def test_first_base_is_the_start_of_the_local_log(
    segments: list[ClosedSegment], active: BaseOffset | None, expected: int | None
) -> None:
    assert first_base(segments, active) == expected


def test_size_of_a_gap_is_counted_in_offsets() -> None:
    assert OffsetRange(Offset(10), Offset(35)).size == 25


@pytest.mark.parametrize(
    ("following", "conflict", "expected", "gap"),
    [
        pytest.param(5, (5, 10), [], (5, 10), id="up to the end of the batch"),
        pytest.param(10, (5, 10), [(0, 10), (50, 50)], None, id="from there on"),
        pytest.param(3, (5, 10), [(0, 3), (50, 50)], None, id="the archive ends elsewhere now"),
        pytest.param(45, (45, 50), [], (45, 50), id="nothing lies behind it"),
    ],
)
def test_plan_continues_after_a_conflicting_batch(
    following: int,
    conflict: tuple[int, int],
    expected: list[tuple[int, int]],
    gap: tuple[int, int] | None,
) -> None:
    first, second = closed(0, 50), closed(50, 60)
    conflicts = {first.base_offset: Conflict(*map(Offset, conflict))}
    found = plan(Offset(following), (first, second), BaseOffset(60), conflicts)
    if gap is not None:
        assert found == Plan((), OffsetRange(*map(Offset, gap)))
        return
    assert [(p.segment.base_offset, p.start) for p in found.segments] == expected


def test_conflict_at_the_end_of_a_segment_is_a_separate_gap() -> None:
    """The offsets missing after it are another gap: the two need not have the same cause."""
    conflicts = {BaseOffset(0): Conflict(Offset(45), Offset(50))}
    segments = [closed(0, 50), closed(60, 70)]
    found = plan(Offset(45), segments, BaseOffset(70), conflicts)
    assert found == Plan((), OffsetRange(Offset(45), Offset(50)))
    found = plan(Offset(50), segments, BaseOffset(70), conflicts)
    assert found == Plan((), OffsetRange(Offset(50), Offset(60)))
