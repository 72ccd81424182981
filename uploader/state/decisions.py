"""Decisions of the state machine: what a partition does next. Pure functions of `Facts`.

`Partition.handle` calls `lead` or `follow` after each event. A leader stores what follows the
archive end offset, and records gaps. A follower stores only segments that its broker is about to
delete, and only while `offset.wm` does not move.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from sidetier.config.uploader import OnGap
from sidetier.segments.offsets import BaseOffset, BrokerId, Offset, TopicPartition
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.state.events import (
    Action,
    AskBroker,
    AskStore,
    ReportGapHalt,
    ReportRescue,
    Request,
    ScanAt,
    Upload,
)
from sidetier.uploader.state.following import Following
from sidetier.uploader.state.gap import GAP_CONFIRM_SECONDS, GapWatch, Halt
from sidetier.uploader.state.log import TrackedLog
from sidetier.uploader.state.plan import Plan, PlannedSegment
from sidetier.uploader.state.risk import Risk, RiskRule, risk_of
from sidetier.uploader.state.segment import SegmentState

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
class HighWatermarks:
    """What is known of a partition's high watermark.

    Attributes:
        answered: A broker's answer in the leader epoch in which this broker leads; -1 if none.
        checkpoint: The high watermark in `replication-offset-checkpoint`; -1 if there is none.
        written_ns: When that file was written, in ns since 1970.
    """

    answered: int = -1
    checkpoint: int = -1
    written_ns: int = -1

    def cover(self, end: int | None, modified_ns: int) -> bool:
        """Return whether the high watermark is known to have reached `end` (exclusive; None if
        unknown).

        `modified_ns` is the last write to the `.log`, in ns since 1970.
        """
        if end is None:
            return False
        # The checkpoint counts only if it was written after the segment's last byte: an older one
        # may be about records that were truncated since. Equal times do not count: file systems may
        # round them, so the checkpoint can be the older.
        return self.answered >= end or (self.checkpoint >= end and self.written_ns > modified_ns)


@dataclass(frozen=True, slots=True)
class Situation:
    """What a partition needs to know besides its own state when an event arrives.

    Attributes:
        now: Monotonic seconds.
        wall: Seconds since 1970.
        rules: The configuration.
        high_watermarks: What is known of the high watermark.
        lead_confirmed_at: Time of the last request whose answer named this broker as the leader,
            in monotonic seconds; infinity if there is no broker to ask.
        risk_rule: When the broker deletes segments of the topic.
        unlinked: Base offsets of the pinned segments that the broker has unlinked; for a follower.
        outages: How many outages of the partition's store have ended. None if that is not known.
        decides: False to apply the event without a decision: while an unexpected
            error holds the partition back, or if more of its events follow at once.
    """

    now: float
    wall: float
    rules: Rules
    high_watermarks: HighWatermarks = HighWatermarks()
    lead_confirmed_at: float = float("-inf")
    risk_rule: RiskRule = NO_RISK_RULE
    unlinked: Collection[BaseOffset] = ()
    outages: int | None = None
    decides: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """A partition's state and situation, as far as decisions depend on them.

    Attributes:
        topic_partition: The partition.
        situation: The time, the configuration, and the brokers' answers.
        log: Its closed segments. Decisions only read it.
        archive: The archive's last known state.
        plan: The segments to store next, and the gap behind them.
        gap: The gap behind the archive end offset.
        halt: Why nothing is archived until an operator acts.
        following: None while this broker leads.
        read_again_at: When the archive is read again while a gap, or a halt at one, waits for the
            sidecars of other brokers.
        hold_until: When the next request may begin, after a failed one.
        is_sparse: Whether offsets may be missing anywhere, because the topic is or was compacted.
        is_unsure: Whether the source of leadership does not answer, or names another topic id.
        is_refused: Whether the topic must not be archived.
        is_requesting: Whether a request waits for a thread, or is under way.
        is_unanswered: Whether a request hangs.
        is_moving: Whether a part of the archive is being moved to quarantine, or is about to be.
        has_directory: Whether the partition's directory is read.
        may_upload: Whether the objects above `offset.wm` are known, and nothing holds uploads back.
        needs_archive: Whether a part of the active segment is to be stored, also in tail packs.
    """

    topic_partition: TopicPartition
    situation: Situation
    log: TrackedLog
    archive: ArchiveState | None
    plan: Plan
    gap: GapWatch
    halt: Halt | None
    following: Following | None
    read_again_at: float
    hold_until: float
    is_sparse: bool
    is_unsure: bool
    is_refused: bool
    is_requesting: bool
    is_unanswered: bool
    is_moving: bool
    has_directory: bool
    may_upload: bool
    needs_archive: bool = False

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self.situation.now


@dataclass(frozen=True, slots=True)
class Decision:
    """What a partition does next, and the facts that the decision has changed."""

    facts: Facts
    actions: tuple[Action, ...]


# -- a leader --------------------------------------------------------------------------------------


def lead(facts: Facts) -> Decision:
    """Decide what to do for a partition that this broker leads."""
    now, rules = facts.now, facts.situation.rules
    actions: list[Action] = []
    if facts.may_upload:
        # Only the first segments of the plan: the queue of one partition must
        # not keep the threads from segments of others that are deleted sooner.
        for planned in facts.log.storable(facts.plan, rules.window):
            actions += _offer(facts, planned)
    gap = watch_gap(facts)
    actions += _wait_at_gap(facts, gap)
    halt, read_again_at = halt_at_gap(facts, gap), facts.read_again_at
    if halt is not None and halt.gap is not None:
        if halt == facts.halt:
            actions += [ScanAt(read_again_at)] if read_again_at > now else []
        else:
            read_again_at = now + READ_PAST_HALT_SECONDS
            actions += [ScanAt(read_again_at), ReportGapHalt(halt.gap)]
    if facts.is_moving and not facts.is_requesting:
        # Nothing is quarantined before a broker has named this one as the leader once more.
        actions.append(AskBroker())
    facts = replace(facts, gap=gap, halt=halt, read_again_at=read_again_at)
    # After the uploads and the gap, because both change what the partition needs from the store.
    request = next_request(facts)
    if request is not None:
        pause = READ_PAST_HALT_SECONDS if halt and halt.gap else gap.patience / _GAP_READINGS
        facts = replace(facts, read_again_at=now + pause)
        actions.append(AskStore(request))
    elif facts.hold_until > now:
        actions.append(ScanAt(facts.hold_until))
    return Decision(facts, tuple(actions))


def _offer(facts: Facts, planned: PlannedSegment) -> list[Action]:
    """Upload a segment if it is committed. Otherwise, or if it is held back, examine it later."""
    segment = facts.log.of(planned)
    # Queued, or under way.
    if segment is None or segment.stage is not SegmentState.CLOSED:
        return []
    if facts.now < segment.hold.until:
        return [ScanAt(segment.hold.until)]
    if segment.early is not None:  # its upload asks the broker itself
        return [Upload(segment, planned)]
    if facts.situation.high_watermarks.cover(segment.segment.next_base, segment.modified_ns):
        return [Upload(segment, planned)]
    # Not known to be committed yet. The checkpoint of the broker is read again with each decision.
    return [AskBroker()]


def watch_gap(facts: Facts) -> GapWatch:
    """Return how long the gap behind the archive end offset has lasted now."""
    # Segments that can be stored come first. A gap behind them counts once they are committed.
    missing = None if facts.plan.segments else facts.plan.gap
    gap = facts.gap.watch(missing, facts.now, _patience(facts))
    if gap.is_confirmed(facts.log.listed_at):
        # A new leader, of which this sidecar has not heard yet, may still have the records. So
        # no gap is recorded before a broker has named this one as the leader after the wait.
        return replace(gap, vouched=facts.situation.lead_confirmed_at >= gap.due)
    return gap


def _wait_at_gap(facts: Facts, gap: GapWatch) -> list[Action]:
    actions: list[Action] = []
    if gap.is_confirmed(facts.log.listed_at) and not gap.vouched:
        actions.append(AskBroker())
    if gap.gap is not None and facts.now < gap.due:
        again = facts.read_again_at
        actions.append(ScanAt(min(gap.due, again) if again > facts.now else gap.due))
    return actions


def halt_at_gap(facts: Facts, gap: GapWatch) -> Halt | None:
    """Return the partition's halt: it may begin or end at a gap if `on_gap` is `halt`."""
    halt, archive = facts.halt, facts.archive
    knows_end = archive is not None and archive.next_offset is not None
    if halt is not None and halt.gap is not None and knows_end and gap.gap != halt.gap:
        # A follower's sidecar has stored the records, or they are in the log again.
        halt = None
    if halt is not None or facts.situation.rules.on_gap != "halt" or gap.gap is None:
        return halt
    if not gap.may_be_recorded(facts.log.listed_at):
        return None
    if facts.log.is_given_up(gap.gap):
        return None  # an operator has accepted it
    if archive is None or not archive.start_is_kept:
        return None  # a restart would begin behind the gap, and not know of it
    return Halt.at(gap.gap)


def _patience(facts: Facts) -> float:
    """Return how long a gap waits, in seconds.

    Another broker's sidecar may still have the records: a follower's, which stores them soon, or a
    former leader's, which keeps its pins for a while in case its broker leads again.
    """
    rules = facts.situation.rules
    if rules.rescue_patience is not None and not facts.is_sparse:
        return max(GAP_CONFIRM_SECONDS, RESCUES_TAKE * rules.rescue_patience)
    watermark = facts.archive.watermark if facts.archive else None
    is_ours = watermark is None or watermark.broker_id == rules.broker_id
    return GAP_CONFIRM_SECONDS if is_ours else PARK_SECONDS


# -- a follower ------------------------------------------------------------------------------------


def follow(facts: Facts, following: Following) -> Decision:
    """Decide what to do for a partition that another broker leads.

    The store is not asked before a segment of this copy nears its deletion. Then `offset.wm` is
    read, at most once per patience. If it has not moved between two readings, the segments at risk
    are uploaded under the same conditions as by a leader: two sidecars that do so at once disturb
    each other, and do no harm.
    """
    situation, archive = facts.situation, facts.archive
    if archive is not None:
        read = archive.next_offset if archive.watermark is not None else None
        following = following.saw(read, ours=archive.claimed)
    risk = risk_of(
        facts.log.tracked,
        situation.risk_rule,
        situation.wall,
        following.at_risk_by_size,
        situation.unlinked,
    )
    following = replace(following, at_risk=risk.segments)
    actions: tuple[Action, ...] = ()
    if risk.next_at != float("inf"):
        actions = (ScanAt(facts.now + max(0.0, risk.next_at - situation.wall)),)
    if not risk.segments:
        following = replace(following, rescuing=False)
        if not facts.is_requesting and not facts.log.is_under_way:
            # No request is made, so the known state of the archive is out of date at the next risk.
            archive = None
        return Decision(replace(facts, following=following, archive=archive), actions)
    facts = replace(facts, following=following)
    if facts.is_requesting:
        return Decision(facts, actions)
    decision = _watch_stall(facts, following, risk)
    return Decision(decision.facts, actions + decision.actions)


def _watch_stall(facts: Facts, following: Following, risk: Risk) -> Decision:
    now = facts.now
    patience = facts.situation.rules.patience_of(facts.topic_partition)
    read_again = following.read_at + patience
    held = min(facts.hold_until, read_again)  # a leader that sees a gap does not wait longer
    if now < held:
        return Decision(facts, (ScanAt(held),))
    is_fresh = now < read_again or facts.log.is_under_way
    actions: tuple[Action, ...] = ()
    if facts.archive is not None and is_fresh and following.lasts(patience):
        facts, actions = _rescue(facts, following, risk)
    elif now >= read_again:
        if not facts.has_directory:
            return Decision(facts, ())
        facts = replace(facts, following=replace(following, read_at=now))
        return Decision(facts, (AskStore(Request.LOAD),))
    again = ScanAt(read_again if now < read_again else now + patience)
    return Decision(facts, (*actions, again))


def _rescue(facts: Facts, following: Following, risk: Risk) -> tuple[Facts, tuple[Action, ...]]:
    """Do as a leader, but only for segments at risk, and never record a gap: another replica may
    have the records that are gone here.
    """
    archive, log = facts.archive, facts.log
    if not facts.situation.rules.from_latest:  # with `latest`, only the leader knows where to begin
        archive = begun(archive, log.first_start)
    if archive is None or archive.next_offset is None or risk.end is None:
        return facts, ()
    if archive is not facts.archive:
        plan = log.plan(archive.next_offset, sparse=facts.is_sparse)
        facts = replace(facts, archive=archive, plan=plan)
    actions: list[Action] = []
    if not following.rescuing:
        facts = replace(facts, following=replace(following, rescuing=True))
        still = facts.now - (following.since or facts.now)
        actions.append(ReportRescue(archive.next_offset, risk.segments, still))
    request = _rescue_request(facts, archive, risk.end)
    if request is not None:
        return facts, (*actions, AskStore(request))
    for planned in _wanted(facts, risk.end):
        actions += _offer(facts, planned)
    return facts, tuple(actions)


def _rescue_request(facts: Facts, archive: ArchiveState, end: Offset) -> Request | None:
    if not archive.start_is_kept and (archive.start or archive.kept_start is not None):
        # Another replica's log may begin lower than ours, or than the record: its sidecar lowers
        # the record.
        return Request.START
    # Before further uploads: objects above the archive end offset are in the way of a slow leader.
    if facts.log.stored_prefix(facts.plan):
        return Request.COMMIT
    return Request.PREPARE if archive.present is None and _wanted(facts, end) else None


def _wanted(facts: Facts, end: Offset) -> list[PlannedSegment]:
    wanted = facts.log.storable(facts.plan, _RESCUED_AT_ONCE)
    return [planned for planned in wanted if planned.segment.base_offset < end]


# -- requests to the store -------------------------------------------------------------------------


def begun(archive: ArchiveState | None, first_start: Offset | None) -> ArchiveState | None:
    """Let a new archive begin where the log began at the first listing.

    Records that the broker has deleted since then are a gap. If Pinterest's uploader has filled the
    archive, the leader's sidecar takes it over first.
    """
    if archive is None or archive.next_offset is not None or archive.is_pinterest:
        return archive
    return archive if first_start is None else archive.beginning_with_log(first_start)


def next_request(facts: Facts) -> Request | None:
    """Return what the partition needs from the store now; None also while it must wait."""
    if (
        facts.is_requesting
        or facts.is_unanswered
        or facts.is_unsure
        or facts.now < facts.hold_until
    ):
        return None
    if facts.halt is not None or facts.is_refused:
        at_gap = facts.halt is not None and facts.halt.gap is not None
        return Request.LOAD if at_gap and facts.now >= facts.read_again_at else None
    log, archive = facts.log, facts.archive
    if log.listed_at is None or not (log.tracked or archive or facts.needs_archive):
        return None  # nothing is closed: an idle partition costs no request
    if archive is None:
        return Request.LOAD
    if archive.next_offset is None:
        begins = facts.situation.rules.from_latest and log.first_active is not None
        return Request.START if begins and not archive.is_pinterest else None
    return _next_write(facts, archive) or _next_reading(facts, archive)


def _next_write(facts: Facts, archive: ArchiveState) -> Request | None:
    kept_higher = archive.kept_start is not None and archive.watermark is None
    # The start must be on the store before a gap at the beginning is recorded, or before
    # the first `offset.wm`: after a kill, the archive would otherwise begin at the log
    # start of that time, and the records before it would be missing without a gap record.
    if (facts.gap.gap is not None or kept_higher) and not archive.start_is_kept:
        return Request.START
    if facts.log.stored_prefix(facts.plan):
        return Request.COMMIT
    if facts.plan.segments:
        # Uploads need the listing of the objects above `offset.wm`. With
        # it, there is nothing to ask for until an upload has ended.
        return Request.PREPARE if archive.present is None else None
    if not facts.gap.may_be_recorded(facts.log.listed_at):
        return None
    # The segments stored there are compared with this log before they count as the missing records.
    return Request.PREPARE if archive.present is None else Request.GAP


def _next_reading(facts: Facts, archive: ArchiveState) -> Request | None:
    """Read the archive again while a gap waits for other sidecars.

    This shows whether the store answers at all, and whether they have stored the records. An
    archive without `offset.wm` is not read again: a gap at its start is known only to this process.
    """
    gap = facts.gap
    waits = gap.gap is not None and gap.waits_for_others and archive.watermark is not None
    due = waits and not gap.is_confirmed(facts.log.listed_at) and facts.now >= facts.read_again_at
    return Request.LOAD if due else None
