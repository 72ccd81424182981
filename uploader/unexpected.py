"""Unexpected exceptions: each holds back the one thing that it concerns, and nothing else.

An exception that no handler expects belongs to a partition, a file, a topic or a request. That one
is held back with a growing pause, logged with its traceback, counted and shown in the status. Only
the loop itself and the death of a supervised thread end the process.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import structlog

from sidetier.leadership.port import Unreadable
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import HeldError
from sidetier.uploader.clock import Clock
from sidetier.uploader.state.segment import Backoff

log: Final = structlog.get_logger()


class Subject(NamedTuple):
    """What an exception concerns: a step of a partition, or something else that has a name."""

    name: str
    topic_partition: TopicPartition | None = None

    def __str__(self) -> str:
        if self.topic_partition is None:
            return self.name
        return f"{self.name} of {self.topic_partition}"


def describe(error: BaseException) -> str:
    """The error with its type: the text of a KeyError alone is the key."""
    return f"{type(error).__name__}: {error}"


class UnexpectedErrors:
    """Runs what may fail in unexpected ways; every call is made on the daemon's thread."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._held: dict[Subject, Backoff] = {}
        self._unreadable: Mapping[str, Unreadable] = {}

    def note(self, subject: Subject, error: BaseException, before: str | None = None) -> None:
        """Log and count an error whose owner holds back what it concerns.

        Args:
            subject: What the error concerns.
            error: It is logged with its traceback, unless it is the same as the one `before`.
            before: The last error of the subject, as `describe` tells it.
        """
        self._metrics.unexpected_error(type(error).__name__)
        tp = subject.topic_partition
        where = {} if tp is None else {"topic": tp.topic, "partition": tp.partition}
        log.error(
            "error.unexpected",
            subject=subject.name,
            kind=type(error).__name__,
            error=str(error),
            exc_info=None if describe(error) == before else error,
            **where,
        )

    def attempt(self, subject: Subject, action: Callable[[], None]) -> bool:
        """Run the action, unless an earlier error still holds back the subject.

        Returns:
            Whether it ran and raised nothing: then the subject is held back no longer.
        """
        if self.holds(subject):
            return False
        try:
            action()
        except Exception as error:  # noqa: BLE001 - it ends the subject's step, not the process
            self.hold(subject, error)
            return False
        self._held.pop(subject, None)
        return True

    def hold(self, subject: Subject, error: BaseException) -> None:
        """Log and count the error, and hold back the subject: 1 s, doubling to 60 s."""
        self.note(subject, error, self.error_of(subject))
        hold = self._held.setdefault(subject, Backoff())
        hold.fail(describe(error), self._clock.monotonic())

    def file_was_read(self, path: str, error: Exception | None) -> None:
        """A file that is read again and again cannot be used, or can: only a change is told."""
        subject = Subject(path)
        if error is None:
            self.clear(subject)
        elif self.error_of(subject) != describe(error):
            self.hold(subject, error)

    def holds(self, subject: Subject) -> bool:
        """Whether it is too early to try the subject again."""
        hold = self._held.get(subject)
        return hold is not None and self._clock.monotonic() < hold.until

    def error_of(self, subject: Subject) -> str | None:
        """Its last error, None once it has succeeded since."""
        hold = self._held.get(subject)
        return None if hold is None else hold.error

    def retry_at(self, subject: Subject) -> float:
        """When it may be tried again, in monotonic seconds."""
        return self._held[subject].until if subject in self._held else 0.0

    def clear(self, subject: Subject) -> None:
        """It is gone, or has succeeded elsewhere."""
        self._held.pop(subject, None)

    def tell_of_leadership(self, unreadable: Mapping[str, Unreadable]) -> None:
        """What the source of leadership cannot read now; it has logged that, and reads it again."""
        for name, failure in unreadable.items():
            if failure != self._unreadable.get(name):
                self._metrics.unexpected_error(failure.kind)
        self._unreadable = unreadable

    def held(self) -> tuple[HeldError, ...]:
        """What is held back now, for the status."""
        since_1970 = self._clock.wall() - self._clock.monotonic()
        here = [
            HeldError(
                subject=str(subject),
                error=hold.error or "",
                failures=hold.failures,
                retry_at_ms=int((hold.until + since_1970) * 1000),
            )
            for subject, hold in self._held.items()
        ]
        of_leadership = [
            HeldError(name, failure.error, failure.failures)
            for name, failure in self._unreadable.items()
        ]
        return (*here, *of_leadership)
