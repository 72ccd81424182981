"""Tasks on threads of this process."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from types import TracebackType
from typing import Protocol, Self

from sidetier.archive.access import ArchiveAccess
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.config.cluster import BrokerConfig
from sidetier.pipeline.export.engines.tasks import carry_out
from sidetier.pipeline.export.files.ports import Done, Task
from sidetier.pipeline.export.files.values.registry import RegistryConfig
from sidetier.segments.errors import SidetierError
from sidetier.storage.port import RemoteStorage


class _StoppedError(SidetierError):
    """Another task has failed, or the export ends."""


class Watcher(Protocol):
    """Is told how far the tasks are, on their threads."""

    def begin(self, offsets: int) -> None:
        """Tasks begin that cover this many offsets."""
        ...

    def advance(self, offsets: int, records: int) -> None:
        """Another number of these offsets is done; it held this many records."""
        ...


class LocalEngine:
    """One pool of threads for the tasks of all topics, a Kafka partition each.

    `run` may be called from several threads at once. The first task that fails stops the others of
    the same call.

    Args:
        workers: how many tasks are carried out at once, over all calls.
        broker: where records are read that the archive does not have.
        watcher: is told how far the tasks are.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- what tasks are carried out with
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
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the threads."""
        self.cancel()
        self._pool.shutdown(cancel_futures=True)

    def cancel(self) -> None:
        """See `Engine`."""
        self._cancelled.set()

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """See `Engine`."""
        failed = threading.Event()
        if self._watcher is not None:
            self._watcher.begin(sum(task.span.until - task.span.first for task in tasks))
        futures: list[Future[Done]] = [
            self._pool.submit(self._carry_out, task, failed) for task in tasks
        ]
        try:
            return [one.result() for one in as_completed(futures)]
        finally:
            failed.set()
            for one in futures:
                one.cancel()
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
        advance(0, task.span.until)  # the end of a range may hold no record
        return done
