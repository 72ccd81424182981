"""From what is asked for to offsets, partition by partition."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sidetier.pipeline.planning.limits import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimes,
    Edge,
    Limit,
    NoMatch,
)
from sidetier.pipeline.planning.log_offsets import Edges
from sidetier.pipeline.planning.names import in_words
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

FirstAt = Callable[[TopicPartition, int], Offset | None]
"""The first record of at least this time, in ms; None where there is none."""


@dataclass(frozen=True, slots=True)
class Resolver:
    """Turns limits to offsets."""

    first_at: FirstAt

    def range(
        self,
        tp: TopicPartition,
        limits: tuple[Limit, Limit],
        edges: Edges,
        no_match: NoMatch,
    ) -> OffsetRange:
        """Where reading a partition begins and ends; empty where it would end before it begins.

        Raises:
            ConfigurationError: no record is as late as the time where reading is to begin.
        """
        starting, ending = limits
        first = self._start(tp, starting, edges, no_match)
        until = self._end(tp, ending, edges)
        return OffsetRange(first, max(first, until))

    def _start(self, tp: TopicPartition, limit: Limit, edges: Edges, no_match: NoMatch) -> Offset:
        if not isinstance(limit, AtTimes):
            return _at(tp, limit, edges)
        found = self.first_at(tp, limit.of(tp))
        if found is None and no_match is NoMatch.ERROR:
            raise ConfigurationError(
                f"{in_words(tp)}: no stored record has a timestamp of "
                f"{limit.of(tp)} ms or later; to begin at the latest offset there, set "
                "startingOffsetsByTimestampStrategy to latest"
            )
        return edges.latest if found is None else found

    def _end(self, tp: TopicPartition, limit: Limit, edges: Edges) -> Offset:
        if not isinstance(limit, AtTimes):
            return _at(tp, limit, edges)
        found = self.first_at(tp, limit.of(tp))
        return edges.latest if found is None else min(found, edges.latest)


def check_covered(limit: Limit, partitions: Iterable[TopicPartition], what: str) -> None:
    """Refuse offsets or times that do not name just the partitions that are read, as Spark does.

    Raises:
        ConfigurationError: names one that is missing, or too many.
    """
    given = _given(limit)
    if given is None:
        return
    wanted = set(partitions)
    for kind, tps in (("leaves out", wanted - given.keys()), ("names", given.keys() - wanted)):
        if tps:
            one = min(tps)
            why = "" if kind == "leaves out" else ", which is not among them"
            raise ConfigurationError(
                f"{what}: must name each partition that is read, and {kind} "
                f"{in_words(one)}{why}; -2 stands for the earliest offset, -1 for the "
                "latest"
            )


def _given(limit: Limit) -> Mapping[TopicPartition, int] | None:
    if isinstance(limit, AtOffsets):
        return limit.offsets
    if isinstance(limit, AtTimes) and limit.everywhere is None:
        return limit.times
    return None


def _at(tp: TopicPartition, limit: Edge | AtOffsets, edges: Edges) -> Offset:
    if isinstance(limit, Edge):
        return edges.earliest if limit is Edge.EARLIEST else edges.latest
    offset = limit.offsets[tp]
    if offset == EARLIEST_OFFSET:
        return edges.earliest
    return edges.latest if offset == LATEST_OFFSET else Offset(offset)
