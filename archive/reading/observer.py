"""Receives events of archive readers. Requests to the store have an observer of their own."""

from typing import Protocol

from sidetier.segments.offsets import TopicPartition


class ReadingObserver(Protocol):
    """Receives the events of an `ArchiveReader`, on its threads. Methods must not raise or
    block.
    """

    def fetched(self, tp: TopicPartition, size: int) -> None:
        """The reader received `size` bytes of a `.log`."""
        ...

    def decoded(self, tp: TopicPartition, records: int) -> None:
        """The reader returned `records` records."""
        ...

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:
        """The reader needed a range that was already fetched (`hit`), or that it had to wait
        for.
        """
        ...

    def fell_back(self, key: str, reason: str) -> None:
        """An index is missing or damaged, and the segment is scanned instead. Called once per
        key.
        """
        ...


class NullReadingObserver:
    """Ignores all events."""

    def fetched(self, tp: TopicPartition, size: int) -> None:
        """Ignore the event."""

    def decoded(self, tp: TopicPartition, records: int) -> None:
        """Ignore the event."""

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:
        """Ignore the event."""

    def fell_back(self, key: str, reason: str) -> None:
        """Ignore the event."""
