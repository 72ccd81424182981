"""The state of one partition: how events change it, and the actions that follow."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
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
from sidetier.uploader.state.decisions import Facts, Situation, begun, follow, lead
from sidetier.uploader.state.events import (
    Action,
    ArchiveMoves,
    Asked,
    EarlyFailed,
    EarlyFound,
    EarlySearched,
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
from sidetier.uploader.state.following import Following
from sidetier.uploader.state.gap import NO_GAP, GapWatch, Halt
from sidetier.uploader.state.log import TrackedLog
from sidetier.uploader.state.plan import Plan
from sidetier.uploader.state.segment import (
    Backoff,
    SegmentState,
    StoredSegment,
    Timeline,
    TrackedSegment,
)
from sidetier.uploader.watching.disk import BatchPosition

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


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """What is known of a partition's directory.

    Attributes:
        inode: Its inode.
        modified_ns: Its modification time at the last listing; -1 to have it listed again.
        identified: Whether `partition.metadata` has given the topic id.
        replaced: Whether it has replaced another one, and its topic id could not be read yet.
    """

    inode: int | None = None
    modified_ns: int = -1
    identified: bool = False
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class UploadTotals:
    """The uploads of a partition since the start of the process.

    Attributes:
        last_ms: When the last one ended, in ms since 1970.
        last_bytes_per_second: Its rate, if it has sent bytes.
        sent_bytes: Bytes of all uploads.
    """

    last_ms: int | None = None
    last_bytes_per_second: int | None = None
    sent_bytes: int = 0

    def plus(self, sent: int, seconds: float, wall: float) -> "UploadTotals":
        """Add an upload that has ended at `wall`, in seconds since 1970."""
        rate = self.last_bytes_per_second
        if sent and seconds > 0:  # otherwise the objects were there already
            rate = int(sent / seconds)
        return UploadTotals(int(wall * 1000), rate, self.sent_bytes + sent)


@dataclass(slots=True)
class Partition:
    """A partition that this broker leads, or of which it holds a replica (`follows`).

    Only methods of this class assign to its fields. Times are monotonic seconds.
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
    directory_state: DirectoryState = DirectoryState()

    # -- its role

    epoch_from_cluster: bool = False
    """Whether the leader epoch comes from the cluster; otherwise from the log's checkpoint."""
    following: Following | None = None
    """None while this broker leads."""
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

    # -- its log

    log: TrackedLog = field(default_factory=TrackedLog)
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
    uploads: UploadTotals = UploadTotals()

    # -- reasons for which nothing is archived

    held_error: str | None = None
    """The unexpected error that holds back a step."""
    halt: Halt | None = None
    diverged: bool = False
    """Whether the archive has another history than the log, or belongs to a deleted topic."""
    moving: str | None = None
    """Which part of the archive is being moved to quarantine, or is about to be."""

    # -- the gap behind the archive's end

    gap: GapWatch = NO_GAP
    early_due: bool = False
    """Whether a part of the active segment is due to be stored: see `early`."""
    stores_tail: bool = False
    """Whether its tail is stored: it begins at the archive end offset, so the archive is read also
    while no segment is closed.
    """
    early_hold: Backoff = field(default_factory=Backoff)
    """After an early segment that was refused, or not stored: the `hold` of each of them."""
    read_again_at: float = 0.0
    """When the archive is read again while a gap, or a halt at one, waits for the sidecars of other
    brokers.
    """
    gap_records: int = 0
    """Offsets lost in gaps since the start of the process."""

    @property
    def follows(self) -> bool:
        """Whether another broker leads, and this one holds a replica."""
        return self.following is not None

    @property
    def is_sparse(self) -> bool:
        """Whether offsets may be missing anywhere, because the topic is or was compacted."""
        return self.cleaned or (self.config is not None and self.config.compacted)

    @property
    def follows_safely(self) -> bool:
        """Whether it follows, and the broker is not about to delete a segment."""
        return self.following is not None and not self.following.at_risk

    @property
    def halted(self) -> str | None:
        """Why nothing is archived until an operator acts."""
        return None if self.halt is None else self.halt.reason

    # -- its log ----------------------------------------------------------------------------------

    def observe(
        self,
        listing: PartitionListing,
        now: float,
        track: Callable[[ClosedSegment], TrackedSegment | None],
    ) -> list[TrackedSegment]:
        """Update the segments from a listing of the directory, made at `now` (monotonic seconds).

        `track` opens the files of a new segment, and returns None if they are gone. The caller
        releases the files of the returned segments.
        """
        return self.log.observe(listing, now, track, self.directory, self.stored_below())

    def is_empty(self, tracked: TrackedSegment) -> bool:
        """Whether compaction has left no record in a segment, so that there is nothing to store."""
        return tracked.size == 0 and self.is_sparse

    def stored_below(self) -> Offset | None:
        """Return the offset below which everything is known to be stored.

        A follower uses the last reading of its leader epoch: only a later leader moves `offset.wm`
        back.
        """
        if self.archive is not None and self.archive.next_offset is not None:
            return self.archive.next_offset
        return self.following.next_offset if self.following else None

    def position_in(self, segment: BaseOffset) -> BatchPosition | None:
        """Return where a batch of the segment begins, at the archive end offset or below; None if
        that is not known.
        """
        archive = self.archive
        position = None if archive is None else archive.position
        if archive is None or position is None or position.segment != segment:
            return None
        end = archive.next_offset
        return position if end is not None and position.offset <= end else None

    def plan(self) -> Plan:
        """Return the segments to store next, in order; none while the archive is not known."""
        next_offset = None if self.archive is None else self.archive.next_offset
        return self.log.plan(next_offset, sparse=self.is_sparse)

    # -- its role ---------------------------------------------------------------------------------

    def resume(self, epoch: LeaderEpoch) -> None:
        """Lead (again) in this epoch. The pins stay valid; the archive must be read again."""
        self.leader_epoch, self.epoch_from_cluster = epoch, epoch != UNKNOWN_EPOCH
        self._change_role(None)

    def lose(self) -> None:
        """Stop leading and following. Nothing is sent from now on, and the pins stay."""
        self.lost = True
        self.reset()

    def follow(self) -> None:
        """Follow another broker from now on. The pins stay valid."""
        by_size = None if self.following is None else self.following.at_risk_by_size
        self._change_role(Following(at_risk_by_size=by_size))

    def _change_role(self, following: Following | None) -> None:
        self.following, self.lost = following, False
        self.halt = self.moving = None
        self.hold.clear()
        for tracked in self.log.tracked.values():
            tracked.followed = self.follows
        self.reset()

    def reset(self) -> None:
        """Begin a new generation: the archive must be read again, another sidecar may have written
        it.
        """
        # The only place where it changes. All outcomes
        # that were begun before are outdated from here on.
        self.generation += 1
        self.archive = None
        self.gap = self.gap.without_gap()
        # The result of an upload under way is dropped by its generation.
        self.log.forget_progress()

    def begin_anew(self, topic_id: str | None) -> list[TrackedSegment]:
        """Begin again for another topic of the same name, which has replaced this one.

        Returns:
            Segments whose files the caller releases.
        """
        self.reset()
        # Leader epochs of another topic mean nothing for this one.
        self.topic_id, self.spool, self.epochs = topic_id, None, RememberedEpochs()
        self.early_due, self.early_hold = False, Backoff()
        self.following = Following() if self.follows else None
        log, self.log = self.log, TrackedLog()
        return log.untrack_all()

    # -- results of the scheduler ------------------------------------------------------------------

    def doubt(self, *, unsure: bool) -> None:
        """Note whether the source of leadership does not answer, or names another topic id."""
        self.unsure = unsure

    def refuse_directory(self, reason: str | None) -> None:
        """Record why the directory is not read: it is a symbolic link that is not followed. None if
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
        self.directory, self.log_dir = directory, os.path.dirname(directory)
        self.directory_state = replace(self.directory_state, inode=inode, modified_ns=-1)
        self.spool = None

    def identify(self, topic_id: str | None, *, is_new: bool) -> list[TrackedSegment]:
        """Take the topic id from the directory's `partition.metadata`; None if it has none.

        If the directory `is_new` in the place of another, nothing is archived until its id can be
        read: the topic may have been deleted and created again.

        Returns:
            Segments of the topic before it: the caller releases their files.
        """
        self.directory_state = replace(
            self.directory_state,
            identified=topic_id is not None,
            replaced=is_new and topic_id is None and self.topic_id is not None,
        )
        if self.topic_id is None:
            self.topic_id = topic_id
        elif topic_id not in {None, self.topic_id}:
            return self.begin_anew(topic_id)
        return []

    def list_again(self) -> None:
        """List the directory again: the last listing was not used, or must be read otherwise."""
        self.listing_begins(-1)

    def listing_begins(self, modified_ns: int) -> None:
        """Note the directory's modification time at the begin of its listing."""
        self.directory_state = replace(self.directory_state, modified_ns=modified_ns)

    def listing_failed(self, error: OSError, now: float) -> None:
        """Hold the partition back, because its disk does not answer."""
        self.hold.fail(str(error), now)

    def step_failed(self, error: str | None) -> None:
        """Record the unexpected error that holds back a step, and list the directory before the
        next try.
        """
        self.held_error = error
        self.list_again()

    def step_succeeded(self, remaining: str | None) -> None:
        """Note that a step has succeeded. The error `remaining` still holds back another step."""
        self.held_error = remaining

    def describe_topic(self, config: TopicConfig | None, refused: str | None) -> bool:
        """Take over the topic's configuration (None: not known) and why it must not be archived.

        Returns:
            Whether to list the directory again: the topic may be archived from now on, or
            `retention.bytes` was changed, and what is due by size follows from sizes on the disk.
        """
        known, self.config = self.config or TopicConfig(), config
        resized = config is not None and config.retention_bytes != known.retention_bytes
        readmitted = refused is None and self.refused is not None
        self.refused = refused
        if resized or readmitted:
            self.list_again()
        return resized or readmitted

    def note_cleaned(self, *, cleaned: bool) -> None:
        """Note whether Kafka's log cleaner has compacted a part of the log that is still there."""
        self.cleaned = cleaned

    def note_risk(self, segments: int) -> None:
        """Note the number of segments that the broker may delete before the next listing."""
        if self.following is not None:
            self.following = replace(self.following, at_risk=segments)

    def note_risk_by_size(self, end: Offset | None) -> None:
        """Note the offset below which `retention.bytes` may delete segments; None if nowhere."""
        if self.following is not None:
            self.following = replace(self.following, at_risk_by_size=end)

    def track(self, tracked: TrackedSegment) -> None:
        """Track a segment that an earlier process of the sidecar has left in the spool."""
        tracked.followed = self.follows
        self.log.tracked[tracked.segment.base_offset] = tracked

    def spool_taken(self, place: str | None) -> None:
        """Note that the spool was read. From now on segments get names in this directory."""
        self.spool = place

    def begin_request(self, request: Request) -> None:
        """Note that a request is queued. No other one is made before it has ended."""
        self.requesting = request

    def end_request(self) -> None:
        """Record that the request has ended, or is not needed any more."""
        self.requesting = None

    def enter_epoch(self, epoch: LeaderEpoch) -> None:
        """Take the last leader epoch of the log on this broker, as a follower; -1 if not known.

        Nothing that was read in an earlier epoch counts: see `Following.in_another_epoch`.
        """
        if self.following is not None and epoch not in {UNKNOWN_EPOCH, self.leader_epoch}:
            self.leader_epoch = epoch
            self.reset()
            self.following = self.following.in_another_epoch()

    def may_upload(self) -> bool:
        """Whether the objects above `offset.wm` are known, and nothing holds the partition back."""
        return (
            self.archive is not None
            and self.archive.present is not None
            and self.halt is None
            and self.refused is None
            and self.unread is None
            and self.config is not None
            and not self.unsure
            and self.unanswered is None
        )

    def note_tail(self, *, stored: bool) -> None:
        """Note whether the tail of the partition is stored while this broker leads."""
        self.stores_tail = stored

    def note_early(self, *, due: bool, now: float) -> None:
        """Note whether a part of the active segment is due to be stored."""
        self.early_due = due
        if not due and self.log.early is None and self.early_hold.until <= now:
            self.early_hold.clear()  # the part that was refused is stored otherwise, or gone

    def may_archive_early(self) -> bool:
        """Whether a part of the active segment may be stored: nothing else is stored first.

        Not of a compacted topic: compaction may have merged the batches at the end of the part by
        the time when the rest of the segment is stored.
        """
        return (
            self.following is None
            and not (self.lost or self.unsure or self.is_sparse or self.diverged)
            and self.config is not None
            and self.refused is None
            and self.halt is None
            and self.unanswered is None
            and self.gap.gap is None
            and self.log.early is None
            and not self.log.tracked
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
            actions.extend(self._decide(situation))
        except Exception as error:  # noqa: BLE001 - the actions before it must not be lost with it
            actions.append(HoldBack(error))
        return actions

    def _decide(self, situation: Situation) -> Iterator[Action]:
        """Yield what to do next for a partition that this broker leads or follows.

        What was yielded counts even if a later step raises. Released segments come first: they are
        no longer tracked, so nothing else would ever close their files.
        """
        self.note_risk(0)
        if self.following is not None and (self.config is None or self.unsure):
            return
        if self.following is not None and (self.is_sparse or self.refused is not None):
            # Each replica compacts its own copy.
            yield from map(Release, self.log.untrack_all())
            return
        yield from map(Release, self.log.forget_stored(self.stored_below()))
        yield from map(Release, self.log.drop_overtaken_early())
        has_work = bool(self.log.tracked) or self.early_due or self.stores_tail
        if self.following is None and has_work and not situation.rules.from_latest:
            self.archive = begun(self.archive, self.log.first_start)
        facts = self.facts(situation)
        self.log.plan_again(facts.plan)
        decision = lead(facts) if self.following is None else follow(facts, self.following)
        decided = decision.facts
        self.archive, self.gap, self.halt = decided.archive, decided.gap, decided.halt
        self.following, self.read_again_at = decided.following, decided.read_again_at
        yield from decision.actions

    def facts(self, situation: Situation) -> Facts:
        """Return what a decision depends on."""
        return Facts(
            self.topic_partition,
            situation,
            self.log,
            self.archive,
            self.plan(),
            self.gap,
            self.halt,
            self.following,
            self.read_again_at,
            self.hold.until,
            is_sparse=self.is_sparse,
            is_unsure=self.unsure,
            is_refused=self.refused is not None,
            is_requesting=self.requesting is not None,
            is_unanswered=self.unanswered is not None,
            is_moving=self.moving is not None,
            has_directory=self.directory is not None,
            may_upload=self.may_upload(),
            needs_archive=self.early_due or self.stores_tail,
        )

    def asked(self, request: Request) -> Asked | None:
        """Return the request as it begins now.

        None if there is nothing left to do, for example after a new listing while it waited for a
        thread.
        """
        archive, gap, stored = self.archive, None, tuple[StoredSegment, ...]()
        if request is not Request.LOAD and archive is None:
            return None
        if request is Request.COMMIT:
            # Computed when the request begins, not when it was queued: one
            # commit covers all segments that were stored while it waited.
            stored = tuple(self.log.stored_prefix(self.plan()))
            if not stored:
                return None
        if request is Request.GAP:
            gap = self.gap.gap
            if not self.gap.may_be_recorded(self.log.listed_at):
                return None
        return Asked(request, self.generation, self.follows, archive, stored, gap)

    def _apply(self, event: Event, situation: Situation) -> list[Action]:  # noqa: C901 - one case for each event
        now = situation.now
        match event:
            case SituationChanged():
                pass
            case RequestSucceeded():
                return self._request_succeeded(event, now, situation.outages)
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
            case EarlyFound() | EarlySearched() | EarlyFailed():
                self._take_early(event, now)
        return []

    def _note_position(self, position: BatchPosition) -> None:
        if self.archive is not None:
            self.archive = replace(self.archive, position=position)

    def _take_early(self, event: EarlyFound | EarlySearched | EarlyFailed, now: float) -> None:
        if event.generation != self.generation:
            return
        match event:
            case EarlyFound(committed):
                archive = self.archive
                if archive is None or not self.may_archive_early():
                    return
                # The segment may have been closed, and the archive may have grown, since the broker
                # was asked.
                if self.log.active == committed.segment and archive.next_offset == committed.start:
                    early = TrackedSegment.of_active(committed, now, self.early_hold)
                    self.log.early = early
            case EarlySearched(position):
                self._note_position(position)
            case EarlyFailed(error):
                self.early_hold.fail(_text_of(error), now)

    def _request_succeeded(
        self, event: RequestSucceeded, now: float, outages: int | None
    ) -> list[Action]:
        asked = event.asked
        if outages not in {None, self.outages}:
            # The store was away, perhaps while this partition's request waited for a thread, so
            # that no request of its own has failed.
            self.outages = outages or 0
            self.gap = self.gap.wait_anew(now)
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
            actions += map(Release, self.log.forget_stored(self.stored_below()))
        return actions

    def _take_over(self, request: Request, archive: ArchiveState) -> None:
        known = self.archive
        is_same = known is not None and known.etag is not None and known.etag == archive.etag
        if request is not Request.LOAD or self.follows or not is_same:
            self.archive = archive
        # Otherwise `offset.wm` has not changed: the earlier state stays, because it also has the
        # objects above `offset.wm`, without which no upload begins.
        if request is Request.GAP:
            self.gap = self.gap.without_gap()

    def _timelines(self, asked: Asked) -> tuple[Timeline, ...]:
        return tuple(
            tracked.timeline
            for tracked in self.log.tracked.values()
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
            self.gap = self.gap.wait_anew(now)
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
            self.halt = Halt(str(error))
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
            if segment is self.log.early:
                self.log.drop_early()
            return [] if self._is_tracked(segment) else [Release(segment)]
        segment.stage, segment.stored = SegmentState.STORED, stored
        segment.timeline.uploaded = now
        segment.hold.clear()  # it stays pinned until the watermark has moved over it
        seconds = now - (segment.timeline.started or now)
        self.uploads = self.uploads.plus(stored.bytes_sent, seconds, wall)
        if segment.early is None:
            return [ReportUploaded(stored, seconds)]
        self._note_position(segment.early.behind)
        # The broker still has the bytes, and deletes no active segment.
        return [ReportUploaded(stored, seconds, early=True), Release(segment)]

    def _upload_failed(
        self, segment: TrackedSegment, error: Exception, now: float, *, unlinked: bool
    ) -> list[Action]:
        base = segment.segment.base_offset
        segment.stage = SegmentState.CLOSED
        if segment.early is not None:
            return self._early_upload_failed(segment, error, now)
        if not isinstance(error, SidetierError | OSError):
            before, segment.stored = segment.hold.error, None
            segment.hold.fail(_text_of(error), now)
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
            self.log.tracked.pop(base, None)  # the next listing shows, and pins, what is there now
        self._look_again(segment, error, unlinked=unlinked)
        return [report, *self._released_unless_tracked(segment)]

    def _early_upload_failed(
        self, segment: TrackedSegment, error: Exception, now: float
    ) -> list[Action]:
        """Try the same part again only if the store has failed: its indexes may be stored already.

        Everything else concerns the log, which may have grown or changed since.
        """
        base, before = segment.segment.base_offset, segment.hold.error
        released = [Release(segment)]
        if segment is not self.log.early:
            return [*released]
        segment.hold.fail(_text_of(error), now)
        if isinstance(error, StorageError):
            return [ReportUploadFailed(base, error, segment.hold.failures), *released]
        self.log.drop_early()
        repeated = before == segment.hold.error
        report: Action = ReportUploadFailed(base, error, segment.hold.failures, repeated)
        if not isinstance(error, SidetierError | OSError):
            report = ReportUnexpected(f"the upload of early segment {base}", error, before)
        self._look_again(segment, error, unlinked=False)
        return [report, *released]

    def _released_unless_tracked(self, segment: TrackedSegment) -> list[Action]:
        return [] if self._is_tracked(segment) else [Release(segment)]

    def _is_tracked(self, segment: TrackedSegment) -> bool:
        """Whether the segment is still tracked, and not another file of its base offset."""
        return self.log.is_tracked(segment)

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

    # -- for the status ---------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether every closed segment is stored, or nothing is archived until an operator acts."""
        if self.halt is not None or self.refused is not None:
            return True
        if self.log.listed_at is None:
            return self.directory is None
        return all(map(self.is_empty, self.log.tracked.values())) and self.gap.gap is None

    def is_unread(self) -> bool:
        """Whether `offset.wm` has not been read yet, although a segment is closed."""
        if self.halt is not None or self.refused is not None or self.hold.error is not None:
            return False
        return self.archive is None and bool(self.log.tracked)

    def close(self, *, for_good: bool = True) -> None:
        """Close the files of all segments, except those of an upload under way. Names in the spool
        are removed only `for_good`.
        """
        self.released = True
        for tracked in self.log.tracked.values():
            if tracked.stage is not SegmentState.UPLOADING:
                tracked.forget() if for_good else tracked.close()


def _text_of(error: Exception) -> str:
    """Return the error's text; with its type if it is unexpected: that of a KeyError is only the
    key.
    """
    is_expected = isinstance(error, SidetierError | OSError)
    return str(error) if is_expected else f"{type(error).__name__}: {error}"
