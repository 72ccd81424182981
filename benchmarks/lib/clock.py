"""Time for the benchmarks: clocks, and pauses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from time import monotonic, time  # noqa: TID251 - the only module that may import them

__all__ = ["Stopwatch", "monotonic", "pause", "stopwatch", "wait_until", "wall"]

wall = time
"""Current time, in seconds since 1970."""

_POLL_SECONDS = 0.02
_never = Event()


class Stopwatch:
    """A stopwatch; `seconds` no longer change after `stop`."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since its creation, until `stop`."""
        return (monotonic() if self._ended is None else self._ended) - self._began

    def stop(self) -> None:
        """Stop. Only the first call has an effect."""
        self._ended = monotonic() if self._ended is None else self._ended


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time a block, up to its end or an earlier `stop`."""
    watch = Stopwatch()
    try:
        yield watch
    finally:
        watch.stop()


def pause(seconds: float) -> None:
    """Wait for the length of a measured window."""
    _never.wait(seconds)


def wait_until(
    condition: Callable[[], object], timeout: float, what: str, poll: float = _POLL_SECONDS
) -> float:
    """Poll until the condition is true, and return the seconds that this took.

    Raises:
        TimeoutError: `timeout` seconds passed.
    """
    began = monotonic()
    while not condition():
        if monotonic() - began >= timeout:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        pause(poll)
    return monotonic() - began
