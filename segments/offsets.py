"""The primitives of a log: offsets, leader epochs, partitions."""

from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
"""A record's position in its partition, from 0. As a *next offset*, one past the last record."""

MAX_OFFSET: Final = Offset(2**63 - 1)
"""Largest number that an offset can have: it is a signed 64-bit integer."""

BaseOffset = NewType("BaseOffset", int)
"""The offset in a segment's name: its first record's offset, or lower if records are missing."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Increases by at least one at each election of a partition's leader; -1 if unknown."""

BrokerId = NewType("BrokerId", int)
"""`broker.id` (ZooKeeper) or `node.id` (KRaft)."""

UNKNOWN_EPOCH = LeaderEpoch(-1)


class TopicPartition(NamedTuple):
    """One partition of one topic. Sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the name of the partition's directory in a log dir."""
        return f"{self.topic}-{self.partition}"


class OffsetRange(NamedTuple):
    """The offsets from `start`, inclusive, up to `end`, exclusive; empty if they are equal.

    Sorts by start, then end. Its text is `[start, end)`.
    """

    start: Offset
    end: Offset

    def __contains__(self, offset: object) -> bool:
        """Return whether an offset is in the range. Does not search the tuple's two items."""
        return isinstance(offset, int) and self.start <= offset < self.end

    def __str__(self) -> str:
        """Return the half-open interval."""
        return f"[{self.start}, {self.end})"

    @property
    def size(self) -> int:
        """Number of offsets. There may be fewer records: compaction removes some."""
        return self.end - self.start


def next_offset(last_offset: int) -> Offset:
    """Return the offset after this one."""
    return Offset(last_offset + 1)
