"""A cap on bytes per second, as reservations of time, or as refusals until a time."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

_BURST_SECONDS: Final = 0.25
_MAX_DELAY: Final = 5.0
"""Most seconds that `take` tells a caller to wait: shorter than the timeouts of Kafka's clients."""


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
        self._next_turn = self._paid_until
        self._last_seconds = 0.0
        """Time that the bytes of the last `take` need."""

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

    def take(self, size: int) -> float:
        """Take `size` bytes if no earlier bytes are unpaid; return 0. A size of 0 only asks.

        Else take nothing, and return the seconds after which to ask again, at most 5. Nothing is
        reserved for a caller, so one that never asks again costs the others nothing. Callers get
        different times, so that they do not all ask again at once: as far apart as if each of them
        took as many bytes as the last one that got some.
        """
        with self._lock:
            now = self._now()
            seconds = size / self.bytes_per_second
            if self._paid_until <= now:
                self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + seconds
                self._last_seconds = seconds or self._last_seconds
                return 0.0
            turn = max(self._next_turn + self._last_seconds, self._paid_until)
            self._next_turn = min(turn, now + _MAX_DELAY)
            return self._next_turn - now

    def give_back(self, size: int) -> None:
        """Return bytes of a `take` that were not used; a negative size takes more of them."""
        with self._lock:
            self._paid_until -= size / self.bytes_per_second


def take_from_all(buckets: Sequence[TokenBucket], size: int) -> float:
    """Take `size` bytes from all buckets, or from none; see `TokenBucket.take`."""
    for number, bucket in enumerate(buckets):
        delay = bucket.take(size)
        if delay:
            for earlier in buckets[:number]:
                earlier.give_back(size)
            return delay
    return 0.0
