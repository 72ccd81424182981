"""Threads that make requests; what comes out is handled on the daemon's own thread."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

Outcome = Callable[[], None]
"""What to do, on the daemon's thread, with what came out."""


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """`work` runs on a worker; then `done` or `failed` runs on the daemon's thread.

    `failed` also gets what `done` raises: a result that cannot be taken in is a failure.
    """

    work: Callable[[], T]
    done: Callable[[T], None]
    failed: Callable[[Exception], None]

    def finish(self, result: T) -> None:
        """Take in the result, on the daemon's thread."""
        try:
            self.done(result)
        except Exception as error:  # noqa: BLE001 - handed to the job's owner, as what `work` raises
            self.failed(error)


class WorkerPool:
    """A fixed number of daemon threads, and as many jobs at once: `free` says if one more fits.

    Whoever submits without a free worker is refused (RuntimeError): jobs wait with their owner, in
    the order that it wants, never in a queue of the pool's.
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
        """Workers without a job; only the daemon's thread asks."""
        return self._free

    @property
    def busy(self) -> int:
        """Jobs whose outcome has not been handled yet."""
        return self._size - self._free

    def submit(self, job: Job[T]) -> None:
        """Run a job; only the daemon's thread calls this."""
        if self._free <= 0:
            raise RuntimeError("no free worker: ask `free` first")
        self._free -= 1
        self._jobs.put(job)  # type: ignore[arg-type]

    def stop(self) -> None:
        """Let idle workers end; busy ones end after their job."""
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
