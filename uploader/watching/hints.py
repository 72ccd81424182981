"""Hints: which partition directories are worth another look. The listing stays the truth."""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hints:
    """What to look at again: directories, each with the moment of its first hint; or everything."""

    directories: dict[str, float]
    everything: bool


class HintBoard:
    """Collects hints from the watcher's threads until the daemon takes them.

    Hints for one directory fall together, so the board never holds more than there are directories;
    beyond `capacity` it asks for a look at everything instead.
    """

    def __init__(self, wake: Callable[[], None], now: Callable[[], float], capacity: int) -> None:
        self._wake = wake
        self._now = now
        self._capacity = capacity
        self._lock = threading.Lock()
        self._directories: dict[str, float] = {}
        self._everything = False

    def touch(self, directory: str) -> None:
        """Something happened in this directory."""
        with self._lock:
            first = not self._directories and not self._everything
            if len(self._directories) >= self._capacity:
                self._everything = True
            else:
                self._directories.setdefault(directory, self._now())
        if first:
            self._wake()

    def touch_everything(self) -> None:
        """Something happened, and nobody knows where."""
        with self._lock:
            first = not self._directories and not self._everything
            self._everything = True
        if first:
            self._wake()

    def take(self) -> Hints:
        """All hints since the last call."""
        with self._lock:
            hints = Hints(self._directories, self._everything)
            self._directories = {}
            self._everything = False
        return hints
