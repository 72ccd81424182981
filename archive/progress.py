"""How far an operation over many segments is, as its engine reports it to the caller."""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amount:
    """Number of segments, and their size in bytes."""

    segments: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """State of an operation.

    Attributes:
        done: The segments that are finished.
        total: All segments, as far as they are known.
        held: Number of partitions that wait after an error.
    """

    done: Amount
    total: Amount
    held: int = 0


OnProgress = Callable[[Progress], None]
"""Receives each new state, on any thread, one at a time. It must return soon."""


def ignore_progress(_progress: Progress) -> None:
    """Do nothing."""


class ProgressCounter:
    """Adds up what several threads have finished, and reports each sum."""

    def __init__(self, total: Amount, report: OnProgress) -> None:
        self._total = total
        self._report = report
        self._lock = threading.Lock()
        self._segments = self._size = 0

    def add(self, size: int, segments: int) -> None:
        """Add `size` bytes and this number of segments."""
        with self._lock:
            self._size += size
            self._segments += segments
            self._report(Progress(Amount(self._segments, self._size), self._total))
