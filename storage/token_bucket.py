"""A cap on bytes per second, as reservations of time."""

import threading
from collections.abc import Callable
from typing import Final

_BURST_SECONDS: Final = 0.25


class TokenBucket:
    """Hands out bytes at a rate. Thread-safe; never waits itself.

    Args:
        bytes_per_second: The cap.
        now: Returns monotonic seconds.
    """

    def __init__(self, bytes_per_second: float, now: Callable[[], float]) -> None:
        self.bytes_per_second = bytes_per_second
        self._now = now
        self._lock = threading.Lock()
        self._paid_until = now()

    @property
    def burst(self) -> int:
        """Number of bytes that an idle bucket hands out without a wait; at least 1."""
        return max(int(self.bytes_per_second * _BURST_SECONDS), 1)

    def reserve(self, size: int) -> float:
        """Reserve `size` bytes; return the seconds to wait before they may be used.

        Later reservations are for later times, so that no caller overtakes another.
        """
        with self._lock:
            now = self._now()
            # Unused time counts for at most the burst: a pause does not allow a later flood.
            earliest = max(self._paid_until, now - _BURST_SECONDS)
            self._paid_until = earliest + size / self.bytes_per_second
            return max(self._paid_until - now, 0.0)
