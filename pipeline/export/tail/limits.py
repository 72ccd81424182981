"""Requested start and end of an export, over archive and brokers. Pure."""

from collections.abc import Mapping

from sidetier.pipeline.export.tail.logs import Log
from sidetier.pipeline.planning.limits import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimes,
    Edge,
    Limit,
)
from sidetier.pipeline.planning.resolving import check_covered
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition


def limited(
    logs: Mapping[TopicPartition, Log], starting: Limit, ending: Limit
) -> dict[TopicPartition, OffsetRange]:
    """Return the range of each partition; an empty one if it would end before its start.

    Raises:
        ConfigurationError: offsets do not name exactly these partitions, or a limit is a time.
    """
    check_covered(starting, logs, "startingOffsets")
    check_covered(ending, logs, "endingOffsets")
    ranges = {}
    for tp, log in logs.items():
        first = _at(starting, tp, log)
        ranges[tp] = OffsetRange(first, max(first, _at(ending, tp, log)))
    return ranges


def _at(limit: Limit, tp: TopicPartition, log: Log) -> Offset:
    if isinstance(limit, AtTimes):
        raise ConfigurationError("a range by time is of what is archived: leave --tail kafka away")
    given = limit.offsets[tp] if isinstance(limit, AtOffsets) else None
    if limit is Edge.EARLIEST or given == EARLIEST_OFFSET:
        return log.earliest
    if given is None or given == LATEST_OFFSET:
        return log.latest
    return Offset(given)
