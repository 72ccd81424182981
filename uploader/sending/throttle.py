"""A cap on bytes per second, shared by all uploads."""

import threading
from collections.abc import Callable

_BURST_SECONDS = 0.25


class Throttle:
    """A token bucket. `acquire` blocks its caller until the bytes may flow.

    `wait(seconds)` is how it blocks: it returns True when the daemon is being stopped, and then
    `acquire` lets everything through, so that nobody sleeps through a shutdown.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        now: Callable[[], float],
        wait: Callable[[float], bool],
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._rate = bytes_per_second
        self._now = now
        self._wait = wait
        self._waited = waited
        self._lock = threading.Lock()
        self._paid_until = now()

    def acquire(self, size: int) -> None:
        """Wait until `size` more bytes may be read."""
        if self._rate is None:
            return
        with self._lock:
            now = self._now()
            self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + size / self._rate
            delay = self._paid_until - now
        if delay > 0:
            self._waited(delay)
            self._wait(delay)
