"""Port for sources of records. One adapter reads the store alone, the other one Kafka with it."""

from collections.abc import Sequence
from typing import Protocol

from sidetier.archive.reader.results import Taken
from sidetier.segments.offsets import OffsetRange, TopicPartition


class Bounded(Protocol):
    """Partitions of one topic, and their readable offsets. Every method raises SidetierError when
    the source refuses or does not answer.
    """

    def partitions(self) -> Sequence[int]:
        """Return the topic's partition numbers in rising order; raise if there are none."""
        ...

    def bounds(self, tp: TopicPartition) -> OffsetRange:
        """Return the offsets of a partition that are readable now; raise if there are none."""
        ...

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with this timestamp or a later one, or None."""
        ...


class Source(Bounded, Protocol):
    """Reads partitions of one topic."""

    def assign(self, starts: dict[TopicPartition, int]) -> None:
        """Start reading these partitions, each at the given offset."""
        ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue a partition at another offset."""
        ...

    def finish(self, tp: TopicPartition) -> None:
        """Stop reading a partition; `take` may still return a few of its records."""
        ...

    def take(self, most: int, timeout: float) -> list[Taken]:
        """Return at most `most` records; wait up to `timeout` seconds for the first."""
        ...

    @property
    def skipped(self) -> int:
        """Number of offsets that the source stepped over without reporting them in `take`."""
        ...
