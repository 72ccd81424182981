"""The way of one partition's bytes, from a spot on: into batches, then into records.

No lock, no I/O, no clock: whoever takes records drives it, one at a time.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from sidetier.archive.locate import SegmentPosition
from sidetier.archive.reading.assembly import Assembler, Scanned
from sidetier.archive.reading.committed import (
    Cleared,
    Committed,
    DamagedRow,
    Portion,
    Transactions,
    Uncommitted,
)
from sidetier.archive.reading.decoding import Batch, DamagedBatchError, Decoding
from sidetier.archive.reading.opening import Stuck
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.segments.arrow import Buffer
from sidetier.segments.errors import DamagedSegmentError, SidetierError, UnsupportedFormatError
from sidetier.segments.offsets import Offset


class Verdict(Enum):
    """What comes after the bytes that were fed."""

    MORE = auto()
    """The next range of the same segment."""
    NEXT_LOG = auto()
    """The segment is read as far as it is to be: whoever holds the next offset goes on."""
    STUCK = auto()
    """It has ended too early, or is damaged: see `Chain.stuck`."""
    DECIDED = auto()
    """Looking ahead: the transaction that was in the way is decided."""
    DONE = auto()
    """All that is wanted has come, and is decided."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is handed out: these `columns`, and no record from `bound` on; None for all. A batch of
    more than `max_batch_bytes`, decompressed, is an error.
    """

    columns: tuple[str, ...] | None = None
    bound: Offset | None = None
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES


class Chain:
    """From bytes to records, or, `waiting_for` a transaction to be decided, to what markers say.

    Args:
        spot: where the bytes begin.
        offset: the first offset that is wanted.
        until: the segment is read up to here, not including.
        transactions: what is known of them; None to read uncommitted.
        wanted: what is handed out. Behind its bound batches are looked at only as long as a
            transaction below is not decided.
        waiting_for: the first offset of the transaction.
    """

    def __init__(
        self,
        segment_position: SegmentPosition,
        offset: Offset,
        until: Offset,
        *,
        transactions: Transactions | None,
        wanted: Wanted,
        waiting_for: Offset | None = None,
    ) -> None:
        self.offset = offset
        """One past the last offset that was scanned, or the first one that is wanted."""
        self.handed = offset if waiting_for is None else None
        """Where the records that are decided by now end; None while looking ahead."""
        self.waiting_for = waiting_for
        self.stuck: Stuck | None = None
        self._transactions = transactions
        self._wanted = wanted
        self._isolation = Uncommitted() if transactions is None else Committed(transactions)
        self._cleared: deque[Cleared] = deque()
        self._decoding: Decoding | None = None
        self._tried: tuple[Offset, frozenset[tuple[str, str, int]]] = (Offset(-1), frozenset())
        self.go_on(segment_position, offset, until)

    def go_on(self, segment_position: SegmentPosition, offset: Offset, until: Offset) -> None:
        """Read on at another place."""
        self.log = segment_position.log
        self.until = until
        self.offset = max(offset, self.offset)
        self.stuck = None
        self._assembler = Assembler(
            segment_position.log.key, segment_position.log.size, segment_position.position
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of all buffers that are referred to."""
        total = self._assembler.carried + self._isolation.held_bytes
        total += sum(len(cleared.portion.scanned.data) for cleared in self._cleared)
        return total + (self._decoding.held_bytes if self._decoding is not None else 0)

    @property
    def missing(self) -> int:
        """Bytes that are missing to the batch that was cut by the last range; 0 where none was."""
        return self._assembler.missing if self._assembler.carried else 0

    @property
    def blocked_at(self) -> Offset | None:
        """The first offset of the transaction that is in the way; None where none is."""
        return self._isolation.blocked_at if self.waiting_for is None else self.waiting_for

    @property
    def has_batches(self) -> bool:
        """Whether something is there that can be decoded, or is decoded."""
        return self._decoding is not None or bool(self._cleared)

    @property
    def has_remainder(self) -> bool:
        """Whether something is decoded, and not handed out yet."""
        return self._decoding is not None and self._decoding.has_rest

    @property
    def is_done(self) -> bool:
        """Whether all that is wanted has come, and is decided."""
        bound = self._wanted.bound
        return bound is not None and self.offset >= bound and self.blocked_at is None

    @property
    def looks_ahead(self) -> bool:
        """Whether only what markers say counts."""
        return self.waiting_for is not None

    def look_ahead(self, blocked_at: Offset) -> None:
        """Drop what is held, and from here on look at what markers say alone."""
        if self._transactions is not None:
            self.waiting_for = blocked_at
            self._isolation = Committed(self._transactions)

    def feed(self, data: Buffer, *, is_last: bool) -> Verdict:
        """Take the next range of the segment; `is_last` where it reaches the segment's end."""
        try:
            for scanned in self._assembler.feed(data):
                damaged = self._add(scanned)
                if self.is_done:
                    return Verdict.DONE
                if damaged is not None:
                    return self._damaged_row(scanned, damaged)
                if self.offset >= self.until:
                    return self._verdict(Verdict.NEXT_LOG)
        except (DamagedSegmentError, UnsupportedFormatError) as error:
            return self.get_stuck(error)
        if not is_last:
            return self._verdict(Verdict.MORE)
        return self.get_stuck(self._cut())

    def get_stuck(self, damage: SidetierError | None) -> Verdict:
        """The segment cannot be read on, and why; None where it just ends."""
        verdict = self._verdict(Verdict.STUCK)
        if verdict is Verdict.STUCK:
            self._stick(self.offset, damage, None, self._assembler.position)
        return verdict

    def next_batch(self, most: int) -> Batch | None:
        """Up to so many records; None when there are none now, or the next cannot be decoded:
        then it is `stuck`.

        Raises:
            BatchTooLargeError: the next batch is larger than the limit; nothing is passed over.
        """
        while self.has_batches:
            if self._decoding is None:
                self._decoding = Decoding(
                    self._cleared.popleft(), self._wanted.columns, self._wanted.max_batch_bytes
                )
            try:
                batch = self._decoding.next(most)
            except DamagedBatchError as damaged:
                self._drop_batches()
                self.log = damaged.log
                self._stick(damaged.first, damaged.error, damaged.end, damaged.position)
                return None
            if batch is not None:
                self.handed = batch.next_offset
                return batch
            self.handed = self._decoding.next_offset
            self._decoding = None
        return None

    def _add(self, scanned: Scanned) -> DamagedRow | None:
        """Take in the batches that are wanted; which of them cannot be read, if any cannot."""
        rows = scanned.headers.rows
        low = int(np.searchsorted(rows["last_offset"], self.offset, side="left"))
        high = int(np.searchsorted(rows["base_offset"], self.until, side="left"))
        portion = Portion(self.log, scanned, self.offset, self.until).rows(slice(low, high))
        damaged = None
        if len(portion.headers):
            damaged = self._transactions.learn(portion) if self._transactions is not None else None
            if damaged is not None:
                portion = portion.rows(slice(0, damaged.row))
            self._clear(portion)
        if damaged is None and high < len(rows):
            self.offset = self.until
        return damaged

    def _clear(self, portion: Portion) -> None:
        if not len(portion.headers):
            return
        self.offset = max(self.offset, portion.next_offset)
        if self.waiting_for is None:
            bound = self._wanted.bound
            self._cleared += self._isolation.add(portion if bound is None else portion.below(bound))

    def _damaged_row(self, scanned: Scanned, damaged: DamagedRow) -> Verdict:
        """A marker that cannot be read; its offsets are known."""
        verdict = self._verdict(Verdict.STUCK)
        rows = scanned.headers.rows
        low = int(np.searchsorted(rows["last_offset"], self.offset, side="left"))
        row = rows[low]
        if verdict is Verdict.STUCK:
            first, end = Offset(int(row["base_offset"])), Offset(int(row["last_offset"]) + 1)
            position = scanned.position + int(row["position"])
            self._stick(max(first, self.offset), damaged.error, end, position)
        return verdict

    def _verdict(self, otherwise: Verdict) -> Verdict:
        if self.waiting_for is None or self._transactions is None:
            return otherwise
        return Verdict.DECIDED if self._transactions.stable > self.waiting_for else otherwise

    def _cut(self) -> SidetierError | None:
        if not self._assembler.carried:
            return None
        return DamagedSegmentError(
            f"{self.log.key}: byte {self._assembler.position}: the object ends within a batch, "
            f"after {self._assembler.carried} bytes of it"
        )

    def _stick(
        self, offset: Offset, damage: SidetierError | None, up_to: Offset | None, position: int
    ) -> None:
        """Remember each segment that was of no use at this offset, to try none twice."""
        at, tried = self._tried
        tried = (tried if at == offset else frozenset()) | {self.log.version}
        self._tried = (offset, tried)
        self.offset = offset
        self.stuck = Stuck(self.log, offset, damage, up_to, position, tried)

    def _drop_batches(self) -> None:
        self._decoding = None
        self._cleared.clear()
        if self._transactions is not None:
            self._isolation = Committed(self._transactions)
