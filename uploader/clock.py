"""The daemon's clocks and timers. Tests replace the clocks."""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sidetier.segments.offsets import TopicPartition

LONGEST_WAIT: Final = 1.0
"""Maximum seconds between two checks of the timers by the daemon."""


@dataclass(frozen=True, slots=True)
class Clock:
    """`monotonic` in seconds, for waiting; `wall` in seconds since 1970, for times in reports."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


SYSTEM_CLOCK: Final = Clock(time.monotonic, time.time)  # noqa: TID251 - the daemon's only use of them


class Timers:
    """Times of the next examination of each partition. The earliest request counts."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._earliest: dict[TopicPartition, float] = {}
        self._heap: list[tuple[float, TopicPartition]] = []

    def at(self, when: float, tp: TopicPartition) -> None:
        """Request an examination at `when`, in monotonic seconds, if none is due earlier."""
        if when < self._earliest.get(tp, float("inf")):
            # An entry of the heap cannot be moved. The outdated entry stays, and `due` skips it.
            self._earliest[tp] = when
            heapq.heappush(self._heap, (when, tp))

    def due(self) -> list[TopicPartition]:
        """Remove and return the partitions that are due, once each."""
        due_partitions = []
        while self._heap and self._heap[0][0] <= self._now():
            when, tp = heapq.heappop(self._heap)
            if self._earliest.get(tp) == when:
                del self._earliest[tp]
                due_partitions.append(tp)
        return due_partitions

    def next_in(self) -> float:
        """Return the seconds until the first is due; 1 s if there is none."""
        return self._heap[0][0] - self._now() if self._heap else LONGEST_WAIT
