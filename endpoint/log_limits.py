"""Log events that clients can cause at any rate: once for each subject, or once in a while."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from sidetier.storage.attempt import Clock, monotonic

_MAX_SUBJECTS: Final = 1000
_FEW: Final = 10
_PERIOD: Final = 10.0


class Once:
    """The subjects that were logged. Bounded, because clients choose the names. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._subjects: set[object] = set()

    def is_new(self, subject: object) -> bool:
        """Return whether to log a subject now: True the first time only."""
        with self._guard:
            if subject in self._subjects or len(self._subjects) >= _MAX_SUBJECTS:
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


class FewPerSubject:
    """Allows ten log events in ten seconds for each subject. Thread-safe.

    Subjects beyond a thousand share one allowance while the others are in use: clients choose the
    subjects, or have many addresses.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._guard = threading.Lock()
        self._clock = clock
        self._subjects: OrderedDict[Hashable, tuple[float, int, int]] = OrderedDict()
        """When the period of a subject began, the events that were logged in it, and the number of
        those that were left out since the last one that was logged.
        """

    def count(self, subject: Hashable) -> int:
        """Count an event. Return how many there were since the last one of the subject that was
        logged; 0 if this one is not to be logged.
        """
        with self._guard:
            now = self._clock()
            if subject not in self._subjects:
                self._make_room(now)
                if len(self._subjects) >= _MAX_SUBJECTS:
                    subject = None
            began, logged, left_out = self._subjects.get(subject, (now, 0, 0))
            if now - began >= _PERIOD:
                began, logged = now, 0
            is_logged = logged < _FEW
            self._subjects[subject] = (
                (began, logged + 1, 0) if is_logged else (began, logged, left_out + 1)
            )
            self._subjects.move_to_end(subject)
            return left_out + 1 if is_logged else 0

    def _make_room(self, now: float) -> None:
        """Forget the subjects whose last event is old."""
        while self._subjects:
            subject, (began, _, _) = next(iter(self._subjects.items()))
            if now - began < _PERIOD:
                return
            del self._subjects[subject]
