"""Share a pool's threads among stores, so that a store that fails or hangs does not block others.

A request to an unreachable store keeps its thread as long as the retry layer tries, and a request
to a store that hangs keeps it until its deadline. So no store may have all threads of a pool. A
store that has not answered yet, or has stopped answering, gets one request at a time until it
answers.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from sidetier.segments.backoff import backoff
from sidetier.segments.errors import ArchiveError, StorageError, TransientStorageError
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.running.workers import Job, WorkerPool

T = TypeVar("T")
_FIRST_HOLD: Final = 1.0
_LONGEST_HOLD: Final = 10.0


def most_for_one(threads: int, stores: int) -> int:
    """Return how many of a pool's threads one of several stores may have at once; at least one.

    With two stores, each one leaves a quarter of the threads to the other.
    """
    left_to_each = max(1, threads // (2 * stores))
    return max(1, threads - (stores - 1) * left_to_each)


class StoreGate:
    """Limits the jobs of one store. Only the daemon's thread uses it.

    It is open while the store answers. A closed gate lets in one job at a time, the probe: at once
    if the store was never asked, otherwise 1 s after a failed probe, doubling to 10 s. A request
    that hangs also closes it, until the store answers another request.
    """

    def __init__(self) -> None:
        self._open = False
        self._probing = False
        self._hangs = False
        self._failures = 0
        self._until = self._closed_at = self._answered_at = float("-inf")

    def lets_in(self, now: float, *, alone: bool = False) -> bool:
        """Return whether another job may begin.

        Args:
            now: Monotonic seconds.
            alone: Whether no other store shares the threads. Then the gate is closed only until the
                first answer, or while a request hangs: failed requests have their own backoff, and
                must not delay others that would succeed.
        """
        if alone and not self._hangs and self._answered_at > float("-inf"):
            return True
        return self._open or (not self._probing and now >= self._until)

    def enter(self) -> bool:
        """Note that a job begins, and return whether it is the probe."""
        probes = not self._open
        self._probing = self._probing or probes
        return probes

    def leave(self, error: Exception | None, *, began: float, now: float, probe: bool) -> None:
        """Note that a job has ended. Any answer of the store opens the gate, also a refusal.

        Args:
            error: The error of the job; None if it succeeded.
            began: When the job began, in monotonic seconds.
            now: Monotonic seconds.
            probe: Whether the job was the probe.
        """
        if probe:
            self._probing = False
        if isinstance(error, TransientStorageError):
            if began >= self._closed_at and began >= self._answered_at:
                self._close(now)  # a job that began earlier proves nothing about the store now
        elif error is None or isinstance(error, StorageError | ArchiveError):
            self._answered(now)

    def hangs(self) -> None:
        """Close the gate: a request hangs."""
        self._open, self._hangs = False, True

    def _answered(self, now: float) -> None:
        self._open, self._hangs, self._failures, self._answered_at = True, False, 0, now

    def _close(self, now: float) -> None:
        self._open, self._closed_at = False, now
        self._failures += 1
        self._until = now + backoff(self._failures, _FIRST_HOLD, _LONGEST_HOLD)


class SharedPool:
    """A worker pool of which each store may use a part of the threads."""

    def __init__(self, pool: WorkerPool, now: Callable[[], float]) -> None:
        self._pool = pool
        self._now = now
        self._under_way: Counter[StoreGate] = Counter()
        self._partitions: dict[int, TopicPartition] = {}

    @property
    def busy(self) -> int:
        """Number of jobs whose outcome has not been handled yet."""
        return self._pool.busy

    def has_room(self, gate: StoreGate) -> bool:
        """Return whether a job of this store may begin now."""
        under_way = self._under_way[gate]  # also registers the store, for `len` below
        self._under_way[gate] = under_way
        most = most_for_one(self._pool.free + self._pool.busy, len(self._under_way))
        alone = len(self._under_way) == 1
        return self._pool.free > 0 and under_way < most and gate.lets_in(self._now(), alone=alone)

    def partition_on(self, thread: int) -> TopicPartition | None:
        """Return the partition that the worker thread with this identifier works for now."""
        return self._partitions.get(thread)

    def submit(self, gate: StoreGate, job: Job[T], tp: TopicPartition) -> None:
        """Run a job of a partition. The caller must check `has_room` first."""
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
                return  # `failed` is also called if `done` has raised
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
