"""Activities of the daemon that run on a worker thread, one run at a time."""

from collections.abc import Callable
from typing import Generic, TypeVar

from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.workers import Task, WorkerPool

E = TypeVar("E")


class PeriodicTask(Generic[E]):
    """Decides when the next run is due. Only the daemon's thread uses it.

    Args:
        name: Names the activity in the log.
        pool: A pool with one worker: brokers or a store that hang hold up no other work.
        now: Monotonic seconds.
        metrics: Counts failures.
        errors: Delays the next run after an unexpected error.
        expected: The errors of a run that are not defects.
        first: Seconds from now to the first run.
        interval: Seconds from the begin of a run to the next one.
        pause: Seconds from an error to the next run.
    """

    def __init__(  # noqa: PLR0913 - the differences between the activities
        self,
        name: str,
        pool: WorkerPool[E],
        now: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
        *,
        expected: tuple[type[Exception], ...],
        first: float = 0.0,
        interval: float = 0.0,
        pause: float = 0.0,
    ) -> None:
        self._subject = Subject(name)
        self._pool = pool
        self._now = now
        self._metrics = metrics
        self._errors = errors
        self._expected = expected
        self._interval = interval
        self._pause = pause
        self._next = now() + first

    @property
    def is_due(self) -> bool:
        """Whether a run may begin: none is under way, and no error delays it."""
        is_time = self._now() >= self._next
        return is_time and self._pool.free > 0 and not self._errors.holds(self._subject)

    def begin(self, run: Callable[[], E], failed: Callable[[Exception], E]) -> None:
        """Begin a run. `failed` turns its error into an event."""
        self._next = self._now() + self._interval
        self.go_on(run, failed)

    def go_on(self, run: Callable[[], E], failed: Callable[[Exception], E]) -> None:
        """Begin the next step of a run."""
        self._pool.submit(Task(run, failed))

    def succeeded(self) -> None:
        """Note that a run has succeeded."""
        self._errors.clear(self._subject)

    def failed(self, error: Exception) -> bool:
        """Note the error of a run.

        Returns:
            Whether the error is expected: the caller logs it. An unexpected error is logged here.
        """
        self._next = max(self._next, self._now() + self._pause)
        if not isinstance(error, self._expected):
            self._errors.hold(self._subject, error)
            return False
        self._errors.clear(self._subject)
        self._metrics.error(type(error).__name__)
        return True
