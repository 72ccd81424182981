"""The memory of a reader: the budget of its partitions, and reusable buffers for ranges."""

import threading
from typing import Final

import numpy as np

from sidetier.segments.buffers import is_exported

MIN_BUFFER: Final = 1 << 20
"""Bytes. Smaller buffers are not kept."""
_HEAP_SLACK: Final = 8 << 20


class MemoryBudget:
    """Counts bytes that are held or being fetched, out of `total`. The owner holds a lock.

    Attributes:
        total: Bytes of all partitions.
        share: Bytes that each active partition may hold.
        used: Bytes that are held or being fetched now.
        peak: The most bytes that were ever held.
    """

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self.share = total
        self.used = 0
        self.peak = 0

    def divide(self, active_partitions: int) -> None:
        """Give each active partition an equal share."""
        self.share = self.total // max(active_partitions, 1)

    @property
    def is_ample(self) -> bool:
        """Whether at most half of the budget is held."""
        return self.used <= self.total // 2

    def fits(self, size: int) -> bool:
        """Return whether `size` more bytes may be held."""
        return self.used + size <= self.total

    def take(self, size: int) -> None:
        """Count `size` more bytes, even beyond the budget."""
        self.used += size
        self.peak = max(self.peak, self.used)

    def give_back(self, size: int) -> None:
        """Count `size` fewer bytes."""
        self.used -= size


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
