"""Selection of the stored segments above the watermark that continue the archive without a gap."""

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
def test_a_contained_segment_does_not_lower_the_archive_end_offset(
    ranges: list[tuple[int, int]], chosen: list[tuple[int, int]]
) -> None:
    found = contiguous([stored(*limits) for limits in ranges], Offset(0))
    assert found == [stored(*limits) for limits in chosen]


def test_segments_that_end_at_or_below_the_archive_end_offset_are_left_out() -> None:
    found = contiguous([stored(0, 5), stored(0, 10), stored(10, 20)], Offset(10))
    assert found == [stored(10, 20)]
