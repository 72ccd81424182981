"""The state of one partition: how events change it, and the actions that follow."""

import math
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import (
    ArchiveConflictError,
    DamagedSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SegmentChangedError,
    SegmentEndsElsewhereError,
    SegmentGoneError,
    SidetierError,
    StorageError,
    UnsupportedFormatError,
)
from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BaseOffset,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.errors import (
    DivergedError,
    DivergenceSuspectedError,
    OperatorNeededError,
    RecreatedError,
    StoredByAnotherError,
    StoredOtherwiseError,
    UnarchivableError,
)
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from sidetier.uploader.state.decisions import GAP_CONFIRM_SECONDS, Situation, decide
from sidetier.uploader.state.events import (
    Action,
    ArchiveMoves,
    Asked,
    Event,
    HoldBack,
    Release,
    ReportAdopted,
    ReportCommitted,
    ReportGap,
    ReportHalted,
    ReportOutdated,
    ReportRequestFailed,
    ReportRescueInterrupted,
    ReportTakeover,
    ReportUnexpected,
    ReportUploaded,
    ReportUploadFailed,
    Request,
    RequestFailed,
    RequestOvertaken,
    RequestSucceeded,
    SituationChanged,
    StoreSilent,
    UploadFailed,
    UploadPutOff,
    UploadSucceeded,
)
from sidetier.uploader.state.plan import Plan, available, first_base, plan
from sidetier.uploader.state.segment import Backoff, SegmentState, Timeline, TrackedSegment

if TYPE_CHECKING:
    from sidetier.uploader.archive.takeover import TakeoverReport

_ANSWERS: Final = (ObjectNotFoundError, PreconditionFailedError)
"""Errors by which a store answers. All other storage errors mean that it may be away, and that the
sidecars of other brokers cannot write either.
"""
_LONGEST_SUSPICION: Final = 4.0
"""Longest backoff while a divergence is suspected, in seconds. Nothing is archived until the
archive is read a second time, and segments that the broker deletes meanwhile are lost.
"""
_GROWING_WAITS: Final = 2.0
"""A gap that keeps growing is recorded after this many times its patience."""


@dataclass(slots=True)
class WatermarkStall:
    """How long `offset.wm` of a followed partition has not moved; times in monotonic seconds."""

    next_offset: Offset | None = None
    """The archive end offset that was read last; None where there is no `offset.wm`."""
    since: float | None = None
    """When this offset was read for the first time. Moves by this sidecar do not count."""
    read_at: float = float("-inf")
    """When `offset.wm` was read last."""
    rescuing: bool = False
    """Whether this sidecar stores in the place of the leader's."""

    def begin_reading(self, now: float) -> None:
        """Note that `offset.wm` is read now."""
        self.read_at = now

    def begin_rescue(self) -> None:
        """Store segments in the place of the leader's sidecar, until `offset.wm` moves again."""
        self.rescuing = True

    def end_rescue(self) -> None:
        """Leave the segments to the leader's sidecar again."""
        self.rescuing = False

    def saw(self, next_offset: Offset | None, *, ours: bool) -> None:
        """Take the offset that was read, or to which this sidecar has moved it (`ours`)."""
        if self.since is None or (next_offset != self.next_offset and not ours):
            self.since, self.rescuing = self.read_at, False
        self.next_offset = next_offset

    def lasts(self, patience: float) -> bool:
        """Whether two readings, `patience` seconds apart, have shown the same offset."""
        return self.since is not None and self.read_at - self.since >= patience


@dataclass(slots=True)
class Partition:
    """A partition that this broker leads, or of which it holds a replica (`follows`).

    Only methods of this class assign to its fields, and to those of its tracked segments. Times are
    monotonic seconds.
    """

    topic_partition: TopicPartition
    leader_epoch: LeaderEpoch
    topic_id: str | None = None

    # -- its directory, set by `LedPartitions`

    directory: str | None = None
    """None while the partition has no directory, or one that is not read."""
    unread: str | None = None
    """Why the directory is not read: it is a symbolic link that is not followed."""
    log_dir: str | None = None
    directory_inode: int | None = None
    directory_ns: int = -1
    """The directory's modification time at the last listing; -1 to have it listed again."""
    identified: bool = False
    """Whether `partition.metadata` has given the topic id."""
    replaced: bool = False
    """Whether the directory has replaced another one, and its topic id could not be read yet."""

    # -- its role

    epoch_from_cluster: bool = False
    """Whether the leader epoch comes from the cluster; otherwise from the log's checkpoint."""
    follows: bool = False
    lost: bool = False
    """Neither led nor followed: nothing is sent, and its files stay open for a while."""
    unsure: bool = False
    """The source of leadership does not answer, or names another topic id: nothing is sent."""
    released: bool = False
    """All its files were released: it is not used again."""

    # -- its topic

    config: TopicConfig | None = None
    """None until the topic's configuration is known."""
    refused: str | None = None
    """Why the topic must not be archived."""
    cleaned: bool = False
    """Whether Kafka's log cleaner has compacted a part of the log that is still there."""

    # -- its log, from the last listing

    tracked: dict[BaseOffset, TrackedSegment] = field(default_factory=dict)
    """The closed segments that are not known to be stored, by base offset."""
    active: BaseOffset | None = None
    """Base offset of the active segment."""
    first_active: BaseOffset | None = None
    """Base offset of the segment that was active at the first listing: with
    `uploader.offset_reset: latest` the archive begins there.
    """
    first_start: Offset | None = None
    """Where the log began at the first listing."""
    local_start: Offset | None = None
    """Where the log begins."""
    trimmed_to: Offset | None = None
    """Log start offset to which local retention has moved it. The broker deletes the segments below
    it at its next check.
    """
    listed_at: float | None = None
    epochs: RememberedEpochs = field(default_factory=RememberedEpochs)
    """The log's leader epochs, as far back as the sidecar has seen them."""
    spool: str | None = None
    """The directory of the partition's segments in the spool, once it has been read."""

    # -- its archive

    archive: ArchiveState | None = None
    """None until the archive is read, and while it must be read again."""
    generation: int = 0
    """Increases each time the archive must be read again. The outcome of a request or an upload
    that began in an earlier generation does not change the state.
    """
    requesting: Request | None = None
    """The request that waits for a thread, or is under way."""
    hold: Backoff = field(default_factory=Backoff)
    """After a failed request or listing."""
    outages: int = 0
    """Outages of the store whose end a request has seen."""
    unanswered: str | None = None
    """The request that hangs. No other request begins until the store has answered it."""
    last_upload_ms: int | None = None
    last_upload_bytes_per_second: int | None = None
    uploaded_bytes: int = 0
    """Bytes of all uploads since this value was created."""

    # -- reasons for which nothing is archived

    held_error: str | None = None
    """The unexpected error that holds back a step."""
    halted: str | None = None
    """Why nothing is archived until an operator acts."""
    halted_at: OffsetRange | None = None
    """The gap at which `uploader.on_gap: halt` has halted the partition. Its archive is read again
    at `read_again_at`: the sidecar of another replica may have stored the records.
    """
    read_again_at: float = 0.0
    diverged: bool = False
    """Whether the archive has another history than the log, or belongs to a deleted topic."""
    moving: str | None = None
    """Which part of the archive is being moved to quarantine, or is about to be."""

    # -- the gap behind the archive's end

    gap: OffsetRange | None = None
    gap_began: float = 0.0
    """When a gap with this start was seen first."""
    gap_seen: float = 0.0
    """When the wait for `gap_patience` began."""
    gap_patience: float = GAP_CONFIRM_SECONDS
    gap_vouched: bool = False
    """Whether a broker has named this one as the leader after the wait."""
    gap_records: int = 0
    """Offsets lost in gaps since the start of the process."""

    # -- while it follows

    watermark_stall: WatermarkStall | None = None
    """None while this broker leads."""
    at_risk: int = 0
    """Segments that the broker may delete soon."""
    at_risk_by_size: Offset | None = None
    """Segments that begin below this offset may be deleted by `retention.bytes`."""

    def observe(
        self,
        listing: PartitionListing,
        now: float,
        track: Callable[[ClosedSegment], TrackedSegment | None],
    ) -> list[TrackedSegment]:
        """Update the segments from a listing of the directory.

        Args:
            listing: The closed segments and the active one.
            now: When it was made, in monotonic seconds.
            track: Opens the files of a segment that is new; returns None where they are gone.

        Returns:
            Segments that are tracked no longer: the caller releases their files.
        """
        self.active = listing.active
        if self.first_active is None:
            self.first_active = listing.active
        self.local_start = first_base(listing.closed, listing.active)
        self.listed_at = now
        # Files that are open or linked can be stored
        # although the listing no longer shows them.
        kept = [t.segment for t in self.tracked.values() if t.pinned or t.spooled]
        available_segments = available(listing, kept)
        if self.first_start is None:
            self.first_start = first_base(available_segments, listing.active)
        by_base = {segment.base_offset: segment for segment in available_segments}
        released = [self.tracked.pop(base) for base in self._thrown_away(by_base)]
        done = self.stored_below()
        for base, segment in by_base.items():
            known = self.tracked.get(base)
            if known is not None and not self._was_copied_otherwise(known, segment):
                known.segment = _with_end(segment, known.segment)
            elif not _is_stored(segment, done) and (new := track(segment)) is not None:
                if known is not None and known.stage is not SegmentState.UPLOADING:
                    released.append(known)  # otherwise the end of its upload releases it
                self.tracked[base] = new
        return released

    def _was_copied_otherwise(self, known: TrackedSegment, segment: ClosedSegment) -> bool:
        """Return whether the copy of a segment in another log dir must be pinned in place of ours.

        The broker can move a partition to another log dir. The copy rolls segments at other
        offsets, so the segment of this base offset may end elsewhere there. If the copy is marked
        for deletion, it counts only if it has more records: its end is then known from file names
        alone.
        """
        if known.pinned is None or self.directory in {None, known.pinned.directory}:
            return False
        ours, copied = known.pinned.segment.next_base, segment.next_base
        if segment.marked_for_deletion:
            return ours is not None and copied is not None and copied > ours
        return ours != copied

    def _thrown_away(self, there: Collection[BaseOffset]) -> list[BaseOffset]:
        """Return the base offsets of segments that truncation or compaction has removed.

        A segment that is being uploaded stays tracked until the upload ends: its objects are above
        the archive end offset. A stored segment stays until that offset has passed it, even without
        files: only committed records are uploaded, so it is part of the log.
        """
        busy = {SegmentState.UPLOADING, SegmentState.STORED}
        return [
            base
            for base, tracked in self.tracked.items()
            if base not in there and tracked.stage not in busy
        ]

    def forget_stored(self) -> list[TrackedSegment]:
        """Stop tracking segments below the archive end offset. Returns those to be released."""
        done = self.stored_below()
        stored = [
            base
            for base, tracked in self.tracked.items()
            if tracked.stage is not SegmentState.UPLOADING and _is_stored(tracked.segment, done)
        ]
        return [self.tracked.pop(base) for base in stored]

    def plan_again(self) -> None:
        """Upload stored segments again that are planned otherwise now.

        Example: a segment was stored without the offsets that the segment before it seemed to have.
        That one turned out not to be part of the log, so these offsets are missing.
        """
        if not any(tracked.stage is SegmentState.STORED for tracked in self.tracked.values()):
            return
        for planned in self.plan().segments:
            tracked = self.tracked[planned.segment.base_offset]
            if tracked.stage is SegmentState.STORED and not tracked.is_as_planned(planned):
                tracked.stage, tracked.stored = SegmentState.CLOSED, None

    @property
    def is_sparse(self) -> bool:
        """Whether offsets may be missing anywhere, because the topic is or was compacted."""
        return self.cleaned or (self.config is not None and self.config.compacted)

    def is_empty(self, tracked: TrackedSegment) -> bool:
        """Whether compaction has left no record in a segment, so that nothing is to be stored."""
        return tracked.size == 0 and self.is_sparse

    def pins(self) -> int:
        """Return the number of pinned segments."""
        return sum(1 for tracked in self.tracked.values() if tracked.pinned is not None)

    def stored_below(self) -> Offset | None:
        """Return the offset below which everything is known to be stored.

        A follower uses the last reading of its leader epoch: only a later leader moves `offset.wm`
        back.
        """
        if self.archive is not None and self.archive.next_offset is not None:
            return self.archive.next_offset
        return self.watermark_stall.next_offset if self.watermark_stall else None

    def segments(self) -> list[ClosedSegment]:
        """Return the closed segments that are not known to be stored, by rising base offset."""
        return sorted(tracked.segment for tracked in self.tracked.values())

    def log_start(self) -> Offset | None:
        """Return the start of the part of this broker's log that is not stored."""
        return first_base(self.segments(), self.active)

    def plan(self) -> Plan:
        """Return the segments to store next, in order; none while the archive is not known."""
        if self.archive is None or self.archive.next_offset is None:
            return Plan()
        conflicts = {b: t.conflict for b, t in self.tracked.items() if t.conflict is not None}
        empty = [base for base, t in self.tracked.items() if self.is_empty(t)]
        segments = [s for s in self.segments() if not self.tracked[s.base_offset].given_up]
        return plan(self.archive.next_offset, segments, self.active, conflicts, empty)

    def unarchivable(self) -> OffsetRange | None:
        """Return the next offsets if their format cannot be archived, and nobody has accepted it.

        They end with the last segment in a row that is known to have such a format.
        """
        if not any(tracked.unarchivable for tracked in self.tracked.values()):
            return None  # for most partitions there is nothing to plan
        blocked = list(
            takewhile(
                lambda planned: self.tracked[planned.segment.base_offset].unarchivable,
                self.plan().segments,
            )
        )
        end = blocked[-1].segment.next_base if blocked else None
        return None if end is None else OffsetRange(blocked[0].start, Offset(end))

    def gap_is_given_up(self) -> bool:
        """Whether an operator has accepted the loss of all records in the gap."""
        if self.gap is None:
            return False
        end = self.gap.start
        for base, tracked in sorted(self.tracked.items()):
            if tracked.given_up and base <= end and tracked.segment.next_base is not None:
                end = max(end, Offset(tracked.segment.next_base))
        return end >= self.gap.end

    def resume(self, epoch: LeaderEpoch) -> None:
        """Lead (again) in this epoch. The pins stay valid; the archive must be read again."""
        self.leader_epoch, self.epoch_from_cluster = epoch, epoch != UNKNOWN_EPOCH
        self._change_role(follows=False)

    def lose(self) -> None:
        """Stop leading and following. Nothing is sent from now on, and the pins stay."""
        self.lost = True
        self.reset()

    def follow(self) -> None:
        """Follow another broker from now on. The pins stay valid."""
        self._change_role(follows=True)

    def _change_role(self, *, follows: bool) -> None:
        self.follows, self.lost = follows, False
        self.watermark_stall, self.at_risk = WatermarkStall() if follows else None, 0
        self.halted = self.halted_at = self.moving = None
        self.hold.clear()
        for tracked in self.tracked.values():
            tracked.followed = follows
        self.reset()

    def reset(self) -> None:
        """Begin a new generation: the archive must be read again, another sidecar may have written
        it.
        """
        # The only place where it changes. All outcomes
        # that were begun before are outdated from here on.
        self.generation += 1
        self.archive = None
        self.gap = None
        # Uploads under way stay UPLOADING: their threads read from
        # the descriptors. The result is dropped by its generation.
        for tracked in self.tracked.values():
            if tracked.stage in {SegmentState.QUEUED, SegmentState.STORED}:
                tracked.stage = SegmentState.CLOSED
                tracked.stored = None

    def begin_anew(self, topic_id: str | None) -> list[TrackedSegment]:
        """Begin again for another topic of the same name, which has replaced this one.

        Returns:
            Segments whose files the caller releases.
        """
        self.reset()
        # Leader epochs of another topic mean nothing for this one.
        self.topic_id, self.spool, self.epochs = topic_id, None, RememberedEpochs()
        self.first_active = self.first_start = self.listed_at = self.trimmed_to = None
        self.watermark_stall = WatermarkStall() if self.follows else None
        return self.untrack_all()

    def untrack_all(self) -> list[TrackedSegment]:
        """Stop tracking all segments. Returns those whose files the caller releases.

        Uploads under way continue. Their end releases their files and changes nothing else.
        """
        tracked, self.tracked = self.tracked, {}
        return [old for old in tracked.values() if old.stage is not SegmentState.UPLOADING]

    # -- results of the scheduler ------------------------------------------------------------------

    def doubt(self, *, unsure: bool) -> None:
        """Note whether the source of leadership does not answer, or names another topic id."""
        self.unsure = unsure

    def refuse_directory(self, reason: str | None) -> None:
        """Note why the directory is not read: it is a symbolic link that is not followed. None if
        it is read.
        """
        self.unread = reason
        if reason is not None:
            self.directory = None

    def take_epoch(self, epoch: LeaderEpoch) -> None:
        """Take the leader epoch from the log's checkpoint, because the cluster names none."""
        self.leader_epoch = epoch

    def move_to(self, directory: str, inode: int | None) -> None:
        """Use this directory from now on. It must be listed."""
        self.directory, self.directory_inode = directory, inode
        self.log_dir = os.path.dirname(directory)
        self.directory_ns, self.spool = -1, None

    def identify(self, topic_id: str | None, *, is_new: bool) -> list[TrackedSegment]:
        """Take the topic id from the directory's `partition.metadata`; None if it has none.

        If the directory `is_new` in the place of another, nothing is archived until its id can be
        read: the topic may have been deleted and created again.

        Returns:
            Segments of the topic before it: the caller releases their files.
        """
        self.identified = topic_id is not None
        self.replaced = is_new and topic_id is None and self.topic_id is not None
        if self.topic_id is None:
            self.topic_id = topic_id
        elif topic_id not in {None, self.topic_id}:
            return self.begin_anew(topic_id)
        return []

    def list_again(self) -> None:
        """List the directory again: the last listing was not used, or must be read otherwise."""
        self.directory_ns = -1

    def listing_begins(self, modified_ns: int) -> None:
        """Note the directory's modification time at the begin of its listing."""
        self.directory_ns = modified_ns

    def listing_failed(self, error: OSError, now: float) -> None:
        """Hold the partition back, because its disk does not answer."""
        self.hold.fail(str(error), now)

    def step_failed(self, error: str | None) -> None:
        """Note that an unexpected error holds back a step of this partition. Before the step is
        tried again, the directory is listed again.
        """
        self.held_error = error
        self.list_again()

    def step_succeeded(self, remaining: str | None) -> None:
        """Note that a step has succeeded. The error `remaining` still holds back another step."""
        self.held_error = remaining

    def describe_topic(self, config: TopicConfig | None, refused: str | None) -> bool:
        """Take over the topic's configuration (None: not known) and why it must not be archived.

        Returns:
            Whether the directory is to be listed again: the topic may be archived from now on, or
            `retention.bytes` was changed, and what is due by size follows from sizes on the disk.
        """
        known, self.config = self.config or TopicConfig(), config
        resized = config is not None and config.retention_bytes != known.retention_bytes
        readmitted = refused is None and self.refused is not None
        self.refused = refused
        if resized or readmitted:
            self.list_again()
        return resized or readmitted

    def retain(self, retention: float) -> bool:
        """Set how long the broker keeps each segment, in seconds.

        Returns:
            Whether that changes the urgency of a segment.
        """
        changed = [t for t in self.tracked.values() if t.retention != retention]
        for tracked in changed:
            tracked.retention = retention
        return bool(changed)

    def note_cleaned(self, *, cleaned: bool) -> None:
        """Note whether Kafka's log cleaner has compacted a part of the log that is still there."""
        self.cleaned = cleaned

    def note_risk(self, segments: int) -> None:
        """Note the number of segments that the broker may delete before the next listing."""
        self.at_risk = segments

    def note_risk_by_size(self, end: Offset | None) -> None:
        """Note the offset below which `retention.bytes` may delete segments; None if nowhere."""
        self.at_risk_by_size = end

    def note_marked_for_deletion(self, wall: float) -> None:
        """Note when segments were first seen with the suffix `.deleted`, in seconds since 1970."""
        for tracked in self.tracked.values():
            if tracked.segment.marked_for_deletion and tracked.marked_for_deletion_at is None:
                tracked.marked_for_deletion_at = wall

    def note_due_by_size(self, active_size: int, wall: float) -> None:
        """Note since when `retention.bytes` lets the broker delete each segment.

        As `RiskRule.end_by_size`, but without a margin.

        Args:
            active_size: Bytes of the active segment.
            wall: Seconds since 1970.
        """
        limit = self.config.retention_bytes if self.config is not None else None
        if limit is None:
            return
        behind = active_size
        # From the newest back: Kafka deletes a segment while
        # those behind it still have `retention.bytes`.
        for _, tracked in sorted(self.tracked.items(), reverse=True):
            if tracked.segment.marked_for_deletion:
                continue
            if behind < limit:
                tracked.due_since = None
            elif tracked.due_since is None:
                tracked.due_since = wall
            behind += tracked.size

    def track(self, tracked: TrackedSegment) -> None:
        """Track a segment that an earlier process of the sidecar has left in the spool."""
        tracked.followed = self.follows
        self.tracked[tracked.segment.base_offset] = tracked

    def spool_taken(self, place: str | None) -> None:
        """Note that the spool was read. From now on segments get names in this directory."""
        self.spool = place

    def begin_with_log(self) -> None:
        """Let a new archive begin where the log began at the first listing.

        Records that the broker has deleted since then are a gap. If Pinterest's uploader has filled
        the archive, the leader's sidecar takes it over first.
        """
        archive = self.archive
        if archive is None or archive.next_offset is not None or archive.is_pinterest:
            return
        if self.first_start is not None and (self.follows or self.tracked):
            self.archive = archive.beginning_with_log(self.first_start)

    def forget_archive(self) -> None:
        """Read the archive again before the next upload; as a follower.

        Unlike `reset`, this begins no new generation: no request or upload is under way whose
        outcome would have to be dropped.
        """
        self.archive = None

    def schedule_reading(self, at: float) -> None:
        """Set when the archive is read again while a gap, or a halt at one, waits for the sidecars
        of other brokers.
        """
        self.read_again_at = at

    def begin_request(self, request: Request) -> None:
        """Note that a request is queued. No other one is made before it has ended."""
        self.requesting = request

    def end_request(self) -> None:
        """Note that the request has ended, or is no longer needed."""
        self.requesting = None

    def notice_watermark(self) -> None:
        """Compare the archive end offset with that of the reading before; as a follower."""
        if self.archive is not None and self.watermark_stall is not None:
            has_watermark = self.archive.watermark is not None
            read = self.archive.next_offset if has_watermark else None
            self.watermark_stall.saw(read, ours=self.archive.claimed)

    def forget_earlier_epoch(self, epoch: LeaderEpoch) -> None:
        """Believe nothing that was read in an earlier leader epoch; as a follower.

        After an unclean election, the new leader's sidecar quarantines archived records and moves
        `offset.wm` back.

        Args:
            epoch: The last leader epoch of the log on this broker; -1 if it is not known.
        """
        stall = self.watermark_stall
        if stall is not None and epoch not in {UNKNOWN_EPOCH, self.leader_epoch}:
            self.leader_epoch = epoch
            self.reset()
            self.watermark_stall = WatermarkStall(read_at=stall.read_at)

    def may_upload(self) -> bool:
        """Whether the objects above `offset.wm` are known, and nothing holds the partition back."""
        return (
            self.archive is not None
            and self.archive.present is not None
            and self.halted is None
            and self.refused is None
            and self.unread is None
            and self.config is not None
            and not self.unsure
            and self.unanswered is None
        )

    # -- events -----------------------------------------------------------------------------------

    def handle(self, event: Event, situation: Situation) -> list[Action]:
        """Change the state by an event, and decide what to do next.

        Returns:
            Actions in the order in which they are carried out.
        """
        # The event counts in any case, also for a partition that
        # is lost or held back: it frees a segment or a request.
        actions = self._apply(event, situation)
        if self.lost or not situation.decides:
            return actions
        try:
            actions.extend(decide(self, situation))
        except Exception as error:  # noqa: BLE001 - the actions before it must not be lost with it
            actions.append(HoldBack(error))
        return actions

    def _apply(self, event: Event, situation: Situation) -> list[Action]:  # noqa: C901 - one case for each event
        now = situation.now
        match event:
            case SituationChanged():
                pass
            case RequestSucceeded():
                return self._request_succeeded(event, now, situation.outages())
            case RequestFailed(asked, error, takeovers):
                return [*self._taken_over(takeovers), *self._request_failed(asked, error, now)]
            case RequestOvertaken():
                self.end_request()
            case UploadSucceeded():
                return self._upload_succeeded(event, now, situation.wall)
            case UploadFailed(segment, error, unlinked):
                return self._upload_failed(segment, error, now, unlinked=unlinked)
            case UploadPutOff(segment):
                segment.stage = SegmentState.CLOSED
            case ArchiveMoves(description):
                self.moving = description
            case StoreSilent(reason):
                self.unanswered = reason
        return []

    def _request_succeeded(self, event: RequestSucceeded, now: float, outages: int) -> list[Action]:
        asked = event.asked
        if outages != self.outages:
            # The store was away, perhaps while this partition's request waited for a thread, so
            # that no request of its own has failed.
            self.outages = outages
            self._wait_anew(now)
        # Whatever the generation: the request has ended, and another one may begin.
        self.requesting = self.moving = None
        is_current = self.generation == asked.generation  # otherwise the archive must be read again
        if is_current:
            self.hold.clear()
            self.diverged = False
            self._take_over(asked.request, event.archive)
        actions = self._taken_over(event.takeovers)
        # Reported whatever the generation: `offset.wm` has moved.
        if asked.request is Request.COMMIT:
            actions.append(
                ReportCommitted(asked.stored, self._timelines(asked), asked.follows, now)
            )
        elif asked.request is Request.GAP:
            actions.append(self._stepped_over(asked, event.archive))
        if is_current:
            actions += map(Release, self.forget_stored())
        return actions

    def _take_over(self, request: Request, archive: ArchiveState) -> None:
        known = self.archive
        is_same = known is not None and known.etag is not None and known.etag == archive.etag
        if request is not Request.LOAD or self.follows or not is_same:
            self.archive = archive
        # Otherwise `offset.wm` has not changed: the earlier state stays, because it also has the
        # objects above `offset.wm`, without which no upload begins.
        if request is Request.GAP:
            self.gap = None

    def _timelines(self, asked: Asked) -> tuple[Timeline, ...]:
        return tuple(
            tracked.timeline
            for tracked in self.tracked.values()
            if tracked.stage is SegmentState.STORED and tracked.stored in asked.stored
        )

    def _stepped_over(self, asked: Asked, archive: ArchiveState) -> Action:
        before = asked.archive.watermark if asked.archive is not None else None
        base = archive.watermark.base_offset if archive.watermark is not None else None
        if base is not None and base != (before.base_offset if before is not None else None):
            return ReportAdopted(base)
        if asked.gap is None:
            raise ValueError(f"{self.topic_partition}: a gap was recorded, and none was asked for")
        return self._lost(OffsetRange(asked.gap.start, archive.next_offset or asked.gap.end))

    def _lost(self, gap: OffsetRange) -> Action:
        self.gap_records += gap.size
        return ReportGap(gap)

    def _taken_over(self, takeovers: Iterable["TakeoverReport"]) -> list[Action]:
        actions: list[Action] = []
        for report in takeovers:
            actions += [ReportTakeover(report), *map(self._lost, report.gaps)]
        return actions

    def _request_failed(self, asked: Asked, error: Exception, now: float) -> list[Action]:
        """Wait before the next try, and read again what others may have written."""
        self.requesting = None
        if self.generation != asked.generation:
            # For example after another election: the error concerns an outdated state of the
            # archive.
            return [ReportOutdated(asked.request, error)]
        if not isinstance(error, SidetierError | OSError):
            return self._request_failed_unexpectedly(asked, error, now)
        if isinstance(error, StorageError) and not isinstance(error, _ANSWERS):
            self._wait_anew(now)
        suspected = isinstance(error, DivergenceSuspectedError) and not self.follows
        self.hold.fail(str(error), now, _LONGEST_SUSPICION if suspected else math.inf)
        self.moving = str(error) if suspected else None
        if isinstance(error, ArchiveConflictError):
            if self.follows:
                self.reset()
                return [ReportRescueInterrupted(error)]
            diverged = isinstance(error, DivergedError | RecreatedError)
            self.diverged = diverged and self.moving is None
            self.reset()
        actions: list[Action] = []
        if isinstance(error, OperatorNeededError):  # a retry would fail, or fight another writer
            self.halted, self.halted_at = str(error), None
            actions.append(ReportHalted(error))
        return [*actions, ReportRequestFailed(asked.request, error)]

    def _request_failed_unexpectedly(
        self, asked: Asked, error: Exception, now: float
    ) -> list[Action]:
        """Read the archive again before the next request: this one may have had any effect."""
        before = self.hold.error
        self.hold.fail(f"{type(error).__name__}: {error}", now)
        self.moving = None
        self.reset()
        return [ReportUnexpected(f"the request to {asked.request.value}", error, before)]

    def _upload_succeeded(self, event: UploadSucceeded, now: float, wall: float) -> list[Action]:
        segment, stored = event.segment, event.stored
        if self.generation != event.generation or not self._is_tracked(segment):
            # The archive was read again since, or the segment is another file now. The next upload
            # compares the stored object with the segment before it counts as stored.
            segment.stage = SegmentState.CLOSED
            return [] if self._is_tracked(segment) else [Release(segment)]
        segment.stage, segment.stored = SegmentState.STORED, stored
        segment.timeline.uploaded = now
        segment.hold.clear()  # it stays pinned until the watermark has moved over it
        self.last_upload_ms = int(wall * 1000)
        seconds = now - (segment.timeline.started or now)
        self.uploaded_bytes += stored.bytes_sent
        if stored.bytes_sent and seconds > 0:  # otherwise the objects were there already
            self.last_upload_bytes_per_second = int(stored.bytes_sent / seconds)
        return [ReportUploaded(stored, seconds)]

    def _upload_failed(
        self, segment: TrackedSegment, error: Exception, now: float, *, unlinked: bool
    ) -> list[Action]:
        base = segment.segment.base_offset
        segment.stage = SegmentState.CLOSED
        if not isinstance(error, SidetierError | OSError):
            before, segment.stored = segment.hold.error, None
            segment.hold.fail(f"{type(error).__name__}: {error}", now)
            unexpected = ReportUnexpected(f"the upload of segment {base}", error, before)
            return [unexpected, *self._released_unless_tracked(segment)]
        if isinstance(error, SegmentEndsElsewhereError):
            segment.ends_at(error.next_offset)  # planned again, and checked by the gates again
            return self._released_unless_tracked(segment)
        if isinstance(error, UnarchivableError):
            segment.cannot_be_archived(str(error), now, accepted=error.accepted)
        else:
            segment.hold.fail(str(error), now)
        report = ReportUploadFailed(base, error, segment.hold.failures)
        # No reading of an unlinked file can succeed once its bytes are damaged. Its records are a
        # gap, and its pin must not use the room of an intact segment.
        damaged = isinstance(error, DamagedSegmentError | UnsupportedFormatError)
        is_lost = damaged and segment.hold.failures > 1 and unlinked
        if is_lost or isinstance(error, SegmentChangedError | SegmentGoneError):
            self.tracked.pop(base, None)  # the next listing shows, and pins, what is there now
        self._look_again(segment, error, unlinked=unlinked)
        return [report, *self._released_unless_tracked(segment)]

    def _released_unless_tracked(self, segment: TrackedSegment) -> list[Action]:
        return [] if self._is_tracked(segment) else [Release(segment)]

    def _is_tracked(self, segment: TrackedSegment) -> bool:
        """Whether the segment is still tracked, and not another file of its base offset."""
        return self.tracked.get(segment.segment.base_offset) is segment

    def _look_again(self, segment: TrackedSegment, error: Exception, *, unlinked: bool) -> None:
        """Read the archive again if another sidecar's object is in the way of the next segment."""
        if not isinstance(error, StoredByAnotherError | StoredOtherwiseError):
            return
        if self.archive is None or segment.planned is None:
            return
        if segment.planned.start != self.archive.next_offset:
            return  # only the segment at the archive end offset can be blocked by that object
        if isinstance(error, StoredOtherwiseError):
            segment.follows_not(error.conflict, unlinked=unlinked)
        self.reset()

    # -- gaps -----------------------------------------------------------------------------------

    def watch_gap(self, now: float) -> bool:
        """Note a gap at the archive end offset. True if it is new, so that another listing must
        show it again.
        """
        step = self.plan()
        # Segments that can be stored come first. A gap behind them counts once they are committed.
        gap = step.gap if not step.segments else None
        if gap == self.gap:
            return False
        began = self.gap.start if self.gap is not None else None
        if gap is None or gap.start != began:
            self.gap_began = now
        self.gap, self.gap_seen, self.gap_vouched = gap, now, False
        if now - self.gap_began >= _GROWING_WAITS * self.gap_patience:
            # The log start moves faster than the patience ends, and each move would begin a new
            # wait. The first part of the gap has waited long enough.
            self.gap_seen = now - self.gap_patience + GAP_CONFIRM_SECONDS
        return gap is not None

    def wait_before_gap(self, patience: float) -> None:
        """Set how long the gap waits before it may be recorded, in seconds."""
        self.gap_patience = patience

    def vouch_for_gap(self, *, vouched: bool) -> None:
        """Note whether a broker has named this one as the leader after the wait."""
        self.gap_vouched = vouched

    def halt_at_gap(self, gap: OffsetRange) -> None:
        """Archive nothing until an operator acts, or until the gap has changed."""
        self.halted = (
            f"offsets {gap} are gone from this broker before they were stored, and uploader.on_gap "
            "is halt"
        )
        self.halted_at = gap

    def end_halt(self) -> None:
        """Continue to archive: the gap at which the partition was halted has changed."""
        self.halted = self.halted_at = None

    def _wait_anew(self, now: float) -> None:
        """Begin the wait of a gap again, because the store does not answer: other sidecars could
        not store the missing records either.
        """
        self.gap_seen = self.gap_began = now
        self.gap_vouched = False

    def gap_waits_for_others(self) -> bool:
        """Whether the gap waits for the sidecars of other brokers to store the records."""
        return self.gap_patience > GAP_CONFIRM_SECONDS

    def gap_is_confirmed(self) -> bool:
        """Whether a second listing, after the patience, has shown the same gap."""
        if self.gap is None or self.listed_at is None:
            return False
        return self.listed_at - self.gap_seen >= self.gap_patience

    # -- for the status ---------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether every closed segment is stored, or nothing is archived until an operator acts."""
        if self.halted is not None or self.refused is not None:
            return True
        if self.listed_at is None:
            return self.directory is None
        return all(map(self.is_empty, self.tracked.values())) and self.gap is None

    def is_unread(self) -> bool:
        """Whether `offset.wm` has not been read yet, although a segment is closed."""
        if self.halted is not None or self.refused is not None or self.hold.error is not None:
            return False
        return self.archive is None and bool(self.tracked)

    def close(self, *, for_good: bool = True) -> None:
        """Close the files of all segments, except those of an upload under way.

        Names in the spool are removed only if it is `for_good`.
        """
        self.released = True
        for tracked in self.tracked.values():
            if tracked.stage is not SegmentState.UPLOADING:
                tracked.forget() if for_good else tracked.close()


def _is_stored(segment: ClosedSegment, done: Offset | None) -> bool:
    return done is not None and segment.next_base is not None and segment.next_base <= done


def _with_end(new: ClosedSegment, old: ClosedSegment) -> ClosedSegment:
    """Keep the known end of a segment that is marked for deletion.

    Once the segment behind it is gone, the listing no longer shows that end.
    """
    if new.marked_for_deletion and old.next_base is not None:
        return ClosedSegment(new.base_offset, old.next_base, new.marked_for_deletion)
    return new


def unstored(partitions: Iterable[Partition]) -> Iterable[tuple[Partition, TrackedSegment]]:
    """Yield the closed segments that are not stored, each with its partition."""
    for partition in partitions:
        for tracked in partition.tracked.values():
            yield partition, tracked
