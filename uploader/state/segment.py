"""The state of a segment that is not stored yet, with its pinned files."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sidetier.segments.backoff import backoff
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.gates.committed_range import CommittedRange
from sidetier.uploader.pinning.pins import (
    PinnedSegment,
    PinPriority,
    SegmentTimes,
    SpooledFiles,
    Urgency,
)
from sidetier.uploader.sending.reading import FileIdentity, SendProgress
from sidetier.uploader.state.plan import Conflict, PlannedSegment

DEFAULT_RETENTION: Final = 7 * 86400.0
"""Kafka's default of `retention.ms`, in seconds."""

_FIRST_HOLD: Final = 1.0
_LONGEST_HOLD: Final = 60.0
_LOOK_AGAIN_SECONDS: Final = 300.0
"""How often a segment is looked at again whose format cannot be archived."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment whose objects are on the store.

    Attributes:
        base_offset: First offset, inclusive.
        next_offset: End, exclusive.
        modified_ms: Last write to the `.log`, in ms since 1970.
        size: Bytes of the `.log`.
        bytes_sent: Bytes of the upload; 0 if the objects were there already.
        epoch_history: At least the leader epochs of the segment's batches.
        sparse: Whether the topic is compacted, so that offsets may be missing anywhere.
        left_out: The optional files that are not stored, each with the reason.
    """

    base_offset: BaseOffset
    next_offset: Offset
    modified_ms: int
    size: int
    bytes_sent: int
    epoch_history: EpochHistory = NO_EPOCHS
    sparse: bool = False
    left_out: tuple[tuple[FileKind, str], ...] = ()


class SegmentState(Enum):
    """The states of a closed segment that is not below the archive end offset."""

    CLOSED = "waits for the high watermark"
    QUEUED = "waits for a free upload thread"
    UPLOADING = "is being uploaded"
    STORED = "waits for the watermark"


@dataclass(slots=True)
class Backoff:
    """Waits longer after each failure in a row, from 1 s to 60 s."""

    failures: int = 0
    until: float = 0.0
    error: str | None = None

    def fail(self, error: str, now: float, longest: float = math.inf) -> None:
        """Note a failure. The next try is due within `longest` seconds."""
        self.failures += 1
        self.until = now + backoff(self.failures, _FIRST_HOLD, min(longest, _LONGEST_HOLD))
        self.error = error

    def clear(self) -> None:
        """Note a success."""
        self.failures, self.until, self.error = 0, 0.0, None


@dataclass(slots=True)
class Timeline:
    """When a segment passed each step, in monotonic seconds.

    `rolled` is None if the roll was not reported by inotify, but found by a rescan.
    """

    noticed: float
    rolled: float | None = None
    committed: float | None = None
    started: float | None = None
    uploaded: float | None = None


@dataclass(slots=True)
class TrackedSegment:
    """A closed segment that is not known to be stored, or a part of the active one (`early`).

    Attributes:
        segment: The segment in the listing.
        size: Size of the `.log`, in bytes; 0 until it is pinned.
        modified_ns: Last write to the `.log`, in ns since 1970; 0 until it is pinned.
        timeline: When it passed each step.
        retention: How long the broker keeps it, in seconds from its `largest_timestamp`; infinity
            if it is unlimited.
        pinned: Its open files.
        marked_for_deletion_at: When it was first seen as `.deleted`, in seconds since 1970.
        stage: Its progress towards the archive.
        hold: The wait after a failed upload or pin.
        planned: The plan by which it was last queued.
        stored: Its objects, once it is uploaded.
        followed: Whether another broker leads its partition.
        spooled: Its links in the spool.
        suspected: A conflict with the archive that was seen once.
        conflict: The same conflict, seen twice.
        times: Times from its files; None until they are read.
        due_since: Since when `retention.bytes` lets the broker delete it, in seconds since 1970.
        epochs: The log's leader epochs up to its end, from when the pinned file was in the log.
        committed: Whether `epochs` were still the same after the high watermark had passed its end.
        progress: Counts the bytes of its last upload.
        unarchivable: Whether its format cannot be archived.
        given_up: Whether an operator has accepted the loss of its records, too: they are a gap.
        early: The part of the active segment that is stored before the broker closes it; its end is
            that of `segment`. None for a closed segment.
    """

    segment: ClosedSegment
    size: int
    modified_ns: int
    timeline: Timeline
    retention: float = DEFAULT_RETENTION
    pinned: PinnedSegment | None = None
    marked_for_deletion_at: float | None = None
    stage: SegmentState = SegmentState.CLOSED
    hold: Backoff = field(default_factory=Backoff)
    planned: PlannedSegment | None = None
    stored: StoredSegment | None = None
    followed: bool = False
    spooled: SpooledFiles | None = None
    suspected: Conflict | None = None
    conflict: Conflict | None = None
    times: SegmentTimes | None = None
    due_since: float | None = None
    epochs: EpochHistory | None = None
    committed: bool = False
    progress: SendProgress | None = None
    unarchivable: bool = False
    given_up: bool = False
    early: CommittedRange | None = None

    @classmethod
    def of_active(cls, committed: CommittedRange, now: float, hold: Backoff) -> "TrackedSegment":
        """Return the segment for a part of the active one. Closed segments are more urgent."""
        base, end = committed.segment, BaseOffset(committed.end)
        segment = ClosedSegment(base, end, marked_for_deletion=False)
        size, kept = committed.size, math.inf
        return cls(segment, size, 0, Timeline(now), kept, hold=hold, early=committed)

    @property
    def largest_timestamp(self) -> float:
        """The time from which `retention.ms` counts, in seconds since 1970; see `SegmentTimes`."""
        return self.modified_ns / 1e9 if self.times is None else self.times.largest_timestamp

    @property
    def rolled_at(self) -> float:
        """When the segment was closed, in seconds since 1970; if unknown, its last append."""
        return self.modified_ns / 1e9 if self.times is None else self.times.rolled

    @property
    def expires_at(self) -> float:
        """When the broker may delete the segment, in seconds since 1970; infinity for never."""
        expires = self.largest_timestamp + self.retention
        return expires if self.due_since is None else min(expires, self.due_since)

    @property
    def urgency(self) -> Urgency:
        """The order of uploads: the segment that the broker deletes first goes first."""
        return Urgency(not self.segment.marked_for_deletion, self.expires_at)

    @property
    def pin_priority(self) -> PinPriority:
        """Sort key of pins: followed partitions' are released first."""
        return PinPriority(self.followed, self.urgency)

    def queue(self, planned: PlannedSegment, now: float) -> None:
        """Note that the segment is committed, and waits for an upload thread."""
        self.stage, self.planned = SegmentState.QUEUED, planned
        self.timeline.committed = now

    def begin_upload(self) -> None:
        """Note that an upload thread is free. The files are opened next if they are not open."""
        self.stage = SegmentState.UPLOADING

    def unqueue(self) -> None:
        """Remove the segment from the queue, because the plan has changed."""
        if self.stage is SegmentState.QUEUED:
            self.stage = SegmentState.CLOSED

    def is_as_planned(self, planned: PlannedSegment) -> bool:
        """Whether the segment was uploaded from the same offset, up to the same end."""
        before = self.planned
        if before is None or before.start != planned.start:
            return False
        return before.segment.next_base == planned.segment.next_base

    def ends_at(self, next_offset: int) -> None:
        """Take the end from the bytes of a segment marked for deletion: file names are less
        reliable.
        """
        base = self.segment.base_offset
        self.segment = ClosedSegment(
            base, BaseOffset(next_offset), self.segment.marked_for_deletion
        )

    def cannot_be_archived(self, error: str, now: float, *, accepted: bool) -> None:
        """Record that the segment's format cannot be archived.

        Its bytes are checked again only to notice that the broker has deleted the file, or that an
        operator has accepted the loss.
        """
        self.unarchivable, self.given_up = True, accepted
        self.hold.fail(error, now)
        self.hold.until = now + _LOOK_AGAIN_SECONDS

    def follows_not(self, conflict: Conflict, *, unlinked: bool) -> None:
        """Record that the archive ends within a record batch of this segment.

        If a second upload shows the same, and the segment is `unlinked`, the offsets up to the end
        of that batch are a gap: only the log could show which of the two histories was discarded.
        """
        again, self.suspected = conflict == self.suspected, conflict
        if again and unlinked:
            self.conflict = conflict

    def keep_in(self, spooled: SpooledFiles) -> None:
        """Take links in the spool from an earlier process. Raises OSError.

        Links to another `.log` than the pinned file are removed.
        """
        if self.pinned is not None:
            if not spooled.leads_to(self.pinned.identity):
                spooled.remove()
                return
            self.pinned.own_links = 1
            self.committed = self.committed or spooled.is_committed()
        self.spooled = spooled

    def match_spool(self, identity: FileIdentity) -> None:
        """Remove the links in the spool unless they lead to this `.log`. Raises OSError.

        The broker has another file under the segment's name after it has compacted the log, or
        copied it to another log dir.
        """
        if self.spooled is not None and not self.spooled.leads_to(identity):
            self.spooled.remove()
            self.spooled = None

    def close(self) -> None:
        """Close the segment's files."""
        if self.pinned is not None:
            self.pinned.close()
            self.pinned = None

    def forget(self) -> None:
        """Close the segment's files, and remove their names in the spool."""
        self.close()
        if self.spooled is not None:
            self.spooled.remove()
            self.spooled = None

    def unlinked(self) -> bool:
        """Whether the broker has unlinked the pinned `.log`; False without a pin or on a disk
        error.
        """
        return self.pinned is not None and is_unlinked(self.pinned)

    def pin_failed(self, error: OSError, now: float) -> None:
        """Open the files again after a while, because the disk does not answer."""
        self.hold.fail(str(error), now)

    def take_pin(self, pinned: PinnedSegment, times: SegmentTimes | None) -> None:
        """Take open files.

        They may differ from the files that were open before, so the known epochs do not count. They
        do not differ from the files in the spool, so its mark of a committed segment counts.
        """
        self.pinned, self.times = pinned, times
        self.size, self.modified_ns = pinned.identity.size, pinned.identity.modified_ns
        if self.early is not None:
            self.size = self.early.size
        self.epochs = None  # recorded again while this file is in the log
        self.committed = self.spooled is not None and self.spooled.is_committed()

    def take_spooled(self, spooled: SpooledFiles | None) -> None:
        """Set the segment's names in the spool; None if it has none."""
        self.spooled = spooled

    def note_epochs(self, epochs: EpochHistory) -> None:
        """Set the log's leader epochs up to the segment's end, while its file is in the log."""
        self.epochs = epochs

    def note_committed(self, epochs: EpochHistory) -> None:
        """Compare the log's epochs after the high watermark has passed the segment's end.

        The segment is committed if they equal the epochs recorded while its file was in the log.
        """
        self.committed = epochs == self.epochs

    def upload_begins(self, now: float, progress: SendProgress) -> None:
        """Note when a thread began the upload, in monotonic seconds, and what counts its bytes."""
        self.timeline.started, self.progress = now, progress

    def held_alone(self) -> bool:
        """Whether only the sidecar keeps its bytes on the disk. Raises OSError."""
        if self.pinned is not None:
            return self.pinned.unlinked()
        return self.spooled is not None and self.spooled.is_last_name()


def is_unlinked(pinned: PinnedSegment) -> bool:
    """Return whether the broker has unlinked a pinned `.log`; False if the disk does not answer."""
    try:
        return pinned.unlinked()
    except (OSError, KeyError):  # KeyError: the daemon's thread has closed the pin meanwhile
        return False


def release(segments: Iterable[TrackedSegment]) -> None:
    """Close the files of segments that are tracked no longer, and remove their names in the
    spool.
    """
    for segment in segments:
        segment.forget()
