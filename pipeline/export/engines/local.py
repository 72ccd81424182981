"""Tasks on threads of this process."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.config.cluster import BrokerConfig
from sidetier.pipeline.export.engines.tasks import carry_out
from sidetier.pipeline.export.files.parts import Done, Task
from sidetier.pipeline.export.files.task import Progress
from sidetier.segments.errors import SidetierError
from sidetier.storage.endpoints import ArchiveAccess
from sidetier.storage.port import RemoteStorage


class _StoppedError(SidetierError):
    """Another task has failed."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """So many tasks at once, a Kafka partition each; the first that fails stops the others.

    `progress` is called on their threads. `broker` is where records are that it alone has.
    """

    archive: ArchiveAccess
    target: RemoteStorage
    workers: int = 2
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    progress: Progress = field(default=lambda _count: None)
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """See `Engine`."""
        stop = threading.Event()

        def heard(count: int) -> None:
            if stop.is_set():
                raise _StoppedError("another Kafka partition could not be exported")
            self.progress(count)

        pool = ThreadPoolExecutor(self.workers, "export")
        futures: list[Future[Done]] = [
            pool.submit(
                carry_out,
                task,
                self.archive,
                self.target,
                self.broker,
                heard,
                self.max_batch_bytes,
            )
            for task in tasks
        ]
        try:
            return [one.result() for one in as_completed(futures)]
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
