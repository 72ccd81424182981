"""plan() for any layout: contiguous, never beyond a gap, no offset twice, and complete."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sidetier.segments.listing import ClosedSegment, PartitionListing, read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.state.plan import available, plan

offsets = st.integers(min_value=0, max_value=60)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[ClosedSegment], BaseOffset | None]:
    """Segments with gaps and overlaps, by ascending base offset, optionally followed by an active
    one.
    """
    bases = draw(st.lists(offsets, unique=True, max_size=8).map(sorted))
    segments = [
        ClosedSegment(
            BaseOffset(base),
            draw(st.none() | st.integers(base + 1, base + 15).map(BaseOffset)),
            draw(st.booleans()),
        )
        for base in bases
    ]
    active = draw(st.none() | st.integers(max([*bases, 0]), 90).map(BaseOffset))
    return segments, active


@given(layouts(), offsets.map(Offset))
def test_every_plan_is_contiguous_and_complete(
    layout: tuple[list[ClosedSegment], BaseOffset | None], following: Offset
) -> None:
    segments, active = layout
    found = plan(following, segments, active)
    expected = int(following)
    for planned in found.segments:
        assert planned.segment in segments
        assert planned.start == expected, "it goes on where the one before ended"
        assert planned.segment.base_offset <= planned.start, "it holds what it is wanted for"
        assert planned.segment.next_base is not None
        assert planned.segment.next_base > planned.start, "it adds something"
        expected = planned.segment.next_base
    holding = [
        s for s in segments if s.next_base is not None and s.base_offset <= expected < s.next_base
    ]
    assert not holding, "nothing that continues was left out"
    if found.gap is not None:
        assert found.gap.start == expected
        assert found.gap.end > found.gap.start
        inside = range(found.gap.start, found.gap.end)
        held = {
            offset
            for s in segments
            if s.next_base is not None
            for offset in inside
            if s.base_offset <= offset < s.next_base
        }
        assert not held, "what is there is no gap"
    elif active is not None:
        assert expected >= active


@given(st.lists(st.tuples(offsets, st.booleans()), unique_by=lambda row: row[0], max_size=10))
def test_plan_of_a_listing_of_any_names_has_no_segment_above_the_log(
    files: list[tuple[int, bool]],
) -> None:
    names = [segment_file_name(BaseOffset(b), FileKind.LOG, deleted=d) for b, d in files]
    listing = read_listing(names)
    assert isinstance(listing, PartitionListing)
    found = available(listing, ())
    live = [base for base, deleted in files if not deleted]
    for segment in found:
        assert segment.base_offset != listing.active, "the active segment is never taken"
        if segment.marked_for_deletion:
            assert live
            assert segment.base_offset < min(live)
    assert all(a.base_offset < b.base_offset for a, b in pairwise(found))
