"""The daemon's inbox and timers. Only one thread changes the daemon's state."""

import heapq
import queue
from collections.abc import Callable
from typing import Final

from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.running.workers import Outcome

_LONGEST_WAIT: Final = 1.0


class Inbox:
    """Runs outcomes from other threads one after another.

    Its writers limit its length: each worker has one job, the hint board wakes the daemon once
    until it is emptied, and a leadership source delivers one view per change.

    Args:
        failed: Called with the error of an outcome. The error does not stop the outcomes behind it,
            nor the loop.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._queue: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def put(self, outcome: Outcome) -> None:
        """Queue an outcome for the daemon's thread. Any thread may call this."""
        self._queue.put(outcome)

    def wake(self) -> None:
        """Wake the daemon for its next step. Any thread may call this."""
        self._queue.put(_nothing)

    def run(self, timeout: float) -> None:
        """Wait for an outcome, `timeout` seconds or 1 s at most; then run all that are queued."""
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
        except Exception as error:  # noqa: BLE001 - one outcome must not end the loop
            self._failed(error)


def _nothing() -> None:
    """Do nothing: the step that follows is the purpose."""


class Timers:
    """Times at which partitions are to be examined again. The earliest request counts."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._earliest: dict[TopicPartition, float] = {}
        self._heap: list[tuple[float, TopicPartition]] = []

    def at(self, when: float, tp: TopicPartition) -> None:
        """Request an examination at `when`, in monotonic seconds, if none is due earlier."""
        if when < self._earliest.get(tp, float("inf")):
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
        return self._heap[0][0] - self._now() if self._heap else _LONGEST_WAIT
