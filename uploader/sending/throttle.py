"""A cap on bytes per second, shared by all uploads."""

import threading
from collections.abc import Callable

from sidetier.segments.errors import SidetierError

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


class AbandonedError(SidetierError):
    """The daemon stops: the upload under way was given up."""


def capped(
    bytes_per_second: float | None,
    now: Callable[[], float],
    abandoned: threading.Event,
    waited: Callable[[float], None],
) -> Callable[[int], None]:
    """What holds the cap before a read; it raises AbandonedError once work is given up."""
    throttle = Throttle(bytes_per_second, now, abandoned.wait, waited)

    def before_read(size: int) -> None:
        if abandoned.is_set():
            raise AbandonedError("the daemon stops")
        throttle.acquire(size)

    return before_read
