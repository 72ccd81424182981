"""The line of partitions' small requests: which goes first, and one at a time for each of them."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.health import StoresHealth
from sidetier.uploader.archive.history import Histories
from sidetier.uploader.archive.outcomes import Outcomes
from sidetier.uploader.archive.places import PlaceOf
from sidetier.uploader.archive.request_work import RequestWork, Work
from sidetier.uploader.running.sharing import SharedPool, StoreGate
from sidetier.uploader.running.workers import Job, WorkerPool
from sidetier.uploader.state.partition import Partition, Request, wait_anew
from sidetier.uploader.unexpected import UnexpectedErrors


@dataclass(frozen=True, slots=True)
class RequestCallbacks:
    """In whose name a partition is written, when the broker was asked that named that as its
    leader's last (`CommittedGate.named_at`), and whom to tell what came of it.
    """

    leader: Callable[[Partition], Leader]
    named_at: Callable[[Partition], float]
    settle: Callable[[Partition], None]
    health: StoresHealth
    histories: Histories


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
        ties: RequestCallbacks,
        clock: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._pool = SharedPool(pool, clock)
        self._clock = clock
        self._place_of = place_of
        self._settle = ties.settle
        self._health = ties.health
        self._outcomes = Outcomes(ties.settle, ties.health, clock, metrics, errors)
        self._work = RequestWork(ties.leader, ties.named_at, ties.histories, self._outcomes)
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
        partition.requesting = request
        wanted = line.urgent if urgent else line.others
        wanted[partition.topic_partition] = (partition, request)

    def forget(self, tp: TopicPartition) -> None:
        """The partition has passed into other hands: what waits for a thread is not wanted."""
        for line in self._lines.values():
            for wanted in (line.urgent, line.others):
                partition, _ = wanted.pop(tp, (None, None))
                if partition is not None:
                    partition.requesting = None

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
                partition.requesting = None
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
            self._outcomes.failed(partition, error)

    def _begin(self, partition: Partition, request: Request) -> None:
        place = self._place_of(partition.topic_partition.topic)
        work = self._work.of(partition, request, place)
        if work is None:
            partition.requesting = None
            self._settle(partition)
        else:
            self._submit(partition, work)

    def _submit(self, partition: Partition, work: Work) -> None:
        begun = partition.generation

        def done(archive: ArchiveState) -> None:
            health = self._health.of(partition.topic_partition)
            health.succeeded()
            if health.outages != partition.outages:
                # While a request of ours waited in line, perhaps: none of ours has failed.
                partition.outages = health.outages
                wait_anew(partition, self._clock())
            partition.requesting = None
            partition.moving = None
            current = partition.generation == begun  # or else the archive must be read anew
            if current:
                partition.hold.clear()
                partition.parted = False
                work.then(archive)
            work.tell(archive)
            if current:
                partition.forget_stored()
            self._settle(partition)

        def failed(error: Exception) -> None:
            work.tell(None)
            if partition.generation == begun:
                self._outcomes.failed(partition, error)
            else:
                self._outcomes.outdated(partition, error)

        job = Job(work.run, done, failed)
        self._pool.submit(self._gate_of(partition), job, partition.topic_partition)
