"""Fixed ranges of offsets as a plan: splits of the archive, and what is read from the brokers."""

from collections.abc import Mapping
from dataclasses import replace

from sidetier.pipeline.errors import MissingRecordsError, UndecidedRecordsError
from sidetier.pipeline.export.tail.logs import Divided, Log, missing_of
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.planning.split import BrokerRange, Missing, Plan
from sidetier.segments.offsets import OffsetRange, TopicPartition


def with_tail(
    planner: Planner,
    logs: Mapping[TopicPartition, Log],
    ranges: Mapping[TopicPartition, OffsetRange],
    request: ReadRequest,
) -> Plan:
    """What is read of the ranges, each divided where its log has been seen to be divided.

    Raises:
        MissingRecordsError: some are neither stored nor on the broker, and
            `request.fail_on_data_loss` is set; or they lie above the broker's end.
        UndecidedRecordsError: a run that was fixed earlier goes over `Log.undecided`.
        ArchiveError, StorageError: as `Planner.plan_ranges`.
    """
    _require_known(logs, ranges)
    divided = {tp: logs[tp].divided(span) for tp, span in sorted(ranges.items())}
    _require_decided(logs, divided)
    gone = [one for tp, parts in divided.items() for one in missing_of(tp, parts.gone)]
    if gone and request.fail_on_data_loss:
        raise MissingRecordsError(gone)
    stored = {tp: one.archived for tp, one in divided.items() if _length(one.archived)}
    plan = planner.plan_ranges(stored, request)
    missing = sorted((*plan.missing, *gone), key=lambda one: (one.tp, one.range.start))
    return replace(plan, ranges=dict(ranges), missing=tuple(missing), on_broker=_on_broker(divided))


def _on_broker(divided: Mapping[TopicPartition, Divided]) -> tuple[BrokerRange, ...]:
    return tuple(
        BrokerRange(tp, one.on_broker) for tp, one in divided.items() if _length(one.on_broker)
    )


def _require_known(
    logs: Mapping[TopicPartition, Log], ranges: Mapping[TopicPartition, OffsetRange]
) -> None:
    """What was fixed by an earlier run, and is nowhere any more: never stepped over."""
    lost = []
    for tp, span in sorted(ranges.items()):
        end = logs[tp].latest if tp in logs else span.start
        if span.end > end:
            above = OffsetRange(max(span.start, end), span.end)
            detail = f"the broker's log ends at {end}, and did not when the run was planned"
            lost.append(Missing(tp, above, detail))
    if lost:
        raise MissingRecordsError(lost)


def _require_decided(
    logs: Mapping[TopicPartition, Log], divided: Mapping[TopicPartition, Divided]
) -> None:
    for tp, parts in divided.items():
        until = min(parts.gone.end, logs[tp].undecided.end)
        if parts.gone.start < until:
            raise UndecidedRecordsError(tp, OffsetRange(parts.gone.start, until))


def _length(span: OffsetRange) -> int:
    return span.end - span.start
