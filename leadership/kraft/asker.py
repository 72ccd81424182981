"""The thread that waits for the broker's responses to Metadata requests."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from sidetier.leadership.kraft.request import MetadataAnswer, MetadataRequest
from sidetier.leadership.worker import Worker

_JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The broker responded after `took` seconds."""

    answer: MetadataAnswer
    took: float


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No response arrived, or an unreadable one."""

    error: Exception


Outcome = Answered | Unanswered


class Asker:
    """Sends a Metadata request after each `ask` and passes each outcome to `on_outcome`.

    An error of a request is its outcome. `on_death` is called when the thread itself dies.
    """

    def __init__(
        self,
        request: MetadataRequest,
        on_outcome: Callable[[Outcome], None],
        on_death: Callable[[], None],
    ) -> None:
        self._request = request
        self._on_outcome = on_outcome
        self._on_death = on_death
        self._wanted = Event()
        self._stopping = False
        self._worker = Worker("leadership-asker", self._run)

    @property
    def failure(self) -> BaseException | None:
        """Error that ended the thread; None while it lives."""
        return self._worker.failure

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def ask(self) -> None:
        """Request one Metadata request; return at once."""
        self._wanted.set()

    def stop(self) -> None:
        """Send no more requests; wait at most one second for a response."""
        self._stopping = True
        self._wanted.set()
        self._worker.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            while self._wanted.wait() and not self._stopping:
                self._wanted.clear()
                self._on_outcome(self._ask_once())
        except BaseException:
            self._on_death()
            raise
        finally:
            self._request.close()

    def _ask_once(self) -> Outcome:
        begun = time.monotonic()
        try:
            answer = self._request.ask()
        except Exception as error:  # noqa: BLE001 - becomes the outcome of this request
            return Unanswered(error)
        return Answered(answer, time.monotonic() - begun)
