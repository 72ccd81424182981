"""Splits and plans: values that can be printed, compared, and sent to executors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition

UNDECIDED: Final = "they belong to, or follow, a transaction that no stored marker decides yet"
"""Why offsets are missing at read_committed that a reader at read_uncommitted gets."""


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """Version of the `.index` object of a segment, as seen by the planner."""

    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class PackRange:
    """Place of a segment that is a range of a tail pack.

    Attributes:
        key: key of the pack.
        position: byte position of the range in the pack.
        until: end (exclusive) of the offsets that are read from it.
        reaches: end (exclusive) of its last batch.
    """

    key: str
    position: int
    until: Offset
    reaches: Offset


@dataclass(frozen=True, slots=True)
class Piece:
    """A byte range of one stored `.log`, from `start` to `end` (exclusive).

    With key, size and ETag the reader needs no new snapshot of the archive, and detects an object
    that has replaced the planned one.

    Attributes:
        size: size of the whole `.log`.
        etag: version of the `.log`.
        pack: where it is, if it is a range of a tail pack; `key` then names it in words.
    """

    key: str
    base_offset: BaseOffset
    start: int
    end: int
    size: int
    etag: str
    index: IndexVersion | None = None
    pack: PackRange | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """State of the archive when a split was planned.

    Attributes:
        topic_id: id of the topic; None where the archive does not record it.
        is_pinterest: whether Pinterest's uploader has filled the archive.
        until: offset (exclusive) up to which the reader may use the listed segments.
        behind: segments that follow the split, whole. The reader searches them first for the
            markers of transactions that are open at the split's end.
    """

    topic_id: str | None
    is_pinterest: bool
    until: Offset
    behind: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """Work of one task: the records of one partition in a range of offsets.

    Attributes:
        pieces: byte ranges with all records of the range, in offset order. Where a piece begins or
            ends inside a segment, its first record batch may begin below the range, and its last
            one end above it.
    """

    tp: TopicPartition
    range: OffsetRange
    pieces: tuple[Piece, ...]
    origin: Origin

    @property
    def size(self) -> int:
        """Bytes to read from the store."""
        return sum(piece.end - piece.start for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Missing:
    """Requested offsets that are not stored. `detail`: why, and where they were searched."""

    tp: TopicPartition
    range: OffsetRange
    detail: str


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """Offsets that are read from the brokers, because the archive does not have them yet."""

    tp: TopicPartition
    range: OffsetRange


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a read.

    Attributes:
        ranges: requested offsets of each partition.
        splits: in order of topic, partition and offset; they do not overlap.
        missing: requested offsets that are not stored, in the same order.
        pruned: bytes of segments inside the ranges that filters exclude.
        on_broker: offsets above the archive's end, by topic and partition. Filled only if the
            request includes the brokers.
        with_tail: whether tail packs follow the archives. Tasks then look for markers there.
    """

    ranges: Mapping[TopicPartition, OffsetRange]
    splits: tuple[Split, ...]
    missing: tuple[Missing, ...] = field(default=())
    pruned: int = 0
    on_broker: tuple[BrokerRange, ...] = ()
    with_tail: bool = False

    @property
    def size(self) -> int:
        """Bytes to read from the store."""
        return sum(split.size for split in self.splits)


def in_words(tp: TopicPartition) -> str:
    """Return, for example, `topic orders, partition 3`."""
    return f"topic {tp.topic}, partition {tp.partition}"
