"""From where records come: the port that the store alone, and Kafka with it, both fill."""

from collections.abc import Sequence
from typing import Protocol

from sidetier.archive.reading.results import Taken
from sidetier.segments.offsets import OffsetRange, TopicPartition


class Bounded(Protocol):
    """Some partitions of one topic, and what can be read of them. Every method raises SidetierError
    when its side does not answer or refuses.
    """

    def partitions(self) -> Sequence[int]:
        """The topic's partitions, rising; raises where there are none."""
        ...

    def bounds(self, tp: TopicPartition) -> OffsetRange:
        """What can be read of a partition now; raises where nothing can be."""
        ...

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """The first record with this timestamp or a later one; None where there is none."""
        ...


class Source(Bounded, Protocol):
    """Reads partitions of one topic."""

    def assign(self, starts: dict[TopicPartition, int]) -> None:
        """Read these partitions, each from an offset on."""
        ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on elsewhere."""
        ...

    def finish(self, tp: TopicPartition) -> None:
        """Nothing more is wanted of a partition; a little may still come."""
        ...

    def take(self, most: int, timeout: float) -> list[Taken]:
        """At most so many records; waits up to `timeout` seconds for the first."""
        ...

    @property
    def skipped(self) -> int:
        """Offsets that were stepped over by the source itself, without a word in `take`."""
        ...
