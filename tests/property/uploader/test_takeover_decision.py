"""Takeover decisions for any state that Pinterest's uploader has left behind.

Each gap in the adopted segments is recorded, and none is a gap that this broker's log could still
fill.
"""

from hypothesis import given
from hypothesis import strategies as st

from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.archive.takeover import Span, decide, is_of_another_log

END = 60


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    bases = draw(st.lists(st.integers(0, END), max_size=10, unique=True))
    return [
        Span(
            BaseOffset(base),
            Offset(base + draw(st.integers(1, 15))),
            draw(st.sampled_from([True, None, True, None, False])),
        )
        for base in bases
    ]


offsets = st.integers(0, END + 20)
log_starts = offsets.map(Offset) | st.none()
named_bases = offsets.map(BaseOffset) | st.none()


@given(spans(), named_bases, log_starts)
def test_adopted_segments_are_complete_except_for_the_gaps(
    stored: list[Span], named: BaseOffset | None, log_start: Offset | None
) -> None:
    decision = decide(stored, named, log_start)
    assert (decision.next_offset is None) == (not decision.taken)
    if not decision.taken or decision.next_offset is None:
        assert not decision.gaps
        return
    held = {o for span in decision.taken for o in range(span.base, span.end)}
    gone = {o for gap in decision.gaps for o in range(gap.start, gap.end)}
    assert held | gone == set(range(decision.taken[0].base, decision.next_offset))
    assert not held & gone
    assert list(decision.taken) == sorted(decision.taken)


@given(spans(), named_bases, log_starts)
def test_gap_that_the_log_could_fill_is_not_recorded(
    stored: list[Span], named: BaseOffset | None, log_start: Offset | None
) -> None:
    decision = decide(stored, named, log_start)
    if log_start is None:
        assert not decision.gaps
    else:
        assert all(gap.end <= log_start for gap in decision.gaps)


@given(spans(), named_bases, log_starts)
def test_segment_that_no_log_holds_any_more_is_adopted(
    stored: list[Span], named: BaseOffset | None, log_start: Offset | None
) -> None:
    """A complete segment of this history that begins below the log start exists only in the
    store.
    """
    decision = decide(stored, named, log_start)
    lost = [
        span
        for span in stored
        if span.same is not False and log_start is not None and span.base < log_start
    ]
    assert set(lost) <= set(decision.taken)


@given(spans(), named_bases, log_starts)
def test_segment_of_another_log_is_never_adopted(
    stored: list[Span], named: BaseOffset | None, log_start: Offset | None
) -> None:
    decision = decide(stored, named, log_start)
    assert not any(span.same is False for span in decision.taken)
    assert set(decision.foreign) == {span for span in stored if span.same is False}


@given(spans(), named_bases, offsets)
def test_gap_that_the_log_can_fill_ends_the_adopted_segments(
    stored: list[Span], named: BaseOffset | None, log_start: int
) -> None:
    """Everything from the gap on is uploaded again, so the gap gets filled."""
    decision = decide(stored, named, Offset(log_start))
    for before, span in zip(decision.taken, decision.taken[1:], strict=False):
        reached = max(s.end for s in decision.taken if s.base <= before.base)
        assert span.base <= max(reached, log_start)


@given(spans())
def test_one_common_segment_proves_one_history(stored: list[Span]) -> None:
    verdicts = [span.same for span in stored]
    assert is_of_another_log(stored) == (False in verdicts and True not in verdicts)
