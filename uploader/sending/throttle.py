"""A cap on bytes per second, shared by all uploads."""

import threading
from collections.abc import Callable

from sidetier.segments.errors import SidetierError
from sidetier.storage.token_bucket import TokenBucket


class Throttle:
    """A token bucket that waits.

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
        self._bucket = None if bytes_per_second is None else TokenBucket(bytes_per_second, now)
        self._wait = wait
        self._waited = waited

    def acquire(self, size: int) -> None:
        """Block until `size` more bytes may be read, or the daemon stops."""
        delay = 0.0 if self._bucket is None else self._bucket.reserve(size)
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
