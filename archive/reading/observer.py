"""Who wants to know how reading goes; requests themselves are told to storage's own observer."""

from typing import Protocol

from sidetier.segments.offsets import TopicPartition


class ReadingObserver(Protocol):
    """Hears of what an `ArchiveReader` does; called on its threads, and must not raise or block."""

    def fetched(self, tp: TopicPartition, size: int) -> None:
        """So many bytes of a `.log` have come."""
        ...

    def decoded(self, tp: TopicPartition, records: int) -> None:
        """So many records were handed out."""
        ...

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:
        """A range was wanted, and was there already (a hit), or had to be waited for."""
        ...

    def fell_back(self, key: str, reason: str) -> None:
        """An index is missing or damaged, and the segment is scanned instead; once per key."""
        ...


class NullReadingObserver:
    """Hears nothing."""

    def fetched(self, tp: TopicPartition, size: int) -> None:
        """Nothing."""

    def decoded(self, tp: TopicPartition, records: int) -> None:
        """Nothing."""

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:
        """Nothing."""

    def fell_back(self, key: str, reason: str) -> None:
        """Nothing."""
