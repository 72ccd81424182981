"""What a reader hands out."""

from dataclasses import dataclass

import pyarrow as pa

from sidetier.archive.gaps import GapReason
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, TopicPartition

__all__ = ["Failed", "Gap", "GapReason", "ReachedEnd", "Records", "Taken"]


@dataclass(frozen=True, slots=True)
class Records:
    """Records in order of offsets; never empty.

    `next_offset` is where reading goes on: above the last record's offset by more than one where
    offsets have no record (markers, aborted and compacted records).
    """

    tp: TopicPartition
    records: pa.RecordBatch
    next_offset: Offset


@dataclass(frozen=True, slots=True)
class ReachedEnd:
    """Nothing more can be handed out now: `next_offset` is where reading goes on when more comes.

    Said once each time the end is reached. Reading committed, it may lie below the archive's next
    offset: there begins a transaction that is not decided in what is stored. It may also have moved
    without a record since (`Records.next_offset`).
    """

    tp: TopicPartition
    next_offset: Offset


@dataclass(frozen=True, slots=True)
class Gap:
    """The offsets from `first` up to, not including, `end` are not stored.

    The partition stands still at `first`: `seek` to `end` steps over. `detail` says the same in
    words, with the place.
    """

    tp: TopicPartition
    first: Offset
    end: Offset
    reason: GapReason
    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Reading cannot go on at `next_offset`, which is kept.

    Where `error.retry` is True (the store was away for longer than the storage layer tries), the
    partition tries again by itself after `ReaderSettings.failed_pause`; otherwise it stands still
    until it is told to `seek`, which may be to the same offset, or `resume`. A
    `DamagedArchiveError` has the missing offsets: `seek` to its `end` steps over them. After a
    BatchTooLargeError or an UnsupportedFormatError nothing is missing: the records are stored.
    """

    tp: TopicPartition
    next_offset: Offset
    error: SidetierError


Taken = Records | ReachedEnd | Gap | Failed
