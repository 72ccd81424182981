"""A closed segment on its way to the store, and its files while they are held; no other I/O."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.pinning.pins import (
    PinnedSegment,
    PinPriority,
    SegmentTimes,
    SpooledFiles,
    Urgency,
)
from sidetier.uploader.sending.reading import FileIdentity
from sidetier.uploader.state.plan import Conflict, PlannedSegment

DEFAULT_RETENTION: Final = 7 * 86400.0
"""Kafka's default of `retention.ms`, in seconds."""

_FIRST_HOLD: Final = 1.0
_LONGEST_HOLD: Final = 60.0


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment whose objects are on the store; `bytes_sent` is 0 when they were there.

    `epoch_history` has at least the leader epochs of its batches; in a `sparse` one records may be
    missing anywhere. `left_out` are the optional files that are not stored, and why.
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
    """Where a closed segment stands on its way to the store."""

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
        """Another failure; the next try comes within `longest` seconds."""
        longest = min(longest, _LONGEST_HOLD)
        self.until = now + min(longest, _FIRST_HOLD * 2 ** min(self.failures, 16))
        self.failures += 1
        self.error = error

    def clear(self) -> None:
        """It worked."""
        self.failures, self.until, self.error = 0, 0.0, None


@dataclass(slots=True)
class Timeline:
    """When a segment passed each step, in monotonic seconds; `rolled` only if an event told it."""

    noticed: float
    rolled: float | None = None
    committed: float | None = None
    started: float | None = None
    uploaded: float | None = None


@dataclass(slots=True)
class TrackedSegment:
    """A closed segment that is not known to be stored.

    `retention` is how long the broker keeps it, in seconds from its `largest_timestamp`, infinity
    for ever. `due_since` is since when retention.bytes lets the broker delete it, and
    `marked_for_deletion_at` is when it was renamed to `.deleted`, both in seconds since 1970. It is
    `followed` while another broker leads its partition. A `conflict` with what is stored is one
    that was `suspected`, and seen again. `epochs` are those of the log up to the segment's end,
    from when the pinned file was in the log; it is `committed` once they were still the same after
    the high watermark had passed that end.
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

    @property
    def largest_timestamp(self) -> float:
        """What retention.ms counts from, in seconds since 1970; see `SegmentTimes`."""
        return self.modified_ns / 1e9 if self.times is None else self.times.largest_timestamp

    @property
    def rolled_at(self) -> float:
        """When it was closed, in seconds since 1970; the last append where that is not known."""
        return self.modified_ns / 1e9 if self.times is None else self.times.rolled

    @property
    def expires_at(self) -> float:
        """When the broker may delete it, in seconds since 1970; infinity for never."""
        expires = self.largest_timestamp + self.retention
        return expires if self.due_since is None else min(expires, self.due_since)

    @property
    def urgency(self) -> Urgency:
        """What the broker deletes first comes first."""
        return Urgency(not self.segment.marked_for_deletion, self.expires_at)

    @property
    def pin_priority(self) -> PinPriority:
        """Of its pin: what a follower holds is let go before anything of a led partition."""
        return PinPriority(self.followed, self.urgency)

    def queue(self, planned: PlannedSegment, now: float) -> None:
        """It is committed, and waits for a free upload thread."""
        self.stage, self.planned = SegmentState.QUEUED, planned
        self.timeline.committed = now

    def begin_upload(self) -> None:
        """A thread is free for it: its files are opened next, where they are not."""
        self.stage = SegmentState.UPLOADING

    def unqueue(self) -> None:
        """Its turn came, and it is not wanted as it was planned."""
        if self.stage is SegmentState.QUEUED:
            self.stage = SegmentState.CLOSED

    def is_as_planned(self, planned: PlannedSegment) -> bool:
        """It went up from the same offset on, up to the same end."""
        before = self.planned
        if before is None or before.start != planned.start:
            return False
        return before.segment.next_base == planned.segment.next_base

    def ends_at(self, next_offset: int) -> None:
        """Its bytes tell more of a staged segment's end than the names beside it."""
        base = self.segment.base_offset
        self.segment = ClosedSegment(
            base, BaseOffset(next_offset), self.segment.marked_for_deletion
        )

    def follows_not(self, found: Conflict, *, unlinked: bool) -> None:
        """As what is stored has shown now. Seen again, of what is `unlinked`, it is a gap up to
        where that batch ends: only the log itself could tell which of them was thrown away.
        """
        again, self.suspected = found == self.suspected, found
        if again and unlinked:
            self.conflict = found

    def keep_in(self, spooled: SpooledFiles) -> None:
        """Take over names from an earlier life, unless they lead to another `.log` than the pinned
        one: those are removed. Raises OSError.
        """
        if self.pinned is not None:
            if not spooled.leads_to(self.pinned.identity):
                spooled.remove()
                return
            self.pinned.own_links = 1
            self.committed = self.committed or spooled.is_committed()
        self.spooled = spooled

    def match_spool(self, identity: FileIdentity) -> None:
        """Remove the names in the spool unless they lead to this `.log`, which the broker has under
        the segment's name: a log that was compacted, or copied to another log dir. Raises OSError.
        """
        if self.spooled is not None and not self.spooled.leads_to(identity):
            self.spooled.remove()
            self.spooled = None

    def close(self) -> None:
        """Let its files go."""
        if self.pinned is not None:
            self.pinned.close()
            self.pinned = None

    def forget(self) -> None:
        """Let its files go, and their names in the spool: nothing of it is wanted any more."""
        self.close()
        if self.spooled is not None:
            self.spooled.remove()
            self.spooled = None

    def unlinked(self) -> bool:
        """Whether the broker has unlinked the pinned `.log`. False without a pin, and where the
        file system does not answer.
        """
        return self.pinned is not None and is_unlinked(self.pinned)

    def pin_failed(self, error: OSError, now: float) -> None:
        """The disk does not answer: the files are opened again after a while."""
        self.hold.fail(str(error), now)

    def take_pin(self, pinned: PinnedSegment, times: SegmentTimes | None) -> None:
        """Hold these files open from now on.

        They may be others than those that were open before, but not than those in the spool: so
        what was known of the epochs does not hold, and a mark in the spool does.
        """
        self.pinned, self.times = pinned, times
        self.size, self.modified_ns = pinned.identity.size, pinned.identity.modified_ns
        self.epochs = None
        self.committed = self.spooled is not None and self.spooled.is_committed()

    def take_spooled(self, spooled: SpooledFiles | None) -> None:
        """The segment's names in the spool; None where it has none."""
        self.spooled = spooled

    def note_epochs(self, epochs: EpochHistory) -> None:
        """The leader epochs of the log up to the segment's end, while its file is in the log."""
        self.epochs = epochs

    def note_committed(self, epochs: EpochHistory) -> None:
        """The high watermark has passed the segment's end, and these are the log's epochs now: the
        segment is committed if they are still those from when its file was in the log.
        """
        self.committed = epochs == self.epochs

    def upload_begins(self, now: float) -> None:
        """A thread begins to upload it, in monotonic seconds."""
        self.timeline.started = now

    def held_alone(self) -> bool:
        """Whether only the sidecar keeps its bytes on the disk.

        Raises:
            OSError: the file system does not answer.
        """
        if self.pinned is not None:
            return self.pinned.unlinked()
        return self.spooled is not None and self.spooled.is_last_name()


def is_unlinked(pinned: PinnedSegment) -> bool:
    """Return whether the broker has unlinked a pinned `.log`; False if the disk does not answer."""
    try:
        return pinned.unlinked()
    except OSError:
        return False


def release(segments: Iterable[TrackedSegment]) -> None:
    """Close the files of segments that are tracked no longer, and remove their names in the
    spool.
    """
    for segment in segments:
        segment.forget()
