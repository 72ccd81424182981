"""Resolution of requested limits to offsets, partition by partition."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sidetier.pipeline.planning.log_offsets import Edges
from sidetier.pipeline.planning.request import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimes,
    Edge,
    Limit,
    NoMatch,
)
from sidetier.pipeline.planning.split import in_words
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

FirstAt = Callable[[TopicPartition, int], Offset | None]
"""Returns the first record at or after a time in ms; None if there is none."""


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves limits to offsets."""

    first_at: FirstAt

    def range(
        self,
        tp: TopicPartition,
        limits: tuple[Limit, Limit],
        edges: Edges,
        no_match: NoMatch,
    ) -> OffsetRange:
        """Return the requested range of a partition; an empty range if the end is below the start.

        Raises:
            ConfigurationError: no record is at or after the starting time, and `no_match` is
                `ERROR`.
        """
        starting, ending = limits
        start = self._start(tp, starting, edges, no_match)
        end = self._end(tp, ending, edges)
        return OffsetRange(start, max(start, end))

    def _start(self, tp: TopicPartition, limit: Limit, edges: Edges, no_match: NoMatch) -> Offset:
        if not isinstance(limit, AtTimes):
            return _at(tp, limit, edges)
        offset = self.first_at(tp, limit.of(tp))
        if offset is None and no_match is NoMatch.ERROR:
            raise ConfigurationError(
                f"{in_words(tp)}: no stored record has a timestamp of "
                f"{limit.of(tp)} ms or later; to begin at the latest offset there, set "
                "startingOffsetsByTimestampStrategy to latest"
            )
        return edges.latest if offset is None else offset

    def _end(self, tp: TopicPartition, limit: Limit, edges: Edges) -> Offset:
        if not isinstance(limit, AtTimes):
            return _at(tp, limit, edges)
        offset = self.first_at(tp, limit.of(tp))
        # The record can be above `latest`, where transactions are still undecided.
        return edges.latest if offset is None else min(offset, edges.latest)


def check_covered(limit: Limit, partitions: Iterable[TopicPartition], option: str) -> None:
    """Check that offsets or times name exactly the partitions that are read, as Spark does.

    Raises:
        ConfigurationError: a partition is missing, or is named and not read.
    """
    given = _given(limit)
    if given is None:
        return
    wanted = set(partitions)
    for kind, tps in (("leaves out", wanted - given.keys()), ("names", given.keys() - wanted)):
        if tps:
            partition = min(tps)
            why = "" if kind == "leaves out" else ", which is not read"
            raise ConfigurationError(
                f"{option}: must name each partition that is read, and {kind} "
                f"{in_words(partition)}{why}; -2 is the earliest offset, -1 the latest"
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


def limited_ends(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int | None
) -> dict[TopicPartition, Offset]:
    """Return where the next batch ends in each partition (exclusive).

    The batch has at most `most` offsets in total. Partitions share them in proportion to their
    pending offsets, and each partition with pending offsets gets at least one, as in Spark's Kafka
    source. So the total can exceed `most` when there are more such partitions.

    Args:
        starts: start of the batch; 0 for a partition that is not in it.
        ends: present end of each partition (exclusive).
        most: maximum offsets; None for no limit.
    """
    spans = {tp: max(end - starts.get(tp, 0), 0) for tp, end in ends.items()}
    return {tp: Offset(starts.get(tp, 0) + share) for tp, share in shares(spans, most).items()}


def shares(sizes: Mapping[TopicPartition, int], most: int | None) -> dict[TopicPartition, int]:
    """Reduce the sizes proportionally to a total of `most`. A size above 0 stays at least 1."""
    total = sum(sizes.values())
    if most is None or total <= most:
        return dict(sizes)
    return {tp: max(most * size // total, min(size, 1)) for tp, size in sizes.items()}
