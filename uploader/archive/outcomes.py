"""What comes of a partition's requests: what is told of it, and what a failure holds up."""

import math
from collections.abc import Callable
from typing import Final

import structlog

from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
    StorageError,
)
from sidetier.segments.offsets import BaseOffset, OffsetRange
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.health import StoresHealth
from sidetier.uploader.archive.takeover.run import TakeoverReport
from sidetier.uploader.errors import (
    DivergedError,
    DivergenceSuspectedError,
    OperatorNeededError,
    PinterestUploaderRunningError,
    RecreatedError,
    StandDownError,
)
from sidetier.uploader.state.partition import Partition, Request, wait_anew
from sidetier.uploader.state.segment import SegmentState, StoredSegment, Timeline
from sidetier.uploader.unexpected import Subject, UnexpectedErrors, describe

log: Final = structlog.get_logger()
_ANSWERS: Final = (ObjectNotFoundError, PreconditionFailedError)
"""Of a store that takes what it is sent, of others' sidecars, too."""
_LONGEST_SUSPICION: Final = 4.0
"""Seconds. The archive of a suspected fork stands still until a second look has decided, and what
the broker deletes meanwhile is lost.
"""


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


class Outcomes:
    """Takes in, on the deciding thread, what requests have come to."""

    def __init__(
        self,
        settle: Callable[[Partition], None],
        health: StoresHealth,
        clock: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._settle = settle
        self._health = health
        self._now = clock
        self._errors = errors
        self._metrics = metrics

    def taken_over(self, partition: Partition, report: TakeoverReport) -> None:
        """Pinterest's archive is ours from now on."""
        tp = partition.topic_partition
        self._metrics.taken_over()
        (log.info if report.last is not None else log.error)(
            "pinterest.taken_over",
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
            self.stepped_over(partition, gap)

    def committed(
        self, partition: Partition, stored: list[StoredSegment], *, rescued: bool
    ) -> None:
        """The watermark has moved over these, in the leader's place where they were `rescued`."""
        now, tp = self._now(), partition.topic_partition
        if rescued:
            self._metrics.rescued(len(stored))
        for tracked in partition.tracked.values():
            if tracked.stage is SegmentState.STORED and tracked.stored in stored:
                report_stages(self._metrics, tracked.timeline, now)
        log.info(
            "watermark.moved",
            topic=tp.topic,
            partition=tp.partition,
            base_offset=stored[-1].base_offset,
            next_offset=stored[-1].next_offset,
            segments=len(stored),
            **({"rescued": True} if rescued else {}),
        )

    def adopted(self, partition: Partition, base: BaseOffset) -> None:
        """What seemed a gap was stored already."""
        tp = partition.topic_partition
        log.info("segments.adopted", topic=tp.topic, partition=tp.partition, base_offset=base)

    def stepped_over(self, partition: Partition, gap: OffsetRange) -> None:
        """The watermark has moved over records that nothing holds any more."""
        tp = partition.topic_partition
        partition.gap_records += gap.size
        self._metrics.gap(tp, gap.size)
        log.error(
            "gap.recorded",
            topic=tp.topic,
            partition=tp.partition,
            start_offset=gap.start,
            end_offset=gap.end,
            records=gap.size,
        )

    def failed(self, partition: Partition, error: Exception) -> None:
        """Wait before the next try, and read again what others may have written."""
        request, partition.requesting = partition.requesting, None
        if not isinstance(error, SidetierError | OSError):
            self._failed_unexpectedly(partition, request, error)
            return
        tp = partition.topic_partition
        self._health.of(partition.topic_partition).failed(error)
        if isinstance(error, StorageError) and not isinstance(error, _ANSWERS):
            wait_anew(partition, self._now())
        suspected = isinstance(error, DivergenceSuspectedError) and not partition.follows
        longest = _LONGEST_SUSPICION if suspected else math.inf
        partition.hold.fail(str(error), self._now(), longest)
        partition.moving = str(error) if suspected else None
        if partition.follows and isinstance(error, ArchiveConflictError):
            self._stood_by(partition, error)
            return
        self._metrics.error(type(error).__name__)
        if isinstance(error, ArchiveConflictError):
            divergenceed = isinstance(error, DivergedError | RecreatedError)
            partition.parted = divergenceed and partition.moving is None
            if not divergenceed:
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

    def outdated(self, partition: Partition, error: Exception) -> None:
        """A request has failed that was begun before the archive was to be read anew, as after
        another election: what it says of the archive holds nothing up now.
        """
        request, partition.requesting = partition.requesting, None
        tp = partition.topic_partition
        self._health.of(tp).failed(error)
        log.info(
            "request.outdated",
            topic=tp.topic,
            partition=tp.partition,
            request=request.name.lower() if request else None,
            kind=type(error).__name__,
            error=str(error),
        )
        self._settle(partition)

    def _failed_unexpectedly(
        self, partition: Partition, request: Request | None, error: Exception
    ) -> None:
        """Nobody knows what the request has done: the archive is read again before the next one."""
        name = f"the request to {request.value}" if request else "a request"
        self._errors.note(Subject(name, partition.topic_partition), error, partition.hold.error)
        partition.hold.fail(describe(error), self._now())
        partition.moving = None
        partition.reset()
        self._settle(partition)

    def _halt(self, partition: Partition, error: OperatorNeededError) -> None:
        """Trying again would be a fight, or change nothing."""
        partition.halted, partition.halted_at = str(error), None
        log.error(
            "pinterest.still_running"
            if isinstance(error, PinterestUploaderRunningError)
            else "takeover.refused",
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
