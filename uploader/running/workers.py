"""Threads that make requests. The daemon's own thread handles their results."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

Outcome = Callable[[], None]
"""Handles the result of a job, on the daemon's thread."""


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """`work` runs on a worker; then `done` or `failed` runs on the daemon's thread.

    `failed` also gets an error that `done` raises: a result that cannot be handled is a failure.
    """

    work: Callable[[], T]
    done: Callable[[T], None]
    failed: Callable[[Exception], None]

    def finish(self, result: T) -> None:
        """Handle the result, on the daemon's thread."""
        try:
            self.done(result)
        except Exception as error:  # noqa: BLE001 - handed to the job's owner, as an error of `work`
            self.failed(error)


class WorkerPool:
    """A fixed number of daemon threads that run one job each.

    `submit` raises RuntimeError without a free worker, see `free`. Jobs wait at their owner, which
    decides about their order, and never in the pool.

    Attributes:
        death: The error that has ended a worker thread; None while all run.
    """

    def __init__(self, name: str, size: int, deliver: Callable[[Outcome], None]) -> None:
        self._deliver = deliver
        self._jobs: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()
        self._free = size
        self._size = size
        self.death: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(size)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def free(self) -> int:
        """Number of workers without a job. Only the daemon's thread reads it."""
        return self._free

    @property
    def busy(self) -> int:
        """Number of jobs whose outcome has not been handled yet."""
        return self._size - self._free

    def submit(self, job: Job[T]) -> None:
        """Run a job. Only the daemon's thread calls this."""
        if self._free <= 0:
            raise RuntimeError("no free worker: ask `free` first")
        self._free -= 1
        self._jobs.put(job)  # type: ignore[arg-type]

    def stop(self) -> None:
        """End idle workers now, and busy ones after their job."""
        for _ in self._threads:
            self._jobs.put(None)

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                self._deliver(self._outcome(job))
        except BaseException as error:  # noqa: BLE001 - a worker's death ends the process, with its reason
            self.death = error
            self._deliver(lambda: None)

    def _outcome(self, job: Job[object]) -> Outcome:
        try:
            result = job.work()
        except Exception as error:  # noqa: BLE001 - handed to the job's owner
            return self._handle(lambda error=error: job.failed(error))  # type: ignore[misc]
        return self._handle(lambda: job.finish(result))

    def _handle(self, then: Outcome) -> Outcome:
        def handle() -> None:
            self._free += 1
            then()

        return handle
