"""Unexpected exceptions: each holds back only the subject that it concerns.

An exception that no handler expects belongs to a partition, a file, a topic or a request. This
subject is held back with a growing pause. The exception is logged with its traceback, counted, and
shown in the status. Only an error in the event loop itself, or the death of a supervised thread,
ends the process.
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
    """The subject of an exception: a step of a partition, or another activity with a name."""

    name: str
    topic_partition: TopicPartition | None = None

    def __str__(self) -> str:
        if self.topic_partition is None:
            return self.name
        return f"{self.name} of {self.topic_partition}"


def describe(error: BaseException) -> str:
    """Return the error with its type, because the text of a KeyError is only the key."""
    return f"{type(error).__name__}: {error}"


class UnexpectedErrors:
    """Holds back subjects after unexpected errors. Only the daemon's thread uses it."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._held: dict[Subject, Backoff] = {}
        self._unreadable: Mapping[str, Unreadable] = {}

    def note(self, subject: Subject, error: BaseException, before: str | None = None) -> None:
        """Log and count an error. The caller holds back its subject.

        Args:
            subject: What the error concerns.
            error: It is logged with its traceback, unless it equals `before`.
            before: The last error of the subject, as text from `describe`.
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
            Whether the action has succeeded. If so, the subject is no longer held back.
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
        """Note whether a file that is read repeatedly can be used. Only a change is logged."""
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
        """Return the subject's last error; None if it has succeeded since."""
        hold = self._held.get(subject)
        return None if hold is None else hold.error

    def retry_at(self, subject: Subject) -> float:
        """Return when the subject may be tried again, in monotonic seconds."""
        return self._held[subject].until if subject in self._held else 0.0

    def clear(self, subject: Subject) -> None:
        """Forget the subject's error: it has succeeded, or is gone."""
        self._held.pop(subject, None)

    def tell_of_leadership(self, unreadable: Mapping[str, Unreadable]) -> None:
        """Set what the source of leadership cannot read. The source logs this, and tries again."""
        for name, failure in unreadable.items():
            if failure != self._unreadable.get(name):
                self._metrics.unexpected_error(failure.kind)
        self._unreadable = unreadable

    def held(self) -> tuple[HeldError, ...]:
        """Return the subjects that are held back now, for the status."""
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
