"""Threads that several stores share: one that fails or hangs does not keep the others waiting.

A request to a store that is away holds its thread for as long as the retry layer tries, and one to
a store that hangs until its deadline. So no store may have all threads of a pool; and one that has
not answered, or does not any more, is asked one thing at a time until it answers.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from sidetier.segments.errors import ArchiveError, StorageError, TransientStorageError
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.running.workers import Job, WorkerPool

T = TypeVar("T")
_FIRST_HOLD: Final = 1.0
_LONGEST_HOLD: Final = 10.0


def most_for_one(threads: int, stores: int) -> int:
    """How many of a pool's threads one of so many stores may have at once, at least one.

    With two stores each leaves a quarter of the threads to the other.
    """
    left_to_each = max(1, threads // (2 * stores))
    return max(1, threads - (stores - 1) * left_to_each)


class StoreGate:
    """How much may be asked of one store now; for the daemon's thread alone.

    It is open while the store answers. Closed, it lets one job in at a time, the probe: at once
    before the store was ever asked, and after a failed probe 1 s later, doubling to 10 s. A request
    that hangs closes it as well, until the store answers any other.
    """

    def __init__(self) -> None:
        self._open = False
        self._probing = False
        self._hangs = False
        self._failures = 0
        self._until = self._closed_at = self._answered_at = float("-inf")

    def lets_in(self, now: float, *, alone: bool = False) -> bool:
        """Whether another job may begin. A store that shares the threads with no other is closed
        only until its first answer: what fails there has holds of its own, and must not keep what
        would succeed waiting.
        """
        if alone and not self._hangs and self._answered_at > float("-inf"):
            return True
        return self._open or (not self._probing and now >= self._until)

    def enter(self) -> bool:
        """A job begins; returns whether it is the probe."""
        probes = not self._open
        self._probing = self._probing or probes
        return probes

    def leave(self, error: Exception | None, *, began: float, now: float, probe: bool) -> None:
        """A job that began then has ended; any answer of the store opens, whatever it says."""
        if probe:
            self._probing = False
        if isinstance(error, TransientStorageError):
            if began >= self._closed_at and began >= self._answered_at:
                self._close(now)  # what began earlier is no news
        elif error is None or isinstance(error, StorageError | ArchiveError):
            self._answered(now)

    def hangs(self) -> None:
        """A request has not been answered for long. Nothing more is known of those before it."""
        self._open, self._hangs = False, True

    def _answered(self, now: float) -> None:
        self._open, self._hangs, self._failures, self._answered_at = True, False, 0, now

    def _close(self, now: float) -> None:
        self._open, self._closed_at = False, now
        self._until = now + min(_LONGEST_HOLD, _FIRST_HOLD * 2 ** min(self._failures, 16))
        self._failures += 1


class SharedPool:
    """A worker pool of which each store may have a part."""

    def __init__(self, pool: WorkerPool, now: Callable[[], float]) -> None:
        self._pool = pool
        self._now = now
        self._under_way: Counter[StoreGate] = Counter()
        self._partitions: dict[int, TopicPartition] = {}

    @property
    def busy(self) -> int:
        """Jobs whose outcome has not been handled yet."""
        return self._pool.busy

    def has_room(self, gate: StoreGate) -> bool:
        """Whether a job of this store may begin now."""
        under_way = self._under_way[gate]  # a store is known from its first question on
        self._under_way[gate] = under_way
        most = most_for_one(self._pool.free + self._pool.busy, len(self._under_way))
        alone = len(self._under_way) == 1
        return self._pool.free > 0 and under_way < most and gate.lets_in(self._now(), alone=alone)

    def partition_on(self, thread: int) -> TopicPartition | None:
        """The partition for which the worker thread with this identifier works now."""
        return self._partitions.get(thread)

    def submit(self, gate: StoreGate, job: Job[T], tp: TopicPartition) -> None:
        """Run a job of a partition; ask `has_room` first."""
        began, probe = self._now(), gate.enter()
        self._under_way[gate] += 1

        def work() -> T:
            thread = threading.get_ident()
            self._partitions[thread] = tp
            try:
                return job.work()
            finally:
                del self._partitions[thread]

        ended = False

        def leave(error: Exception | None) -> None:
            nonlocal ended
            if ended:
                return  # `failed` is called after `done` where that has raised
            ended = True
            self._under_way[gate] -= 1
            gate.leave(error, began=began, now=self._now(), probe=probe)

        def done(result: T) -> None:
            leave(None)
            job.finish(result)

        def failed(error: Exception) -> None:
            leave(error)
            job.failed(error)

        self._pool.submit(Job(work, done, failed))
