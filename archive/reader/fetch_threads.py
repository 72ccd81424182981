"""The threads that make requests, and the choice of the partition that each one serves next."""

import contextlib
import threading
from collections.abc import Callable, Collection
from typing import Final

from sidetier.archive.reader.memory import MemoryBudget
from sidetier.archive.reader.opening import Opener, Opening
from sidetier.archive.reader.partition import (
    Action,
    Fetch,
    Open,
    OpenElsewhere,
    PartitionReader,
    TakeSnapshot,
)
from sidetier.archive.reader.results import ReadingObserver
from sidetier.segments.errors import SidetierError
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

    Args:
        count: Number of threads.
        work: Wakes the request threads. Its lock guards all partitions.
        ready: Wakes the thread that takes records. Has the same lock.
        partitions: Live view of the assigned partitions.
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
        partitions: Collection[PartitionReader],
        budget: MemoryBudget,
        observer: ReadingObserver,
        clock: Callable[[], float],
    ) -> None:
        self.died: BaseException | None = None
        self._count = count
        self._work, self._ready = work, ready
        self._partitions = partitions
        self._budget = budget
        self._observer = observer
        self._clock = clock
        self._threads: list[threading.Thread] = []
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

    def _run(self) -> None:
        try:
            while (chosen := self._wait()) is not None:
                partition, action = chosen
                match action:
                    case Fetch():
                        self._fetch(partition, action)
                    case TakeSnapshot():
                        self._take_snapshot(partition, action)
                    case _:
                        self._open(partition, action)
        except BaseException as error:  # noqa: BLE001 - `take` raises it in its caller's thread
            with self._work:
                self.died = error
                self._ready.notify_all()

    def _wait(self) -> tuple[PartitionReader, Action] | None:
        """Wait for the next action; None after `close`."""
        with self._work:
            while not self._closed:
                chosen = self._choose()
                if chosen is not None:
                    self._work.notify()  # there may be more to do
                    return chosen
                self._work.wait(self._until_due())
            return None

    def _choose(self) -> tuple[PartitionReader, Action] | None:
        now = self._clock()
        # The number of active partitions changes with each pause and
        # assignment, so shares are computed again for each action.
        self._budget.divide(sum(partition.is_active(now) for partition in self._partitions))
        partitions = sorted(self._partitions, key=PartitionReader.load)
        # If no partition can continue by itself, one must exceed the budget, or all wait forever.
        is_stalled = not any(map(PartitionReader.goes_on, partitions))
        chosen, is_ready = None, False
        for partition in partitions:
            may_exceed = is_stalled or self._has_waited(partition, len(partitions))
            action = partition.next_action(now, may_exceed=may_exceed)
            if action is not None:
                self._turn += 1
                partition.served = self._turn
                chosen = partition, action
                break
            # A range that a search has read, and an empty one, need no request.
            is_ready = is_ready or partition.first_range_has_come
        if is_ready:
            self._ready.notify_all()
        return chosen

    def _has_waited(self, partition: PartitionReader, partitions: int) -> bool:
        """Whether a partition was idle for so long that it may exceed the memory budget.

        Only one partition at a time may: the budget must not be exceeded already.
        """
        has_waited = self._turn - partition.served > _MAX_ROUNDS * partitions
        return has_waited and not partition.goes_on() and self._budget.fits(0)

    def _until_due(self) -> float:
        now = self._clock()
        times = [partition.due - now for partition in self._partitions if partition.due > now]
        return min(max(min(times, default=_LONGEST_WAIT), _SHORTEST_WAIT), _LONGEST_WAIT)

    def _fetch(self, partition: PartitionReader, action: Fetch) -> None:
        wanted = action.range
        data, error = None, None
        try:
            data = partition.opener.fetch(wanted.log.row, wanted.start, wanted.end)
            self._observer.fetched(partition.tp, len(data))
        # All other exceptions are bugs. They end the thread, and `take` raises them.
        except SidetierError as failure:
            error = failure
        with self._work:
            partition.range_fetched(wanted, data, error)
            self._ready.notify_all()

    def _take_snapshot(self, partition: PartitionReader, action: TakeSnapshot) -> None:
        """Take a snapshot. Errors are ignored here: the next read of the partition meets them
        again.
        """
        archive = partition.opener.archive
        with contextlib.suppress(SidetierError):
            archive.snapshot(action.max_age)
        with self._work:
            # `latest`, and not the result: after an error it is still the snapshot that is known.
            partition.snapshot_taken(archive.latest, self._clock())
            self._ready.notify_all()

    def _open(self, partition: PartitionReader, action: Open | OpenElsewhere) -> None:
        answer = _answer(partition.opener, action)
        with self._work:
            latest = partition.opener.archive.latest
            partition.opened(action.ticket, answer, latest, self._clock())
            self._ready.notify_all()


def _answer(opener: Opener, action: Open | OpenElsewhere) -> Opening | SidetierError:
    try:
        if isinstance(action, OpenElsewhere):
            return opener.open_elsewhere(action.stuck)
        return opener.open(action.target, action.max_age)
    except SidetierError as error:
        return error
