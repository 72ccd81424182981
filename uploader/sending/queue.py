"""The upload queue: the segment that the broker deletes first is uploaded first."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from sidetier.segments.offsets import BaseOffset, BrokerId
from sidetier.uploader.pinning.pins import Urgency
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.sending.reading import SendProgress
from sidetier.uploader.sending.upload import Destination, Uploader
from sidetier.uploader.state.events import Event, UploadFailed, UploadPutOff, UploadSucceeded
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import SegmentState, TrackedSegment, is_unlinked
from sidetier.uploader.stores import PlaceOf
from sidetier.uploader.workers import SharedPool, StoreGate, Task

if TYPE_CHECKING:
    from sidetier.uploader.pinning.pins import PinnedSegment


@dataclass(order=True, slots=True)
class _Entry:
    urgency: Urgency
    is_early: bool
    """Parts of active segments come last, in their order: no partition always waits."""
    base_offset: BaseOffset
    number: int
    size: int
    modified_ns: int
    """Last write to the `.log`, in ns since 1970, when the high watermark was checked for it."""
    partition: Partition = field(compare=False)
    planned: PlannedSegment = field(compare=False)


class UploadQueue:
    """Committed segments that wait for an upload thread.

    Its callers offer at most `max_queued_segments_per_partition` segments of each partition. The
    others stay in the log dir, and the next listing finds them again. `started` is called with the
    partition of each upload that begins.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
        self,
        uploader: Uploader,
        pool: SharedPool[Event],
        pins: PinTable,
        place_of: PlaceOf,
        broker_id: BrokerId,
        clock: Callable[[], float],
        started: Callable[[Partition], None] = lambda _: None,
    ) -> None:
        self._uploader = uploader
        self._pool = pool
        self._pins = pins
        self._place_of = place_of
        self._broker_id = broker_id
        self._now = clock
        self._started = started
        self._lines: dict[StoreGate, list[_Entry]] = {}
        self._numbers = count()
        self._length = self._bytes = 0

    @property
    def length(self) -> int:
        """Number of segments that wait for a thread."""
        return self._length

    @property
    def bytes(self) -> int:
        """Size of the waiting segments, in bytes."""
        return self._bytes

    @property
    def busy(self) -> int:
        """Number of uploads under way."""
        return self._pool.busy

    def offer(self, partition: Partition, tracked: TrackedSegment, planned: PlannedSegment) -> None:
        """Queue a committed segment. If it is not pinned, it is pinned just before its upload."""
        line = self._lines.setdefault(self._gate_of(partition), [])
        tracked.queue(planned, self._now())
        self._length += 1
        self._bytes += tracked.size
        entry = _Entry(
            tracked.urgency,
            tracked.early is not None,
            BaseOffset(0) if tracked.early is not None else planned.segment.base_offset,
            next(self._numbers),
            tracked.size,
            tracked.modified_ns,
            partition,
            planned,
        )
        heapq.heappush(line, entry)

    def start_some(self) -> list[tuple[Partition, Event]]:
        """Start uploads while threads are free, by urgency over all stores that have room.

        Returns:
            One event for each upload that could not begin.
        """
        events: list[tuple[Partition, Event]] = []
        while ready := [
            line for gate, line in self._lines.items() if line and self._pool.has_room(gate)
        ]:
            entry = heapq.heappop(min(ready))
            self._length -= 1
            self._bytes -= entry.size
            # The entry may be outdated: the segment was released, or planned again, after it was
            # queued. Entries are not removed from the heap.
            tracked = entry.partition.log.of(entry.planned)
            if tracked is not None and _still_wanted(tracked, entry):
                if (event := self._start(tracked, entry)) is not None:
                    events.append((entry.partition, event))
            elif tracked is not None and tracked.planned is entry.planned:
                tracked.unqueue()
        return events

    def _gate_of(self, partition: Partition) -> StoreGate:
        return self._place_of(partition.topic_partition.topic).gate

    def _start(self, tracked: TrackedSegment, entry: _Entry) -> Event | None:
        try:
            return self._begin(tracked, entry)
        except Exception as error:  # noqa: BLE001 - reported to the partition
            return UploadFailed(tracked, error, tracked.unlinked())

    def _begin(self, tracked: TrackedSegment, entry: _Entry) -> Event | None:
        partition, planned = entry.partition, entry.planned
        if partition.archive is None:
            return None  # only for the type: `Partition.reset` leaves no segment queued
        pinned = self._pin(partition, tracked, entry.modified_ns)
        if pinned is None:
            return UploadPutOff(tracked)
        present = partition.archive.present or frozenset()
        destination, committed, early = (
            self._destination(partition),
            tracked.committed,
            tracked.early,
        )
        # Read here, on the daemon's thread: `partition` and `tracked` change while the upload runs.
        generation, uploader = partition.generation, self._uploader
        progress = SendProgress(self._now)
        tracked.upload_begins(self._now(), progress)

        def upload() -> Event:
            stored = uploader.upload(
                destination,
                pinned,
                planned,
                present,
                committed=committed,
                progress=progress,
                early=early,
            )
            return UploadSucceeded(tracked, generation, stored)

        def failed(error: Exception) -> Event:
            # `tracked.unlinked()` would read state that the daemon's thread changes.
            return UploadFailed(tracked, error, is_unlinked(pinned))

        task: Task[Event] = Task(upload, failed)
        self._pool.submit(self._gate_of(partition), task, partition)
        self._started(partition)
        return None

    def _pin(
        self, partition: Partition, tracked: TrackedSegment, modified_ns: int
    ) -> "PinnedSegment | None":
        """Return the open files of a segment that is uploaded next; None if it is put off.

        Files that were closed to free their pin are opened again. A file that was written after
        `modified_ns`, when the high watermark was checked for it, has to pass that check again. The
        active segment is written all the time: its upload checks what it reads.

        Raises:
            SegmentGoneError: the files are gone.
            OSError: the disk does not answer.
        """
        tracked.begin_upload()
        if tracked.pinned is None and partition.directory is not None:
            self._pins.pin_again(partition.directory, tracked)
        is_checked = tracked.modified_ns == modified_ns or tracked.early is not None
        return tracked.pinned if is_checked else None

    def _destination(self, partition: Partition) -> Destination:
        place = self._place_of(partition.topic_partition.topic)
        return Destination(
            place.store,
            place.layout,
            partition.topic_partition,
            partition.leader_epoch,
            self._broker_id,
            compacted=partition.is_sparse,
            directory=partition.directory,
            topic_id=partition.topic_id,
            begins=partition.archive is not None and partition.archive.watermark is None,
            epochs=partition.epochs,
        )


def _still_wanted(tracked: TrackedSegment | None, entry: _Entry) -> bool:
    return (
        tracked is not None
        and tracked.stage is SegmentState.QUEUED
        and tracked.planned is entry.planned
        and not (entry.partition.lost or entry.partition.unsure)
        and entry.partition.unanswered is None
    )
