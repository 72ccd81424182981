"""The state of one partition and the request it needs next."""

from dataclasses import replace

import pytest

from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.pinning.pins import PinnedSegment
from sidetier.uploader.sending.reading import FileIdentity
from sidetier.uploader.state.decisions import (
    RESCUES_TAKE,
    Rules,
    Situation,
    next_request,
    watch_gap,
)
from sidetier.uploader.state.events import Request
from sidetier.uploader.state.gap import GAP_CONFIRM_SECONDS, Halt
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import (
    Backoff,
    SegmentState,
    StoredSegment,
    Timeline,
    TrackedSegment,
)

TP = TopicPartition("t", 0)
RULES = Rules(8, from_latest=False, on_gap="step_over", broker_id=BrokerId(1))


def wanted(made: Partition, now: float, rules: Rules = RULES) -> Request | None:
    """What the partition needs from the store."""
    return next_request(made.facts(Situation(now, 0.0, rules)))


def stored_prefix(made: Partition) -> list[int]:
    return [segment.base_offset for segment in made.log.stored_prefix(made.plan())]


def plan_again(made: Partition) -> None:
    made.log.plan_again(made.plan())


def watch(made: Partition, now: float, rules: Rules = RULES) -> bool:
    """Look for a gap. Returns whether it is new."""
    before = made.gap
    made.gap = watch_gap(made.facts(Situation(now, 0.0, rules)))
    return made.gap.gap is not None and made.gap.gap != before.gap


def is_confirmed(made: Partition) -> bool:
    return made.gap.is_confirmed(made.log.listed_at)


def track(segment: ClosedSegment) -> TrackedSegment:
    pinned = PinnedSegment("", segment, FileIdentity(0, 0, 0, 0))
    return TrackedSegment(segment, 100, 0, Timeline(0.0), pinned=pinned)


def closed(base: int, *, marked_for_deletion: bool = False) -> ClosedSegment:
    return ClosedSegment(BaseOffset(base), BaseOffset(base + 10), marked_for_deletion)


def listing(
    *bases: int, active: int, marked_for_deletion: tuple[int, ...] = ()
) -> PartitionListing:
    segments = [closed(base) for base in bases] + [
        closed(base, marked_for_deletion=True) for base in marked_for_deletion
    ]
    return PartitionListing(tuple(sorted(segments)), BaseOffset(active))


def partition(
    *bases: int, done: int | None = 0, present: bool = True, kept: bool = True
) -> Partition:
    made = Partition(TP, LeaderEpoch(0))
    made.observe(listing(*bases, active=max([*bases, -10]) + 10), 0.0, track)
    if done is not None:
        made.archive = ArchiveState(
            next_offset=Offset(done),
            present=frozenset[str]() if present else None,
            start=Offset(done),
            kept_start=Offset(done) if kept else None,
        )
    return made


def store(made: Partition, *bases: int) -> None:
    for base in bases:
        tracked = made.log.tracked[BaseOffset(base)]
        tracked.stage = SegmentState.STORED
        tracked.planned = PlannedSegment(tracked.segment, Offset(base))
        tracked.stored = StoredSegment(BaseOffset(base), Offset(base + 10), 0, 100, 100)


def test_backoff_doubles_up_to_a_minute_and_is_cleared_by_success() -> None:
    hold = Backoff()
    waits = []
    for _ in range(10):
        hold.fail("refused", 100.0)
        waits.append(hold.until - 100)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert hold.error == "refused"
    hold.clear()
    assert hold == Backoff()


def test_backoff_accepts_very_many_failures() -> None:
    hold = Backoff(failures=100_000)
    hold.fail("again", 0.0)
    assert hold.until == 60


def test_backoff_honours_a_short_maximum() -> None:
    hold = Backoff(failures=10)
    hold.fail("suspected", 100.0, longest=4.0)
    assert hold.until == 104.0


def test_segments_below_the_watermark_are_not_tracked() -> None:
    made = partition(done=10)
    made.observe(listing(0, 10, 20, active=30), 1.0, track)
    assert sorted(made.log.tracked) == [10, 20]


def test_segments_deleted_before_they_could_be_opened_are_not_tracked() -> None:
    made = partition()
    made.observe(listing(0, active=10), 1.0, lambda _: None)
    assert made.log.tracked == {}


def test_pinned_segment_stays_tracked_when_retention_deletes_it() -> None:
    made = partition(0, 10, 20)
    made.observe(listing(20, active=30, marked_for_deletion=(10,)), 1.0, track)
    assert sorted(made.log.tracked) == [0, 10, 20]
    made.observe(listing(20, active=30), 2.0, track)
    assert sorted(made.log.tracked) == [0, 10, 20]
    assert made.log.start == 20


def test_last_segment_marked_for_deletion_keeps_the_end_that_was_listed() -> None:
    """Its neighbours are deleted: the next file name would make it longer than it is."""
    made = partition(0, 10)
    made.observe(
        PartitionListing(
            (ClosedSegment(BaseOffset(0), BaseOffset(20), marked_for_deletion=True),),
            BaseOffset(20),
        ),
        1.0,
        track,
    )
    assert made.log.tracked[BaseOffset(0)].segment.next_base == 10


def test_segment_without_a_pin_is_dropped_with_its_file() -> None:
    made = partition(0, 10)
    made.log.tracked[BaseOffset(0)].close()
    made.observe(listing(10, active=20), 1.0, track)
    assert sorted(made.log.tracked) == [10]


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        (SegmentState.CLOSED, False),
        (SegmentState.QUEUED, False),
        (SegmentState.UPLOADING, True),
        (SegmentState.STORED, True),
    ],
)
def test_truncated_segments_are_dropped_unless_they_are_being_uploaded(
    stage: SegmentState, *, kept: bool
) -> None:
    made = partition(0, 10)
    made.log.tracked[BaseOffset(10)].stage = stage
    made.observe(listing(0, active=10), 1.0, track)
    assert (BaseOffset(10) in made.log.tracked) is kept


def test_stored_segments_are_forgotten_and_released() -> None:
    made = partition(0, 10, 20)
    first = made.log.tracked[BaseOffset(0)]
    made.archive = ArchiveState(next_offset=Offset(15))
    assert made.log.forget_stored(made.stored_below()) == [first]
    assert sorted(made.log.tracked) == [10, 20]


def test_upload_under_way_is_not_forgotten_below_the_watermark() -> None:
    """Its thread reads from the descriptors."""
    made = partition(0, 10)
    made.log.tracked[BaseOffset(0)].stage = SegmentState.UPLOADING
    assert made.log.forget_stored(Offset(10)) == []
    assert sorted(made.log.tracked) == [0, 10]


def test_stored_prefix_ends_before_the_first_segment_that_is_not_stored() -> None:
    made = partition(0, 10, 20, 30)
    store(made, 0, 10, 30)
    assert stored_prefix(made) == [0, 10]


def test_segment_stored_under_an_outdated_plan_is_stored_again() -> None:
    made = partition(0, 10)
    store(made, 0, 10)
    first = made.log.tracked[BaseOffset(0)]
    first.planned = PlannedSegment(first.segment, Offset(3))
    assert stored_prefix(made) == []
    plan_again(made)
    assert [t.stage for t in made.log.tracked.values()] == [
        SegmentState.CLOSED,
        SegmentState.STORED,
    ]
    store(made, 0)
    plan_again(made)
    assert stored_prefix(made) == [0, 10]


def test_stored_prefix_ends_before_a_gap() -> None:
    made = partition(0, 20)
    store(made, 0, 20)
    assert stored_prefix(made) == [0]


def test_stored_segments_do_not_fill_the_window() -> None:
    made = partition(0, 10, 20, 30, 40)
    store(made, 10, 20)
    assert [p.segment.base_offset for p in made.log.storable(made.plan(), 2)] == [0, 30]


def test_no_segment_is_storable_before_the_archive_is_loaded() -> None:
    assert partition(0, done=None).plan().segments == ()


def test_reset_forgets_stored_segments_and_keeps_uploads_under_way() -> None:
    made = partition(0, 10, 20)
    store(made, 0)
    made.log.tracked[BaseOffset(10)].stage = SegmentState.UPLOADING
    made.reset()
    assert made.archive is None
    assert [t.stage for t in made.log.tracked.values()] == [
        SegmentState.CLOSED,
        SegmentState.UPLOADING,
        SegmentState.CLOSED,
    ]
    assert all(t.pinned is not None for t in made.log.tracked.values())


def test_idle_partition_needs_no_request() -> None:
    made = partition(done=None)
    assert wanted(made, 0.0) is None


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        pytest.param(lambda: partition(0, done=None), Request.LOAD, id="not read yet"),
        pytest.param(lambda: partition(0, present=False), Request.PREPARE, id="not looked at"),
        pytest.param(lambda: partition(0), None, id="nothing stored yet"),
        pytest.param(lambda: _stored(partition(0, 10)), Request.COMMIT, id="stored"),
        pytest.param(lambda: _with_gap(partition(10), seen_for=2.0), Request.GAP, id="a gap"),
        pytest.param(
            lambda: _with_gap(partition(10, present=False), seen_for=2.0),
            Request.PREPARE,
            id="a gap, and nobody has looked at what is stored",
        ),
        pytest.param(
            lambda: _with_gap(partition(10), seen_for=2.0, vouched=False), None, id="not vouched"
        ),
        pytest.param(lambda: _with_gap(partition(10), seen_for=1.9), None, id="a young gap"),
        pytest.param(
            lambda: _with_gap(partition(10, kept=False), seen_for=0.0),
            Request.START,
            id="a gap before the first watermark, and the start is not on the store",
        ),
        pytest.param(lambda: partition(done=0), None, id="all done"),
    ],
)
def test_next_request_follows_from_the_state_of_the_partition(
    prepare: object, expected: Request | None
) -> None:
    assert callable(prepare)
    made = prepare()
    assert wanted(made, 10.0) is expected
    made.requesting = Request.LOAD
    assert wanted(made, 10.0) is None, "one at a time"
    made.requesting = None
    made.hold.fail("refused", 9.5)
    assert wanted(made, 10.0) is None, "not while it is held"
    assert wanted(made, 11.0) is expected
    made.halt = Halt("for the operator")
    assert wanted(made, 11.0) is None


def _stored(made: Partition) -> Partition:
    store(made, 0)
    return made


def _with_gap(made: Partition, seen_for: float, *, vouched: bool = True) -> Partition:
    watch(made, 0.0)
    made.gap = replace(made.gap, vouched=vouched)
    made.observe(listing(10, active=20), seen_for, track)
    return made


@pytest.mark.parametrize(("from_latest", "expected"), [(True, Request.START), (False, None)])
def test_start_offset_is_requested_only_for_latest(
    expected: Request | None, *, from_latest: bool
) -> None:
    made = partition(0)
    made.archive = ArchiveState()
    assert wanted(made, 0.0, replace(RULES, from_latest=from_latest)) is expected


def test_first_active_segment_is_remembered() -> None:
    made = Partition(TP, LeaderEpoch(0))
    made.observe(listing(active=0), 0.0, track)
    made.observe(listing(0, active=10), 1.0, track)
    assert made.log.first_active == 0


def test_gap_is_new_once_and_disappears_when_it_is_filled() -> None:
    made = partition(10)
    assert watch(made, 5.0)
    assert made.gap.gap == OffsetRange(Offset(0), Offset(10))
    assert not watch(made, 6.0)
    assert made.gap.seen == 5.0
    made.observe(listing(0, 10, active=20), 5.0 + GAP_CONFIRM_SECONDS, track)
    assert not watch(made, 7.0)
    assert made.plan().gap is None
    assert not is_confirmed(made)


def test_gap_that_grows_must_be_seen_again() -> None:
    made = partition(10, 20)
    watch(made, 0.0)
    for base in (10, 20):
        made.log.tracked[BaseOffset(base)].close()
    made.observe(listing(20, active=30), 3.0, track)
    assert watch(made, 3.0)
    assert made.gap.gap == OffsetRange(Offset(0), Offset(20))
    assert not is_confirmed(made)


def test_growing_gap_is_confirmed_after_the_patience_of_its_first_sighting() -> None:
    """The wait for its beginning has passed twice, so only the second listing is missing."""
    made = partition(*range(10, 80, 10))
    rules = replace(RULES, rescue_patience=10.0 / RESCUES_TAKE)
    watch(made, 0.0, rules)
    for number, base in enumerate(range(10, 50, 10), start=1):
        made.log.tracked[BaseOffset(base)].close()
        now = number * 6.0
        made.observe(listing(*range(base + 10, 80, 10), active=80), now, track)
        assert watch(made, now, rules)
        assert not is_confirmed(made)
    assert made.gap.gap == OffsetRange(Offset(0), Offset(50))
    made.observe(listing(*range(50, 80, 10), active=80), 24.0 + GAP_CONFIRM_SECONDS, track)
    assert not watch(made, 24.0 + GAP_CONFIRM_SECONDS, rules)
    assert is_confirmed(made)


def test_urgency_orders_segments_by_their_deletion_time() -> None:
    """Segments marked for deletion come first, then those the broker deletes first."""
    now = 1_000_000_000
    marked_for_deletion = TrackedSegment(
        closed(0, marked_for_deletion=True), 1, 5 * now, Timeline(0.0)
    )
    old = TrackedSegment(closed(0), 1, now, Timeline(0.0))
    young = TrackedSegment(closed(0), 1, 2 * now, Timeline(0.0))
    brief = TrackedSegment(closed(0), 1, 2 * now, Timeline(0.0), retention=1.0)
    kept = TrackedSegment(closed(0), 1, now, Timeline(0.0), retention=float("inf"))
    order = sorted(
        (kept, young, old, marked_for_deletion, brief), key=lambda tracked: tracked.urgency
    )
    assert order == [marked_for_deletion, brief, old, young, kept]
