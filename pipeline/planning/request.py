"""What a user asks to read: plain values, as options, a program or an export make them."""

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
    """What a query leaves out, so that it need not be read.

    They prune and do not select: records that they leave out may still come, but whole segments
    and partitions of them do not.

    Attributes:
        partitions: the numbers of those that are wanted; None for all.
        first: no record with a lower offset is wanted.
        until: none with this offset or a higher one.
        since_ms: none with an earlier timestamp.
    """

    partitions: frozenset[int] | None = None
    first: Offset | None = None
    until: Offset | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One read.

    Attributes:
        selection: which partitions.
        starting: where to begin.
        ending: where to end, not including.
        no_match: for `starting` by time.
        isolation: read committed, the latest offset is the last stable one.
        fail_on_data_loss: whether offsets that are asked for and not stored are an error.
        reread_truncated: of a stream, whether it goes back to what replaces records that brokers
            have thrown away since it read them; otherwise that is an error.
        include_headers: whether records' headers are shown.
        min_partitions: into how many splits at least, as far as index entries allow.
        max_offsets_per_trigger: of a stream, how many offsets one batch spans at most.
        max_split_bytes: how many bytes of stored segments one task reads, about.
        filters: see there.
        find_gaps: whether each segment is asked where it ends, a request or two, so that offsets
            are found that are missing though nothing records it; otherwise who reads meets them.

    Raises:
        ConfigurationError: a number that is not above 0.
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
