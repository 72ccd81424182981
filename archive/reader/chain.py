"""Turn one partition's bytes into batches, then into records, from a position on.

No lock, no I/O, no clock. The thread that takes records drives it; one thread at a time.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from sidetier.archive.locate import SegmentPosition
from sidetier.archive.reader.assembly import Assembler, Scanned
from sidetier.archive.reader.committed import (
    Cleared,
    Committed,
    DamagedRow,
    Portion,
    Transactions,
    Uncommitted,
)
from sidetier.archive.reader.decoding import Batch, DamagedBatchError, Decoding
from sidetier.archive.reader.opening import Stuck
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.segments.arrow import Buffer
from sidetier.segments.errors import DamagedSegmentError, SidetierError, UnsupportedFormatError
from sidetier.segments.offsets import Offset


class Verdict(Enum):
    """What to do after the bytes that were fed."""

    MORE = auto()
    """Read the next range of the same segment."""
    NEXT_LOG = auto()
    """The segment is read up to its end or bound. Continue in the segment with the next offset."""
    STUCK = auto()
    """The segment ends too early, or is damaged: see `Chain.stuck`."""
    DECIDED = auto()
    """Looking ahead: the transaction that blocked reading is decided."""
    DONE = auto()
    """Everything wanted has arrived, and is decided."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the chain returns.

    Attributes:
        columns: The columns; None for all.
        bound: End of the wanted offsets, exclusive; None for no end.
        max_batch_bytes: A batch of more bytes, decompressed, is an error.
    """

    columns: tuple[str, ...] | None = None
    bound: Offset | None = None
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES


class Chain:
    """Turns bytes into records. With `waiting_for`, it only looks for the marker of a transaction.

    Args:
        segment_position: Where the bytes begin.
        offset: First wanted offset.
        until: Offset up to which the segment is read, exclusive.
        transactions: The known transactions; None to read uncommitted.
        wanted: What the chain returns. Batches above its bound are read only while a transaction
            below the bound is not decided.
        waiting_for: First offset of the transaction that must be decided first.
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
        """One past the last scanned offset, or the first wanted one."""
        self.handed = offset if waiting_for is None else None
        """Offset up to which decided records were returned; None while looking ahead."""
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
        """Continue at another position."""
        self.log = segment_position.log
        self.until = until
        self.offset = max(offset, self.offset)
        self.stuck = None
        self._assembler = Assembler(
            segment_position.log.key, segment_position.log.size, segment_position.position
        )

    @property
    def held_bytes(self) -> int:
        """Size of all buffers that the chain refers to, in bytes."""
        total = self._assembler.carried + self._isolation.held_bytes
        total += sum(len(cleared.portion.scanned.data) for cleared in self._cleared)
        return total + (self._decoding.held_bytes if self._decoding is not None else 0)

    @property
    def missing(self) -> int:
        """Missing bytes of the batch that the end of the last range cut; 0 if none was cut."""
        return self._assembler.missing if self._assembler.carried else 0

    @property
    def blocked_at(self) -> Offset | None:
        """First offset of the open transaction that blocks reading; None if there is none."""
        return self._isolation.blocked_at if self.waiting_for is None else self.waiting_for

    @property
    def has_batches(self) -> bool:
        """Whether there are batches to decode, or decoded records."""
        return self._decoding is not None or bool(self._cleared)

    @property
    def has_remainder(self) -> bool:
        """Whether some decoded records have not been returned yet."""
        return self._decoding is not None and self._decoding.has_rest

    @property
    def is_done(self) -> bool:
        """Whether everything wanted has arrived, and is decided."""
        bound = self._wanted.bound
        return bound is not None and self.offset >= bound and self.blocked_at is None

    @property
    def looks_ahead(self) -> bool:
        """Whether the chain only looks for transaction markers."""
        return self.waiting_for is not None

    def look_ahead(self, blocked_at: Offset) -> None:
        """Drop the held batches, and from now on only look for transaction markers."""
        if self._transactions is not None:
            self.waiting_for = blocked_at
            self._isolation = Committed(self._transactions)

    def feed(self, data: Buffer, *, is_last: bool) -> Verdict:
        """Process the next range of the segment; `is_last` if it reaches the segment's end."""
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
        """Note that the segment cannot be read further; `damage` is None if it just ends."""
        verdict = self._verdict(Verdict.STUCK)
        if verdict is Verdict.STUCK:
            self._stick(self.offset, damage, None, self._assembler.position)
        return verdict

    def next_batch(self, most: int) -> Batch | None:
        """Return up to `most` records.

        Returns:
            None if there are none now, or if the next batch cannot be decoded; then `stuck` is set.

        Raises:
            BatchTooLargeError: The next batch is larger than the limit. It is not skipped.
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
        """Process the wanted batches. Return the first one that cannot be read, if any."""
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
        """Note a transaction marker that cannot be read. Its offsets are known."""
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
        """Remember each segment that could not be read at this offset, so that none is tried
        twice.
        """
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
