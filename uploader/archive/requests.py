"""The small requests of partitions: read the archive, move the watermark, record a gap."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import structlog

from sidetier.segments.errors import (
    ArchiveConflictError,
    LeadershipUnavailableError,
    SegmentGoneError,
    SidetierError,
)
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.adoption import ReadLineage
from sidetier.uploader.archive.health import StoreHealth
from sidetier.uploader.archive.history import Histories, Look
from sidetier.uploader.archive.keeper import (
    Archive,
    ArchiveKeeper,
    Leader,
    RecreatedError,
    StandDownError,
)
from sidetier.uploader.archive.places import PlaceOf
from sidetier.uploader.archive.reading import TakingOver, read_only
from sidetier.uploader.archive.takeover.decision import OperatorNeededError, PeerAtWorkError
from sidetier.uploader.archive.takeover.local import LocalLog
from sidetier.uploader.archive.takeover.run import TakeoverReport
from sidetier.uploader.gates.divergence import DivergedError
from sidetier.uploader.partition import Partition, Request, Stage, Timeline, stored_prefix
from sidetier.uploader.plan import Gap
from sidetier.uploader.rescue.lineage import check_same_lineage
from sidetier.uploader.running.sharing import SharedPool, StoreGate
from sidetier.uploader.running.workers import Job, WorkerPool
from sidetier.uploader.sending.upload import StoredSegment
from sidetier.uploader.sending.verify import read_lineage

log: Final = structlog.get_logger()


def report_stages(metrics: Metrics, times: Timeline, stored: float) -> None:
    """How long each step took, for a segment whose roll was seen."""
    if times.rolled is None or times.committed is None:
        return
    if times.started is None or times.uploaded is None:
        return
    metrics.stage_seconds("high_watermark", times.committed - times.rolled)
    metrics.stage_seconds("queueing", times.started - times.committed)
    metrics.stage_seconds("uploading", times.uploaded - times.started)
    metrics.stage_seconds("committing", stored - times.uploaded)
    metrics.rolled_to_stored(stored - times.rolled)


@dataclass(frozen=True, slots=True)
class RequestTies:
    """In whose name a partition is written, and whom to tell what came of it."""

    leader: Callable[[Partition], Leader]
    settle: Callable[[Partition], None]
    health: StoreHealth
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
        ties: RequestTies,
        clock: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._pool = SharedPool(pool, clock)
        self._place_of = place_of
        self._leader = ties.leader
        self._settle = ties.settle
        self._health = ties.health
        self._histories = ties.histories
        self._now = clock
        self._metrics = metrics
        self._commits_only = False
        self._lines: dict[StoreGate, _Line] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait for a thread, and those under way."""
        waiting = sum(len(line.urgent) + len(line.others) for line in self._lines.values())
        return waiting + self._pool.busy

    def ask(self, partition: Partition, request: Request) -> None:
        """Have this request made as soon as a thread is free."""
        urgent = request in {Request.COMMIT, Request.GAP}
        if self._commits_only and not urgent:
            return
        partition.requesting = request
        line = self._lines.setdefault(self._gate_of(partition), _Line())
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
            if partition.lost:
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
        keeper = self._place_of(partition.topic_partition.topic).keeper
        starters = {
            Request.LOAD: self._load,
            Request.START: self._record_start,
            Request.PREPARE: self._prepare,
            Request.COMMIT: self._commit,
            Request.GAP: self._record_gap,
        }
        starters[request](partition, keeper)

    def _submit(
        self,
        partition: Partition,
        work: Callable[[], Archive],
        then: Callable[[Archive], None],
    ) -> None:
        begun = partition.generation

        def done(archive: Archive) -> None:
            self._health.succeeded()
            partition.requesting = None
            if partition.generation == begun:  # or else the archive must be read anew
                partition.hold.clear()
                partition.parted = False
                then(archive)
                partition.forget_stored()
            self._settle(partition)

        job = Job(work, done, lambda error: self._failed(partition, error))
        self._pool.submit(self._gate_of(partition), job)

    def _not_needed(self, partition: Partition) -> None:
        """What was to be done has been overtaken."""
        partition.requesting = None
        self._settle(partition)

    def _load(self, partition: Partition, keeper: ArchiveKeeper) -> None:
        tp, leader, directory = (
            partition.topic_partition,
            self._leader(partition),
            partition.directory,
        )
        place, read = self._place_of(tp.topic), TakingOver(self._local_log_of(partition))
        look = replace(self._look(partition), read=read)

        def follow() -> Archive:
            archive = read_only(keeper, tp, leader)
            if archive.watermark and archive.next_offset is not None and directory:
                check_same_lineage(archive.watermark, archive.next_offset, directory)
            return archive

        def then(archive: Archive) -> None:
            partition.archive = archive
            for report in read.reports:
                self._taken_over(partition, report)

        work = follow if partition.follows else lambda: self._histories.load(place, look)
        self._submit(partition, work, then)

    def _taken_over(self, partition: Partition, report: TakeoverReport) -> None:
        tp = partition.topic_partition
        self._metrics.taken_over()
        (log.info if report.last is not None else log.error)(
            "peer.taken_over",
            topic=tp.topic,
            partition=tp.partition,
            peer_base_offset=report.named,
            base_offset=report.last,
            next_offset=report.next_offset,
            segments=report.segments,
            gaps=len(report.gaps),
            rebuilt=list(report.rebuilt),
            set_aside=list(report.set_aside),
            damaged=list(report.damaged),
        )
        for gap in report.gaps:
            self._stepped_over(partition, gap)

    def _local_log_of(self, partition: Partition) -> Callable[[], LocalLog]:
        """A look at the log, made only where the peer's archive has to be compared with it."""
        directory, active, config = partition.directory, partition.active, partition.config
        plain = self._look(partition)
        starts = [s for s in (partition.local_start, partition.log_start()) if s is not None]

        def look() -> LocalLog:
            tp = partition.topic_partition
            if directory is None:
                raise SegmentGoneError(f"{tp}: its directory is not known")
            if config is None:
                raise LeadershipUnavailableError(f"{tp}: whether it is compacted is not known yet")
            lineage = read_lineage(directory)
            doubt = self._histories.doubt(plain, lineage)
            start = min(starts, default=None)
            return LocalLog(directory, start, active, lineage, config.compacted, doubt)

        return look

    def _look(self, partition: Partition) -> Look:
        return Look(
            partition.topic_partition,
            self._leader(partition),
            partition.directory,
            partition.active,
            told=partition.told,
            uploading=any(t.stage is Stage.UPLOADING for t in partition.tracked.values()),
        )

    def _record_start(self, partition: Partition, keeper: ArchiveKeeper) -> None:
        tp, archive, here = partition.topic_partition, partition.archive, partition.first_active
        if archive is None or here is None:
            self._not_needed(partition)
            return

        def work() -> Archive:
            return archive.beginning_at(keeper.start_of(tp, Offset(here)), recorded=True)

        def then(archive: Archive) -> None:
            partition.archive = archive

        self._submit(partition, work, then)

    def _prepare(self, partition: Partition, keeper: ArchiveKeeper) -> None:
        tp, archive, leader = partition.topic_partition, partition.archive, self._leader(partition)
        if archive is None:
            self._not_needed(partition)
            return

        lineage = _lineage_of(partition)

        def then(archive: Archive) -> None:
            partition.archive = archive

        place, look = self._place_of(tp.topic), self._look(partition)

        def work() -> Archive:
            try:
                return keeper.prepare(tp, archive, leader, lineage)
            except DivergedError as error:
                if partition.follows:
                    raise
                return self._histories.strayed(place, look, archive, error)

        self._submit(partition, work, then)

    def _commit(self, partition: Partition, keeper: ArchiveKeeper) -> None:
        tp, archive, leader = partition.topic_partition, partition.archive, self._leader(partition)
        stored = stored_prefix(partition)
        if archive is None or not stored:
            self._not_needed(partition)
            return

        def then(moved: Archive) -> None:
            partition.archive = moved
            self._committed(partition, stored)

        self._submit(partition, lambda: keeper.commit(tp, archive, stored, leader), then)

    def _committed(self, partition: Partition, stored: list[StoredSegment]) -> None:
        now, tp = self._now(), partition.topic_partition
        if partition.follows:
            self._metrics.rescued(len(stored))
        for tracked in partition.tracked.values():
            if tracked.stage is Stage.STORED and tracked.stored in stored:
                report_stages(self._metrics, tracked.timeline, now)
        log.info(
            "watermark.moved",
            topic=tp.topic,
            partition=tp.partition,
            base_offset=stored[-1].base_offset,
            next_offset=stored[-1].next_offset,
            segments=len(stored),
            **({"rescued": True} if partition.follows else {}),
        )

    def _record_gap(self, partition: Partition, keeper: ArchiveKeeper) -> None:
        tp, archive, gap = partition.topic_partition, partition.archive, partition.gap
        leader = self._leader(partition)
        if archive is None or gap is None:
            self._not_needed(partition)
            return

        def then(moved: Archive) -> None:
            partition.archive = moved
            partition.gap = None
            if moved.watermark and moved.watermark.base_offset != _base_of(archive):
                self._adopted(partition, moved.watermark.base_offset)
            else:
                self._stepped_over(partition, Gap(gap.start, moved.next_offset or gap.end))

        self._submit(partition, lambda: keeper.record_gap(tp, archive, gap, leader), then)

    def _adopted(self, partition: Partition, base: BaseOffset) -> None:
        """What seemed a gap was stored already."""
        tp = partition.topic_partition
        log.info("segments.adopted", topic=tp.topic, partition=tp.partition, base_offset=base)

    def _stepped_over(self, partition: Partition, gap: Gap) -> None:
        tp = partition.topic_partition
        partition.gap_records += gap.records
        self._metrics.gap(tp, gap.records)
        log.error(
            "gap.recorded",
            topic=tp.topic,
            partition=tp.partition,
            start_offset=gap.start,
            end_offset=gap.end,
            records=gap.records,
        )

    def _failed(self, partition: Partition, error: Exception) -> None:
        if not isinstance(error, SidetierError | OSError):
            raise error  # a mistake of ours: end with it rather than go round in circles
        request, partition.requesting = partition.requesting, None
        tp = partition.topic_partition
        self._health.failed(error)
        partition.hold.fail(str(error), self._now())
        if partition.follows and isinstance(error, ArchiveConflictError):
            self._stood_by(partition, error)
            return
        self._metrics.error(type(error).__name__)
        if isinstance(error, ArchiveConflictError):
            partition.parted = isinstance(error, DivergedError | RecreatedError)
            if not partition.parted:
                self._metrics.conflict()
            partition.reset()
        if isinstance(error, OperatorNeededError):
            self._halt(partition, error)
        log.warning(
            "leadership.stood_down" if isinstance(error, StandDownError) else "request.failed",
            topic=tp.topic,
            partition=tp.partition,
            request=request.name.lower() if request else None,
            kind=type(error).__name__,
            error=str(error),
        )
        self._settle(partition)

    def _halt(self, partition: Partition, error: OperatorNeededError) -> None:
        """Trying again would be a fight, or change nothing."""
        partition.halted = str(error)
        log.error(
            "peer.at_work" if isinstance(error, PeerAtWorkError) else "takeover.refused",
            topic=partition.topic_partition.topic,
            partition=partition.topic_partition.partition,
            reason=str(error),
        )

    def _stood_by(self, partition: Partition, error: ArchiveConflictError) -> None:
        """The leader's sidecar has stored meanwhile, or has to settle something first: no fault."""
        tp = partition.topic_partition
        partition.reset()
        log.info("rescue.stood_by", topic=tp.topic, partition=tp.partition, reason=str(error))
        self._settle(partition)


def _lineage_of(partition: Partition) -> ReadLineage | None:
    directory = partition.directory
    return None if directory is None else lambda: read_lineage(directory)


def _base_of(archive: Archive) -> BaseOffset | None:
    return archive.watermark.base_offset if archive.watermark else None
