"""The daemon's inbox and timers: everything that changes its state happens on one thread."""

import heapq
import queue
from collections.abc import Callable
from typing import Final

from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.running.workers import Outcome

_LONGEST_WAIT: Final = 1.0


class Inbox:
    """Outcomes from other threads, run one after another.

    Its length is bounded by those who write: each worker has one job, the hint board wakes once
    until it is emptied, and a leadership source delivers a view per change.

    Args:
        failed: Called with what an outcome raises: it ends neither the outcomes behind it nor the
            loop.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._queue: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def put(self, outcome: Outcome) -> None:
        """Have this run on the daemon's thread; any thread may call."""
        self._queue.put(outcome)

    def wake(self) -> None:
        """Make the daemon look around."""
        self._queue.put(_nothing)

    def run(self, timeout: float) -> None:
        """Run what is there, and wait for the first of it until the timeout at most."""
        try:
            outcome = self._queue.get(timeout=max(0.0, min(timeout, _LONGEST_WAIT)))
        except queue.Empty:
            return
        self._handle(outcome)
        for _ in range(self._queue.qsize()):
            self._handle(self._queue.get())

    def _handle(self, outcome: Outcome) -> None:
        try:
            outcome()
        except Exception as error:  # noqa: BLE001 - the outcome of one job is not the loop
            self._failed(error)


def _nothing() -> None:
    """The look around is what was wanted."""


class Timers:
    """When to look at which partition again: the earliest moment that was asked for counts."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._earliest: dict[TopicPartition, float] = {}
        self._heap: list[tuple[float, TopicPartition]] = []

    def at(self, when: float, tp: TopicPartition) -> None:
        """Look at this partition then, if not earlier."""
        if when < self._earliest.get(tp, float("inf")):
            self._earliest[tp] = when
            heapq.heappush(self._heap, (when, tp))

    def due(self) -> list[TopicPartition]:
        """The partitions whose time has come, once each; they are taken out."""
        found = []
        while self._heap and self._heap[0][0] <= self._now():
            when, tp = heapq.heappop(self._heap)
            if self._earliest.get(tp) == when:
                del self._earliest[tp]
                found.append(tp)
        return found

    def next_in(self) -> float:
        """Seconds until the first is due."""
        return self._heap[0][0] - self._now() if self._heap else _LONGEST_WAIT
