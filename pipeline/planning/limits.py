"""Requested start and end of a read: by name, by offset, or by time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sidetier.segments.offsets import Offset, TopicPartition

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""With `EARLIEST_OFFSET`, Kafka's numbers for the ends of a log, where offsets are expected."""


class Edge(Enum):
    """An end of the archive, whatever its offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; -2 for the earliest, -1 for the latest."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first record at or after a time in ms.

    Attributes:
        everywhere: one time for all partitions; None if `times` gives one for each.
    """

    everywhere: int | None = None
    times: Mapping[TopicPartition, int] = field(default_factory=dict)

    def of(self, tp: TopicPartition) -> int:
        """Return the time for a partition; raises KeyError if none is given."""
        return self.times[tp] if self.everywhere is None else self.everywhere


Limit = Edge | AtOffsets | AtTimes


class NoMatch(Enum):
    """`startingOffsetsByTimestampStrategy`: the start of a partition without a record at or after
    the starting time.
    """

    ERROR = "error"
    LATEST = "latest"


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
