"""The threads that make requests, and the choice of the partition that each one serves next."""

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Final

from sidetier.archive.reader.actions import FetchStep, GoOnStep, LookStep, OpenStep, Step
from sidetier.archive.reader.opening import Opener, Opening
from sidetier.archive.reader.partition import Partition, opened_segment_position
from sidetier.archive.reader.results import ReadingObserver
from sidetier.segments.errors import SidetierError
from sidetier.storage.attempt import monotonic

Share = Callable[[], int]

_LONGEST_WAIT: Final = 1.0
_SHORTEST_WAIT: Final = 0.01
_JOIN_SECONDS: Final = 2.0
_MOST_ROUNDS: Final = 8
"""Number of steps per partition after which a partition that waited may exceed the memory
budget.
"""


class Workers:
    """`count` request threads, which start with the first partition.

    Of the partitions that have something to do, the one with the fewest requests in progress is
    served first; of equal ones, the one that was served longest ago. So no partition waits for
    another's requests. A thread that finds work wakes the next one, so at most one thread is woken
    in vain.

    `conditions` share one lock: the first wakes the request threads, the second the thread that
    takes records.
    """

    def __init__(
        self,
        count: int,
        conditions: tuple[threading.Condition, threading.Condition],
        partitions: Callable[[], Iterable[Partition]],
        share: Share,
        observer: ReadingObserver,
        clock: Callable[[], float],
    ) -> None:
        self._count = count
        self._lock, self._ready = conditions
        self._partitions = partitions
        self._share = share
        self._observer = observer
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self._turn = 0
        self._closed = False
        self.died: BaseException | None = None
        """The exception that ended a thread: a bug in Sidetier."""

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
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            self._lock.notify_all()
        end = monotonic() + _JOIN_SECONDS
        for thread in threads:
            thread.join(max(end - monotonic(), 0.0))

    def _run(self) -> None:
        try:
            while (chosen := self._wait()) is not None:
                self._do(*chosen)
        except BaseException as error:  # noqa: BLE001 - `take` raises it in its caller's thread
            with self._lock:
                self.died = error
                self._ready.notify_all()

    def _wait(self) -> tuple[Partition, Step] | None:
        with self._lock:
            while not self._closed:
                chosen = self._choose()
                if chosen is not None:
                    self._lock.notify()  # there may be more to do
                    return chosen
                self._lock.wait(self._until_due())
            return None

    def _choose(self) -> tuple[Partition, Step] | None:
        now, share = self._clock(), self._share()
        partitions = sorted(self._partitions(), key=_load)
        stalled = not any(map(_goes_on, partitions))
        for partition in partitions:
            exceeds = stalled or self._has_waited(partition, len(partitions))
            step = partition.next_step(now, share, may_exceed=exceeds)
            if step is not None:
                self._turn += 1
                partition.served = self._turn
                return partition, step
            if partition.ranges and partition.ranges[0].has_come:
                self._ready.notify_all()  # the range needed no request
        return None

    def _has_waited(self, partition: Partition, partitions: int) -> bool:
        """Whether a partition was idle for so long that it may exceed the memory budget.

        Only one partition at a time may: the budget must not be exceeded already.
        """
        waited = self._turn - partition.served > _MOST_ROUNDS * partitions
        return waited and not _goes_on(partition) and partition.budget.fits(0)

    def _until_due(self) -> float:
        now = self._clock()
        times = [p.due - now for p in self._partitions() if p.due > now]
        return min(max(min(times, default=_LONGEST_WAIT), _SHORTEST_WAIT), _LONGEST_WAIT)

    def _do(self, partition: Partition, step: Step) -> None:
        if isinstance(step, FetchStep):
            self._fetch(partition, step)
        elif isinstance(step, LookStep):
            self._look(partition)
        else:
            self._open(partition, step)

    def _fetch(self, partition: Partition, step: FetchStep) -> None:
        byte_range = step.range
        data, error = None, None
        try:
            data = partition.opener.fetch(byte_range.log.row, byte_range.start, byte_range.end)
            self._observer.fetched(partition.tp, len(data))
        except SidetierError as failure:
            error = failure
        with self._lock:
            partition.under_way -= 1
            partition.failing = error is not None and error.retry
            if byte_range.dropped:
                partition.budget.give_back(byte_range.size)
            else:
                byte_range.data, byte_range.error = data, error
            self._ready.notify_all()

    def _look(self, partition: Partition) -> None:
        """Take a snapshot. Errors are ignored here: the next read of the partition meets them
        again.
        """
        with contextlib.suppress(SidetierError):
            partition.opener.archive.look(partition.settings.most_view_age / 2)
        with self._lock:
            partition.looking = False
            self._notice(partition)
            partition.looked_at = max(partition.looked_at, self._clock() - _LONGEST_WAIT)
            self._ready.notify_all()

    def _open(self, partition: Partition, step: OpenStep | GoOnStep) -> None:
        try:
            answer: Opening | SidetierError = _asked(partition.opener, step)
        except SidetierError as error:
            answer = error
        with self._lock:
            self._notice(partition)
            if partition.epoch == step.ticket:
                partition.failing = isinstance(answer, SidetierError) and answer.retry
                partition.answer = answer
                partition.note_limit(answer)
                segment_position = opened_segment_position(answer)
                if segment_position is not None:
                    partition.plan(segment_position)
            self._ready.notify_all()

    def _notice(self, partition: Partition) -> None:
        look = partition.opener.archive.latest
        if look is not None:
            partition.notice(look, self._clock())


def _asked(opener: Opener, step: OpenStep | GoOnStep) -> Opening:
    if isinstance(step, GoOnStep):
        return opener.go_on(step.stuck)
    target = step.target
    if target.waiting_for is None:
        return opener.open_at(target.offset, step.max_age)
    return opener.look_ahead(target.offset, target.waiting_for, step.max_age)


def _goes_on(partition: Partition) -> bool:
    """Whether the partition makes progress by itself, or once records are taken."""
    at_work = partition.under_way > 0 or partition.driven
    return at_work or partition.takeable() or partition.may_yield()


def _load(partition: Partition) -> tuple[int, int]:
    return partition.under_way + partition.asked, partition.served
