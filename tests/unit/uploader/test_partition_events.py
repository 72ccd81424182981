"""Each event's effect on a partition: its state afterwards and the returned actions."""

from dataclasses import dataclass, replace

import pytest

from sidetier.segments.errors import (
    DamagedSegmentError,
    SegmentGoneError,
    StoreUnavailableError,
)
from sidetier.segments.offsets import (
    BaseOffset,
    LeaderEpoch,
    Offset,
    OffsetRange,
)
from sidetier.uploader.errors import (
    DivergedError,
    DivergenceSuspectedError,
    OperatorNeededError,
    StandDownError,
    StoredByAnotherError,
)
from sidetier.uploader.state.decisions import HighWatermarks
from sidetier.uploader.state.events import (
    AskBroker,
    AskStore,
    HoldBack,
    Release,
    ReportAdopted,
    ReportCommitted,
    ReportGap,
    ReportHalted,
    ReportOutdated,
    ReportRequestFailed,
    ReportRescue,
    ReportRescueInterrupted,
    ReportUnexpected,
    ReportUploaded,
    ReportUploadFailed,
    Request,
    RequestFailed,
    RequestSucceeded,
    ScanAt,
    Upload,
    UploadFailed,
    UploadSucceeded,
)
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import (
    SegmentState,
)
from tests.harness.partitions import (
    ALL_COMMITTED,
    AT_RISK_IN_30_SECONDS,
    CHANGED,
    EVENT_ALONE,
    FIRST_AT_RISK,
    NOW,
    PATIENCE,
    RULES,
    archive,
    as_follower,
    at,
    begin,
    followed,
    kinds,
    made,
    steps_of,
    stored,
    upload,
)


@dataclass(frozen=True, slots=True)
class Broken(HighWatermarks):
    """Raises an error when a decision reads it."""

    error: Exception | None = None

    def cover(self, _: int | None, __: int) -> bool:
        assert self.error is not None
        raise self.error


# -- the path of a segment -------------------------------------------------------------------------


def test_segment_is_uploaded_and_committed() -> None:
    partition = made(0, 10)
    first, second = partition.log.tracked.values()
    steps = partition.handle(CHANGED, ALL_COMMITTED)
    assert [step.segment for step in steps if isinstance(step, Upload)] == [first, second]

    told, *_, request = upload(partition, 0)
    assert told == ReportUploaded(stored(0), 0.0)
    assert request == AskStore(Request.COMMIT), "decided in the same step"

    begun = begin(partition, Request.COMMIT)
    actions = partition.handle(RequestSucceeded(begun, archive(10, base=0)), ALL_COMMITTED)
    assert kinds(actions) == [ReportCommitted, Release, Upload]
    assert actions[1] == Release(first)
    assert list(partition.log.tracked.values()) == [second]
    assert partition.archive == archive(10, base=0)
    assert partition.requesting is None


def test_segment_above_the_high_watermark_waits_for_it() -> None:
    partition = made(0)
    above = replace(ALL_COMMITTED, high_watermarks=HighWatermarks())
    assert partition.handle(CHANGED, above) == [AskBroker()]


def test_upload_from_before_another_election_does_not_count() -> None:
    partition = made(0)
    segment = partition.log.tracked[BaseOffset(0)]
    segment.stage = SegmentState.UPLOADING
    before = partition.generation
    partition.resume(LeaderEpoch(4))
    event = UploadSucceeded(segment, before, stored(0))
    assert partition.handle(event, ALL_COMMITTED) == [AskStore(Request.LOAD)]
    assert (segment.stage, segment.stored) == (SegmentState.CLOSED, None)


def test_uploaded_segment_that_is_no_longer_tracked_is_released() -> None:
    partition = made(0)
    segment = partition.log.tracked.pop(BaseOffset(0))
    event = UploadSucceeded(segment, partition.generation, stored(0))
    assert partition.handle(event, EVENT_ALONE) == [Release(segment)]


# -- failed uploads --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "failures", "unlinked", "released"),
    [
        (StoreUnavailableError("503"), 5, True, False),
        (SegmentGoneError("gone"), 0, False, True),
        (DamagedSegmentError("crc"), 0, True, False),  # a second read may succeed
        (DamagedSegmentError("crc"), 1, False, False),  # the broker may repair the file
        (DamagedSegmentError("crc"), 1, True, True),
    ],
)
def test_failed_upload_is_retried_unless_its_bytes_are_lost(
    error: Exception, failures: int, *, unlinked: bool, released: bool
) -> None:
    partition = made(0)
    segment = partition.log.tracked[BaseOffset(0)]
    segment.hold.failures = failures
    actions = partition.handle(UploadFailed(segment, error, unlinked), ALL_COMMITTED)
    assert actions[0] == ReportUploadFailed(BaseOffset(0), error, failures + 1)
    assert (Release(segment) in actions) is released
    assert (BaseOffset(0) in partition.log.tracked) is not released
    assert segment.hold.until > NOW


def test_object_of_another_sidecar_makes_the_partition_reload_the_archive() -> None:
    partition = made(0, 10)
    segments = partition.log.tracked
    for base in (10, 0):
        segment = segments[BaseOffset(base)]
        segment.planned = PlannedSegment(segment.segment, Offset(base))
    error = StoredByAnotherError("theirs")
    partition.handle(UploadFailed(segments[BaseOffset(10)], error, unlinked=False), ALL_COMMITTED)
    assert partition.archive is not None, "only what is right behind the watermark tells"
    partition.handle(UploadFailed(segments[BaseOffset(0)], error, unlinked=False), ALL_COMMITTED)
    assert partition.archive is None


def test_unexpected_error_of_an_upload_delays_its_segment() -> None:
    partition = made(0)
    segment, error = partition.log.tracked[BaseOffset(0)], KeyError("x")
    actions = partition.handle(UploadFailed(segment, error, unlinked=False), ALL_COMMITTED)
    told = ReportUnexpected("the upload of segment 0", error, None)
    assert actions == [told, ScanAt(NOW + 1)]


# -- failed requests -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told", "archive_is_known", "diverged", "halted"),
    [
        (StoreUnavailableError("503"), [ReportRequestFailed], True, False, False),
        (StandDownError("epoch 4"), [ReportRequestFailed], False, False, False),
        (DivergedError("diverged"), [ReportRequestFailed], False, True, False),
        (DivergenceSuspectedError("diverged?"), [ReportRequestFailed], False, False, False),
        (OperatorNeededError("whose?"), [ReportHalted, ReportRequestFailed], False, False, True),
        (KeyError("x"), [ReportUnexpected], False, False, False),
    ],
)
def test_failed_request_of_a_leader_sets_its_backoff_or_halt(
    error: Exception,
    told: list[type],
    *,
    archive_is_known: bool,
    diverged: bool,
    halted: bool,
) -> None:
    partition = made(0)
    actions = partition.handle(RequestFailed(begin(partition, Request.LOAD), error), EVENT_ALONE)
    assert kinds(actions) == told
    assert (partition.archive is not None) is archive_is_known
    assert (partition.diverged, partition.halted is not None) == (diverged, halted)
    assert partition.hold.until > NOW
    assert partition.requesting is None
    if not halted:
        assert ScanAt(partition.hold.until) in partition.handle(CHANGED, ALL_COMMITTED)


def test_conflict_of_a_follower_is_no_error() -> None:
    partition = made(0)
    partition.follow()
    error = DivergedError("the leader settles it")
    actions = partition.handle(RequestFailed(begin(partition, Request.LOAD), error), EVENT_ALONE)
    assert actions == [ReportRescueInterrupted(error)]
    assert not partition.diverged


def test_failure_from_before_another_election_causes_no_backoff() -> None:
    partition = made(0)
    begun = begin(partition, Request.LOAD)
    partition.resume(LeaderEpoch(4))
    error = StandDownError("epoch 4")
    assert partition.handle(RequestFailed(begun, error), ALL_COMMITTED) == [
        ReportOutdated(Request.LOAD, error),
        AskStore(Request.LOAD),
    ]
    assert partition.hold.until <= NOW


# -- gaps ------------------------------------------------------------------------------------------


def with_gap() -> Partition:
    """A partition whose offsets [0, 20) are missing and whose archive ends at 0."""
    partition = made(20, next_offset=0)
    partition.handle(CHANGED, ALL_COMMITTED)
    assert partition.gap.gap == OffsetRange(Offset(0), Offset(20))
    return partition


def test_gap_is_recorded_when_a_later_listing_shows_it_again() -> None:
    partition = with_gap()
    steps = partition.handle(CHANGED, ALL_COMMITTED)
    assert steps == [ScanAt(NOW + 2)]

    partition.log.listed_at = NOW + 2
    asks = replace(at(NOW + 2), lead_confirmed_at=NOW + 1.9)
    assert partition.handle(CHANGED, asks) == [AskBroker()], "nobody has named us since"

    assert partition.handle(CHANGED, at(NOW + 2)) == [AskStore(Request.GAP)]
    begun = begin(partition, Request.GAP)
    event = RequestSucceeded(begun, archive(20))
    recorded, upload_behind = partition.handle(event, at(NOW + 2))
    assert recorded == ReportGap(OffsetRange(Offset(0), Offset(20)))
    assert isinstance(upload_behind, Upload)
    assert (partition.gap.gap, partition.gap_records) == (None, 20)


def test_gap_that_another_sidecar_stored_is_adopted() -> None:
    partition = with_gap()
    partition.log.listed_at = NOW + 2
    partition.handle(CHANGED, at(NOW + 2))
    event = RequestSucceeded(begin(partition, Request.GAP), archive(20, base=10))
    assert partition.handle(event, at(NOW + 2))[0] == ReportAdopted(BaseOffset(10))
    assert partition.gap_records == 0


def test_gap_waits_again_after_a_store_outage() -> None:
    partition = with_gap()
    partition.log.listed_at = NOW + 2
    partition.handle(CHANGED, at(NOW + 2))
    begun, error = begin(partition, Request.GAP), StoreUnavailableError("503")
    partition.handle(RequestFailed(begun, error), at(NOW + 3))
    assert not partition.gap.is_confirmed(partition.log.listed_at)
    assert not partition.gap.vouched


@pytest.mark.parametrize(("confirmed", "halts"), [(False, False), (True, True)])
def test_on_gap_halt_halts_once_the_lead_is_confirmed(*, confirmed: bool, halts: bool) -> None:
    partition = with_gap()
    partition.log.listed_at = NOW + 2
    rules = replace(RULES, on_gap="halt")
    later = replace(at(NOW + 2), rules=rules, lead_confirmed_at=NOW + 2 if confirmed else NOW + 1.9)
    partition.handle(CHANGED, later)
    assert (partition.halted is not None) is halts


# -- a follower ------------------------------------------------------------------------------------


def test_follower_sends_no_request_before_a_segment_nears_its_deletion() -> None:
    assert steps_of(followed(), NOW, AT_RISK_IN_30_SECONDS) == [ScanAt(NOW + 30)]


def test_follower_stores_segments_at_risk_once_the_watermark_stalls() -> None:
    partition, later = followed(), NOW + PATIENCE
    for now in (NOW, later):
        assert steps_of(partition, now, FIRST_AT_RISK) == [AskStore(Request.LOAD)]
        begun = begin(partition, Request.LOAD)
        situation = as_follower(now, FIRST_AT_RISK)
        actions = partition.handle(RequestSucceeded(begun, archive(0)), situation)

    first, second = partition.log.tracked.values()
    began, wanted, again = actions
    assert began == ReportRescue(Offset(0), 1, PATIENCE)
    assert isinstance(wanted, Upload)
    assert wanted.segment is first, "the second is not at risk"
    assert second.stage is SegmentState.CLOSED
    assert again == ScanAt(later + PATIENCE)


def test_follower_does_not_interfere_while_the_watermark_moves() -> None:
    partition, later = followed(), NOW + PATIENCE
    for now, next_offset in ((NOW, 0), (later, 5)):
        assert steps_of(partition, now, FIRST_AT_RISK) == [AskStore(Request.LOAD)]
        begun = begin(partition, Request.LOAD)
        read = archive(next_offset, base=0)
        partition.handle(RequestSucceeded(begun, read), as_follower(now, FIRST_AT_RISK))
    assert steps_of(partition, later, FIRST_AT_RISK) == [ScanAt(later + PATIENCE)]


def test_an_error_in_a_decision_does_not_lose_the_events_actions() -> None:
    partition, error = made(0, 10), KeyError("x")

    broken = replace(ALL_COMMITTED, high_watermarks=Broken(error=error))
    segment = partition.log.tracked.pop(BaseOffset(0))
    event = UploadSucceeded(segment, partition.generation, stored(0))
    assert partition.handle(event, broken)[0] == Release(segment)
    partition = made(0)
    assert partition.handle(CHANGED, broken) == [HoldBack(error)]


def test_an_error_in_a_decision_does_not_lose_the_segments_that_it_forgets() -> None:
    """Nothing tracks them any more, so nothing else would close their files."""
    partition, error = made(0, 10), KeyError("x")
    segment = partition.log.tracked[BaseOffset(0)]
    segment.stage = SegmentState.STORED
    partition.archive = archive(10, base=0)

    broken = replace(ALL_COMMITTED, high_watermarks=Broken(error=error))
    assert partition.handle(CHANGED, broken) == [Release(segment), HoldBack(error)]
