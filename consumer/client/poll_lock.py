"""One thread at a time, and a polling thread that lets others through."""

import threading
from typing import Final, Self

_REST_SECONDS: Final = 0.002


class PollLock:
    """A lock that may be taken again by who has it, such as a callback within a poll.

    `with turnstile:` is for calls that are short; a loop that polls takes it slice by slice by
    `with turnstile.slice:`, and rests between two slices where somebody waits.
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
        if self._waiting:
            self._never.wait(_REST_SECONDS)


class _Slice:
    def __init__(self, poll_lock: PollLock) -> None:
        self._poll_lock = poll_lock

    def __enter__(self) -> None:
        self._poll_lock.take()

    def __exit__(self, *_: object) -> None:
        self._poll_lock.give()
