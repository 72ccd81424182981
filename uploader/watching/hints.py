"""Hints: which partition directories to list again. Only a listing decides, never a hint."""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hints:
    """What to list again.

    Attributes:
        directories: Partition directories, each with the time of its first hint, in monotonic
            seconds.
        everything: Whether all directories must be listed.
    """

    directories: dict[str, float]
    everything: bool


class HintBoard:
    """Collects hints from the watcher's threads until the daemon takes them.

    Hints for one directory are merged, so the board never holds more hints than directories exist.
    Beyond `capacity` directories it asks to list everything instead.
    """

    def __init__(self, wake: Callable[[], None], now: Callable[[], float], capacity: int) -> None:
        self._wake = wake
        self._now = now
        self._capacity = capacity
        self._lock = threading.Lock()
        self._directories: dict[str, float] = {}
        self._everything = False

    def touch(self, directory: str) -> None:
        """Note an event in this directory."""
        with self._lock:
            first = not self._directories and not self._everything
            if len(self._directories) >= self._capacity:
                self._everything = True
            else:
                self._directories.setdefault(directory, self._now())
        if first:
            self._wake()

    def touch_everything(self) -> None:
        """Note that events were lost, so that everything must be listed."""
        with self._lock:
            first = not self._directories and not self._everything
            self._everything = True
        if first:
            self._wake()

    def take(self) -> Hints:
        """Return all hints since the last call."""
        with self._lock:
            hints = Hints(self._directories, self._everything)
            self._directories = {}
            self._everything = False
        return hints
