"""All pins of the daemon, within their bounds: files, bytes held after deletion, free disk."""

import contextlib
import heapq
import resource
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from sidetier.config.uploader import PinsConfig
from sidetier.segments.errors import SegmentGoneError
from sidetier.segments.listing import ClosedSegment
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import Clock
from sidetier.uploader.pinning.pins import (
    PINNED_KINDS,
    HeldPin,
    PinnedSegment,
    PinPriority,
    SegmentTimes,
    SpooledFiles,
    pin,
    pin_spooled,
    pins_to_release,
)
from sidetier.uploader.state.partition import Partition, unstored
from sidetier.uploader.state.segment import SegmentState, Timeline, TrackedSegment
from sidetier.uploader.watching.disk import device_of, free_bytes


@dataclass(frozen=True, slots=True)
class PinTotals:
    """Segments pinned, their open files, the bytes of their logs, and those of them that only a pin
    keeps on the disk.
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
    """Opens the files of closed segments; the most urgent ones, when not all may be open."""

    def __init__(self, max_files: int) -> None:
        self._max_files = max(len(PINNED_KINDS), max_files)
        self._most = self._max_files // len(PINNED_KINDS)
        self._count = self._files = self._bytes = 0
        self._heap: list[_LeastUrgentFirst] = []
        self._deleted_bytes = 0

    @property
    def totals(self) -> PinTotals:
        """As of now; the bytes as of the last `enforce`."""
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
        """A segment just found, pinned; None when its files are gone.

        Where there is no room, the least urgent of all pins is let go, perhaps this one. What
        cannot be opened is tried again, and says why.
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
        """Pin a segment that had been let go. One that is being uploaded gets its pin for sure, at
        the cost of the least urgent one.

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
        """A segment that an earlier life has left in the spool, pinned; None when it is gone."""
        tracked = TrackedSegment(spooled.segment, 0, 0, timeline, retention, spooled=spooled)
        try:
            self.pin_again(directory, tracked)
        except SegmentGoneError:
            return None
        except OSError as error:
            tracked.pin_failed(error, timeline.noticed)
        return tracked

    def rank_again(self, partition: Partition) -> None:
        """Take over that its pins are more urgent than before, or less: another broker leads it
        from now on, or its topic has another retention.
        """
        for tracked in partition.tracked.values():
            if tracked.pinned is not None:
                self._admit(tracked)

    def refill(self, directory: str, partition: Partition) -> None:
        """Pin what had to wait, oldest first, while there is room."""
        for _, tracked in sorted(partition.tracked.items()):
            if self._files + len(PINNED_KINDS) > self._max_files:
                return
            if tracked.pinned is None:
                with contextlib.suppress(SegmentGoneError, OSError):  # an upload's try tells it
                    self.pin_again(directory, tracked)

    def enforce(
        self,
        partitions: Iterable[Partition],
        max_deleted_bytes: int,
        short: Mapping[int, int],
        failed: Callable[[Partition, TrackedSegment, OSError], None] = lambda *_: None,
        device: Callable[[str], int | None] = device_of,
    ) -> list[HeldPin]:
        """Release what the bounds on held bytes and free disk do not allow.

        A pin whose file system no longer answers is let go, too: it can no longer be read, and
        would keep the disk from being unmounted. The names in the spool stay.

        Args:
            partitions: All that may hold pins, or have names in the spool.
            max_deleted_bytes: Bound of the bytes that only the sidecar keeps, over all log dirs.
            short: How many bytes each device has less than its floor of free disk.
            failed: Called with each pin that was let go because its file system does not answer.
            device: The device of a directory.

        Returns:
            What was released because of the bounds.
        """
        held: dict[int | None, list[tuple[HeldPin, TrackedSegment]]] = {}
        for partition, tracked in unstored(partitions):
            try:
                alone = tracked.held_alone()
            except OSError as error:
                if tracked.pinned is not None and tracked.stage is not SegmentState.UPLOADING:
                    tracked.close()  # an upload fails by itself
                    failed(partition, tracked, error)
                continue
            if alone:
                tp, base = partition.topic_partition, tracked.segment.base_offset
                row = (HeldPin(tp, base, tracked.size, tracked.pin_priority), tracked)
                where = device(_directory(partition, tracked)) if short else None
                held.setdefault(where, []).append(row)
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
        """The broker's own names first: what stands there now is the truth."""
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
        heapq.heappush(self._heap, _LeastUrgentFirst(tracked.pin_priority, tracked))
        busy = []
        while self._files > self._max_files and self._heap:
            least = heapq.heappop(self._heap)
            if least.tracked.pinned is None:
                continue
            if least.pin_priority != least.tracked.pin_priority:  # staged, or led, since
                heapq.heappush(
                    self._heap, _LeastUrgentFirst(least.tracked.pin_priority, least.tracked)
                )
            elif least.tracked.stage is SegmentState.UPLOADING:
                busy.append(least)
            else:
                least.tracked.close()
        for entry in busy:
            heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * self._most:
            self._heap = [entry for entry in self._heap if entry.tracked.pinned is not None]
            heapq.heapify(self._heap)


def _directory(partition: Partition, tracked: TrackedSegment) -> str:
    """A directory on the file system that a segment's bytes occupy."""
    if tracked.spooled is not None:
        return tracked.spooled.directory
    return partition.log_dir or ""


def _times(pinned: PinnedSegment) -> SegmentTimes | None:
    """None where the disk does not give them: the upload of the segment will say why."""
    try:
        return pinned.times()
    except OSError:
        return None


def _let_go(rows: list[tuple[HeldPin, TrackedSegment]], excess: int) -> tuple[HeldPin, ...]:
    """Close idle pins that hold so many bytes at least."""
    idle = {held: tracked for held, tracked in rows if tracked.stage is not SegmentState.UPLOADING}
    released = pins_to_release(list(idle), excess)
    for held in released:
        idle[held].forget()
    return released


log: Final = structlog.get_logger()

_OTHER_FILES: Final = 512
"""Descriptors left for connections, logs and the like."""


def enforce_bounds(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
    pins: PinTable,
    config: PinsConfig,
    log_dirs: Iterable[str],
    partitions: Iterable[Partition],
    clock: Clock,
    metrics: Metrics,
    device: Callable[[str], int | None] = device_of,
) -> None:
    """Let pins go until what they hold fits: the broker never runs full because of them. What is
    let go and not stored shows as a gap, if the broker has deleted it.
    """

    def failed(partition: Partition, tracked: TrackedSegment, error: OSError) -> None:
        """The disk of a pin does not answer: its segment is tried again, as long as it exists."""
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
    """How many bytes each device of a log dir has less than its floor; only devices that are short.

    Log dirs on one file system share its free bytes. A log dir that is offline is left out: there
    is nothing to free.
    """
    found: dict[int, int] = {}
    for log_dir in log_dirs:
        where = device(log_dir)
        if where is None:
            continue
        try:
            free, total = free_bytes(log_dir)
        except OSError:
            continue
        found[where] = max(0, config.min_free_disk.of(total) - free)
    return {where: missing for where, missing in found.items() if missing}


def allowed_files(wanted: int) -> int:
    """Raise the soft limit of open files as far as is needed and allowed; what pins may use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if resource.RLIM_INFINITY != soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - _OTHER_FILES)
    if allowed < wanted:
        log.warning("pins.limited", wanted_files=wanted, allowed_files=allowed, ulimit=soft)
    return max(len(PINNED_KINDS), allowed)
