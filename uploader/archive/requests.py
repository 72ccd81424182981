"""The line of partitions' small requests: which goes first, and one at a time for each of them."""

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
    """What waits for a thread at one store, in order of arrival."""

    urgent: OrderedDict[TopicPartition, tuple[Partition, Request]] = field(
        default_factory=OrderedDict
    )
    others: OrderedDict[TopicPartition, tuple[Partition, Request]] = field(
        default_factory=OrderedDict
    )


class Requests:
    """Makes each partition's requests one at a time; commits go before everything else."""

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
        """Requests that wait for a thread, and those under way."""
        waiting = sum(len(line.urgent) + len(line.others) for line in self._lines.values())
        return waiting + self._pool.busy

    def partition_on(self, thread: int) -> TopicPartition | None:
        """The partition for which the worker thread with this identifier makes a request now."""
        return self._pool.partition_on(thread)

    def ask(self, partition: Partition, request: Request) -> None:
        """Have this request made as soon as a thread is free."""
        urgent = request in {Request.COMMIT, Request.GAP}
        if partition.unanswered is not None or (self._commits_only and not urgent):
            return
        line = self._lines.setdefault(self._gate_of(partition), _Line())
        partition.begin_request(request)
        wanted = line.urgent if urgent else line.others
        wanted[partition.topic_partition] = (partition, request)

    def forget(self, tp: TopicPartition) -> None:
        """The partition has passed into other hands: what waits for a thread is not wanted."""
        for line in self._lines.values():
            for wanted in (line.urgent, line.others):
                partition, _ = wanted.pop(tp, (None, None))
                if partition is not None:
                    partition.end_request()

    def commits_only(self) -> None:
        """The daemon stops: what is stored may still be committed, nothing new begins."""
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
        """Where the next one is taken from, among the stores that have room for it."""
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
        except Exception as error:  # noqa: BLE001 - it belongs to this partition's request
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
