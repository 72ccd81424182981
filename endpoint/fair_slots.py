"""A bound on work that is done at the same time, fair between threads."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class FairSlots:
    """A semaphore that threads enter in the order in which they ask. Thread-safe.

    `threading.Semaphore` lets a thread that leaves and enters again overtake those that wait: a
    client with ten thousand questions would answer all of them before another client's first one.

    Args:
        count: Number of threads that may be inside at the same time.
    """

    def __init__(self, count: int) -> None:
        self._guard = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Lock] = deque()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for a slot, and keep it for the block."""
        is_given = threading.Lock()
        is_given.acquire()
        with self._guard:
            if self._free:
                self._free -= 1
                is_given.release()
            else:
                self._waiting.append(is_given)
        with is_given:
            try:
                yield
            finally:
                with self._guard:
                    if self._waiting:
                        self._waiting.popleft().release()  # the slot passes to that thread
                    else:
                        self._free += 1
