"""Schedule of Metadata requests. Pure; times are seconds of one monotonic clock."""

from dataclasses import dataclass

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
