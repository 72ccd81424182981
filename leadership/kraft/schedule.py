"""When to send the next Metadata request; pure, times are seconds of one monotonic clock."""

from dataclasses import dataclass

_DEBOUNCE = 0.02
_FIRST_RETRY = 0.05
_MAX_DOUBLINGS = 16
_SHARE_OF_TIME = 50
"""A request that took one second is followed by 50 quiet ones: at most 2 % of the time is spent."""


@dataclass(slots=True)
class AskSchedule:
    """One request at a time: soon after a hint, sooner again while the two sources disagree or the
    broker does not answer (doubling the pause each time), else every `interval`.
    """

    interval: float
    due: float = 0.0
    in_flight: bool = False
    _hinted: bool = False
    _misses: int = 0

    def hinted(self, now: float) -> None:
        """Something changed: ask shortly, so that a burst of changes costs one request."""
        self._misses = 0
        self._hinted = True
        self.due = min(self.due, now + _DEBOUNCE)

    def may_ask(self, now: float) -> bool:
        """Whether a request is due, and none is under way."""
        return not self.in_flight and now >= self.due

    def asked(self) -> None:
        """A request goes out; what is hinted from now on needs another one."""
        self.in_flight = True
        self._hinted = False

    def answered(self, now: float, took: float, *, settled: bool) -> None:
        """An answer came after `took` seconds; `settled` when both sources agree."""
        self._misses = 0 if settled else self._misses + 1
        quiet = max(self.interval, took * _SHARE_OF_TIME)
        self._finish(now, quiet if settled else max(self._pause(), took))

    def failed(self, now: float) -> None:
        """No answer came."""
        self._misses += 1
        self._finish(now, self._pause())

    def _finish(self, now: float, pause: float) -> None:
        self.in_flight = False
        self.due = now + (_DEBOUNCE if self._hinted else pause)

    def _pause(self) -> float:
        return min(self.interval, _FIRST_RETRY * 2.0 ** min(self._misses - 1, _MAX_DOUBLINGS))
