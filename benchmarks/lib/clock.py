"""Time, as the benchmarks read it and let it pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from time import monotonic, time  # noqa: TID251 - their one home here

__all__ = ["Stopwatch", "monotonic", "pause", "stopwatch", "wait_until", "wall"]

wall = time
"""Seconds since 1970."""

_POLL_SECONDS = 0.02
_never = Event()


class Stopwatch:
    """`seconds` stand still from `stop` on."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return (monotonic() if self._ended is None else self._ended) - self._began

    def stop(self) -> None:
        """The first call counts."""
        self._ended = monotonic() if self._ended is None else self._ended


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time a block, up to its end unless it is stopped before."""
    watch = Stopwatch()
    try:
        yield watch
    finally:
        watch.stop()


def pause(seconds: float) -> None:
    """Let time pass, for a window in which something is measured."""
    _never.wait(seconds)


def wait_until(
    condition: Callable[[], object], timeout: float, what: str, poll: float = _POLL_SECONDS
) -> float:
    """Ask again and again until it says yes; returns the seconds that took.

    Raises:
        TimeoutError: `timeout` seconds passed.
    """
    began = monotonic()
    while not condition():
        if monotonic() - began >= timeout:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        pause(poll)
    return monotonic() - began
