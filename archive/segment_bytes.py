"""Bytes of stored segments: which range is read next, in which memory, and within which budget.

`ReadAhead` plans the ranges of one sequence of segments, and keeps them in order.
"""

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from sidetier.archive.objects.segment import StoredLog
from sidetier.segments.arrow import Buffer
from sidetier.segments.buffers import is_exported
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset

MIN_BUFFER: Final = 1 << 20
"""Bytes. Smaller buffers are not kept."""
_HEAP_SLACK: Final = 8 << 20
MIN_RANGE: Final = 64 * 1024
MAX_CONCURRENT_RANGES: Final = 4
"""Maximum number of concurrent range requests of one sequence of segments."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of a segment from `start` on, in which the offsets below `until` are read.

    Attributes:
        log: The segment.
        start: Byte position of a batch.
        until: Offset up to which records are read from this segment, exclusive.
        wanted: Byte position up to which records are wanted. Later bytes are read only while a
            transaction below is not decided.
    """

    log: StoredLog
    start: int
    until: Offset
    wanted: int


@dataclass(slots=True, eq=False)
class Range:
    """A requested range of a segment. `data` or `error` is set once the request has ended.

    `was_awaited` is True if the thread that takes records had to wait for it.
    """

    part: Part
    start: int
    end: int
    data: Buffer | None = None
    error: SidetierError | None = None
    was_awaited: bool = False

    @property
    def size(self) -> int:
        """Requested size, in bytes."""
        return self.end - self.start

    @property
    def has_come(self) -> bool:
        """Whether the request has ended."""
        return self.data is not None or self.error is not None

    @property
    def is_last(self) -> bool:
        """Whether the range reaches the end of the segment."""
        return self.end >= self.part.log.size


@dataclass(frozen=True, slots=True)
class ReadBytes:
    """Bytes of a segment, from byte `start` on, that were read for another purpose."""

    log: StoredLog
    start: int
    data: Buffer

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self.data)


class MemoryBudget:
    """Bytes that are held or being fetched, out of `total`. The owner holds a lock.

    Nobody counts up and down: `measure` replaces the number by what is held now.

    Attributes:
        total: Bytes of all partitions.
        share: Bytes that each active partition may hold.
        used: Bytes that are held or being fetched, when they were measured last.
        peak: The most bytes that were ever held.
    """

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self.share = total
        self.used = 0
        self.peak = 0

    def measure(self, used: int, active_partitions: int) -> None:
        """Note what is held now, and give each active partition an equal share of the total."""
        self.used = used
        self.peak = max(self.peak, used)
        self.share = self.total // max(active_partitions, 1)

    def add(self, size: int) -> None:
        """Count a range that is requested since."""
        self.used += size
        self.peak = max(self.peak, self.used)

    @property
    def is_ample(self) -> bool:
        """Whether at most half of the budget is held."""
        return self.used <= self.total // 2

    def fits(self, size: int) -> bool:
        """Return whether `size` more bytes may be held."""
        return self.used + size <= self.total


class ReadAhead:
    """Ranges of consecutive segments, requested ahead, in order. No I/O; the owner holds a lock.

    Args:
        parts: The segments. Each is taken when its first range is planned.
        sizes: Bytes of the first range, and of the largest. Each range is twice as large as the one
            before.
        found: Bytes that were read already, if reading begins in them.
    """

    def __init__(
        self, parts: Iterator[Part], sizes: tuple[int, int], found: ReadBytes | None = None
    ) -> None:
        self.ranges: deque[Range] = deque()
        """Requested ranges that were not dropped yet. The first one is read next."""
        self._parts = parts
        self._size, self._largest = sizes
        self._overruns = False
        """Bytes above the wanted ones are read."""
        self._found = found
        self.waits_for_memory = False
        """`next_range` found no room, and reading on here makes none unless there are batches."""
        self._part: Part | None = None
        self._at = 0
        """Byte position in it where the next range begins."""
        self._enter(next(parts, None))

    @property
    def arrived_bytes(self) -> int:
        """Bytes of the ranges that have come."""
        found = 0 if self._found is None else self._found.size
        return found + sum(requested.size for requested in self.ranges if requested.has_come)

    @property
    def under_way(self) -> int:
        """Number of ranges whose request has not ended."""
        return sum(not requested.has_come for requested in self.ranges)

    @property
    def head(self) -> Range | None:
        """The first range, if its request has ended."""
        return self.ranges[0] if self.ranges and self.ranges[0].has_come else None

    def next_range(
        self, budget: MemoryBudget, held: int, missing: int, *, may_exceed: bool
    ) -> Range | None:
        """Add the next range to request, and return it; None if there is none now.

        A range that needs no request is added with its data.

        Args:
            budget: The budget of all sequences.
            held: Bytes that the reader of the ranges holds besides them.
            missing: Bytes without which the reader cannot go on; 0 if unknown.
            may_exceed: The smallest useful range may exceed share and budget.
        """
        self.waits_for_memory = False
        part = self._planned()
        if part is None or not self._is_wanted(part):
            return None
        requested = self._range_of_search(part)
        if requested is None:
            size = self._size_at(part, budget, held, missing, may_exceed=may_exceed)
            if size is None:
                return None
            requested = Range(part, self._at, self._at + size, data=None if size else b"")
        self.ranges.append(requested)
        # At least 1, so that an empty object is read only once.
        self._at = max(requested.end, 1)
        self._size = min(self._size * 2, self._largest)
        return requested

    def leave(self, part: Part) -> Part | None:
        """Drop the ranges of a segment that is read far enough. Return the next segment, if any."""
        while self.ranges and self.ranges[0].part is part:
            self.ranges.popleft()
        if not self.ranges and self._part is part:
            self._enter(next(self._parts, None))
        return self.ranges[0].part if self.ranges else self._part

    def _enter(self, part: Part | None) -> None:
        self._part = part
        self._at = 0 if part is None else part.start

    def _planned(self) -> Part | None:
        part = self._part
        # Position 0 also for an empty object, which is requested once: its end must be seen.
        if part is not None and self._at >= part.log.size and self._at > 0:
            self._enter(next(self._parts, None))
        return self._part

    def _is_wanted(self, part: Part) -> bool:
        """Whether to read here now. Above the wanted bytes, read only what is needed, in small
        ranges, one at a time.
        """
        is_above = self._at >= part.wanted < part.log.size
        if is_above and self.ranges:
            return False
        if is_above and not self._overruns:
            self._size = MIN_RANGE
        self._overruns = is_above
        return True

    def _range_of_search(self, part: Part) -> Range | None:
        found, self._found = self._found, None
        if found is None or found.log.version != part.log.version:
            return None
        skipped = self._at - found.start
        if not 0 <= skipped < found.size:
            return None
        return Range(part, self._at, found.start + found.size, data=found.data[skipped:])

    def _size_at(
        self, part: Part, budget: MemoryBudget, held: int, missing: int, *, may_exceed: bool
    ) -> int | None:
        """Return the number of bytes to request; None while the budget has no room for them."""
        left = (part.log.size if self._overruns else part.wanted) - self._at
        if missing and not self.ranges:  # no batch can be decoded without them
            wanted = min(max(missing, MIN_RANGE), left)
            if budget.fits(wanted):
                return wanted
            least = min(missing, left)
            self.waits_for_memory = not may_exceed and not budget.fits(least)
            return None if self.waits_for_memory else least
        # Half a share, so that the next range is fetched while this one is decoded.
        size = min(self._size, max(budget.share // 2, MIN_RANGE), budget.total // 2, left)
        held += sum(requested.size for requested in self.ranges)
        is_within_share = not held or held + size <= budget.share
        if is_within_share and budget.fits(size):
            return size
        if may_exceed and not self.ranges:
            return min(size, MIN_RANGE)
        # Above its share, reading goes on once its own ranges are decoded.
        self.waits_for_memory = is_within_share or not self.ranges
        return None


class BufferPool:
    """Lends writable memory for ranges: fresh memory costs more than the copy that fills it.

    Callers need not return it.

    A buffer is free again once no memoryview, array or other buffer refers to it: Python refuses to
    resize a `bytearray` whose memory is exported. So memory that is still read is never
    overwritten. Thread-safe, and can be shared by several readers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []
        _keep_heap()

    def take(self, size: int, spare: int) -> memoryview:
        """Return memory of exactly this size, with arbitrary contents.

        Args:
            size: Size in bytes.
            spare: Maximum number of bytes of other free buffers that are kept for later.
        """
        if size < MIN_BUFFER:
            return memoryview(bytearray(size))
        with self._lock:
            buffer = self._free(size, spare)
            if buffer is None:
                buffer = bytearray(size)
                self._buffers.append(buffer)
            return memoryview(buffer)

    def _free(self, size: int, spare: int) -> bytearray | None:
        """Return a free buffer of this size, if any. Drop free buffers that exceed `spare`
        bytes.
        """
        fitting, kept = None, []
        for buffer in self._buffers:
            if is_exported(buffer):
                kept.append(buffer)
            elif fitting is None and len(buffer) == size:
                fitting = buffer
                kept.append(buffer)
            elif len(buffer) <= spare:
                spare -= len(buffer)
                kept.append(buffer)
        self._buffers = kept
        return fitting


def _keep_heap() -> None:
    """Make glibc keep up to 16 MiB of freed memory for the next messages.

    Otherwise glibc returns freed memory to the kernel and fetches it again. A freed large block
    raises glibc's thresholds (mallopt(3), M_MMAP_THRESHOLD). The block is not touched, so it costs
    no memory.
    """
    np.empty(_HEAP_SLACK, dtype=np.uint8)
