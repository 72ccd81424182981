"""Read requests: plain values, built from options, by a program, or by an export."""

from dataclasses import dataclass, field
from typing import Final

from sidetier.pipeline.planning.limits import Edge, Limit, NoMatch
from sidetier.pipeline.planning.selection import Selection
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset

DEFAULT_SPLIT_BYTES: Final = 128 * 1024**2


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
