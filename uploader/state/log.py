"""A partition's log as its last listing shows it, and its segments that are not stored yet."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final

from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange
from sidetier.uploader.state.plan import Plan, PlannedSegment, available, first_base, plan
from sidetier.uploader.state.segment import SegmentState, StoredSegment, TrackedSegment

_UNDER_WAY: Final = frozenset({SegmentState.QUEUED, SegmentState.UPLOADING, SegmentState.STORED})
_BUSY: Final = frozenset({SegmentState.UPLOADING, SegmentState.STORED})


@dataclass(slots=True)
class TrackedLog:
    """The closed segments that are not known to be stored, and where the log begins and ends.

    A method that ends the tracking of segments returns them: the caller releases their files.
    """

    tracked: dict[BaseOffset, TrackedSegment] = field(default_factory=dict)
    """By base offset."""
    active: BaseOffset | None = None
    """Base offset of the active segment."""
    first_active: BaseOffset | None = None
    """Base offset of the segment that was active at the first listing: with
    `uploader.offset_reset: latest` the archive begins there.
    """
    start: Offset | None = None
    """Where the log begins."""
    first_start: Offset | None = None
    """Where the log began at the first listing."""
    listed_at: float | None = None
    """When it was listed last, in monotonic seconds."""
    early: TrackedSegment | None = None
    """The part of the active segment that is being stored. Once its upload has begun, it stays when
    the broker closes the segment, which is then tracked as well: the rest of it follows. Its files
    are open only during its upload.
    """
    trimmed_to: Offset | None = None
    """Log start offset to which local retention has moved it. The broker deletes the segments below
    it at its next check.
    """

    # -- listings ---------------------------------------------------------------------------------

    def observe(
        self,
        listing: PartitionListing,
        now: float,
        track: Callable[[ClosedSegment], TrackedSegment | None],
        directory: str | None = None,
        stored_below: Offset | None = None,
    ) -> list[TrackedSegment]:
        """Update the segments from a listing of the directory.

        Args:
            listing: The closed segments and the active one.
            now: When it was made, in monotonic seconds.
            track: Opens the files of a segment that is new; returns None where they are gone.
            directory: The listed directory.
            stored_below: Segments that end at this offset or below are stored.

        Returns:
            Segments that are tracked no longer.
        """
        self.active = listing.active
        if self.first_active is None:
            self.first_active = listing.active
        self.start = first_base(listing.closed, listing.active)
        self.listed_at = now
        # Files that are open or linked can be stored
        # although the listing no longer shows them.
        kept = [t.segment for t in self.tracked.values() if t.pinned or t.spooled]
        available_segments = available(listing, kept)
        if self.first_start is None:
            self.first_start = first_base(available_segments, listing.active)
        by_base = {segment.base_offset: segment for segment in available_segments}
        released = [self.tracked.pop(base) for base in self._discarded(by_base)]
        for base, segment in by_base.items():
            known = self.tracked.get(base)
            if known is not None and not _was_copied_otherwise(known, segment, directory):
                known.segment = _with_end(segment, known.segment)
            elif not _is_stored(segment, stored_below) and (new := track(segment)) is not None:
                if known is not None and known.stage is not SegmentState.UPLOADING:
                    released.append(known)  # otherwise the end of its upload releases it
                self.tracked[base] = new
        return released

    def _discarded(self, there: Collection[BaseOffset]) -> list[BaseOffset]:
        """Return the base offsets of segments that truncation or compaction has removed.

        A segment that is being uploaded stays tracked until the upload ends: its objects are above
        the archive end offset. A stored segment stays until that offset has passed it, even without
        files: only committed records are uploaded, so it is part of the log.
        """
        return [
            base
            for base, tracked in self.tracked.items()
            if base not in there and tracked.stage not in _BUSY
        ]

    def forget_stored(self, below: Offset | None) -> list[TrackedSegment]:
        """Stop tracking the segments that end at this offset or below. Returns them."""
        stored = [
            base
            for base, tracked in self.tracked.items()
            if tracked.stage is not SegmentState.UPLOADING and _is_stored(tracked.segment, below)
        ]
        released = [self.tracked.pop(base) for base in stored]
        early = self.early
        if early is not None and early.early is not None and below not in {None, early.early.start}:
            released += self.drop_early()
        return released

    def drop_early(self) -> list[TrackedSegment]:
        """Stop tracking the part of the active segment, unless it is being uploaded. Returns it."""
        early = self.early
        if early is None or early.stage is SegmentState.UPLOADING:
            return []
        self.early = None
        return [early]

    def drop_overtaken_early(self) -> list[TrackedSegment]:
        """Stop tracking a part that no thread has begun by the time when its segment is closed.

        The closed segment has the same records, and is more urgent. Returns the part.
        """
        early = self.early
        if early is None or not self.tracked or early.stage in _BUSY:
            return []
        return self.drop_early()

    def of(self, planned: PlannedSegment) -> TrackedSegment | None:
        """Return the tracked segment that a plan names; None if it is tracked no longer."""
        early = self.early
        if early is not None and early.segment == planned.segment:
            return early
        return self.tracked.get(planned.segment.base_offset)

    def is_tracked(self, segment: TrackedSegment) -> bool:
        """Whether the segment is still tracked, and not another file of its base offset."""
        return segment is self.early or self.tracked.get(segment.segment.base_offset) is segment

    def untrack_all(self) -> list[TrackedSegment]:
        """Stop tracking all segments; return those whose files the caller releases.

        The end of an upload under way releases its own files, and changes nothing else.
        """
        tracked, self.tracked = self.tracked, {}
        closed = [old for old in tracked.values() if old.stage is not SegmentState.UPLOADING]
        return closed + self.drop_early()

    def forget_progress(self) -> None:
        """Store queued and stored segments again: the archive may have changed.

        Uploads under way stay UPLOADING: their threads read from the descriptors.
        """
        for tracked in self.tracked.values():
            if tracked.stage in {SegmentState.QUEUED, SegmentState.STORED}:
                tracked.stage, tracked.stored = SegmentState.CLOSED, None
        self.drop_early()

    def retain(self, retention: float) -> bool:
        """Set the retention of each segment, in seconds; return whether that changes an urgency."""
        changed = [t for t in self.tracked.values() if t.retention != retention]
        for tracked in changed:
            tracked.retention = retention
        return bool(changed)

    def note_marked_for_deletion(self, wall: float) -> None:
        """Note when segments were first seen with the suffix `.deleted`, in seconds since 1970."""
        for tracked in self.tracked.values():
            if tracked.segment.marked_for_deletion and tracked.marked_for_deletion_at is None:
                tracked.marked_for_deletion_at = wall

    def note_due_by_size(self, retention_bytes: int, active_size: int, wall: float) -> None:
        """Note since when `retention.bytes` lets the broker delete each segment.

        As `RiskRule.end_by_size`, but without a margin.

        Args:
            retention_bytes: `retention.bytes`.
            active_size: Bytes of the active segment.
            wall: Seconds since 1970.
        """
        behind = active_size
        # From the newest back: Kafka deletes a segment while
        # those behind it still have `retention.bytes`.
        for _, tracked in sorted(self.tracked.items(), reverse=True):
            if tracked.segment.marked_for_deletion:
                continue
            if behind < retention_bytes:
                tracked.due_since = None
            elif tracked.due_since is None:
                tracked.due_since = wall
            behind += tracked.size

    # -- what to store -----------------------------------------------------------------------------

    @property
    def unstored_start(self) -> Offset | None:
        """The start of the part of this broker's log that is not stored."""
        return first_base(self._segments(), self.active)

    def _segments(self) -> list[ClosedSegment]:
        return sorted(tracked.segment for tracked in self.tracked.values())

    def plan(self, next_offset: Offset | None, *, sparse: bool) -> Plan:
        """Return the segments to store next, in order; none if `next_offset` (the archive's) is
        unknown.

        `sparse` is set if offsets may be missing anywhere: the topic is or was compacted.
        """
        if next_offset is None:
            return Plan()
        conflicts = {b: t.conflict for b, t in self.tracked.items() if t.conflict is not None}
        empty = [base for base, t in self.tracked.items() if sparse and t.size == 0]
        segments = [s for s in self._segments() if not self.tracked[s.base_offset].given_up]
        if self.early is not None:
            # Before the closed segment of the same base offset, whose rest follows it.
            segments = sorted([self.early.segment, *segments])
        return plan(next_offset, segments, self.active, conflicts, empty)

    def plan_again(self, step: Plan) -> None:
        """Upload stored segments again that are planned otherwise now.

        Example: a segment was stored behind another one, which then proved not to be part of the
        log. The offsets between them are now missing.
        """
        for planned in step.segments:
            tracked = self._planned(planned)
            if tracked.stage is SegmentState.STORED and not tracked.is_as_planned(planned):
                tracked.stage, tracked.stored = SegmentState.CLOSED, None

    def storable(self, step: Plan, window: int) -> list[PlannedSegment]:
        """Return the next `window` segments of a plan, in order, that are not stored.

        Stored segments do not count: those behind a segment that is not stored yet wait for it, and
        must not delay the segments behind them.

        While a part of the active segment is being uploaded, nothing behind it is: the broker may
        not confirm the part, and the closed segment is then planned from its begin.
        """
        if self.early is not None and self.early.stage is SegmentState.UPLOADING:
            window = 1
        left = (
            planned
            for planned in step.segments
            if self._planned(planned).stage is not SegmentState.STORED
        )
        return list(islice(left, window))

    def stored_prefix(self, step: Plan) -> list[StoredSegment]:
        """Return the stored segments that follow the archive end offset without a gap."""
        prefix = []
        for planned in step.segments:
            tracked = self._planned(planned)
            if tracked.stage is not SegmentState.STORED or tracked.stored is None:
                break
            # Stored for another plan: from another offset, or up to another
            # end. A commit over it would pass offsets that are not stored.
            if not tracked.is_as_planned(planned):
                break
            prefix.append(tracked.stored)
        return prefix

    def _planned(self, planned: PlannedSegment) -> TrackedSegment:
        tracked = self.of(planned)
        if tracked is None:
            raise KeyError(f"segment {planned.segment.base_offset} is planned and not tracked")
        return tracked

    def unarchivable(self, next_offset: Offset | None, *, sparse: bool) -> OffsetRange | None:
        """Return the next offsets if their format cannot be archived, and nobody has accepted it.

        They end with the last segment in a row that is known to have such a format.
        """
        if not any(tracked.unarchivable for tracked in self.tracked.values()):
            return None  # for most partitions there is nothing to plan
        blocked = list(
            takewhile(
                lambda planned: self._planned(planned).unarchivable,
                self.plan(next_offset, sparse=sparse).segments,
            )
        )
        end = blocked[-1].segment.next_base if blocked else None
        return None if end is None else OffsetRange(blocked[0].start, Offset(end))

    def is_given_up(self, gap: OffsetRange) -> bool:
        """Whether an operator has accepted the loss of all records in the gap."""
        end = gap.start
        for base, tracked in sorted(self.tracked.items()):
            if tracked.given_up and base <= end and tracked.segment.next_base is not None:
                end = max(end, Offset(tracked.segment.next_base))
        return end >= gap.end

    @property
    def is_under_way(self) -> bool:
        """Whether a segment is queued, is being uploaded, or waits for its commit."""
        return any(tracked.stage in _UNDER_WAY for tracked in self._all())

    @property
    def is_uploading(self) -> bool:
        """Whether a segment is being uploaded."""
        return any(t.stage is SegmentState.UPLOADING for t in self._all())

    def _all(self) -> Iterator[TrackedSegment]:
        yield from self.tracked.values()
        if self.early is not None:
            yield self.early

    def pins(self) -> int:
        """Return the number of pinned segments."""
        return sum(1 for tracked in self.tracked.values() if tracked.pinned is not None)


def _was_copied_otherwise(
    known: TrackedSegment, segment: ClosedSegment, directory: str | None
) -> bool:
    """Return whether the copy of a segment in another log dir must be pinned in place of ours.

    The broker can move a partition to another log dir. The copy rolls segments at other offsets, so
    the segment of this base offset may end elsewhere there. If the copy is marked for deletion, it
    counts only if it has more records: its end is then known from file names alone.
    """
    if known.pinned is None or directory in {None, known.pinned.directory}:
        return False
    ours, copied = known.pinned.segment.next_base, segment.next_base
    if segment.marked_for_deletion:
        return ours is not None and copied is not None and copied > ours
    return ours != copied


def _is_stored(segment: ClosedSegment, done: Offset | None) -> bool:
    return done is not None and segment.next_base is not None and segment.next_base <= done


def _with_end(new: ClosedSegment, old: ClosedSegment) -> ClosedSegment:
    """Keep the known end of a segment marked for deletion: the listing shows it only while the next
    segment exists.
    """
    if new.marked_for_deletion and old.next_base is not None:
        return ClosedSegment(new.base_offset, old.next_base, new.marked_for_deletion)
    return new
