"""The upload queue: what the broker deletes first goes first, one segment per thread."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

import structlog

from sidetier.segments.errors import (
    DamagedSegmentError,
    SegmentChangedError,
    SegmentEndsElsewhereError,
    SegmentGoneError,
    SidetierError,
    UnsupportedFormatError,
)
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.health import StoresHealth
from sidetier.uploader.errors import StoredByAnotherError, StoredOtherwiseError
from sidetier.uploader.pinning.policy import Urgency
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.running.clock import Clock
from sidetier.uploader.running.sharing import SharedPool, StoreGate
from sidetier.uploader.running.workers import Job, WorkerPool
from sidetier.uploader.sending.upload import Destination, Uploader
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import SegmentState, StoredSegment, TrackedSegment
from sidetier.uploader.unexpected import Subject, UnexpectedErrors, describe

if TYPE_CHECKING:
    from sidetier.uploader.pinning.pins import PinnedSegment

log: Final = structlog.get_logger()


@dataclass(order=True, slots=True)
class _Entry:
    urgency: Urgency
    base_offset: BaseOffset
    number: int
    size: int
    modified_ns: int
    """The last write to the `.log` when its high watermark was looked at."""
    partition: Partition = field(compare=False)
    planned: PlannedSegment = field(compare=False)


@dataclass(frozen=True, slots=True)
class UploadCallbacks:
    """Where a partition's segments go, and whom to tell what came of it."""

    destination: Callable[[Partition], Destination]
    gate: Callable[[Partition], StoreGate]
    settle: Callable[[Partition], None]
    health: StoresHealth


class UploadQueue:
    """Segments that may go up. It holds at most `max_queued_segments_per_partition` of each
    partition: the rest stands in the log dir and is found there again.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
        self,
        uploader: Uploader,
        pool: WorkerPool,
        pins: PinTable,
        ties: UploadCallbacks,
        clock: Clock,
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._uploader = uploader
        self._pool = SharedPool(pool, clock.monotonic)
        self._pins = pins
        self._destination = ties.destination
        self._gate = ties.gate
        self._settle = ties.settle
        self._health = ties.health
        self._now = clock.monotonic
        self._wall = clock.wall
        self._metrics = metrics
        self._errors = errors
        self._lines: dict[StoreGate, list[_Entry]] = {}
        self._numbers = count()
        self._length = self._bytes = 0

    @property
    def length(self) -> int:
        """Segments that wait for a thread."""
        return self._length

    @property
    def bytes(self) -> int:
        """Their size."""
        return self._bytes

    @property
    def busy(self) -> int:
        """Uploads under way."""
        return self._pool.busy

    def partition_on(self, thread: int) -> TopicPartition | None:
        """The partition of which the worker thread with this identifier uploads a segment now."""
        return self._pool.partition_on(thread)

    def offer(self, partition: Partition, tracked: TrackedSegment, planned: PlannedSegment) -> None:
        """Queue a committed segment; where it is not pinned, it will be when its turn comes."""
        line = self._lines.setdefault(self._gate(partition), [])
        tracked.stage, tracked.planned = SegmentState.QUEUED, planned
        tracked.timeline.committed = self._now()
        self._length += 1
        self._bytes += tracked.size
        entry = _Entry(
            tracked.urgency,
            planned.segment.base_offset,
            next(self._numbers),
            tracked.size,
            tracked.modified_ns,
            partition,
            planned,
        )
        heapq.heappush(line, entry)

    def start_some(self) -> None:
        """Start uploads while threads are free: the most urgent of the stores that have room."""
        while ready := [
            line for gate, line in self._lines.items() if line and self._pool.has_room(gate)
        ]:
            entry = heapq.heappop(min(ready))
            self._length -= 1
            self._bytes -= entry.size
            tracked = entry.partition.tracked.get(entry.planned.segment.base_offset)
            if tracked is not None and _still_wanted(tracked, entry):
                self._start(tracked, entry)
            elif tracked is not None and tracked.planned is entry.planned:
                tracked.stage = (
                    SegmentState.CLOSED if tracked.stage is SegmentState.QUEUED else tracked.stage
                )

    def _start(self, tracked: TrackedSegment, entry: _Entry) -> None:
        try:
            self._begin(tracked, entry)
        except Exception as error:  # noqa: BLE001 - it belongs to this segment
            self._failed(entry.partition, tracked, error)

    def _begin(self, tracked: TrackedSegment, entry: _Entry) -> None:
        partition, planned = entry.partition, entry.planned
        if partition.archive is None:
            return
        pinned = self._pin(partition, tracked, entry.modified_ns)
        if pinned is None:
            return
        present = partition.archive.present or frozenset()
        destination, committed = self._destination(partition), tracked.committed
        tracked.timeline.started = self._now()
        begun = partition.generation

        def done(stored: StoredSegment) -> None:
            self._health.of(partition.topic_partition).succeeded()
            if partition.generation == begun and _is_tracked(partition, tracked):
                self._done(partition, tracked, stored)
            else:
                self._outdated(partition, tracked)

        self._pool.submit(
            self._gate(partition),
            Job(
                lambda: self._uploader.upload(
                    destination, pinned, planned, present, committed=committed
                ),
                done,
                lambda error: self._failed(partition, tracked, error),
            ),
            partition.topic_partition,
        )

    def _outdated(self, partition: Partition, tracked: TrackedSegment) -> None:
        """The archive has been read anew since, or the segment comes from another file now: what is
        stored there is compared, not believed.
        """
        tracked.stage = SegmentState.CLOSED
        if not _is_tracked(partition, tracked):
            tracked.forget()
        self._settle(partition)

    def _pin(
        self, partition: Partition, tracked: TrackedSegment, modified_ns: int
    ) -> "PinnedSegment | None":
        """The files of a segment that goes up now, opened again where they had to be let go.

        A file that was written since its high watermark was looked at, at `modified_ns`, goes back
        to that gate.
        """
        tracked.stage = SegmentState.UPLOADING
        if tracked.pinned is None and partition.directory is not None:
            try:
                self._pins.pin_again(partition.directory, tracked)
            except (SegmentGoneError, OSError) as error:
                self._failed(partition, tracked, error)
                return None
        if tracked.pinned is None or tracked.modified_ns != modified_ns:
            tracked.stage = SegmentState.CLOSED
            self._settle(partition)
            return None
        return tracked.pinned

    def _done(self, partition: Partition, tracked: TrackedSegment, stored: StoredSegment) -> None:
        now = self._now()
        tracked.stage, tracked.stored = SegmentState.STORED, stored
        tracked.timeline.uploaded = now
        tracked.hold.clear()  # it stays pinned until the watermark has moved over it
        seconds = now - (tracked.timeline.started or now)
        tp = partition.topic_partition
        self._metrics.segment_uploaded(tp, stored.bytes_sent, seconds)
        log.info(
            "segment.uploaded",
            topic=tp.topic,
            partition=tp.partition,
            base_offset=stored.base_offset,
            next_offset=stored.next_offset,
            bytes=stored.size,
            seconds=round(seconds, 3),
        )
        self._tell_left_out(partition, stored)
        partition.last_upload_ms = int(self._wall() * 1000)
        self._settle(partition)

    def _tell_left_out(self, partition: Partition, stored: StoredSegment) -> None:
        """Of what is optional, and could not be read or is damaged."""
        for kind, reason in stored.left_out:
            self._metrics.left_out(kind)
            log.warning(
                "segment.file_left_out",
                topic=partition.topic_partition.topic,
                partition=partition.topic_partition.partition,
                base_offset=stored.base_offset,
                file=kind.value.removeprefix("."),
                reason=reason,
            )

    def _failed(self, partition: Partition, tracked: TrackedSegment, error: Exception) -> None:
        tp = partition.topic_partition
        tracked.stage = SegmentState.CLOSED
        if not isinstance(error, SidetierError | OSError):
            self._failed_unexpectedly(partition, tracked, error)
            return
        if isinstance(error, SegmentEndsElsewhereError):
            tracked.ends_at(error.next_offset)  # planned anew, and past the gates again
            self._settle(partition)
            return
        self._health.of(partition.topic_partition).failed(error)
        self._metrics.error(type(error).__name__)
        tracked.hold.fail(str(error), self._now())
        log.warning(
            "segment.upload_failed",
            topic=tp.topic,
            partition=tp.partition,
            base_offset=tracked.segment.base_offset,
            kind=type(error).__name__,
            error=str(error),
            failures=tracked.hold.failures,
        )
        if isinstance(error, SegmentChangedError | SegmentGoneError) or _is_beyond_hope(
            tracked, error
        ):
            tracked.forget()  # the next listing shows, and pins, what is there now
            partition.tracked.pop(tracked.segment.base_offset, None)
        if not _is_tracked(partition, tracked):
            tracked.forget()
        _look_again(partition, tracked, error)
        self._settle(partition)

    def _failed_unexpectedly(
        self, partition: Partition, tracked: TrackedSegment, error: Exception
    ) -> None:
        subject = f"the upload of segment {tracked.segment.base_offset}"
        self._errors.note(Subject(subject, partition.topic_partition), error, tracked.hold.error)
        tracked.hold.fail(describe(error), self._now())
        tracked.stored = None
        if not _is_tracked(partition, tracked):
            tracked.forget()
        self._settle(partition)


def _is_tracked(partition: Partition, tracked: TrackedSegment) -> bool:
    """False once another file has taken its place, or nothing of it is wanted."""
    return partition.tracked.get(tracked.segment.base_offset) is tracked


def _look_again(partition: Partition, tracked: TrackedSegment, error: Exception) -> None:
    """The archive is prepared anew, and follows on what is there."""
    another = isinstance(error, StoredByAnotherError | StoredOtherwiseError)
    if not (another and _is_next(partition, tracked)):
        return
    if isinstance(error, StoredOtherwiseError):
        tracked.follows_not(error.conflict)
    partition.reset()


def _is_next(partition: Partition, tracked: TrackedSegment) -> bool:
    """The segment is the one right behind the watermark."""
    if partition.archive is None or tracked.planned is None:
        return False
    return tracked.planned.start == partition.archive.next_offset


def _is_beyond_hope(tracked: TrackedSegment, error: Exception) -> bool:
    """Damaged bytes that have no name any more cannot heal: they are a gap, and must not keep
    good segments from being pinned.
    """
    damaged = isinstance(error, DamagedSegmentError | UnsupportedFormatError)
    return damaged and tracked.hold.failures > 1 and tracked.unlinked()


def _still_wanted(tracked: TrackedSegment | None, entry: _Entry) -> bool:
    return (
        tracked is not None
        and tracked.stage is SegmentState.QUEUED
        and tracked.planned is entry.planned
        and not (entry.partition.lost or entry.partition.unsure)
        and entry.partition.unanswered is None
    )
