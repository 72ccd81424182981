"""Which of the segments that are stored above the watermark follow on it."""

import pytest

from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.archive.adoption import contiguous
from sidetier.uploader.state.segment import StoredSegment


def stored(base: int, end: int) -> StoredSegment:
    return StoredSegment(BaseOffset(base), Offset(end), 0, 100, 0)


@pytest.mark.parametrize(
    ("ranges", "chosen"),
    [
        ([], []),
        ([(0, 10), (10, 20)], [(0, 10), (10, 20)]),
        ([(0, 10), (5, 20)], [(0, 10), (5, 20)]),
        ([(0, 20), (10, 20), (20, 30)], [(0, 20), (20, 30)]),
        ([(0, 20), (5, 8), (8, 30)], [(0, 20), (8, 30)]),
        ([(0, 20), (5, 8)], [(0, 20)]),
        ([(0, 10), (11, 20)], [(0, 10)]),
        ([(5, 20)], []),
    ],
    ids=str,
)
def test_an_overlap_that_adds_nothing_does_not_take_the_end_back(
    ranges: list[tuple[int, int]], chosen: list[tuple[int, int]]
) -> None:
    found = contiguous([stored(*limits) for limits in ranges], Offset(0))
    assert found == [stored(*limits) for limits in chosen]


def test_what_ends_at_the_start_or_before_it_is_left_out() -> None:
    found = contiguous([stored(0, 5), stored(0, 10), stored(10, 20)], Offset(10))
    assert found == [stored(10, 20)]
