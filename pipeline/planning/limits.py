"""Requested start and end of a read: by name, by offset, or by time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sidetier.segments.offsets import TopicPartition

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
