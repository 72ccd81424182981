"""Decisions of the state machine: what a partition does next, given its state and its situation.

`Partition.handle` calls `decide` after each event. A leader stores what follows the archive end
offset, and records gaps. A follower stores only segments that its broker is about to delete, and
only while `offset.wm` does not move.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final
from zlib import crc32

from sidetier.config.uploader import OnGap
from sidetier.segments.offsets import UNKNOWN_EPOCH, BrokerId, LeaderEpoch, TopicPartition
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.state.events import (
    Action,
    AskBroker,
    Asked,
    AskStore,
    Release,
    ReportGapHalt,
    ReportRescue,
    Request,
    ScanAt,
    Upload,
)
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.risk import Risk, RiskRule, risk_of
from sidetier.uploader.state.segment import SegmentState, StoredSegment, TrackedSegment

if TYPE_CHECKING:
    from sidetier.uploader.state.partition import Partition

GAP_CONFIRM_SECONDS: Final = 2.0
"""Seconds between the two listings that must show a gap: a listing that is made while the broker
renames files may miss some of them.
"""
PARK_SECONDS: Final = 300.0
"""How long the pins of a partition outlive the lead."""
RESCUES_TAKE: Final = 4.0
"""A gap waits for this many times the follower's patience. A follower needs it once until it asks a
store again that did not answer, once while `offset.wm` does not move, and the rest for its uploads.
"""
READ_PAST_HALT_SECONDS: Final = 60.0
"""How often the archive of a partition that is halted at a gap is read."""
_GAP_READINGS: Final = 4
"""How often the archive is read while a gap waits."""
_UNDER_WAY: Final = frozenset({SegmentState.QUEUED, SegmentState.UPLOADING, SegmentState.STORED})
_RESCUED_AT_ONCE: Final = 1
"""Segments of a partition: objects above the archive end offset are in the way of a slow leader."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The configuration that decisions depend on.

    Attributes:
        window: At most this many segments of a partition wait for an upload thread.
        from_latest: Whether `uploader.offset_reset` is `latest`.
        on_gap: `uploader.on_gap`.
        broker_id: This broker.
        rescue_patience: Seconds without progress of `offset.wm` after which a follower stores what
            its broker is about to delete. None where followers do not.
    """

    window: int
    from_latest: bool
    on_gap: OnGap
    broker_id: BrokerId
    rescue_patience: float | None = None

    def patience_of(self, tp: TopicPartition) -> float:
        """Return the patience as a follower: different on each broker, so that one goes first."""
        # Deterministic, and up to a quarter longer. Without it, the sidecars
        # of all followers would upload the same segment at the same time.
        spread = crc32(f"{self.broker_id} {tp}".encode()) % 256 / 1024
        return (self.rescue_patience or 0.0) * (1 + spread)


NO_RISK_RULE: Final = RiskRule(0.0, None)
"""For a decision that does not need the rule: of a leader, or of an event without a decision."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a partition needs to know besides its own state when an event arrives.

    Attributes:
        now: Monotonic seconds.
        wall: Seconds since 1970.
        rules: The configuration.
        is_committed: Returns whether the high watermark has passed a segment's end.
        is_confirmed_since: Returns whether a broker that was asked at this time or later, in
            monotonic seconds, has named this one as the leader.
        latest_epoch: Returns the last leader epoch of the log on this broker.
        risk_rule: When the broker deletes segments of the topic.
        outages: Returns how many outages of the partition's store have ended. Asks the endpoint
            provider, which may be a slow plug-in.
        decides: False if the event is only to be applied, without a decision: while an unexpected
            error holds the partition back, or if more of its events follow at once.
    """

    now: float
    wall: float
    rules: Rules
    is_committed: Callable[[TrackedSegment], bool]
    is_confirmed_since: Callable[[float], bool]
    latest_epoch: Callable[[], LeaderEpoch] = lambda: UNKNOWN_EPOCH
    risk_rule: RiskRule = NO_RISK_RULE
    outages: Callable[[], int] = lambda: 0
    decides: bool = True


def decide(partition: "Partition", situation: Situation) -> Iterator[Action]:
    """Yield what to do next for a partition that this broker leads or follows.

    What was yielded counts even if a later step raises. Released segments come first: they are no
    longer tracked, so nothing else would ever close their files.
    """
    if partition.follows:
        yield from follow(partition, situation)
    else:
        yield from map(Release, partition.forget_stored())
        yield from lead(partition, situation)


# -- a leader --------------------------------------------------------------------------------------


def lead(partition: "Partition", situation: Situation) -> list[Action]:
    """Return what to do for a partition that this broker leads."""
    now, rules = situation.now, situation.rules
    if not rules.from_latest:
        partition.begin_with_log()
    # Before the uploads are offered: it may return stored segments to CLOSED.
    partition.plan_again()
    actions: list[Action] = []
    if partition.may_upload():
        # Only the first segments of the plan: the queue of one partition must
        # not keep the threads from segments of others that are deleted sooner.
        for planned in storable(partition, rules.window):
            actions += offer(partition, planned, situation)
    actions += mind_gap(partition, situation)
    if partition.moving is not None and not partition.requesting:
        # Nothing is quarantined before a broker has named this one as the leader once more.
        actions.append(AskBroker())
    # After the uploads and the gap, because both change what the partition needs from the store.
    request = next_request(partition, now, from_latest=rules.from_latest)
    if request is not None:
        partition.schedule_reading(now + _reading_pause(partition))
        actions.append(AskStore(request))
    elif partition.hold.until > now:
        actions.append(ScanAt(partition.hold.until))
    return actions


def offer(partition: "Partition", planned: PlannedSegment, situation: Situation) -> list[Action]:
    """Upload a segment if it is committed. Otherwise, or if it is held back, examine it later."""
    segment = partition.tracked[planned.segment.base_offset]
    # Queued, or under way.
    if segment.stage is not SegmentState.CLOSED:
        return []
    if situation.now < segment.hold.until:
        return [ScanAt(segment.hold.until)]
    if situation.is_committed(segment):
        return [Upload(segment, planned)]
    # Not known to be committed yet. The checkpoint of the broker is read again with each decision.
    return [AskBroker()]


def mind_gap(partition: "Partition", situation: Situation) -> list[Action]:
    """Wait until a gap behind the archive end may be recorded. Halt there if `on_gap` is `halt`."""
    now, rules = situation.now, situation.rules
    actions: list[Action] = []
    if partition.watch_gap(now):
        partition.wait_before_gap(_patience(partition, rules))
    second_listing = partition.gap_seen + partition.gap_patience
    if partition.gap_is_confirmed():
        # A new leader, of which this sidecar has not heard yet, may still have the records. So
        # no gap is recorded before a broker has named this one as the leader after the wait.
        partition.vouch_for_gap(vouched=situation.is_confirmed_since(second_listing))
        if not partition.gap_vouched:
            actions.append(AskBroker())
    if partition.gap is not None and now < second_listing:
        again = partition.read_again_at
        actions.append(ScanAt(min(second_listing, again) if again > now else second_listing))
    if partition.halted_at is not None:
        actions += _examine_halt(partition, now)
    if rules.on_gap == "halt" and not partition.halted:
        actions += _halt_at_gap(partition, now)
    return actions


def _halt_at_gap(partition: "Partition", now: float) -> list[Action]:
    gap = partition.gap
    if gap is None or not (partition.gap_is_confirmed() and partition.gap_vouched):
        return []
    if partition.gap_is_given_up():
        return []  # an operator has accepted it
    if partition.archive is None or not partition.archive.start_is_kept:
        return []  # a restart would begin behind the gap, and not know of it
    partition.halt_at_gap(gap)
    partition.schedule_reading(now + READ_PAST_HALT_SECONDS)
    return [*_examine_halt(partition, now), ReportGapHalt(gap)]


def _examine_halt(partition: "Partition", now: float) -> list[Action]:
    """End the halt if the gap has changed: a follower's sidecar has stored the records, or they are
    in the log again.
    """
    archive = partition.archive
    if archive is None or archive.next_offset is None:
        return []
    if partition.gap != partition.halted_at:
        partition.end_halt()
        return []
    return [ScanAt(partition.read_again_at)] if partition.read_again_at > now else []


def _patience(partition: "Partition", rules: Rules) -> float:
    """Return how long a gap waits, in seconds.

    Another broker's sidecar may still have the records: a follower's, which stores them soon, or a
    former leader's, which keeps its pins for a while in case its broker leads again.
    """
    if rules.rescue_patience is not None and not partition.is_sparse:
        return max(GAP_CONFIRM_SECONDS, RESCUES_TAKE * rules.rescue_patience)
    watermark = partition.archive.watermark if partition.archive else None
    is_ours = watermark is None or watermark.broker_id == rules.broker_id
    return GAP_CONFIRM_SECONDS if is_ours else PARK_SECONDS


def _reading_pause(partition: "Partition") -> float:
    is_halted = partition.halted_at is not None
    return READ_PAST_HALT_SECONDS if is_halted else partition.gap_patience / _GAP_READINGS


# -- a follower ------------------------------------------------------------------------------------


def follow(partition: "Partition", situation: Situation) -> Iterator[Action]:
    """Yield what to do for a partition that another broker leads.

    The store is not asked before a segment of this copy nears its deletion. Then `offset.wm` is
    read, at most once per patience. If it has not moved between two readings, the segments at risk
    are uploaded under the same conditions as by a leader: two sidecars that do so at once disturb
    each other, and do no harm.
    """
    # Set again below, so that a return in between leaves no outdated number.
    partition.note_risk(0)
    stall = partition.watermark_stall
    if partition.config is None or partition.unsure or stall is None:
        return
    if partition.is_sparse or partition.refused is not None:
        yield from map(Release, partition.untrack_all())  # each replica compacts its own copy
        return
    partition.notice_watermark()
    yield from map(Release, partition.forget_stored())
    risk = risk_of(
        partition.tracked, situation.risk_rule, situation.wall, partition.at_risk_by_size
    )
    partition.plan_again()
    partition.note_risk(risk.segments)
    if risk.next_at != float("inf"):
        yield ScanAt(situation.now + max(0.0, risk.next_at - situation.wall))
    if not risk.segments:
        # No request is made, so the known state of the archive is out of date at the next risk.
        stall.end_rescue()
        if not partition.requesting and not _is_under_way(partition):
            partition.forget_archive()
    elif not partition.requesting:
        yield from _watch_stall(partition, situation, risk)


def _watch_stall(partition: "Partition", situation: Situation, risk: Risk) -> list[Action]:
    now, stall = situation.now, partition.watermark_stall
    patience = situation.rules.patience_of(partition.topic_partition)
    if stall is None:
        return []
    read_again = stall.read_at + patience
    held = min(partition.hold.until, read_again)  # a leader that sees a gap does not wait longer
    if now < held:
        return [ScanAt(held)]
    is_fresh = now < read_again or _is_under_way(partition)
    actions: list[Action] = []
    if partition.archive is not None and is_fresh and stall.lasts(patience):
        actions = _rescue(partition, situation, risk)
    elif now >= read_again:
        return _read(partition, situation)
    return [*actions, ScanAt(read_again if now < read_again else now + patience)]


def _read(partition: "Partition", situation: Situation) -> list[Action]:
    if partition.directory is None:
        return []
    partition.forget_earlier_epoch(situation.latest_epoch())
    if partition.watermark_stall is not None:
        partition.watermark_stall.begin_reading(situation.now)
    return [] if partition.leader_epoch == UNKNOWN_EPOCH else [AskStore(Request.LOAD)]


def _rescue(partition: "Partition", situation: Situation, risk: Risk) -> list[Action]:
    """Do as a leader, but only for segments at risk, and never record a gap: another replica may
    have the records that are gone here.
    """
    if not situation.rules.from_latest:  # with `latest`, only the leader knows where to begin
        partition.begin_with_log()
    archive, stall = partition.archive, partition.watermark_stall
    if archive is None or archive.next_offset is None or risk.end is None or stall is None:
        return []
    actions: list[Action] = []
    if not stall.rescuing:
        stall.begin_rescue()
        still = situation.now - (stall.since or situation.now)
        actions.append(ReportRescue(archive.next_offset, risk.segments, still))
    if not archive.start_is_kept and (archive.start or archive.kept_start is not None):
        # Another replica's log may begin lower than ours, or than the record: its sidecar lowers
        # the record.
        return [*actions, AskStore(Request.START)]
    # Before further uploads: objects above the archive end offset are in the way of a slow leader.
    if stored_prefix(partition):
        return [*actions, AskStore(Request.COMMIT)]
    wanted = storable(partition, _RESCUED_AT_ONCE)
    wanted = [planned for planned in wanted if planned.segment.base_offset < risk.end]
    if wanted and archive.present is None:
        return [*actions, AskStore(Request.PREPARE)]
    for planned in wanted:
        actions += offer(partition, planned, situation)
    return actions


def _is_under_way(partition: "Partition") -> bool:
    return any(tracked.stage in _UNDER_WAY for tracked in partition.tracked.values())


# -- requests to the store -------------------------------------------------------------------------


def storable(partition: "Partition", window: int) -> list[PlannedSegment]:
    """Return the next `window` segments, in order, that are not stored.

    Stored segments do not count: those behind a segment that is not stored yet wait for it, and
    must not delay the segments behind them.
    """
    tracked, segments = partition.tracked, partition.plan().segments
    left = (p for p in segments if tracked[p.segment.base_offset].stage is not SegmentState.STORED)
    return list(islice(left, window))


def stored_prefix(partition: "Partition") -> list[StoredSegment]:
    """Return the stored segments that follow the archive end offset without a gap."""
    prefix = []
    for planned in partition.plan().segments:
        tracked = partition.tracked[planned.segment.base_offset]
        if tracked.stage is not SegmentState.STORED or tracked.stored is None:
            break
        # Stored for another plan: from another offset, or up to another
        # end. A commit over it would pass offsets that are not stored.
        if not tracked.is_as_planned(planned):
            break
        prefix.append(tracked.stored)
    return prefix


def next_request(partition: "Partition", now: float, *, from_latest: bool) -> Request | None:
    """Return what the partition needs from the store now; None also while it must wait."""
    busy = partition.requesting is not None or partition.unanswered is not None
    if busy or partition.unsure or now < partition.hold.until:
        return None
    if partition.halted is not None or partition.refused is not None:
        reads = partition.halted_at is not None and now >= partition.read_again_at
        return Request.LOAD if reads else None
    if partition.listed_at is None or not (partition.tracked or partition.archive):
        return None  # nothing is closed: an idle partition costs no request
    archive = partition.archive
    if archive is None:
        return Request.LOAD
    if archive.next_offset is None:
        begins = from_latest and partition.first_active is not None and not archive.is_pinterest
        return Request.START if begins else None
    return _next_write(partition, archive) or _next_reading(partition, now)


def _next_write(partition: "Partition", archive: ArchiveState) -> Request | None:
    kept_higher = archive.kept_start is not None and archive.watermark is None
    # The start must be on the store before a gap at the beginning is recorded, or before
    # the first `offset.wm`: after a kill, the archive would otherwise begin at the log
    # start of that time, and the records before it would be missing without a gap record.
    if (partition.gap is not None or kept_higher) and not archive.start_is_kept:
        return Request.START
    if stored_prefix(partition):
        return Request.COMMIT
    if partition.plan().segments:
        # Uploads need the listing of the objects above `offset.wm`. With
        # it, there is nothing to ask for until an upload has ended.
        return Request.PREPARE if archive.present is None else None
    if not (partition.gap_is_confirmed() and partition.gap_vouched):
        return None
    # The segments stored there are compared with this log before they count as the missing records.
    return Request.PREPARE if archive.present is None else Request.GAP


def _next_reading(partition: "Partition", now: float) -> Request | None:
    """Read the archive again while a gap waits for other sidecars.

    This shows whether the store answers at all, and whether they have stored the records. An
    archive without `offset.wm` is not read again: a gap at its start is known only to this process.
    """
    archive = partition.archive
    waits = partition.gap is not None and partition.gap_waits_for_others()
    waits = waits and archive is not None and archive.watermark is not None
    due = waits and not partition.gap_is_confirmed() and now >= partition.read_again_at
    return Request.LOAD if due else None


def asked(partition: "Partition", request: Request) -> Asked | None:
    """Return the request as it begins now.

    None if there is nothing left to do, for example after a new listing while it waited for a
    thread.
    """
    archive, gap = partition.archive, None
    stored: tuple[StoredSegment, ...] = ()
    if request is not Request.LOAD and archive is None:
        return None
    if request is Request.COMMIT:
        # Computed when the request begins, not when it was queued: one
        # commit covers all segments that were stored while it waited.
        stored = tuple(stored_prefix(partition))
        if not stored:
            return None
    if request is Request.GAP:
        gap = partition.gap
        if not (partition.gap_is_confirmed() and partition.gap_vouched):
            return None
    return Asked(request, partition.generation, partition.follows, archive, stored, gap)
