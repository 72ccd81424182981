"""The threads that make requests, and the choice of the partition that each one serves next."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from math import inf
from operator import attrgetter
from typing import Final

from sidetier.archive.reader.partition import Partition
from sidetier.archive.reader.pipeline import Open, Pipeline, Refresh
from sidetier.archive.reader.results import ReadingObserver
from sidetier.archive.reader.source import opening_at
from sidetier.archive.segment_bytes import MemoryBudget, Range
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.attempt import monotonic

_LONGEST_WAIT: Final = 1.0
_SHORTEST_WAIT: Final = 0.01
_JOIN_SECONDS: Final = 2.0
_MAX_ROUNDS: Final = 8
"""Number of actions per partition after which a partition that waited may exceed the memory budget.
"""


class FetchThreads:
    """`count` request threads, which start with the first partition.

    Of the partitions that have something to do, the one with the fewest requests in progress is
    served first; of equal ones, the one that was served longest ago. So no partition waits for
    another's requests. A thread that finds work wakes the next one, so at most one thread is woken
    in vain.

    With many partitions, a look at each of them for each request would cost more than decoding. So
    only a partition with a new event (`changed`) is measured and asked for its next request, one
    whose time has come, and one that waits for memory.

    Args:
        count: Number of threads.
        work: Wakes the request threads. Its lock guards all partitions.
        ready: Wakes the thread that takes records. Has the same lock.
        arrivals: Receives each partition that may have something to take.
        partitions: The assigned partitions.
        budget: The memory budget of the partitions.
        observer: Receives the bytes of each range.
        clock: The reader's clock, in seconds.

    Attributes:
        died: The exception that ended a thread: a bug in Sidetier.
    """

    def __init__(  # noqa: PLR0913 - what the threads share with the reader
        self,
        count: int,
        *,
        work: threading.Condition,
        ready: threading.Condition,
        arrivals: dict[Partition, None],
        partitions: Mapping[TopicPartition, Partition],
        budget: MemoryBudget,
        observer: ReadingObserver,
        clock: Callable[[], float],
    ) -> None:
        self.died: BaseException | None = None
        self._count = count
        self._work, self._ready = work, ready
        self._arrivals = arrivals
        self._partitions = partitions
        self._budget = budget
        self._observer = observer
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self._changed: dict[Partition, None] = {}
        """Partitions to measure again."""
        self._candidates: dict[Partition, None] = {}
        """Partitions that may have a request now."""
        self._held: dict[Partition, int] = {}
        """Bytes that each partition held when it was measured last."""
        self._active: set[Partition] = set()
        """Partitions that need a share of the budget."""
        self._due: dict[Partition, float] = {}
        """Partitions that have a request at a later time."""
        self._next_due = inf
        self._fetching = 0
        """Bytes being fetched, also those that no partition waits for any more."""
        self._turn = 0
        self._closed = False

    def begin(self) -> None:
        """Start the threads, unless they run. The caller holds the lock."""
        if self._threads or self._closed:
            return
        self._threads = [
            threading.Thread(target=self._run, name=f"archive-fetch-{number}", daemon=True)
            for number in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads. A thread that still waits for the store after 2 seconds is abandoned."""
        with self._work:
            self._closed = True
            threads, self._threads = self._threads, []
            self._work.notify_all()
        end = monotonic() + _JOIN_SECONDS
        for thread in threads:
            thread.join(max(end - monotonic(), 0.0))
        with self._work:
            self.measure()

    def changed(self, partition: Partition) -> None:
        """Note an event of a partition. The caller holds the lock.

        Called before the event if an interruption could otherwise lose it.
        """
        self._changed[partition] = None
        self._work.notify()

    def arrived(self, partition: Partition) -> None:
        """Note that a partition may have something to take. The caller holds the lock."""
        self._arrivals[partition] = None
        self._ready.notify_all()

    def measure(self) -> int:
        """Return the bytes that are held or being fetched now. The caller holds the lock."""
        now = self._clock()
        # Each partition leaves the set after it was measured: an exception in between loses none.
        while self._changed:
            partition = next(iter(self._changed))
            self._measure(partition, now)
            self._changed.pop(partition, None)
        self._budget.measure(self._fetching + sum(self._held.values()), len(self._active))
        return self._budget.used

    def _measure(self, partition: Partition, now: float) -> None:
        if not self.is_assigned(partition):
            self._held.pop(partition, None)
            self._active.discard(partition)
            self._candidates.pop(partition, None)
            self._due.pop(partition, None)
            return
        self._held[partition] = partition.held_bytes
        if partition.is_active(now):
            self._active.add(partition)
        else:
            self._active.discard(partition)
        self._candidates[partition] = None

    def is_assigned(self, partition: Partition) -> bool:
        """Whether the partition is still assigned. The caller holds the lock."""
        return self._partitions.get(partition.tp) is partition

    def _run(self) -> None:
        try:
            while (chosen := self._wait()) is not None:
                partition, pipeline, request = chosen
                match request:
                    case Range():
                        self._fetch(partition, pipeline, request)
                    case Refresh():
                        self._refresh(partition, pipeline, request)
                    case Open():
                        self._open(partition, pipeline, request)
                # Else this thread would keep the last range until the next request.
                del chosen, partition, pipeline, request
        except BaseException as error:  # noqa: BLE001 - `take` raises it in its caller's thread
            with self._work:
                self.died = error
                self._ready.notify_all()

    def _wait(self) -> tuple[Partition, Pipeline, Open | Refresh | Range] | None:
        """Wait for the next action; None after `close`."""
        with self._work:
            while not self._closed:
                chosen = self._choose()
                if chosen is not None:
                    if isinstance(chosen[2], Range):
                        self._fetching += chosen[2].size
                        self._budget.add(chosen[2].size)
                    self._work.notify()  # there may be more to do
                    return chosen
                self._work.wait(self._until_due())
            return None

    def _choose(self) -> tuple[Partition, Pipeline, Open | Refresh | Range] | None:
        now = self._clock()
        self._add_due(now)
        self.measure()
        chosen = self._ask(now, is_stalled=False)
        if chosen is not None or not self._candidates:
            return chosen
        # If no partition can continue by itself, one must exceed the budget, or all wait forever.
        if any(partition.goes_on(self._budget) for partition in self._partitions.values()):
            return None
        return self._ask(now, is_stalled=True)

    def _add_due(self, now: float) -> None:
        if now < self._next_due:
            return
        for partition in [partition for partition, due in self._due.items() if due <= now]:
            self._changed[partition] = None
            del self._due[partition]
        self._next_due = min(self._due.values(), default=inf)

    def _ask(
        self, now: float, *, is_stalled: bool
    ) -> tuple[Partition, Pipeline, Open | Refresh | Range] | None:
        """Return the next request of the candidates."""
        for partition in sorted(self._candidates, key=attrgetter("load")):
            may_exceed = is_stalled or self._has_waited(partition)
            request = partition.next_request(now, self._budget, may_exceed=may_exceed)
            if request is None:
                self._rest(partition, now)
            elif isinstance(request, Range) and request.has_come:
                self.arrived(partition)  # a range that a search has read, or an empty one
            else:
                self._turn += 1
                partition.served = self._turn
                return partition, partition.pipeline, request
        return None

    def _rest(self, partition: Partition, now: float) -> None:
        """Do not ask a partition again until it may have a request."""
        if not partition.waits_for_memory:
            self._candidates.pop(partition, None)
        due = partition.next_time(now)
        if due is None or due <= now:
            self._due.pop(partition, None)
        else:
            self._due[partition] = due
            self._next_due = min(self._next_due, due)

    def _has_waited(self, partition: Partition) -> bool:
        """Whether a partition was idle for so long that it may exceed the memory budget.

        Only one partition at a time may: the budget must not be exceeded already.
        """
        has_waited = self._turn - partition.served > _MAX_ROUNDS * len(self._partitions)
        return has_waited and not partition.goes_on(self._budget) and self._budget.fits(0)

    def _until_due(self) -> float:
        return min(max(self._next_due - self._clock(), _SHORTEST_WAIT), _LONGEST_WAIT)

    def _fetch(self, partition: Partition, pipeline: Pipeline, wanted: Range) -> None:
        data, error = None, None
        try:
            data = partition.source.fetch(wanted.part.log, wanted.start, wanted.end)
            self._observer.fetched(partition.tp, len(data))
        # All other exceptions are bugs. They end the thread, and `take` raises them.
        except SidetierError as failure:
            error = failure
        with self._work:
            self._fetching -= wanted.size
            wanted.data, wanted.error = data, error
            pipeline.ended(error)
            self._end(partition)

    def _refresh(self, partition: Partition, pipeline: Pipeline, request: Refresh) -> None:
        """Look for changes. Errors are ignored here: the next read of the partition meets them
        again.
        """
        with contextlib.suppress(SidetierError):
            partition.source.refresh(request.max_age)
        with self._work:
            now = self._clock()
            pipeline.refreshed(partition.source.as_of, now)
            partition.notice_changes(now)
            self._end(partition)

    def _open(self, partition: Partition, pipeline: Pipeline, request: Open) -> None:
        answer = opening_at(partition.source, request.run.start, request.max_age)
        with self._work:
            # Before the changes are noticed: these may replace the pipeline.
            pipeline.opened(request.run, answer)
            partition.notice_changes(self._clock())
            self._end(partition)

    def _end(self, partition: Partition) -> None:
        # No thread needs to be woken: this one looks for the next request.
        if self.is_assigned(partition):
            self._changed[partition] = None
            self.arrived(partition)
