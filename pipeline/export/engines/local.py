"""Engine that runs tasks on threads of this process."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from types import TracebackType
from typing import Protocol, Self

from sidetier.archive.access import ArchiveAccess
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.config.model import BrokerConfig
from sidetier.pipeline.export.engines.tasks import carry_out
from sidetier.pipeline.export.files.ports import Done, Task
from sidetier.pipeline.export.files.values.registry import RegistryConfig
from sidetier.segments.errors import SidetierError
from sidetier.storage.port import RemoteStorage


class _StoppedError(SidetierError):
    """Another task has failed, or the export is stopped."""


class Watcher(Protocol):
    """Receives the progress of tasks. Methods are called on the tasks' threads."""

    def begin(self, offsets: int) -> None:
        """Report that tasks begin which cover this number of offsets."""
        ...

    def advance(self, offsets: int, records: int) -> None:
        """Report that this number of further offsets is done, and how many records they held."""
        ...


class LocalEngine:
    """One thread pool for the tasks of all topics. Each task is one Kafka partition.

    `run` may be called from several threads at once. The first task that fails stops the other
    tasks of the same call.

    Args:
        archive: the archive to read from.
        target: the store to write files to.
        workers: number of tasks that run at once, over all calls of `run`.
        broker: connection for records that the archive does not have.
        watcher: receives the progress of tasks; None for none.
        max_batch_bytes: largest record batch that is read, in bytes.
        registry: connection to the schema registry.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- each argument is passed on to tasks
        self,
        archive: ArchiveAccess,
        target: RemoteStorage,
        workers: int = 2,
        broker: BrokerConfig | None = None,
        watcher: Watcher | None = None,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        registry: RegistryConfig | None = None,
    ) -> None:
        self._archive = archive
        self._target = target
        self._broker = BrokerConfig() if broker is None else broker
        self._watcher = watcher
        self._max_batch_bytes = max_batch_bytes
        self._registry = registry
        self._pool = ThreadPoolExecutor(workers, "export")
        self._cancelled = threading.Event()

    def __enter__(self) -> Self:
        """Return the engine."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel the tasks and wait for the threads to end."""
        self.cancel()
        self._pool.shutdown(cancel_futures=True)

    def cancel(self) -> None:
        """See `Engine.cancel`."""
        self._cancelled.set()

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """See `Engine.run`."""
        failed = threading.Event()
        if self._watcher is not None:
            self._watcher.begin(sum(task.span.until - task.span.first for task in tasks))
        futures: list[Future[Done]] = [
            self._pool.submit(self._carry_out, task, failed) for task in tasks
        ]
        try:
            return [future.result() for future in as_completed(futures)]
        finally:
            failed.set()
            for future in futures:
                future.cancel()
            wait(futures)

    def _carry_out(self, task: Task, failed: threading.Event) -> Done:
        position = task.span.first

        def advance(records: int, next_offset: int) -> None:
            nonlocal position
            if failed.is_set() or self._cancelled.is_set():
                raise _StoppedError("the export was stopped, or another Kafka partition has failed")
            if self._watcher is not None:
                self._watcher.advance(next_offset - position, records)
            position = next_offset

        done = carry_out(
            task,
            self._archive,
            self._target,
            self._broker,
            advance,
            self._max_batch_bytes,
            self._registry,
        )
        advance(0, task.span.until)  # the last offsets of a range may hold no record
        return done
