"""Lock of the consumer: one thread at a time, and a polling thread lets others in."""

import threading
from typing import Final, Self

_REST_SECONDS: Final = 0.002
"""How long a poll leaves the lock free for a waiting thread."""


class PollLock:
    """A reentrant lock, so that a callback inside a poll can call the consumer.

    Short calls use `with poll_lock:`. A poll loop uses `with poll_lock.slice:` for each pass, and
    pauses 2 ms after a pass if another thread waits. Without the pause the polling thread would
    almost always get the lock back first.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._guard = threading.Lock()
        self._waiting = 0
        self._never = threading.Event()
        self.slice: Final = _Slice(self)

    def __enter__(self) -> Self:
        with self._guard:
            self._waiting += 1
        self._lock.acquire()
        with self._guard:
            self._waiting -= 1
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def take(self) -> None:
        """Begin a slice."""
        self._lock.acquire()

    def give(self) -> None:
        """End a slice."""
        self._lock.release()
        if self._waiting:  # read without the guard: a thread that is missed waits one slice more
            self._never.wait(_REST_SECONDS)


class _Slice:
    def __init__(self, poll_lock: PollLock) -> None:
        self._poll_lock = poll_lock

    def __enter__(self) -> None:
        self._poll_lock.take()

    def __exit__(self, *_: object) -> None:
        self._poll_lock.give()
