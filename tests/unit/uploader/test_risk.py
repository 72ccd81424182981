"""Which of a follower's segments are near their deletion, and how long a watermark has stalled."""

from dataclasses import replace

import pytest

from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.uploader.pinning.pins import HeldPin, PinPriority, Urgency, pins_to_release
from sidetier.uploader.state.following import Following
from sidetier.uploader.state.risk import Risk, RiskRule, risk_of, worth_holding
from sidetier.uploader.state.segment import Timeline, TrackedSegment

DAY = 86400.0


def listing(
    *bases: int, active: int, marked_for_deletion: tuple[int, ...] = ()
) -> PartitionListing:
    ends = [*bases[1:], active]
    closed = tuple(
        ClosedSegment(BaseOffset(base), BaseOffset(end), base in marked_for_deletion)
        for base, end in zip(bases, ends, strict=True)
    )
    return PartitionListing(closed, BaseOffset(active))


def held(found: PartitionListing) -> list[int]:
    return [segment.base_offset for segment in found.closed]


@pytest.mark.parametrize(
    ("retention", "begins"),
    [
        (7 * DAY, 1000 + 7 * DAY - 900),
        (1000.0, 1000 + 750.0),
        (None, float("inf")),
    ],
    ids=["long", "short: a quarter of it", "for ever, or unknown"],
)
def test_segment_is_at_risk_within_the_margin_before_its_deletion_time(
    retention: float | None, begins: float
) -> None:
    assert RiskRule(900.0, retention).begins(1000.0) == begins


@pytest.mark.parametrize(
    ("retention_bytes", "end"),
    [(None, None), (0, 40), (120, 40), (121, 30), (220, 30), (400, 10), (421, None)],
)
def test_segments_beyond_retention_bytes_are_at_risk(
    retention_bytes: int | None, end: int | None
) -> None:
    """Four closed segments of 100 bytes, and 20 bytes in the active segment."""
    closed = [(Offset(next_offset), 100) for next_offset in (40, 30, 20, 10)]
    assert RiskRule(900.0, None, retention_bytes).end_by_size(20, closed) == end


@pytest.mark.parametrize(
    ("marked_for_deletion", "stored_below", "at_risk", "expected"),
    [
        ((), None, (), [0]),
        ((), None, (0, 10), [0, 10, 20]),
        ((), 20, (), [20]),
        ((), 40, (), []),
        ((0, 10), None, (), [0, 10, 20]),
        ((30,), None, (), [0]),
        ((0, 10, 20, 30), 20, (), [20, 30]),
    ],
    ids=[
        "the next",
        "by time, and the next",
        "what is stored is not",
        "all is stored",
        "staged, and the next",
        "left by truncation",
        "only staged ones",
    ],
)
def test_follower_pins_segments_at_risk_and_above_the_watermark(
    marked_for_deletion: tuple[int, ...],
    stored_below: int | None,
    at_risk: tuple[int, ...],
    expected: list[int],
) -> None:
    below = None if stored_below is None else Offset(stored_below)
    found = listing(0, 10, 20, 30, active=40, marked_for_deletion=marked_for_deletion)
    assert held(worth_holding(found, below, lambda base: base in at_risk)) == expected
    assert worth_holding(found, below, lambda base: base in at_risk).active == 40


def tracked(
    base: int, modified: float, *, marked_for_deletion: bool = False
) -> tuple[BaseOffset, TrackedSegment]:
    segment = ClosedSegment(BaseOffset(base), BaseOffset(base + 10), marked_for_deletion)
    return segment.base_offset, TrackedSegment(segment, 1, int(modified * 1e9), Timeline(0.0))


def test_partition_is_at_risk_up_to_the_end_of_its_last_segment_at_risk() -> None:
    rule = RiskRule(900.0, 10_000.0)
    segments = dict(
        [tracked(0, 0, marked_for_deletion=True), tracked(10, 100.0), tracked(20, 500.0)]
    )
    assert risk_of(segments, rule, 9_200.0) == Risk(Offset(20), 2, 9_600.0)
    assert risk_of(segments, rule, 9_600.0) == Risk(Offset(30), 3, float("inf"))
    assert risk_of(dict([tracked(20, 500.0)]), rule, 0.0) == Risk(None, 0, 9_600.0)


def test_watermark_stalls_when_two_separate_reads_agree() -> None:
    following = Following()
    assert not following.lasts(10)
    for read_at, lasts in ((100.0, False), (109.0, False), (110.0, True)):
        following = replace(following, read_at=read_at).saw(Offset(5), ours=False)
        assert following.lasts(10) is lasts


def test_moves_by_the_leader_restart_the_patience_and_our_own_do_not() -> None:
    following = Following()
    for moment, offset, ours, lasts in (
        (0.0, 5, False, False),
        (10.0, 5, False, True),
        (10.0, 9, True, True),
        (20.0, 9, False, True),
        (30.0, 12, False, False),
        (40.0, 12, False, True),
    ):
        following = replace(following, read_at=moment).saw(Offset(offset), ours=ours)
        assert following.lasts(10) is lasts, moment


def test_pins_of_followed_partitions_are_released_before_those_of_led_ones() -> None:
    tp = TopicPartition("t", 0)
    early, late = Urgency(live=False, expires_at=1), Urgency(live=True, expires_at=2)
    led = HeldPin(tp, BaseOffset(0), 10, PinPriority(followed=False, urgency=late))
    followed = HeldPin(tp, BaseOffset(10), 10, PinPriority(followed=True, urgency=early))
    assert pins_to_release([led, followed], 5) == (followed,)
    assert pins_to_release([led, followed], 15) == (followed, led)
