"""The upload queue: segments that the broker deletes first go first, one per thread."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from sidetier.segments.errors import SegmentEndsElsewhereError, SegmentGoneError
from sidetier.segments.offsets import BaseOffset, BrokerId, TopicPartition
from sidetier.uploader.archive.health import StoresHealth
from sidetier.uploader.archive.places import PlaceOf
from sidetier.uploader.pinning.pins import Urgency
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.running.sharing import SharedPool, StoreGate
from sidetier.uploader.running.workers import Job, WorkerPool
from sidetier.uploader.sending.upload import Destination, Uploader
from sidetier.uploader.state.events import UploadFailed, UploadPutOff, UploadSucceeded
from sidetier.uploader.state.partition import Happened, Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import SegmentState, StoredSegment, TrackedSegment

if TYPE_CHECKING:
    from sidetier.uploader.pinning.pins import PinnedSegment


@dataclass(order=True, slots=True)
class _Entry:
    urgency: Urgency
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
    others stay in the log dir, and the next listing finds them again.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each argument is another part of the daemon
        self,
        uploader: Uploader,
        pool: WorkerPool,
        pins: PinTable,
        place_of: PlaceOf,
        broker_id: BrokerId,
        health: StoresHealth,
        happened: Happened,
        clock: Callable[[], float],
    ) -> None:
        self._uploader = uploader
        self._pool = SharedPool(pool, clock)
        self._pins = pins
        self._place_of = place_of
        self._broker_id = broker_id
        self._health = health
        self._happened = happened
        self._now = clock
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

    def partition_on(self, thread: int) -> TopicPartition | None:
        """Return the partition that the worker thread with this identifier uploads a segment of."""
        return self._pool.partition_on(thread)

    def offer(self, partition: Partition, tracked: TrackedSegment, planned: PlannedSegment) -> None:
        """Queue a committed segment. One that is not pinned is pinned when its turn comes."""
        line = self._lines.setdefault(self._gate_of(partition), [])
        tracked.queue(planned, self._now())
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
        """Start uploads while threads are free, by urgency over all stores that have room."""
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
                tracked.unqueue()

    def _gate_of(self, partition: Partition) -> StoreGate:
        return self._place_of(partition.topic_partition.topic).gate

    def _start(self, tracked: TrackedSegment, entry: _Entry) -> None:
        try:
            self._begin(tracked, entry)
        except Exception as error:  # noqa: BLE001 - reported to the partition
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
        tracked.upload_begins(self._now())
        generation = partition.generation

        def done(stored: StoredSegment) -> None:
            self._health.of(partition.topic_partition).succeeded()
            self._happened(partition, UploadSucceeded(tracked, generation, stored))

        self._pool.submit(
            self._gate_of(partition),
            Job(
                lambda: self._uploader.upload(
                    destination, pinned, planned, present, committed=committed
                ),
                done,
                lambda error: self._failed(partition, tracked, error),
            ),
            partition.topic_partition,
        )

    def _pin(
        self, partition: Partition, tracked: TrackedSegment, modified_ns: int
    ) -> "PinnedSegment | None":
        """Return the open files of a segment that is uploaded next; None if it is put off.

        Files that were closed to free their pin are opened again. A file that was written after
        `modified_ns`, when the high watermark was checked for it, has to pass that check again.
        """
        tracked.begin_upload()
        if tracked.pinned is None and partition.directory is not None:
            try:
                self._pins.pin_again(partition.directory, tracked)
            except (SegmentGoneError, OSError) as error:
                self._failed(partition, tracked, error)
                return None
        if tracked.pinned is None or tracked.modified_ns != modified_ns:
            self._happened(partition, UploadPutOff(tracked))
            return None
        return tracked.pinned

    def _failed(self, partition: Partition, tracked: TrackedSegment, error: Exception) -> None:
        if not isinstance(error, SegmentEndsElsewhereError):
            self._health.of(partition.topic_partition).failed(error)
        self._happened(partition, UploadFailed(tracked, error, tracked.unlinked()))

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
