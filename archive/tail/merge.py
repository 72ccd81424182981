"""The merge rule: which ranges of which packs are the tail of a partition. Pure.

Each row carries the epoch history of the leader that answered for it. A leader epoch has one
leader, which appends in order, so two logs that have the same epoch at an offset have the same
records up to there (KIP-101). So one history decides about all rows:

1. Only rows of the archive's topic id count.
2. The history of the newest leader epoch wins, also over every lower epoch that reaches further: a
   later leader never had what it does not show. A claim, which has no bytes, counts for it.
   Below the first epoch that this history knows, the history that has this epoch at the same start
   continues it; without one, the history of the next lower leader epoch.
3. A batch of epoch e at offset x is true if that history has e at x. Otherwise it is stale.
4. The archive wins below its end offset. From there on, true ranges are joined without a gap; the
   tail ends at the first one.

Equal offsets of one epoch must have equal bytes. Rows of the same offsets are compared here by size
and checksum; parts of rows that overlap are compared by `read` when it has their bytes.

As long as the claim of a new leader is not in the packs, nothing shows that records of the one
before it are stale after an unclean election.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sidetier.archive.tail.pack import TailRow
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.offsets import BrokerId, Offset, OffsetRange


@dataclass(frozen=True, slots=True)
class PackRef:
    """A tail pack as it was listed.

    Attributes:
        broker: The broker whose sidecar has written it.
        number: Its number.
        key: Its key.
        etag: Its etag.
        size: Its size in bytes.
        modified_ms: When it was stored, by the store's clock, in ms since 1970.
    """

    broker: BrokerId
    number: int
    key: str
    etag: str
    size: int
    modified_ms: int


class PackedRow(NamedTuple):
    """A row, and the pack that it is in. A writer's own row that is not stored yet has no pack."""

    pack: PackRef | None
    row: TailRow


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """What the archive has of a partition.

    Attributes:
        end: The archive end offset; None if nothing is archived. The tail then begins at the
            lowest offset of a row.
        epochs: The stored epoch history. Epochs that begin at `end` or above are ignored.
        topic_id: The archive's topic id; None if it has none. The rows must then agree.
    """

    end: Offset | None = None
    epochs: EpochHistory = NO_EPOCHS
    topic_id: str | None = None


class Reason(StrEnum):
    """Why a range is not part of the tail."""

    TOPIC_ID = "topic_id"
    """It belongs to another topic of this name."""
    ARCHIVED = "archived"
    """It is below the archive end offset."""
    STALE = "stale"
    """A later leader does not have it."""
    DUPLICATE = "duplicate"
    """Another pack has it, too."""
    GAP = "gap"
    """It is behind the first gap."""
    DIVERGED = "diverged"
    """The archive itself has records that a later leader does not have."""


class LeftOut(NamedTuple):
    """A range of a row that is not part of the tail.

    Attributes:
        source: The row.
        offsets: The range.
        reason: Why.
        text: The reason in words, with the numbers.
    """

    source: PackedRow
    offsets: OffsetRange
    reason: Reason
    text: str


class TailSlice(NamedTuple):
    """The part of a row to read.

    Attributes:
        source: The row, whose bytes are read as a whole.
        start: First offset to take. Always where a batch begins, or lower.
        end: End, exclusive. Always where a batch ends, or higher.
    """

    source: PackedRow
    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class MergedTail:
    """The tail of a partition.

    Attributes:
        start: Where it begins: the archive end offset.
        end: End, exclusive: up to here the records are safe. Equal to `start` if it is empty.
        topic_id: The topic id of its rows; None without rows.
        slices: What to read, in order of offsets, without a gap and without an overlap.
        left_out: The other ranges, with the reason.
        epochs: The epoch history of archive and tail, cut at `end`.
        log_start: Highest log start offset of the rows of the newest leader epoch; None without
            rows. Records below it were deleted from the log by DeleteRecords or local retention.
        leader_epoch: The newest leader epoch of all rows and of the archive; None without any.
        basis: The rows that prove that others are stale: a pack with one of them is needed.
        gap: The first gap, if a true range follows behind it.
    """

    start: Offset
    end: Offset
    topic_id: str | None
    slices: tuple[TailSlice, ...]
    left_out: tuple[LeftOut, ...]
    epochs: EpochHistory
    log_start: Offset | None
    leader_epoch: int | None
    basis: tuple[PackedRow, ...]
    gap: OffsetRange | None

    @property
    def last_stable(self) -> Offset | None:
        """Last stable offset of the tail: at most `end`; None if the row that reaches `end` cannot
        tell it because it is cut. Readers then find it in the markers.
        """
        raise NotImplementedError

    @property
    def newest_ms(self) -> int | None:
        """Largest timestamp of the rows; None without one."""
        raise NotImplementedError

    def needed(self) -> Sequence[PackedRow]:
        """Return the rows that cleaning keeps: the slices', the basis, and all that are left out as
        `DUPLICATE`, `GAP`, `DIVERGED` or `TOPIC_ID`. A sidecar that knows the topic id from the
        broker drops those of other topic ids itself.
        """
        raise NotImplementedError


def merge(archived: ArchivedPart, rows: Iterable[PackedRow]) -> MergedTail:
    """Merge all live rows of all brokers of one partition.

    A sidecar that begins to lead adds its own claim (without a pack): `end` is then the offset from
    which it stores, because its own log agrees up to there.

    Raises:
        ArchiveConflictError: Two rows of one leader epoch contradict each other: in their epoch
            histories, or in the bytes of the same offsets. The message names both packs.
    """
    raise NotImplementedError
