"""Where reading begins and ends, as it is asked for: by name, by offset, or by time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sidetier.segments.offsets import TopicPartition

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""What these stand for where offsets are given one by one; Kafka's own numbers."""


class Edge(Enum):
    """An end of what is stored, whatever its offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, -2 for the earliest, -1 for the latest."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """At the first record of at least this time, in ms: `everywhere`, or partition by partition."""

    everywhere: int | None = None
    times: Mapping[TopicPartition, int] = field(default_factory=dict)

    def of(self, tp: TopicPartition) -> int:
        """That of a partition; raises KeyError."""
        return self.times[tp] if self.everywhere is None else self.everywhere


Limit = Edge | AtOffsets | AtTimes


class NoMatch(Enum):
    """`startingOffsetsByTimestampStrategy`: what becomes of a partition without a record as late
    as the time where reading is to begin.
    """

    ERROR = "error"
    LATEST = "latest"
