"""The thread that waits for the broker's responses to Metadata requests."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from sidetier.leadership.kraft.request import MetadataAnswer, MetadataRequest
from sidetier.leadership.worker import Worker

_DEBOUNCE = 0.02
_FIRST_RETRY = 0.05
_MAX_DOUBLINGS = 16
_SHARE_OF_TIME = 50
"""A request that took one second is followed by a pause of 50 s: at most 2 % of the time."""


@dataclass(slots=True)
class AskSchedule:
    """Decides when to send the next request. At most one request is in flight.

    A request is due shortly after a hint. While the two sources disagree or the broker does not
    respond, requests follow with pauses that double from 50 ms; otherwise every `interval` seconds.
    """

    interval: float
    due: float = 0.0
    in_flight: bool = False
    _hinted: bool = False
    _misses: int = 0

    def hinted(self, now: float) -> None:
        """Schedule a request shortly after a hint; a burst of hints costs one request."""
        self._misses = 0
        self._hinted = True
        self.due = min(self.due, now + _DEBOUNCE)

    def may_ask(self, now: float) -> bool:
        """Return whether a request is due and none is in flight."""
        return not self.in_flight and now >= self.due

    def asked(self) -> None:
        """Record that a request is sent; hints from now on need another one."""
        self.in_flight = True
        self._hinted = False

    def answered(self, now: float, took: float, *, settled: bool) -> None:
        """Record a response after `took` seconds; `settled` tells whether both sources agree."""
        self._misses = 0 if settled else self._misses + 1
        quiet = max(self.interval, took * _SHARE_OF_TIME)
        self._finish(now, quiet if settled else max(self._pause(), took))

    def failed(self, now: float) -> None:
        """Record that no response arrived."""
        self._misses += 1
        self._finish(now, self._pause())

    def _finish(self, now: float, pause: float) -> None:
        self.in_flight = False
        self.due = now + (_DEBOUNCE if self._hinted else pause)

    def _pause(self) -> float:
        return min(self.interval, _FIRST_RETRY * 2.0 ** min(self._misses - 1, _MAX_DOUBLINGS))


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
