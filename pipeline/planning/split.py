"""What is to be read, as values: they can be printed, compared, and sent to executors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition

UNDECIDED: Final = "they belong to, or follow, a transaction that nothing stored decides yet"
"""Why offsets are missing that only a reader of committed records misses."""


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """The `.index` beside a `.log`, in the version that was seen."""

    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes from `start` up to, not including, `end` of one stored `.log`.

    `size` is the whole `.log`'s, and `etag` names its version: so it is read without looking at the
    archive again, and another one in its place is noticed.
    """

    key: str
    base_offset: BaseOffset
    start: int
    end: int
    size: int
    etag: str
    index: IndexVersion | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """What the archive was when a split of it was planned.

    Attributes:
        topic_id: of the topic, None where the archive does not say.
        is_peers: whether Pinterest's uploader has filled it.
        behind: the segments that follow, whole: there the markers of transactions that are open at
            the split's end are looked for first.
        until: up to here the segments that are named are read, if they are.
    """

    topic_id: str | None
    is_pinterest: bool
    until: Offset
    behind: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads: the records of a partition within a range of offsets.

    The pieces, in order of offsets, hold them all; where a piece begins or ends within a segment,
    the first record batch may begin below `first`, and the last one end above `until`.
    """

    tp: TopicPartition
    range: OffsetRange
    pieces: tuple[Piece, ...]
    origin: Origin

    @property
    def size(self) -> int:
        """Bytes of the store's objects."""
        return sum(piece.end - piece.start for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets that were asked for and are not stored; `detail` says why, and where, in words."""

    tp: TopicPartition
    range: OffsetRange
    detail: str


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """What is read from the brokers themselves: they alone have it yet."""

    tp: TopicPartition
    range: OffsetRange


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read, by topic, partition and offset.

    Attributes:
        ranges: what was asked for of each partition, resolved to offsets.
        splits: in order of topic, partition and offset; they do not overlap.
        missing: what is asked for and not stored, in the same order.
        pruned: bytes of segments within the ranges that no filter lets through.
        on_broker: behind what is stored, by topic and partition; only where that was asked for.
    """

    ranges: Mapping[TopicPartition, OffsetRange]
    splits: tuple[Split, ...]
    missing: tuple[Missing, ...] = field(default=())
    pruned: int = 0
    on_broker: tuple[BrokerRange, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that are read from the store."""
        return sum(split.size for split in self.splits)
