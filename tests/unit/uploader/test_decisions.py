"""What a partition decides: each row is a state, an event and the actions that follow."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import MalformedObjectError, StoreUnavailableError
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
)
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.errors import OperatorNeededError, StandDownError, UnarchivableError
from sidetier.uploader.pinning.pins import SegmentTimes
from sidetier.uploader.state.decisions import (
    PARK_SECONDS,
    READ_PAST_HALT_SECONDS,
    RESCUES_TAKE,
    HighWatermarks,
    Rules,
    Situation,
)
from sidetier.uploader.state.events import (
    Action,
    ArchiveMoves,
    AskBroker,
    AskStore,
    Release,
    ReportCommitted,
    ReportGap,
    ReportGapHalt,
    ReportOutdated,
    ReportRescue,
    Request,
    RequestFailed,
    RequestSucceeded,
    ScanAt,
    StoreSilent,
    Upload,
    UploadFailed,
    UploadSucceeded,
)
from sidetier.uploader.state.gap import Halt
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.risk import RiskRule
from sidetier.uploader.state.segment import SegmentState
from tests.harness.partitions import (
    ALL_COMMITTED,
    AT_RISK_IN_30_SECONDS,
    CHANGED,
    EVENT_ALONE,
    FOLLOWER_RULES,
    NOW,
    PATIENCE,
    RULES,
    WALL,
    archive,
    as_follower,
    at,
    begin,
    followed,
    kinds,
    listed,
    made,
    steps_of,
    stored,
    upload,
)

HALTING = replace(RULES, on_gap="halt")


def uploads(actions: list[Action]) -> list[int]:
    return [a.segment.segment.base_offset for a in actions if isinstance(a, Upload)]


def requests(actions: list[Action]) -> list[Request]:
    return [action.request for action in actions if isinstance(action, AskStore)]


# -- a leader --------------------------------------------------------------------------------------


def unsure(partition: Partition) -> None:
    partition.doubt(unsure=True)


def refused(partition: Partition) -> None:
    partition.describe_topic(TopicConfig(), "it is compacted")


def unconfigured(partition: Partition) -> None:
    partition.describe_topic(None, None)


def halted(partition: Partition) -> None:
    partition.halt = Halt("for an operator")


def unread(partition: Partition) -> None:
    partition.refuse_directory("a symbolic link")


def silent(partition: Partition) -> None:
    partition.handle(StoreSilent("a request hangs"), EVENT_ALONE)


def not_listed(partition: Partition) -> None:
    assert partition.archive is not None
    partition.archive = replace(partition.archive, present=None)


@pytest.mark.parametrize(
    "hinder", [unsure, refused, unconfigured, halted, unread, silent, not_listed]
)
def test_nothing_is_uploaded_while(hinder: Callable[[Partition], None]) -> None:
    partition = made(0, 10)
    hinder(partition)
    assert uploads(partition.handle(CHANGED, ALL_COMMITTED)) == []


@pytest.mark.parametrize("hinder", [unsure, refused, halted, silent])
def test_store_is_not_asked_while(hinder: Callable[[Partition], None]) -> None:
    partition = made(0, 10)
    partition.archive = None
    hinder(partition)
    assert requests(partition.handle(CHANGED, ALL_COMMITTED)) == []


def test_unsure_partition_continues_with_the_next_known_view() -> None:
    partition = made(0)
    partition.doubt(unsure=True)
    assert partition.handle(CHANGED, ALL_COMMITTED) == []
    partition.doubt(unsure=False)
    assert uploads(partition.handle(CHANGED, ALL_COMMITTED)) == [0]


@pytest.mark.parametrize(
    ("high_watermarks", "expected"),
    [
        (HighWatermarks(), []),
        (HighWatermarks(answered=9), []),
        (HighWatermarks(answered=10), [0]),
        (HighWatermarks(checkpoint=10, written_ns=5), []),
        (HighWatermarks(checkpoint=10, written_ns=6), [0]),
        (HighWatermarks(checkpoint=9, written_ns=6), []),
    ],
)
def test_only_committed_segments_are_uploaded(
    high_watermarks: HighWatermarks, expected: list[int]
) -> None:
    partition = made(0, 10)
    for segment in partition.log.tracked.values():
        segment.modified_ns = 5
    situation = replace(ALL_COMMITTED, high_watermarks=high_watermarks)
    actions = partition.handle(CHANGED, situation)
    assert uploads(actions) == expected
    assert AskBroker() in actions, "for the others"


def test_no_broker_is_asked_for_committed_segments() -> None:
    assert AskBroker() not in made(0, 10).handle(CHANGED, ALL_COMMITTED)


@pytest.mark.parametrize("error", [MalformedObjectError("no watermark"), StandDownError("epoch 9")])
def test_archive_that_cannot_be_read_is_not_written(error: Exception) -> None:
    partition = made(0, 10)
    partition.archive = None
    partition.handle(RequestFailed(begin(partition, Request.LOAD), error), ALL_COMMITTED)
    actions = partition.handle(CHANGED, at(partition.hold.until))
    assert (requests(actions), uploads(actions)) == ([Request.LOAD], [])


def test_segment_that_fails_blocks_only_the_watermark() -> None:
    """The segments behind it are uploaded, more of them than the window has room for."""
    partition = made(0, 10, 20, 30)
    situation = replace(ALL_COMMITTED, rules=replace(RULES, window=2))
    segment, error = partition.log.tracked[BaseOffset(0)], StoreUnavailableError("503")
    partition.handle(UploadFailed(segment, error, unlinked=False), situation)
    assert [uploads(upload(partition, base, situation)) for base in (10, 20)] == [[20], [30]]
    actions = upload(partition, 30, situation)
    assert (requests(actions), uploads(actions)) == ([], [])
    assert Request.COMMIT in requests(upload(partition, 0, situation))


def test_at_most_a_window_of_segments_is_queued() -> None:
    partition = made(0, 10, 20, 30)
    situation = replace(ALL_COMMITTED, rules=replace(RULES, window=2))
    assert uploads(partition.handle(CHANGED, situation)) == [0, 10]
    partition.log.tracked[BaseOffset(0)].hold.fail("refused", NOW)
    actions = partition.handle(CHANGED, situation)
    assert uploads(actions) == [10]
    assert ScanAt(NOW + 1) in actions


def test_segment_of_a_plan_that_has_changed_is_uploaded_again() -> None:
    partition = made(0, 10)
    upload(partition, 10)
    segment = partition.log.tracked[BaseOffset(10)]
    partition.log.tracked[BaseOffset(0)].size = 0
    partition.note_cleaned(cleaned=True)  # so its offsets are stored with the next segment
    assert uploads(partition.handle(CHANGED, ALL_COMMITTED)) == [10]
    assert segment.stage is SegmentState.CLOSED


def test_archive_without_a_start_begins_where_the_log_began() -> None:
    partition = made(10, 20)
    listed(partition, 20, active=30, at=NOW)
    partition.archive = ArchiveState(present=frozenset())
    partition.handle(CHANGED, ALL_COMMITTED)
    assert partition.archive.next_offset == 10


def test_with_latest_only_the_store_says_where_an_archive_begins() -> None:
    partition = made(10, 20)
    partition.archive = ArchiveState(present=frozenset())
    situation = replace(ALL_COMMITTED, rules=replace(RULES, from_latest=True))
    assert partition.handle(CHANGED, situation) == [AskStore(Request.START)]
    assert partition.archive.next_offset is None


@pytest.mark.parametrize(("requesting", "asks"), [(None, True), (Request.PREPARE, False)])
def test_lead_is_confirmed_before_a_move_to_quarantine(
    requesting: Request | None, *, asks: bool
) -> None:
    partition = made(0)
    partition.archive, partition.requesting = None, requesting
    partition.handle(ArchiveMoves("offsets [0, 10)"), EVENT_ALONE)
    actions = partition.handle(CHANGED, ALL_COMMITTED)
    assert (AskBroker() in actions) is asks


# -- a new lead ------------------------------------------------------------------------------------


def test_commit_of_an_earlier_epoch_is_reported_and_not_taken_over() -> None:
    partition = made(0, 10)
    upload(partition, 0)
    begun = begin(partition, Request.COMMIT)
    partition.resume(LeaderEpoch(4))
    actions = partition.handle(RequestSucceeded(begun, archive(10, base=0)), ALL_COMMITTED)
    assert kinds(actions) == [ReportCommitted, AskStore]
    assert requests(actions) == [Request.LOAD], "whether or not that commit moved the watermark"
    assert partition.archive is None


def test_gap_recorded_in_an_earlier_epoch_is_counted() -> None:
    """The watermark has passed the gap, so it will not be found again."""
    partition = gap_at_the_start()
    partition.log.listed_at = NOW + 2
    partition.handle(CHANGED, at(NOW + 2))
    begun = begin(partition, Request.GAP)
    partition.resume(LeaderEpoch(4))
    actions = partition.handle(RequestSucceeded(begun, archive(20)), at(NOW + 2))
    assert actions[0] == ReportGap(OffsetRange(Offset(0), Offset(20)))
    assert partition.gap_records == 20
    assert partition.archive is None


def test_operator_error_of_an_earlier_lead_does_not_halt_a_new_lead() -> None:
    partition = made(0)
    begun = begin(partition, Request.LOAD)
    partition.resume(LeaderEpoch(4))
    error = OperatorNeededError("for the test")
    actions = partition.handle(RequestFailed(begun, error), ALL_COMMITTED)
    assert actions == [ReportOutdated(Request.LOAD, error), AskStore(Request.LOAD)]
    assert partition.halt is None


def test_new_lead_stores_only_what_follows_the_archive() -> None:
    partition = made(0, 10, 20)
    partition.resume(LeaderEpoch(4))
    begun = begin(partition, Request.LOAD)
    actions = partition.handle(RequestSucceeded(begun, archive(20, base=10)), ALL_COMMITTED)
    assert kinds(actions) == [Release, Release, Upload]
    assert uploads(actions) == [20]


def test_new_lead_ends_a_halt_and_a_backoff() -> None:
    partition = made(0)
    partition.halt = Halt("for an operator")
    partition.hold.fail("refused", NOW)
    partition.resume(LeaderEpoch(4))
    assert requests(partition.handle(CHANGED, ALL_COMMITTED)) == [Request.LOAD]


def test_lost_partition_only_frees_what_it_had_begun() -> None:
    partition = made(0)
    begun = begin(partition, Request.LOAD)
    partition.lose()
    assert partition.handle(RequestSucceeded(begun, archive(0)), ALL_COMMITTED) == []
    assert partition.requesting is None


def test_upload_that_ends_after_the_lead_is_lost_is_not_committed() -> None:
    partition = made(0)
    segment, generation = partition.log.tracked[BaseOffset(0)], partition.generation
    segment.stage = SegmentState.UPLOADING
    partition.lose()
    event = UploadSucceeded(segment, generation, stored(0))
    assert partition.handle(event, ALL_COMMITTED) == []
    assert segment.stage is SegmentState.CLOSED


def test_another_topic_id_in_the_directory_begins_anew() -> None:
    """The topic was deleted and created again, and the leadership view does not show it."""
    partition = made(0, 10)
    partition.topic_id = "A"
    segments, generation = list(partition.log.tracked.values()), partition.generation
    assert partition.identify("A", is_new=True) == []
    assert partition.identify("B", is_new=True) == segments, "their files are released"
    assert (partition.topic_id, partition.archive) == ("B", None)
    assert not partition.log.tracked
    assert partition.generation > generation


# -- segments whose format cannot be archived ------------------------------------------------------


def look_at(partition: Partition, situation: Situation, *bases: int, accepted: bool) -> None:
    """Let uploads fail because the segments have an old message format."""
    for base in bases:
        segment = partition.log.tracked[BaseOffset(base)]
        error = UnarchivableError("message format v1", accepted=accepted)
        partition.handle(UploadFailed(segment, error, unlinked=False), situation)


@pytest.mark.parametrize("rules", [RULES, HALTING], ids=["step over", "halt"])
def test_old_message_format_holds_a_partition_until_its_loss_is_accepted(rules: Rules) -> None:
    partition = made(10, 20, 30, next_offset=10)
    look_at(partition, ALL_COMMITTED, 10, 20, accepted=False)
    lost = OffsetRange(Offset(10), Offset(30))
    assert partition.log.unarchivable(Offset(10), sparse=False) == lost
    partition.log.listed_at = NOW + 299
    actions = partition.handle(CHANGED, replace(at(NOW + 299), rules=rules))
    assert uploads(actions) == [30], "the same bytes stay unarchivable"
    assert (requests(actions), partition.gap.gap) == ([], None)

    again = replace(at(NOW + 300), rules=rules)
    assert uploads(partition.handle(CHANGED, again)) == [10, 20, 30]
    look_at(partition, again, 20, 10, accepted=True)
    assert partition.gap.gap == lost
    partition.log.listed_at = NOW + 302
    actions = partition.handle(CHANGED, replace(at(NOW + 302), rules=rules))
    assert requests(actions) == [Request.GAP]
    assert partition.halt is None


# -- gaps ------------------------------------------------------------------------------------------


def gap_at_the_start(
    rules: Rules = RULES, known: ArchiveState | None = None, *, sparse: bool = False
) -> Partition:
    """Offsets [0, 20) are missing behind an archive that ends at 0; just seen."""
    partition = made(20, next_offset=0)
    partition.archive = known or archive(0)
    partition.note_cleaned(cleaned=sparse)
    partition.handle(CHANGED, replace(ALL_COMMITTED, rules=rules))
    assert partition.gap.gap == OffsetRange(Offset(0), Offset(20))
    return partition


@pytest.mark.parametrize(
    ("rules", "broker", "sparse", "patience"),
    [
        pytest.param(RULES, 1, False, 2.0, id="our own archive"),
        pytest.param(RULES, 2, False, PARK_SECONDS, id="of a broker that may lead again"),
        pytest.param(
            replace(FOLLOWER_RULES, broker_id=BrokerId(1)),
            1,
            False,
            RESCUES_TAKE * 60.0,
            id="followers may store it",
        ),
        pytest.param(
            replace(FOLLOWER_RULES, broker_id=BrokerId(1)), 1, True, 2.0, id="compacted here alone"
        ),
    ],
)
def test_gap_waits_for_those_who_may_have_the_records(
    rules: Rules, broker: int, patience: float, *, sparse: bool
) -> None:
    partition = gap_at_the_start(rules, archive(0, base=0, broker=broker), sparse=sparse)
    for passed, expected in ((patience - 0.1, False), (patience, True)):
        partition.log.listed_at = NOW + passed
        partition.read_again_at = float("inf")  # no reading in between
        actions = partition.handle(CHANGED, replace(at(NOW + passed), rules=rules))
        assert (Request.GAP in requests(actions)) is expected


def test_archive_is_read_while_a_gap_waits_for_others() -> None:
    partition = gap_at_the_start(known=archive(0, base=0, broker=2))
    read_at = []
    now = NOW
    while now < NOW + PARK_SECONDS:
        partition.log.listed_at = now
        if Request.LOAD in requests(partition.handle(CHANGED, at(now))):
            read_at.append(now - NOW)
        now += 15.0
    assert read_at == [75.0, 150.0, 225.0]


def test_gap_is_looked_at_again_when_the_wait_ends() -> None:
    partition = gap_at_the_start()
    assert partition.handle(CHANGED, at(NOW + 1)) == [ScanAt(NOW + 2)]


def test_gap_that_a_later_listing_fills_is_not_recorded() -> None:
    partition = gap_at_the_start()
    listed(partition, 0, 10, 20, active=30, at=NOW + 2)
    actions = partition.handle(CHANGED, at(NOW + 2))
    assert (uploads(actions), requests(actions)) == ([0, 10, 20], [])
    assert partition.gap.gap is None


def test_gap_waits_again_if_the_store_was_away_meanwhile() -> None:
    """No request of this partition has failed: the outage shows in the number of outages."""
    partition = gap_at_the_start()
    partition.log.listed_at = NOW + 2
    begun = begin(partition, Request.LOAD)
    event = RequestSucceeded(begun, archive(0))
    actions = partition.handle(event, replace(at(NOW + 2), outages=1))
    assert requests(actions) == []
    assert partition.gap.due == NOW + 4


def test_refusal_of_the_store_does_not_prolong_the_wait() -> None:
    partition = gap_at_the_start()
    begun = begin(partition, Request.LOAD)
    partition.handle(RequestFailed(begun, StoreUnavailableError("503")), at(NOW + 1))
    assert partition.gap.due == NOW + 3


def test_start_is_recorded_before_a_gap_behind_it() -> None:
    partition = gap_at_the_start(known=archive(0, kept=False))
    assert requests(partition.handle(CHANGED, ALL_COMMITTED)) == [Request.START]


def test_gap_behind_segments_counts_once_they_are_stored() -> None:
    partition = made(0, 20)
    partition.handle(CHANGED, ALL_COMMITTED)
    partition.log.listed_at = NOW + 2
    assert partition.gap.gap is None
    upload(partition, 0, at(NOW + 2))
    assert partition.gap.gap is None


# -- halts at a gap --------------------------------------------------------------------------------


def halted_at_the_gap() -> tuple[Partition, list[Action]]:
    partition = gap_at_the_start(HALTING)
    partition.log.listed_at = NOW + 2
    actions = partition.handle(CHANGED, replace(at(NOW + 2), rules=HALTING))
    return partition, actions


def test_halt_at_a_gap_records_nothing_and_reads_the_archive_again() -> None:
    partition, actions = halted_at_the_gap()
    gap = OffsetRange(Offset(0), Offset(20))
    again = NOW + 2 + READ_PAST_HALT_SECONDS
    assert actions == [ScanAt(again), ReportGapHalt(gap)]
    assert partition.halt == Halt.at(gap)
    situation = replace(at(again - 1), rules=HALTING)
    assert partition.handle(CHANGED, situation) == [ScanAt(again)], "reported once"
    situation = replace(at(again), rules=HALTING)
    assert partition.handle(CHANGED, situation) == [AskStore(Request.LOAD)]


def test_halt_ends_when_another_sidecar_has_stored_the_records() -> None:
    partition, _ = halted_at_the_gap()
    begun = begin(partition, Request.LOAD)
    situation = replace(at(NOW + 3), rules=HALTING)
    partition.handle(RequestSucceeded(begun, replace(archive(20), etag="theirs")), situation)
    assert partition.halt is None
    assert uploads(partition.handle(CHANGED, situation)) == [20]


def test_partition_does_not_halt_at_a_gap_that_an_operator_has_accepted() -> None:
    partition = made(0, 10, 20)
    for base in (0, 10):
        partition.log.tracked[BaseOffset(base)].given_up = True
    partition.handle(CHANGED, replace(ALL_COMMITTED, rules=HALTING))
    partition.log.listed_at = NOW + 2
    actions = partition.handle(CHANGED, replace(at(NOW + 2), rules=HALTING))
    assert requests(actions) == [Request.GAP]
    assert partition.halt is None


def test_partition_does_not_halt_at_a_start_that_a_restart_would_not_know() -> None:
    partition = gap_at_the_start(HALTING, archive(0, kept=False))
    partition.log.listed_at = NOW + 2
    actions = partition.handle(CHANGED, replace(at(NOW + 2), rules=HALTING))
    assert requests(actions) == [Request.START]
    assert partition.halt is None


# -- a follower ------------------------------------------------------------------------------------


def read(partition: Partition, now: float, known: ArchiveState) -> list[Action]:
    """Let a request that reads the archive succeed."""
    return partition.handle(
        RequestSucceeded(begin(partition, Request.LOAD), known), as_follower(now)
    )


def stalled(known: ArchiveState | None = None, *bases: int) -> tuple[Partition, list[Action]]:
    """A follower that has read the same archive twice, and what it does next."""
    partition = followed(*bases)
    actions: list[Action] = []
    for now in (NOW, NOW + PATIENCE):
        steps_of(partition, now)
        actions = read(partition, now, known or archive(0, base=0))
    return partition, actions


@pytest.mark.parametrize("hinder", [unsure, unconfigured])
def test_follower_does_nothing_while(hinder: Callable[[Partition], None]) -> None:
    partition = followed()
    hinder(partition)
    assert steps_of(partition, NOW) == []
    assert partition.follows_safely


@pytest.mark.parametrize(
    "hinder", [refused, lambda partition: partition.note_cleaned(cleaned=True)]
)
def test_follower_releases_a_topic_that_it_must_not_store(
    hinder: Callable[[Partition], None],
) -> None:
    partition = followed()
    hinder(partition)
    assert kinds(steps_of(partition, NOW)) == [Release, Release]
    assert not partition.log.tracked


def test_follower_reads_the_watermark_once_per_patience() -> None:
    partition = followed()
    assert requests(steps_of(partition, NOW)) == [Request.LOAD]
    assert read(partition, NOW, archive(0, base=0)) == [ScanAt(NOW + PATIENCE)]
    assert steps_of(partition, NOW + PATIENCE - 1) == [ScanAt(NOW + PATIENCE)]
    assert requests(steps_of(partition, NOW + PATIENCE)) == [Request.LOAD]


def test_follower_releases_what_the_leader_has_stored() -> None:
    partition = followed()
    steps_of(partition, NOW)
    actions = read(partition, NOW, archive(20, base=10))
    assert kinds(actions) == [Release, Release]
    assert requests(steps_of(partition, NOW + PATIENCE)) == [], "nothing is at risk"


def test_follower_waits_after_a_failed_reading() -> None:
    partition = followed()
    steps_of(partition, NOW)
    begun = begin(partition, Request.LOAD)
    actions = partition.handle(RequestFailed(begun, StoreUnavailableError("503")), as_follower(NOW))
    assert ScanAt(NOW + 1) in actions
    assert requests(actions) == []


def test_rescue_stores_only_what_is_at_risk() -> None:
    partition, actions = stalled()
    assert ReportRescue(Offset(0), 1, PATIENCE) in actions
    assert uploads(actions) == [0]
    actions = upload(partition, 0, as_follower(NOW + PATIENCE))
    assert requests(actions) == [Request.COMMIT]
    assert uploads(actions) == [], "objects above the watermark are in the way of a slow leader"


def test_rescue_is_reported_once() -> None:
    partition, _ = stalled()
    partition.log.tracked[BaseOffset(0)].hold.fail("refused", NOW + PATIENCE)
    assert ReportRescue not in kinds(steps_of(partition, NOW + PATIENCE))


def test_rescue_stores_one_segment_at_once() -> None:
    partition, _ = stalled(None, 0, 10, 20)
    partition.note_risk_by_size(Offset(20))
    actions = partition.handle(CHANGED, as_follower(NOW + PATIENCE))
    assert uploads(actions) == [0]


def test_follower_stores_no_uncommitted_segment() -> None:
    partition = followed()
    for now in (NOW, NOW + PATIENCE):
        steps_of(partition, now)
        event = RequestSucceeded(begin(partition, Request.LOAD), archive(0, base=0))
        situation = replace(as_follower(now), high_watermarks=HighWatermarks(answered=9))
        actions = partition.handle(event, situation)
    assert uploads(actions) == []
    assert AskBroker() in actions


def test_follower_lists_the_objects_before_it_uploads() -> None:
    _, actions = stalled(replace(archive(0, base=0), present=None))
    assert (requests(actions), uploads(actions)) == ([Request.PREPARE], [])


def test_follower_records_the_start_before_it_uploads() -> None:
    _, actions = stalled(archive(5, kept=False))
    assert (requests(actions), uploads(actions)) == ([Request.START], [])


def test_follower_begins_an_archive_unless_only_the_leader_knows_where() -> None:
    partition, _ = stalled(ArchiveState(etag=None, present=frozenset()))
    assert partition.archive is not None
    assert partition.archive.next_offset == 0
    latest = followed()
    for now in (NOW, NOW + PATIENCE):
        latest.note_risk_by_size(Offset(10))
        situation = as_follower(now)
        situation = replace(situation, rules=replace(FOLLOWER_RULES, from_latest=True))
        latest.handle(CHANGED, situation)
        event = RequestSucceeded(begin(latest, Request.LOAD), ArchiveState(present=frozenset()))
        actions = latest.handle(event, situation)
    assert (uploads(actions), requests(actions)) == ([], [])


def test_follower_never_records_a_gap() -> None:
    partition, actions = stalled(archive(0, base=0), 10, 20)
    partition.note_risk_by_size(Offset(20))
    for passed in range(0, 20 * int(PATIENCE), 30):
        now = NOW + PATIENCE + passed
        partition.log.listed_at = now
        actions = partition.handle(CHANGED, as_follower(now))
        assert Request.GAP not in requests(actions)
        if Request.LOAD in requests(actions):
            read(partition, now, archive(0, base=0))
    assert partition.gap_records == 0


def test_unlinked_segment_is_at_risk() -> None:
    partition = followed()
    rule = RiskRule(before=0.0, retention=None)
    assert partition.handle(CHANGED, as_follower(NOW, rule)) == []
    unlinked = replace(as_follower(NOW, rule), unlinked={BaseOffset(0)})
    assert requests(partition.handle(CHANGED, unlinked)) == [Request.LOAD]


def test_follower_reads_anew_once_a_later_segment_is_at_risk() -> None:
    """What was read for an earlier risk is out of date."""
    partition = followed()
    steps_of(partition, NOW)
    read(partition, NOW, archive(0, base=0))
    assert partition.archive is not None
    steps_of(partition, NOW + 1, AT_RISK_IN_30_SECONDS)
    assert partition.archive is None


def test_new_leader_epoch_discards_what_a_follower_has_read() -> None:
    partition = followed()
    steps_of(partition, NOW)
    read(partition, NOW, archive(20, base=10))
    partition.enter_epoch(LeaderEpoch(3))
    assert partition.stored_below() == 20, "the same epoch"
    generation = partition.generation
    partition.enter_epoch(LeaderEpoch(4))
    assert partition.stored_below() is None
    assert partition.generation > generation
    assert steps_of(partition, NOW + 1) == [], "its segments are stored and released"


def test_rescue_ends_when_the_leader_moves_the_watermark() -> None:
    partition, _ = stalled()
    later = NOW + 2 * PATIENCE
    assert requests(steps_of(partition, later)) == [Request.LOAD]
    actions = read(partition, later, replace(archive(5, base=0), etag="theirs"))
    assert uploads(actions) == []
    assert partition.following is not None
    assert not partition.following.rescuing


def test_own_commit_does_not_end_a_rescue() -> None:
    partition, _ = stalled(None, 0, 10, 20)
    upload(partition, 0, as_follower(NOW + PATIENCE))
    begun = begin(partition, Request.COMMIT)
    partition.note_risk_by_size(Offset(20))
    moved = replace(archive(10, base=0, broker=2), claimed=True)
    actions = partition.handle(RequestSucceeded(begun, moved), as_follower(NOW + PATIENCE))
    assert uploads(actions) == [10]


def test_upload_under_way_keeps_the_archive_of_a_follower() -> None:
    partition, _ = stalled()
    partition.log.tracked[BaseOffset(0)].stage = SegmentState.UPLOADING
    steps_of(partition, NOW + PATIENCE, AT_RISK_IN_30_SECONDS)
    assert partition.archive is not None, "its commit needs it"
    assert stored(0).base_offset in partition.log.tracked


def test_segment_with_old_records_is_at_risk() -> None:
    """Kafka counts retention.ms from the largest timestamp, not from the last append."""
    partition = followed()
    for segment in partition.log.tracked.values():
        segment.modified_ns = int(WALL * 1e9)
    rule = RiskRule(before=0.0, retention=60.0)
    assert requests(partition.handle(CHANGED, as_follower(NOW, rule))) == []
    partition.log.tracked[BaseOffset(0)].times = SegmentTimes(WALL - 60, WALL)
    assert requests(partition.handle(CHANGED, as_follower(NOW, rule))) == [Request.LOAD]
