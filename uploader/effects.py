"""Carries out the actions of partitions: queues uploads and requests, closes files, logs."""

from collections.abc import Iterable
from typing import Final

import structlog

from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import UNKNOWN_EPOCH, OffsetRange, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.requests import Requests
from sidetier.uploader.archive.takeover import TakeoverReport
from sidetier.uploader.clock import Timers
from sidetier.uploader.errors import (
    DivergedError,
    PinterestUploaderRunningError,
    RecreatedError,
    StandDownError,
)
from sidetier.uploader.gates.high_watermark import HighWatermarkAsker
from sidetier.uploader.led_partitions import latest_epoch
from sidetier.uploader.sending.queue import UploadQueue
from sidetier.uploader.state.events import (
    Action,
    AskBroker,
    AskStore,
    HoldBack,
    Release,
    ReportAdopted,
    ReportCommitted,
    ReportGap,
    ReportGapHalt,
    ReportHalted,
    ReportOutdated,
    ReportRequestFailed,
    ReportRescue,
    ReportRescueInterrupted,
    ReportTakeover,
    ReportUnexpected,
    ReportUploaded,
    ReportUploadFailed,
    Request,
    ScanAt,
    Upload,
)
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import Timeline
from sidetier.uploader.unexpected import Subject, UnexpectedErrors

log: Final = structlog.get_logger()


def report_gap(metrics: Metrics, tp: TopicPartition, gap: OffsetRange, **more: bool) -> None:
    """Count a recorded gap, and log it with `more`."""
    metrics.gap(tp, gap.size)
    log.error(
        "gap.recorded",
        **_at(tp),
        start_offset=gap.start,
        end_offset=gap.end,
        records=gap.size,
        **more,
    )


class Effects:
    """Carries out actions. Only the daemon's thread uses it."""

    def __init__(
        self,
        uploads: UploadQueue,
        requests: Requests,
        timers: Timers,
        asker: HighWatermarkAsker,
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._uploads = uploads
        self._requests = requests
        self._timers = timers
        self._asker = asker
        self._metrics = metrics
        self._errors = errors

    def carry_out(self, partition: Partition, actions: Iterable[Action], *, decided: bool) -> None:
        """Carry out actions in order.

        An action that fails holds the partition back. Of the actions behind it, only releases are
        carried out: their segments are no longer tracked, so nothing else would close the files.

        Args:
            partition: Has returned the actions.
            actions: May hold errors of the decision (`HoldBack`).
            decided: Whether the partition has decided what to do next: it was not held back.
        """
        planning, failure = planning_of(partition), self._carry_out_all(partition, actions)
        if partition.lost:
            # Errors are kept by name, and another object may have this partition's name by now.
            if failure is not None:
                self._errors.note(planning, failure)
        elif failure is not None:
            self.hold_back(partition, planning, failure)
        elif decided:
            self._errors.clear(planning)
            if partition.held_error is not None:
                partition.step_succeeded(None)

    def _carry_out_all(self, partition: Partition, actions: Iterable[Action]) -> Exception | None:
        failure: Exception | None = None
        for action in actions:
            if failure is not None and not isinstance(action, Release):
                continue
            try:
                self._carry_out(partition, action)
            except Exception as error:  # noqa: BLE001 - the state has changed, and stays as it is
                failure = failure or error
        return failure

    def hold_back(
        self, partition: Partition, subject: Subject, error: Exception | None = None
    ) -> None:
        """Try a step of a partition again later; `error` is None if an earlier one still counts."""
        if error is not None:
            self._errors.hold(subject, error)
        partition.step_failed(self._errors.error_of(subject))
        self._timers.at(self._errors.retry_at(subject), partition.topic_partition)

    def _carry_out(  # noqa: C901, PLR0912 - one case for each action
        self, partition: Partition, action: Action
    ) -> None:
        tp = partition.topic_partition
        match action:
            case Upload(segment, planned):
                self._uploads.offer(partition, segment, planned)
            case AskStore(request):
                self._ask(partition, request)
            case AskBroker():
                self._asker.waiting[tp] = partition
            case ScanAt(when):
                self._timers.at(when, tp)
            case Release(segment):
                segment.forget()
            case ReportRescue():
                self._rescue_began(tp, action)
            case ReportGapHalt(gap):
                log.error("partition.halted", **_at(tp), start_offset=gap.start, end_offset=gap.end)
            case ReportTakeover(report):
                self._taken_over(tp, report)
            case ReportCommitted():
                self._committed(tp, action)
            case ReportAdopted(base):
                log.info("segments.adopted", **_at(tp), base_offset=base)
            case ReportGap(gap):
                report_gap(self._metrics, tp, gap)
            case ReportUploaded():
                self._uploaded(tp, action)
            case ReportUploadFailed():
                self._upload_failed(tp, action)
            case ReportRequestFailed():
                self._request_failed(tp, action)
            case ReportOutdated(request, error):
                name = request.name.lower()
                log.info("request.outdated", **_at(tp), request=name, **_described(error))
            case ReportRescueInterrupted(error):
                log.info("rescue.interrupted", **_at(tp), reason=str(error))
            case ReportHalted(error):
                log.error(
                    "pinterest.still_running"
                    if isinstance(error, PinterestUploaderRunningError)
                    else "takeover.refused",
                    **_at(tp),
                    reason=str(error),
                )
            case ReportUnexpected(what, error, before):
                self._errors.note(Subject(what, tp), error, before)
            case HoldBack(error):
                # So that it holds the partition back in the same way as an action that fails.
                raise error

    def _ask(self, partition: Partition, request: Request) -> None:
        if partition.follows and request is Request.LOAD:
            # The last listing may be older than the leader's epoch.
            partition.enter_epoch(latest_epoch(partition.directory or ""))
            if partition.leader_epoch == UNKNOWN_EPOCH:
                return
        self._requests.ask(partition, request)

    def _rescue_began(self, tp: TopicPartition, rescue: ReportRescue) -> None:
        log.warning(
            "rescue.began",
            **_at(tp),
            next_offset=rescue.next_offset,
            segments_at_risk=rescue.segments_at_risk,
            watermark_still_seconds=round(rescue.still, 3),
        )

    def _taken_over(self, tp: TopicPartition, report: TakeoverReport) -> None:
        self._metrics.taken_over()
        (log.info if report.last is not None else log.error)(
            "pinterest.taken_over",
            **_at(tp),
            peer_base_offset=report.named,
            base_offset=report.last,
            next_offset=report.next_offset,
            segments=report.segments,
            gaps=len(report.gaps),
            rebuilt=list(report.rebuilt),
            quarantined=list(report.quarantined),
            damaged=list(report.damaged),
        )

    def _committed(self, tp: TopicPartition, committed: ReportCommitted) -> None:
        stored = committed.stored
        if committed.rescued:
            self._metrics.rescued(len(stored))
        for timeline in committed.timelines:
            self._stages(timeline, committed.now)
        log.info(
            "watermark.moved",
            **_at(tp),
            base_offset=stored[-1].base_offset,
            next_offset=stored[-1].next_offset,
            segments=len(stored),
            **({"rescued": True} if committed.rescued else {}),
        )

    def _stages(self, times: Timeline, stored: float) -> None:
        """Count the seconds of each step, for a segment whose roll was reported by an event."""
        if times.rolled is None or times.committed is None:
            return
        if times.started is None or times.uploaded is None:
            return
        self._metrics.stage_seconds("high_watermark", times.committed - times.rolled)
        self._metrics.stage_seconds("queueing", times.started - times.committed)
        self._metrics.stage_seconds("uploading", times.uploaded - times.started)
        self._metrics.stage_seconds("committing", stored - times.uploaded)
        self._metrics.rolled_to_stored(stored - times.rolled)

    def _uploaded(self, tp: TopicPartition, uploaded: ReportUploaded) -> None:
        stored = uploaded.stored
        self._metrics.segment_uploaded(tp, stored.bytes_sent, uploaded.seconds)
        log.info(
            "segment.uploaded",
            **_at(tp),
            base_offset=stored.base_offset,
            next_offset=stored.next_offset,
            bytes=stored.size,
            seconds=round(uploaded.seconds, 3),
            **({"early": True} if uploaded.early else {}),
        )
        if uploaded.early:
            self._metrics.stored_early()
        for kind, reason in stored.left_out:  # optional, and unreadable or damaged
            self._metrics.left_out(kind)
            log.warning(
                "segment.file_left_out",
                **_at(tp),
                base_offset=stored.base_offset,
                file=kind.value.removeprefix("."),
                reason=reason,
            )

    def _upload_failed(self, tp: TopicPartition, failed: ReportUploadFailed) -> None:
        self._metrics.error(type(failed.error).__name__)
        if failed.repeated:
            return
        log.warning(
            "segment.upload_failed",
            **_at(tp),
            base_offset=failed.base_offset,
            **_described(failed.error),
            failures=failed.failures,
        )

    def _request_failed(self, tp: TopicPartition, failed: ReportRequestFailed) -> None:
        error = failed.error
        self._metrics.error(type(error).__name__)
        settled = isinstance(error, DivergedError | RecreatedError)
        if isinstance(error, ArchiveConflictError) and not settled:
            self._metrics.conflict()
        log.warning(
            "leadership.stood_down" if isinstance(error, StandDownError) else "request.failed",
            **_at(tp),
            request=failed.request.name.lower(),
            **_described(error),
        )


def planning_of(partition: Partition) -> Subject:
    """Return the subject of errors in a partition's decisions, or in carrying them out."""
    return Subject("planning", partition.topic_partition)


def listing_of(partition: Partition) -> Subject:
    """Return the subject of errors in listing a partition's directory."""
    return Subject("listing", partition.topic_partition)


def _at(tp: TopicPartition) -> dict[str, object]:
    return {"topic": tp.topic, "partition": tp.partition}


def _described(error: Exception) -> dict[str, object]:
    return {"kind": type(error).__name__, "error": str(error)}
