"""The queue of requests about archives. A partition has at most one request under way."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain

from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import LeadershipUnavailableError, SegmentGoneError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.uploader.archive.adoption import ReadEpochHistory
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.history import Histories, HistoryCheck, TakingOver, read_only
from sidetier.uploader.archive.takeover import LocalLog, TakeoverReport
from sidetier.uploader.errors import DivergedCopyError, DivergedError, UnmarkedPinterestError
from sidetier.uploader.gates.divergence import divergence_offset
from sidetier.uploader.state.events import (
    Asked,
    Event,
    Request,
    RequestFailed,
    RequestOvertaken,
    RequestSucceeded,
)
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.stores import Place, PlaceOf
from sidetier.uploader.workers import SharedPool, StoreGate, Task

NamedAt = Callable[[TopicPartition, LeaderEpoch], float]
"""Returns when a broker was last asked that named this epoch as that of the partition's leader, in
monotonic seconds.
"""


def check_same_epoch_history(
    watermark: Watermark, next_offset: Offset, directory: str, epoch_history: EpochHistory
) -> None:
    """Compare the archive with the `epoch_history` of a follower's log in `directory`.

    A log that ends below the archive end offset has not diverged: a follower may be behind.

    Raises:
        DivergedCopyError: a later leader epoch of this log starts below the archive end offset, or
            a part of the archive is being moved.
    """
    if watermark.pending is not None:
        raise DivergedCopyError(
            f"a part of the archive is being moved to {watermark.pending}: the leader's sidecar "
            "finishes the move first"
        )
    divergence = divergence_offset(watermark, next_offset, epoch_history)
    if divergence is not None:
        raise DivergedCopyError(
            f"{directory}: this replica has diverged from the archive at offset {divergence}, but "
            f"the archive reaches {next_offset}: the leader's sidecar resolves this"
        )


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one request.

    Attributes:
        run: Makes the requests to the store, on a worker thread, and returns the archive.
        takeovers: Reports of the takeovers that `run` has made, also where it then fails.
    """

    run: Callable[[], ArchiveState]
    takeovers: list[TakeoverReport] = field(default_factory=list)


class RequestWork:
    """Builds the work of each request from the partition's state when its turn comes."""

    def __init__(
        self, broker_id: BrokerId, named_at: NamedAt, histories: Histories, *, from_latest: bool
    ) -> None:
        self._broker_id = broker_id
        self._from_latest = from_latest
        self._named_at = named_at
        self._histories = histories

    def of(self, partition: Partition, asked: Asked, place: Place) -> Work | None:
        """Return the work of a request; None where there is nothing to do."""
        match asked.request:
            case Request.LOAD:
                return self._load(partition, place)
            case Request.START:
                return self._record_start(partition, asked, place)
            case Request.PREPARE:
                return self._prepare(partition, asked, place)
            case Request.COMMIT:
                return self._commit(partition, asked, place)
            case Request.GAP:
                return self._record_gap(partition, asked, place)

    def _leader(self, partition: Partition) -> Leader:
        return Leader(self._broker_id, partition.leader_epoch, partition.topic_id)

    def _load(self, partition: Partition, place: Place) -> Work:
        tp, leader = partition.topic_partition, self._leader(partition)
        directory, epochs = partition.directory, partition.epochs
        read = TakingOver(self._local_log_of(partition))
        check = replace(self._check_of(partition), read=read)

        def follow() -> ArchiveState:
            archive = read_only(place.archive_writer, tp, leader)
            # A follower only compares. What to do about a divergence is the leader's decision.
            if archive.watermark and archive.next_offset is not None and directory:
                epoch_history = epochs.read(directory)
                check_same_epoch_history(
                    archive.watermark, archive.next_offset, directory, epoch_history
                )
            return archive

        def lead() -> ArchiveState:
            archive = self._histories.load(place, check)
            if not self._from_latest:  # with it, nothing lowers a recorded start
                place.archive_writer.compare_start(tp, archive, leader)
            return archive

        return Work(follow if partition.follows else lead, read.reports)

    def _local_log_of(self, partition: Partition) -> Callable[[], LocalLog]:
        """Return a function that reads the log. It is called only for a takeover."""
        directory, active, config = partition.directory, partition.log.active, partition.config
        epochs = partition.epochs
        sparse = partition.is_sparse
        check = self._check_of(partition)
        log = partition.log
        starts = [s for s in (log.start, log.unstored_start) if s is not None]

        def read_log() -> LocalLog:
            tp = partition.topic_partition
            if directory is None:
                raise SegmentGoneError(f"{tp}: its directory is not known")
            if config is None:
                raise LeadershipUnavailableError(f"{tp}: whether it is compacted is not known yet")
            epoch_history = epochs.read(directory)
            doubt = self._histories.doubt(check, epoch_history)
            start = min(starts, default=None)
            return LocalLog(directory, start, active, epoch_history, sparse, doubt)

        return read_log

    def _check_of(self, partition: Partition) -> HistoryCheck:
        return HistoryCheck(
            partition.topic_partition,
            self._leader(partition),
            partition.directory,
            partition.log.active,
            epoch_from_cluster=partition.epoch_from_cluster,
            named_at=self._named_at(partition.topic_partition, partition.leader_epoch),
            uploading=partition.log.is_uploading,
            epochs=partition.epochs,
        )

    def _record_start(self, partition: Partition, asked: Asked, place: Place) -> Work | None:
        tp, archive, active_base = (
            partition.topic_partition,
            asked.archive,
            partition.log.first_active,
        )
        if archive is None:
            return None
        start, leader, archive_writer = archive.start, self._leader(partition), place.archive_writer
        if archive.next_offset is not None and start is not None:
            return Work(lambda: archive_writer.keep_start(tp, archive, start, leader))
        if active_base is None:
            return None

        def work() -> ArchiveState:
            return archive.beginning_at(
                archive_writer.start_of(tp, Offset(active_base), leader), recorded=True
            )

        return Work(work)

    def _prepare(self, partition: Partition, asked: Asked, place: Place) -> Work | None:
        tp, archive, leader = partition.topic_partition, asked.archive, self._leader(partition)
        if archive is None:
            return None
        archive_writer, follows = place.archive_writer, asked.follows
        epoch_history, check = _epoch_history_of(partition), self._check_of(partition)
        # The functions below run on a worker thread, so they must not read `partition`, which the
        # daemon's thread changes at the same time. Everything that they need is read here.
        compared = _comparison(partition, archive_writer)
        local, reports = self._local_log_of(partition), list[TakeoverReport]()

        def prepare() -> ArchiveState:
            try:
                return archive_writer.prepare(tp, compared(archive), leader, epoch_history)
            except UnmarkedPinterestError:
                if follows:
                    # A follower's sidecar takes nothing over and moves nothing.
                    raise
                taken, report = archive_writer.take_over(tp, archive, leader, local())
                if report.last is not None or report.quarantined:
                    reports.append(report)
                # No segment was accepted: the archive begins as
                # a new one, and uploads replace what differs.
                following = archive if taken.watermark is None else taken
                return archive_writer.prepare(tp, following, leader, epoch_history, unmarked=True)
            except DivergedError as error:
                if follows:
                    raise
                return self._histories.resolve(place, check, archive, error)

        return Work(lambda: self._fitting(tp, prepare()), reports)

    def _fitting(self, tp: TopicPartition, archive: ArchiveState) -> ArchiveState:
        self._histories.forget_suspicion(tp)
        return archive

    def _commit(self, partition: Partition, asked: Asked, place: Place) -> Work | None:
        tp, archive, leader = partition.topic_partition, asked.archive, self._leader(partition)
        if archive is None:
            return None
        return Work(lambda: place.archive_writer.commit(tp, archive, list(asked.stored), leader))

    def _record_gap(self, partition: Partition, asked: Asked, place: Place) -> Work | None:
        tp, archive, gap = partition.topic_partition, asked.archive, asked.gap
        leader, epoch_history = self._leader(partition), _epoch_history_of(partition)
        if archive is None or gap is None:
            return None
        archive_writer, whole = place.archive_writer, _whole_epoch_history_of(partition)

        def work() -> ArchiveState:
            named = archive_writer.name_leaders(tp, archive, gap, whole, leader)
            return archive_writer.record_gap(tp, named, gap, leader, epoch_history)

        return Work(work)


def _epoch_history_of(partition: Partition) -> ReadEpochHistory | None:
    directory, epochs = partition.directory, partition.epochs
    return None if directory is None else lambda: epochs.read(directory)


def _comparison(
    partition: Partition, archive_writer: ArchiveWriter
) -> Callable[[ArchiveState], ArchiveState]:
    """Return a function that compares the epoch histories of the archive and of the leader's log.

    It compares nothing for a follower, whose log may be behind, and for a compacted log, where the
    first records of an epoch may be gone.
    """
    epoch_history, tp = _whole_epoch_history_of(partition), partition.topic_partition
    if epoch_history is None:
        return lambda archive: archive
    return lambda archive: archive_writer.compare(tp, archive, epoch_history())


def _whole_epoch_history_of(partition: Partition) -> ReadEpochHistory | None:
    known_whole = partition.config is not None and not partition.is_sparse
    return None if partition.follows or not known_whole else _epoch_history_of(partition)


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
        pool: SharedPool[Event],
        place_of: PlaceOf,
        work: RequestWork,
    ) -> None:
        self._pool = pool
        self._place_of = place_of
        self._work = work
        self._commits_only = False
        self._lines: dict[StoreGate, _Line] = {}

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a thread or are under way."""
        waiting = sum(len(line.urgent) + len(line.others) for line in self._lines.values())
        return waiting + self._pool.busy

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
            for partition, _ in line.others.values():
                partition.end_request()  # or else it would never ask for its commit
            line.others.clear()

    def abandon(self) -> None:
        """Begin no further request."""
        self._commits_only = True
        self._lines.clear()

    def start_some(self) -> list[tuple[Partition, Event]]:
        """Start requests while threads are free.

        Returns:
            One event for each request that could not begin.
        """
        events: list[tuple[Partition, Event]] = []
        while (wanted := self._next()) is not None:
            _, (partition, request) = wanted.popitem(last=False)
            # It was queued before the partition was lost, or before an earlier request hung.
            if partition.lost or partition.unanswered is not None:
                partition.end_request()
            elif (event := self._start(partition, request)) is not None:
                events.append((partition, event))
        return events

    def _next(self) -> OrderedDict[TopicPartition, tuple[Partition, Request]] | None:
        """Return the queue of the next request, among the stores that have a thread for it.

        Commits and gap records of all stores go first: the pins of stored segments are not released
        before their commit.
        """
        lines = self._lines.items()
        urgent = ((gate, line.urgent) for gate, line in lines)
        others = ((gate, line.others) for gate, line in lines)
        for gate, wanted in chain(urgent, others):
            if wanted and self._pool.has_room(gate):
                return wanted
        return None

    def _gate_of(self, partition: Partition) -> StoreGate:
        return self._place_of(partition.topic_partition.topic).gate

    def _start(self, partition: Partition, request: Request) -> Event | None:
        try:
            return self._begin(partition, request)
        except Exception as error:  # noqa: BLE001 - reported to the partition
            begun = Asked(request, partition.generation, partition.follows, partition.archive)
            return RequestFailed(begun, error)

    def _begin(self, partition: Partition, request: Request) -> Event | None:
        # The request is built only when its turn comes, from the state of
        # that moment: what was stored while it waited is committed with it.
        begun = partition.asked(request)
        place = self._place_of(partition.topic_partition.topic)
        work = None if begun is None else self._work.of(partition, begun, place)
        if begun is None or work is None:
            return RequestOvertaken()
        task: Task[Event] = Task(
            lambda: RequestSucceeded(begun, work.run(), tuple(work.takeovers)),
            lambda error: RequestFailed(begun, error, tuple(work.takeovers)),
        )
        self._pool.submit(place.gate, task, partition)
        return None
