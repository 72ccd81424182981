"""The queue of the partitions' small requests: their order, and one at a time per partition."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.archive.health import StoresHealth
from sidetier.uploader.archive.places import PlaceOf
from sidetier.uploader.archive.request_work import RequestWork, Work
from sidetier.uploader.running.sharing import SharedPool, StoreGate
from sidetier.uploader.running.workers import Job, WorkerPool
from sidetier.uploader.state.events import (
    Asked,
    Request,
    RequestFailed,
    RequestOvertaken,
    RequestSucceeded,
)
from sidetier.uploader.state.next_request import asked
from sidetier.uploader.state.partition import Happened, Partition


@dataclass(frozen=True, slots=True)
class _Line:
    """The requests to one store that wait for a thread, in order of arrival."""

    urgent: OrderedDict[TopicPartition, tuple[Partition, Request]] = field(
        default_factory=OrderedDict
    )
    others: OrderedDict[TopicPartition, tuple[Partition, Request]] = field(
        default_factory=OrderedDict
    )


class Requests:
    """Makes each partition's requests one at a time. Commits and gap records go first."""

    def __init__(
        self,
        pool: WorkerPool,
        place_of: PlaceOf,
        work: RequestWork,
        health: StoresHealth,
        happened: Happened,
        clock: Callable[[], float],
    ) -> None:
        self._pool = SharedPool(pool, clock)
        self._place_of = place_of
        self._work = work
        self._health = health
        self._happened = happened
        self._commits_only = False
        self._lines: dict[StoreGate, _Line] = {}

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a thread or are under way."""
        waiting = sum(len(line.urgent) + len(line.others) for line in self._lines.values())
        return waiting + self._pool.busy

    def partition_on(self, thread: int) -> TopicPartition | None:
        """Return the partition that the worker thread with this identifier makes a request for."""
        return self._pool.partition_on(thread)

    def ask(self, partition: Partition, request: Request) -> None:
        """Queue a request until a thread is free.

        Ignored while a request of the partition hangs. Once the daemon stops, everything but
        commits and gap records is ignored.
        """
        urgent = request in {Request.COMMIT, Request.GAP}
        if partition.unanswered is not None or (self._commits_only and not urgent):
            return
        line = self._lines.setdefault(self._gate_of(partition), _Line())
        partition.begin_request(request)
        queue = line.urgent if urgent else line.others
        queue[partition.topic_partition] = (partition, request)

    def forget(self, tp: TopicPartition) -> None:
        """Drop the waiting requests of a partition that another broker leads now."""
        for line in self._lines.values():
            for wanted in (line.urgent, line.others):
                partition, _ = wanted.pop(tp, (None, None))
                if partition is not None:
                    partition.end_request()

    def commits_only(self) -> None:
        """Accept only commits and gap records from now on, and drop all other waiting requests."""
        self._commits_only = True
        for line in self._lines.values():
            line.others.clear()

    def abandon(self) -> None:
        """Begin no further request."""
        self._commits_only = True
        self._lines.clear()

    def start_some(self) -> None:
        """Start requests while threads are free."""
        while (wanted := self._next()) is not None:
            _, (partition, request) = wanted.popitem(last=False)
            if partition.lost or partition.unanswered is not None:
                partition.end_request()
            else:
                self._start(partition, request)

    def _next(self) -> OrderedDict[TopicPartition, tuple[Partition, Request]] | None:
        """Return the queue of the next request, among the stores that have a thread for it."""
        lines = self._lines.items()
        urgent = ((gate, line.urgent) for gate, line in lines)
        others = ((gate, line.others) for gate, line in lines)
        for gate, wanted in chain(urgent, others):
            if wanted and self._pool.has_room(gate):
                return wanted
        return None

    def _gate_of(self, partition: Partition) -> StoreGate:
        return self._place_of(partition.topic_partition.topic).gate

    def _start(self, partition: Partition, request: Request) -> None:
        try:
            self._begin(partition, request)
        except Exception as error:  # noqa: BLE001 - reported to the partition
            begun = Asked(request, partition.generation, partition.follows, partition.archive)
            self._failed(partition, RequestFailed(begun, error))

    def _begin(self, partition: Partition, request: Request) -> None:
        begun = asked(partition, request)
        place = self._place_of(partition.topic_partition.topic)
        work = None if begun is None else self._work.of(partition, begun, place)
        if begun is None or work is None:
            self._happened(partition, RequestOvertaken())
        else:
            self._submit(partition, begun, work)

    def _submit(self, partition: Partition, begun: Asked, work: Work) -> None:
        def done(archive: ArchiveState) -> None:
            health = self._health.of(partition.topic_partition)
            health.succeeded()
            takeovers = tuple(work.takeovers)
            event = RequestSucceeded(begun, archive, health.outages, takeovers)
            self._happened(partition, event)

        def failed(error: Exception) -> None:
            self._failed(partition, RequestFailed(begun, error, tuple(work.takeovers)))

        self._pool.submit(
            self._gate_of(partition), Job(work.run, done, failed), partition.topic_partition
        )

    def _failed(self, partition: Partition, event: RequestFailed) -> None:
        self._health.of(partition.topic_partition).failed(event.error)
        self._happened(partition, event)
