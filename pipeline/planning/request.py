"""Read requests: the partitions, the start and end, filters and limits. Plain values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition

DEFAULT_SPLIT_BYTES: Final = 128 * 1024**2
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


@dataclass(frozen=True, slots=True)
class Topics:
    """Every stored partition of these topics: `subscribe`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Every stored partition of each topic whose whole name matches: `subscribePattern`.

    Raises:
        ConfigurationError: the pattern is not a regular expression.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigurationError(
                f"subscribePattern {self.pattern!r}: must be a regular expression: {error}"
            ) from None

    def matches(self, topic: str) -> bool:
        """Whether the topic's whole name matches."""
        return re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions: `assign`."""

    partitions: tuple[TopicPartition, ...]


Selection = Topics | TopicPattern | Assigned


def is_selected(selection: Selection, tp: TopicPartition) -> bool:
    """Whether the selection includes a partition, stored or not."""
    if isinstance(selection, Topics):
        return tp.topic in selection.names
    if isinstance(selection, TopicPattern):
        return selection.matches(tp.topic)
    return tp in selection.partitions


@dataclass(frozen=True, slots=True)
class Filters:
    """Records that a query does not need, so that they need not be read.

    Filters exclude whole segments and partitions. Records that a filter excludes may still be
    returned, and the caller must filter them.

    Attributes:
        partitions: numbers of the wanted partitions; None for all.
        first: lowest wanted offset (inclusive).
        until: end of the wanted offsets (exclusive).
        since_ms: earliest wanted timestamp (inclusive).
    """

    partitions: frozenset[int] | None = None
    first: Offset | None = None
    until: Offset | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One read.

    Attributes:
        selection: the partitions.
        starting: start of the read (inclusive).
        ending: end of the read (exclusive).
        starting_option: name of the option that sets `starting`, for errors.
        ending_option: name of the option that sets `ending`, for errors.
        no_match: for `starting` by time: start of a partition without a record at or after it.
        isolation: at read_committed, the latest offset is the last stable offset.
        fail_on_data_loss: whether requested offsets that are not stored are an error.
        reread_truncated: for a stream: after brokers have discarded records that the stream has
            read, read the records that replace them. Otherwise that is an error.
        include_headers: whether the result has a column for record headers.
        min_partitions: minimum number of splits, as far as index entries allow.
        max_offsets_per_trigger: for a stream: maximum offsets of one batch.
        max_split_bytes: approximate bytes of stored segments that one task reads.
        filters: see `Filters`.
        find_gaps: whether to ask each segment for its end, which costs a request or two each and
            finds missing offsets that nothing records. Otherwise the reader finds them.

    Raises:
        ConfigurationError: a number is not above 0.
    """

    selection: Selection
    starting: Limit = Edge.EARLIEST
    ending: Limit = Edge.LATEST
    starting_option: str = "startingOffsets"
    ending_option: str = "endingOffsets"
    no_match: NoMatch = NoMatch.ERROR
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    reread_truncated: bool = False
    include_headers: bool = False
    min_partitions: int | None = None
    max_offsets_per_trigger: int | None = None
    max_split_bytes: int = DEFAULT_SPLIT_BYTES
    filters: Filters = field(default_factory=Filters)
    find_gaps: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("minPartitions", self.min_partitions),
            ("maxOffsetsPerTrigger", self.max_offsets_per_trigger),
            ("maxBytesPerSplit", self.max_split_bytes),
        ):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} {value}: must be above 0")
