"""Plans of fixed ranges: splits of the archive, and ranges to read from the brokers."""

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
    """Plan the reading of ranges, each divided between archive and broker as in its log.

    Raises:
        MissingRecordsError: some records are neither archived nor on the broker, and
            `request.fail_on_data_loss` is set; or they are above the broker's end.
        UndecidedRecordsError: a range that an earlier run fixed covers `Log.undecided`.
        ArchiveError, StorageError: see `Planner.plan_ranges`.
    """
    _require_known(logs, ranges)
    divided = {tp: logs[tp].divided(span) for tp, span in sorted(ranges.items())}
    _require_decided(logs, divided)
    gone = [item for tp, parts in divided.items() for item in missing_of(tp, parts.gone)]
    if gone and request.fail_on_data_loss:
        raise MissingRecordsError(gone)
    stored = {tp: item.archived for tp, item in divided.items() if _length(item.archived)}
    plan = planner.plan_ranges(stored, request)
    missing = sorted((*plan.missing, *gone), key=lambda item: (item.tp, item.range.start))
    return replace(plan, ranges=dict(ranges), missing=tuple(missing), on_broker=_on_broker(divided))


def _on_broker(divided: Mapping[TopicPartition, Divided]) -> tuple[BrokerRange, ...]:
    return tuple(
        BrokerRange(tp, parts.on_broker)
        for tp, parts in divided.items()
        if _length(parts.on_broker)
    )


def _require_known(
    logs: Mapping[TopicPartition, Log], ranges: Mapping[TopicPartition, OffsetRange]
) -> None:
    """Refuse ranges of an earlier run above the present end of the log. They are never skipped."""
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
