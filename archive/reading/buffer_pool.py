"""Memory for the ranges that are read, used again: fresh memory costs more than what fills it."""

import threading
from typing import Final

import numpy as np

from sidetier.segments.buffers import is_exported

LEAST_ROOM: Final = 1 << 20
"""What is smaller is not worth keeping."""


_HEAP_SLACK: Final = 8 << 20


class BufferPool:
    """Hands out writable memory; nobody has to give it back.

    A room is free again once no memoryview, array or buffer refers to it: Python itself tells, by
    refusing to resize a `bytearray` whose memory is exported. So what is still read is never
    written over, whoever holds it. May be used from many threads, and by readers that follow one
    another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []
        keep_heap()

    def take(self, size: int, spare: int) -> memoryview:
        """Memory of just this size, with anything in it; of what else is free, `spare` bytes at the
        most are kept for later.
        """
        if size < LEAST_ROOM:
            return memoryview(bytearray(size))
        with self._lock:
            room = self._free(size, spare)
            if room is None:
                room = bytearray(size)
                self._buffers.append(room)
            return memoryview(room)

    def _free(self, size: int, spare: int) -> bytearray | None:
        """A free room of this size; lets go of those for which there is no space left."""
        found, kept = None, []
        for room in self._buffers:
            if is_exported(room):
                kept.append(room)
            elif found is None and len(room) == size:
                found = room
                kept.append(room)
            elif len(room) <= spare:
                spare -= len(room)
                kept.append(room)
        self._buffers = kept
        return found


def keep_heap() -> None:
    """Have glibc keep what is freed, up to twice this much, rather than give it to the kernel and
    fetch it again for the next messages: that is what a large block that is freed tells it
    (mallopt(3), M_MMAP_THRESHOLD). The block is not touched, and costs nothing.
    """
    np.empty(_HEAP_SLACK, dtype=np.uint8)
