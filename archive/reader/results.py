"""The results that a reader returns."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sidetier.archive.missing_offsets import GapReason
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition


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


__all__ = ["Failed", "Gap", "GapReason", "ReachedEnd", "Records", "Taken"]


@dataclass(frozen=True, slots=True)
class Records:
    """Records in order of offsets; at least one.

    `next_offset` is where reading continues. It is above the last record's offset by more than one
    if the offsets between have no record (markers, aborted and compacted records).
    """

    tp: TopicPartition
    records: pa.RecordBatch
    next_offset: Offset


@dataclass(frozen=True, slots=True)
class ReachedEnd:
    """Nothing more can be returned now. `next_offset` is where reading continues when more is
    archived.

    Returned once each time the end is reached. With `read_committed`, `next_offset` may be below
    the archive's end: at the first offset of a transaction that no stored marker decides. It may
    also have moved since without a record (`Records.next_offset`).
    """

    tp: TopicPartition
    next_offset: Offset


@dataclass(frozen=True, slots=True)
class Gap:
    """These offsets are not stored.

    The partition stops at their start: `seek` to their end to skip them. `detail` describes them in
    words, with the URL and prefix.
    """

    tp: TopicPartition
    offsets: OffsetRange
    reason: GapReason
    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Reading cannot continue at `next_offset`. The position is kept.

    If `error.retry` is True (the store was unavailable for longer than the storage layer retries),
    the partition tries again by itself after `ReaderSettings.failed_pause`. Otherwise it stops
    until the caller calls `seek`, also to the same offset, or `resume`. A `DamagedArchiveError` has
    the missing offsets: `seek` to their end to skip them. After a BatchTooLargeError or an
    UnsupportedFormatError nothing is missing: the records are stored. After an
    ArchiveReplacedError, `seek` and `resume` return it again: `assign` the partition.
    """

    tp: TopicPartition
    next_offset: Offset
    error: SidetierError


Taken = Records | ReachedEnd | Gap | Failed
