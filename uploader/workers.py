"""Worker threads. A worker runs a task and delivers its outcome as an event; it changes no state.

Requests to an unreachable store keep their thread as long as the retry layer tries, and requests to
a store that hangs keep it until their deadline. So `SharedPool` never lets one store have all
threads of a pool, and a store that has not answered yet, or has stopped answering, gets one request
at a time until it answers.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from sidetier.segments.backoff import backoff
from sidetier.segments.errors import ArchiveError, StorageError, TransientStorageError
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.state.partition import Partition

E_co = TypeVar("E_co", covariant=True)
_FIRST_HOLD: Final = 1.0
_LONGEST_HOLD: Final = 10.0


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

    def admits(self, now: float, *, alone: bool = False) -> bool:
        """Return whether another job may begin at `now` (monotonic seconds).

        `alone`: no other store shares the threads. The gate is then closed only until the first
        answer, or while a request hangs: failed requests have their own backoff, and must not delay
        others.
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
        """Record the end of a job that began at `began`. Any answer of the store opens the gate,
        also a refusal. Times are monotonic seconds.
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


@dataclass(frozen=True, slots=True)
class Admission:
    """A task's permission to use a store: when it `began` in monotonic seconds, and whether it
    probes a store that has not answered.
    """

    gate: StoreGate
    partition: Partition
    began: float
    is_probe: bool


@dataclass(frozen=True, slots=True)
class Task(Generic[E_co]):
    """Work for a worker thread.

    Attributes:
        run: Does the work, on the worker thread, and returns the event with its result.
        failed: Turns an error into an event. It is called with what `run` raises, and if the
            daemon's thread cannot handle the event that `run` has returned.
        admission: The permission to use a partition's store; None if the task uses none.
    """

    run: Callable[[], E_co]
    failed: Callable[[Exception], E_co]
    admission: Admission | None = None


@dataclass(frozen=True, slots=True)
class Finished(Generic[E_co]):
    """A worker of the pool with this name has run a task; `error` is what the work has raised."""

    pool: str
    task: Task[E_co]
    event: E_co
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker thread has ended; `WorkerPool.death` has the reason."""

    pool: str


def run_task(pool: str, task: Task[E_co]) -> Finished[E_co]:
    """Run a task on the calling thread."""
    try:
        return Finished(pool, task, task.run())
    except Exception as error:  # noqa: BLE001 - becomes an event of the task's owner
        return Finished(pool, task, task.failed(error), error)


class WorkerPool(Generic[E_co]):
    """A fixed number of daemon threads that run one task each.

    Tasks wait at their owner, which decides about their order, and never in the pool.

    Attributes:
        name: Names the threads, and is in `Finished.pool`.
        death: The error that has ended a worker thread; None while all run.
    """

    def __init__(
        self, name: str, size: int, deliver: Callable[[Finished[E_co] | WorkerDied], None]
    ) -> None:
        self.name = name
        self.death: BaseException | None = None
        self._deliver = deliver
        self._tasks: queue.SimpleQueue[Task[E_co] | None] = queue.SimpleQueue()
        self._free = self._size = size
        self._on_thread: dict[int, Task[E_co]] = {}
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(size)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def free(self) -> int:
        """Number of workers without a task. Only the daemon's thread reads it."""
        return self._free

    @property
    def busy(self) -> int:
        """Number of tasks whose `Finished` has not been taken yet."""
        return self._size - self._free

    def task_on(self, thread: int) -> Task[E_co] | None:
        """Return the task that the worker thread with this identifier runs now."""
        return self._on_thread.get(thread)

    def submit(self, task: Task[E_co]) -> None:
        """Run a task; raises RuntimeError if no worker is free. Only the daemon's thread calls
        this.
        """
        if self._free <= 0:
            raise RuntimeError("no free worker: ask `free` first")
        self._free -= 1
        self._tasks.put(task)

    def release(self) -> None:
        """Record that the daemon's thread has taken a `Finished` of this pool.

        The worker counts as busy until then, which bounds the queue of events by the pools' sizes.
        """
        self._free += 1

    def stop(self) -> None:
        """End idle workers now, and busy ones after their task."""
        for _ in self._threads:
            self._tasks.put(None)

    def _run(self) -> None:
        thread = threading.get_ident()
        try:
            while (task := self._tasks.get()) is not None:
                # Before the task runs: a request that hangs must be attributable to its partition.
                self._on_thread[thread] = task
                finished = run_task(self.name, task)
                # Before the delivery: a finished task must not
                # be reported as the one of a hung request.
                del self._on_thread[thread]
                self._deliver(finished)
        except BaseException as error:  # noqa: BLE001 - a worker's death ends the process, with its reason
            self.death = error
            self._deliver(WorkerDied(self.name))


def most_for_one(threads: int, stores: int) -> int:
    """Return how many of a pool's threads one of several stores may have at once; at least one.

    With two stores, each one leaves a quarter of the threads to the other.
    """
    left_to_each = max(1, threads // (2 * stores))
    return max(1, threads - (stores - 1) * left_to_each)


class SharedPool(Generic[E_co]):
    """A worker pool of which each store may use a part of the threads."""

    def __init__(self, pool: WorkerPool[E_co], now: Callable[[], float]) -> None:
        self._pool = pool
        self._now = now
        self._under_way: Counter[StoreGate] = Counter()

    @property
    def busy(self) -> int:
        """Number of tasks whose `Finished` has not been taken yet."""
        return self._pool.busy

    def has_room(self, gate: StoreGate) -> bool:
        """Return whether a task of this store may begin now."""
        under_way = self._under_way[gate]  # also registers the store, for `len` below
        self._under_way[gate] = under_way
        most = most_for_one(self._pool.free + self._pool.busy, len(self._under_way))
        alone = len(self._under_way) == 1
        return self._pool.free > 0 and under_way < most and gate.admits(self._now(), alone=alone)

    def partition_on(self, thread: int) -> TopicPartition | None:
        """Return the partition that the worker thread with this identifier works for now."""
        task = self._pool.task_on(thread)
        if task is None or task.admission is None:
            return None
        return task.admission.partition.topic_partition

    def submit(self, gate: StoreGate, task: Task[E_co], partition: Partition) -> None:
        """Run a task of a partition. The caller must check `has_room` first."""
        admission = Admission(gate, partition, self._now(), gate.enter())
        self._under_way[gate] += 1
        self._pool.submit(replace(task, admission=admission))

    def left(self, admission: Admission, error: Exception | None) -> None:
        """Note that a task has ended. Any answer of the store opens its gate, also a refusal."""
        self._under_way[admission.gate] -= 1
        admission.gate.leave(
            error, began=admission.began, now=self._now(), probe=admission.is_probe
        )
