"""All pins of the daemon, within their bounds: files, bytes held after deletion, free disk."""

import contextlib
import heapq
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from sidetier.config.uploader import PinsConfig
from sidetier.segments.errors import SegmentGoneError
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import REQUIRED_KINDS
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import Clock
from sidetier.uploader.pinning.pins import (
    HeldPin,
    PinnedSegment,
    PinPriority,
    SegmentTimes,
    SpooledFiles,
    pin,
    pin_spooled,
    pins_to_release,
)
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import SegmentState, Timeline, TrackedSegment
from sidetier.uploader.watching.disk import device_of, free_bytes


@dataclass(frozen=True, slots=True)
class PinTotals:
    """Totals over all pins.

    Attributes:
        segments: Number of pinned segments.
        files: Number of their open files.
        bytes: Size of their `.log` files.
        deleted_bytes: The part of `bytes` that only pins keep on the disk.
    """

    segments: int
    files: int
    bytes: int
    deleted_bytes: int


@dataclass(frozen=True, slots=True)
class _LeastUrgentFirst:
    pin_priority: PinPriority
    tracked: TrackedSegment

    def __lt__(self, other: "_LeastUrgentFirst") -> bool:
        return self.pin_priority > other.pin_priority


class PinTable:
    """Opens the files of closed segments; only of the most urgent if there are too many."""

    def __init__(self, max_files: int) -> None:
        # At least one segment, or nothing could ever be uploaded.
        self._max_files = max(len(REQUIRED_KINDS), max_files)
        self._most = self._max_files // len(REQUIRED_KINDS)
        self._count = self._files = self._bytes = 0
        self._heap: list[_LeastUrgentFirst] = []
        self._deleted_bytes = 0

    @property
    def totals(self) -> PinTotals:
        """The totals now; `deleted_bytes` is from the last call of `enforce`."""
        return PinTotals(self._count, self._files, self._bytes, self._deleted_bytes)

    def track(
        self,
        directory: str,
        segment: ClosedSegment,
        timeline: Timeline,
        retention: float,
        *,
        followed: bool = False,
    ) -> TrackedSegment | None:
        """Pin a segment that a listing has shown for the first time.

        If too many files are open, the least urgent of all pins is released, which may be this one.

        Returns:
            The segment; without a pin, but with the error and a time for the next attempt, if its
            files cannot be opened. None if its files are gone.
        """
        try:
            pinned = self._pin(directory, segment)
        except SegmentGoneError:
            return None
        except OSError as error:
            refused = TrackedSegment(segment, 0, 0, timeline, retention, followed=followed)
            refused.pin_failed(error, timeline.noticed)
            return refused
        tracked = TrackedSegment(segment, 0, 0, timeline, retention, followed=followed)
        tracked.take_pin(pinned, _times(pinned))
        self._admit(tracked)
        return tracked

    def pin_again(self, directory: str, tracked: TrackedSegment) -> None:
        """Pin a segment whose pin was released.

        A segment that is being uploaded keeps its pin: if too many files are open, another pin is
        released in its place.

        Raises:
            SegmentGoneError: its files are gone.
            OSError: they cannot be opened.
        """
        pinned = self._pin_or_spooled(directory, tracked)
        tracked.take_pin(pinned, _times(pinned))
        self._admit(tracked)

    def track_spooled(
        self, directory: str, spooled: SpooledFiles, timeline: Timeline, retention: float
    ) -> TrackedSegment | None:
        """Pin a segment that an earlier process has left in the spool; None if it is gone."""
        tracked = TrackedSegment(spooled.segment, 0, 0, timeline, retention, spooled=spooled)
        try:
            self.pin_again(directory, tracked)
        except SegmentGoneError:
            return None
        except OSError as error:
            tracked.pin_failed(error, timeline.noticed)
        return tracked

    def rank_again(self, partition: Partition) -> None:
        """Sort the pins of a partition again, after a new leader or retention changed their
        priority.
        """
        for tracked in partition.log.tracked.values():
            if tracked.pinned is not None:
                self._admit(tracked)

    def refill(self, directory: str, partition: Partition) -> None:
        """Pin segments without a pin, oldest first, while fewer files are open than allowed."""
        for _, tracked in sorted(partition.log.tracked.items()):
            if self._files + len(REQUIRED_KINDS) > self._max_files:
                return
            if tracked.pinned is None:
                # The upload opens the files again, and reports the error if it persists.
                with contextlib.suppress(SegmentGoneError, OSError):
                    self.pin_again(directory, tracked)

    def enforce(
        self,
        partitions: Iterable[Partition],
        max_deleted_bytes: int,
        short: Mapping[int, int],
        failed: Callable[[Partition, TrackedSegment, OSError], None] = lambda *_: None,
        device: Callable[[str], int | None] = device_of,
    ) -> list[HeldPin]:
        """Release pins, and links in the spool, until both limits on disk space hold.

        A pin whose file system does not answer is released, too: its files can no longer be read,
        and open descriptors would keep an operator from unmounting the disk. Its links stay.

        Args:
            partitions: All partitions that may have pins or links in the spool.
            max_deleted_bytes: Limit on the bytes that only the sidecar keeps, over all log dirs.
            short: By device, the number of bytes that are missing to its minimum of free space.
            failed: Called with each pin that is released because its file system does not answer.
            device: Returns the device of a directory.

        Returns:
            The pins that were released because of the limits.
        """
        held: dict[int | None, list[tuple[HeldPin, TrackedSegment]]] = {}
        for partition, tracked in _segments_of(partitions):
            try:
                alone = tracked.held_alone()
            except OSError as error:
                if tracked.pinned is not None and tracked.stage is not SegmentState.UPLOADING:
                    tracked.close()  # an upload under way fails by itself, and closes its files
                    failed(partition, tracked, error)
                continue
            if alone:
                tp, base = partition.topic_partition, tracked.segment.base_offset
                row = (HeldPin(tp, base, tracked.size, tracked.pin_priority), tracked)
                where = device(_directory(partition, tracked)) if short else None
                held.setdefault(where, []).append(row)
        # First each disk that is short of space, because only links and
        # pins on that disk can free it; then the limit over all disks.
        released = [
            pin for where, rows in held.items() for pin in _let_go(rows, short.get(where or 0, 0))
        ]
        gone = set(released)
        left = [row for rows in held.values() for row in rows if row[0] not in gone]
        held_bytes = sum(pin.size for pin, _ in left)
        more = _let_go(left, held_bytes - max_deleted_bytes)
        self._deleted_bytes = held_bytes - sum(pin.size for pin in more)
        return [*released, *more]

    def _pin_or_spooled(self, directory: str, tracked: TrackedSegment) -> PinnedSegment:
        """Open the files under the broker's names, or else in the spool.

        The broker's file is the segment as it is now. The spool may have an older version, from
        before compaction or from another log dir.
        """
        try:
            pinned = self._pin(directory, tracked.segment)
        except SegmentGoneError:
            if tracked.spooled is None:
                raise
            return self._count_in(pin_spooled(directory, tracked.spooled, self._closed))
        try:
            tracked.match_spool(pinned.identity)
        except OSError:
            pinned.close()
            raise
        pinned.own_links = 0 if tracked.spooled is None else 1
        return pinned

    def _pin(self, directory: str, segment: ClosedSegment) -> PinnedSegment:
        return self._count_in(pin(directory, segment, self._closed))

    def _count_in(self, pinned: PinnedSegment) -> PinnedSegment:
        self._count += 1
        self._files += len(pinned.descriptors)
        self._bytes += pinned.identity.size
        return pinned

    def _closed(self, files: int, size: int) -> None:
        self._count -= 1
        self._files -= files
        self._bytes -= size

    def _admit(self, tracked: TrackedSegment) -> None:
        """Add a pin to the heap, and release the least urgent pins while too many files are open.

        Entries are not removed when their pin is closed or their priority changes: a heap cannot do
        that cheaply. They are recognized, and dropped or added again, when they reach the top.
        """
        heapq.heappush(self._heap, _LeastUrgentFirst(tracked.pin_priority, tracked))
        busy = []
        while self._files > self._max_files and self._heap:
            least = heapq.heappop(self._heap)
            if least.tracked.pinned is None:
                continue
            if least.pin_priority != least.tracked.pin_priority:  # out of date
                heapq.heappush(
                    self._heap, _LeastUrgentFirst(least.tracked.pin_priority, least.tracked)
                )
            elif least.tracked.stage is SegmentState.UPLOADING:
                busy.append(least)  # its thread reads from the descriptors
            else:
                least.tracked.close()
        for entry in busy:
            heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * self._most:  # mostly entries of pins that are closed
            self._heap = [entry for entry in self._heap if entry.tracked.pinned is not None]
            heapq.heapify(self._heap)


def _segments_of(partitions: Iterable[Partition]) -> Iterator[tuple[Partition, TrackedSegment]]:
    for partition in partitions:
        for tracked in partition.log.tracked.values():
            yield partition, tracked


def _directory(partition: Partition, tracked: TrackedSegment) -> str:
    """Return a directory on the file system that holds the segment's bytes."""
    if tracked.spooled is not None:
        return tracked.spooled.directory
    return partition.log_dir or ""


def _times(pinned: PinnedSegment) -> SegmentTimes | None:
    """Read the segment's times; None on a disk error, which the upload of the segment reports."""
    try:
        return pinned.times()
    except OSError:
        return None


def _let_go(rows: list[tuple[HeldPin, TrackedSegment]], excess: int) -> tuple[HeldPin, ...]:
    """Close pins that hold at least `excess` bytes, except those of uploads under way.

    Their links in the spool are removed, too: otherwise no byte would be freed.
    """
    idle = {held: tracked for held, tracked in rows if tracked.stage is not SegmentState.UPLOADING}
    released = pins_to_release(list(idle), excess)
    for held in released:
        idle[held].forget()
    return released


log: Final = structlog.get_logger()

_OTHER_FILES: Final = 512
"""Descriptors that are reserved for connections and all other files."""


def enforce_bounds(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
    pins: PinTable,
    config: PinsConfig,
    log_dirs: Iterable[str],
    partitions: Iterable[Partition],
    clock: Clock,
    metrics: Metrics,
    device: Callable[[str], int | None] = device_of,
) -> None:
    """Release pins until they keep no more deleted bytes than allowed.

    The broker's disk must never fill up because of the sidecar. If the broker has deleted a segment
    that is released before it is stored, its records become a gap in the archive.
    """

    def failed(partition: Partition, tracked: TrackedSegment, error: OSError) -> None:
        """Hold back a segment whose disk does not answer. Its files are opened again later."""
        metrics.error(type(error).__name__)
        tracked.pin_failed(error, clock.monotonic())
        log.warning(
            "pin.failed",
            topic=partition.topic_partition.topic,
            partition=partition.topic_partition.partition,
            base_offset=tracked.segment.base_offset,
            error=str(error),
        )

    short = shortages(log_dirs, config, device)
    for released in pins.enforce(partitions, config.max_deleted_bytes, short, failed, device):
        _tell(released)


def _tell(released: HeldPin) -> None:
    log.error(
        "pin.released",
        topic=released.topic_partition.topic,
        partition=released.topic_partition.partition,
        base_offset=released.base_offset,
        bytes=released.size,
    )


def shortages(
    log_dirs: Iterable[str], config: PinsConfig, device: Callable[[str], int | None] = device_of
) -> dict[int, int]:
    """Return the bytes that are missing to the minimum of free space, by device of a log dir.

    Devices with enough free space are left out, and so are log dirs that are offline: no byte can
    be freed there.
    """
    missing_bytes: dict[int, int] = {}
    for log_dir in log_dirs:
        where = device(log_dir)
        if where is None:
            continue
        try:
            free, total = free_bytes(log_dir)
        except OSError:
            continue
        missing_bytes[where] = max(0, config.min_free_disk.of(total) - free)
    return {where: missing for where, missing in missing_bytes.items() if missing}


def allowed_files(wanted: int) -> int:
    """Raise the soft limit of open files as far as needed, at most to the hard limit.

    Returns:
        The number of files that pins may use; at most `wanted`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if resource.RLIM_INFINITY != soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - _OTHER_FILES)
    if allowed < wanted:
        log.warning("pins.limited", wanted_files=wanted, allowed_files=allowed, ulimit=soft)
    return max(len(REQUIRED_KINDS), allowed)
