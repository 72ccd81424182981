"""Log events that clients can cause at any rate: once for each subject, or once in a while."""

import threading
from typing import Final

from sidetier.storage.attempt import Clock, monotonic

_MOST_SUBJECTS: Final = 1000


class Once:
    """The subjects that were logged. Bounded, because clients choose the names. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._subjects: set[object] = set()

    def is_new(self, subject: object) -> bool:
        """Return whether a subject is to be logged now; False from the second time on."""
        with self._guard:
            if subject in self._subjects or len(self._subjects) >= _MOST_SUBJECTS:
                return False
            self._subjects.add(subject)
            return True


class AtMostEvery:
    """Allows one log event in each period. Thread-safe.

    Args:
        seconds: The period.
        clock: Returns monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Clock = monotonic) -> None:
        self._guard = threading.Lock()
        self._seconds = seconds
        self._clock = clock
        self._next = float("-inf")
        self._left_out = 0

    def count(self) -> int:
        """Count an event. Return how many there were since the last one that was logged; 0 if this
        one is not to be logged.
        """
        with self._guard:
            self._left_out += 1
            now = self._clock()
            if now < self._next:
                return 0
            self._next = now + self._seconds
            events, self._left_out = self._left_out, 0
            return events
