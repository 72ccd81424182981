"""A cap on bytes per second, shared by all uploads."""

import threading
from collections.abc import Callable

from sidetier.segments.errors import SidetierError

_BURST_SECONDS = 0.25


class Throttle:
    """A token bucket.

    Args:
        bytes_per_second: The cap; None for no cap.
        now: Monotonic seconds.
        wait: Blocks for a number of seconds, and returns early when the daemon stops, so that no
            thread sleeps through a shutdown.
        waited: Called with the number of seconds before each wait.
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
        """Block until `size` more bytes may be read, or the daemon stops."""
        if self._rate is None:
            return
        # The lock covers only the computation: a thread that waits must not block the others, which
        # have reserved later times.
        with self._lock:
            now = self._now()
            # Unused time counts for at most the burst, so
            # that a pause does not allow a later flood.
            self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + size / self._rate
            delay = self._paid_until - now
        if delay > 0:
            self._waited(delay)
            self._wait(delay)


class AbandonedError(SidetierError):
    """The daemon stops, and has abandoned the upload."""


def capped(
    bytes_per_second: float | None,
    now: Callable[[], float],
    abandoned: threading.Event,
    waited: Callable[[float], None],
) -> Callable[[int], None]:
    """Return the function to call before each read. It raises AbandonedError after `abandoned`."""
    throttle = Throttle(bytes_per_second, now, abandoned.wait, waited)

    def before_read(size: int) -> None:
        if abandoned.is_set():
            raise AbandonedError("the daemon stops")
        throttle.acquire(size)

    return before_read
