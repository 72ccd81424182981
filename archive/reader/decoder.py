"""Decode one partition's ranges: bytes to whole batches, to decided batches, to records.

No lock, no I/O, no clock. The thread that takes records calls the decoder; one thread at a time.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np
import pyarrow as pa

from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.reader.assembly import Assembler, ScannedBatches
from sidetier.archive.reader.settings import ReaderSettings
from sidetier.archive.reader.source import Stuck
from sidetier.archive.reader.transactions import (
    Batches,
    DamagedMarker,
    DecidedBatches,
    KnownTransactions,
    ReadCommitted,
    ReadUncommitted,
)
from sidetier.archive.segment_bytes import Part
from sidetier.segments.arrow import Buffer, decode_batches, decode_in_pieces
from sidetier.segments.errors import (
    BatchTooLargeError,
    DamagedSegmentError,
    SidetierError,
    UnsupportedFormatError,
)
from sidetier.segments.offsets import Offset

DECODED_BYTES: Final = 4 << 20
"""Bytes of decompressed records that are decoded at once."""


class FeedResult(Enum):
    """The next need of the decoder, after the bytes that were fed."""

    MORE = auto()
    """The next range of the same segment."""
    NEXT_SEGMENT = auto()
    """The segment that has the next offset: this one is read up to its end or bound."""
    STUCK = auto()
    """Another segment: this one ends too early, or is damaged. See `Decoder.stuck`."""
    DECIDED = auto()
    """The transaction that blocked reading is decided; only while looking ahead."""
    DONE = auto()
    """Nothing: every wanted record has arrived, and is decided."""


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """Records, at least one, and the offset where reading continues after them."""

    records: pa.RecordBatch
    next_offset: Offset


class DamagedBatchError(Exception):
    """A batch cannot be decoded. The batches before it have been returned.

    Attributes:
        error: What is wrong with the batch.
        log: The segment that holds it.
        first: Its first wanted offset.
        end: The end of its wanted offsets, exclusive.
        position: Its byte position in `log`.
    """

    def __init__(
        self,
        error: DamagedSegmentError | UnsupportedFormatError,
        log: StoredLog,
        first: Offset,
        end: Offset,
        position: int,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.log = log
        self.first = first
        self.end = end
        self.position = position


class Decoder:
    """Decodes the ranges of one partition, in order, from a position on.

    It has two modes. Normally it returns records. While it *looks ahead* (`waiting_for` is set), it
    reads only batch headers and transaction markers, until it sees the marker of the transaction
    that blocks reading; it returns no records then.

    Args:
        part: Where the bytes begin, and where the segment is read to.
        offset: First wanted offset.
        settings: Columns, and the largest batch.
        transactions: The known transactions; None to read uncommitted.
        bound: End of the wanted offsets, exclusive; None for no end. Batches above it are read only
            while a transaction below it is not decided.
        waiting_for: First offset of the transaction that must be decided first.
        stuck: Where another decoder got stuck, if this one continues there.
    """

    def __init__(  # noqa: PLR0913 - where reading begins and ends, and how
        self,
        part: Part,
        offset: Offset,
        settings: ReaderSettings,
        *,
        transactions: KnownTransactions | None = None,
        bound: Offset | None = None,
        waiting_for: Offset | None = None,
        stuck: Stuck | None = None,
    ) -> None:
        self.offset = offset
        """One past the last scanned offset, or the first wanted one."""
        self.returned_to = offset if waiting_for is None else None
        """Offset up to which decided records were returned; None while looking ahead."""
        self.waiting_for = waiting_for
        self.stuck: Stuck | None = None
        self._settings = settings
        self._transactions = transactions
        self._bound = bound
        self._isolation = ReadUncommitted() if transactions is None else ReadCommitted(transactions)
        self._decided: deque[DecidedBatches] = deque()
        self._current: _BatchesDecoder | None = None
        self._before = stuck
        self.enter(part)

    def enter(self, part: Part) -> None:
        """Continue in a segment that begins at the next offset."""
        self.log = part.log
        self.until = part.until
        self._is_below_until = False
        """Whether a batch below `until` was seen in this segment."""
        self._assembler = Assembler(part.log.key, part.log.size, part.start)

    @property
    def held_bytes(self) -> int:
        """Size of all buffers that the decoder refers to, in bytes."""
        total = self._assembler.carried + self._isolation.held_bytes
        total += sum(len(decided.batches.scanned.data) for decided in self._decided)
        return total + (self._current.held_bytes if self._current is not None else 0)

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
        return self._current is not None or bool(self._decided)

    @property
    def has_remainder(self) -> bool:
        """Whether some decoded records have not been returned yet."""
        return self._current is not None and self._current.has_remainder

    @property
    def is_done(self) -> bool:
        """Whether every wanted record has arrived, and is decided."""
        bound = self._bound
        return bound is not None and self.offset >= bound and self.blocked_at is None

    @property
    def looks_ahead(self) -> bool:
        """Whether the decoder only looks for transaction markers."""
        return self.waiting_for is not None

    def look_ahead(self, blocked_at: Offset) -> None:
        """Drop the held batches, and from now on only look for transaction markers."""
        if self._transactions is not None:
            self.waiting_for = blocked_at
            self._isolation = ReadCommitted(self._transactions)

    def feed(self, data: Buffer, *, is_last: bool) -> FeedResult:
        """Process the next range of the segment; `is_last` if it reaches the segment's end."""
        try:
            for scanned in self._assembler.feed(data):
                damaged = self._add(scanned)
                # Before `damaged`: a marker above the bound that cannot be
                # read matters only if a transaction below is still open.
                if self.is_done:
                    return FeedResult.DONE
                if damaged is not None:
                    return self._stop_at_marker(scanned, damaged)
                if self.offset >= self.until:
                    return self._unless_decided(FeedResult.NEXT_SEGMENT)
                if int(scanned.headers.rows["base_offset"][-1]) >= self.until:
                    # Another segment is valid from `until` on. Compaction has removed all batches
                    # before it, or these are the bytes of another segment: its notes decide.
                    return self.stop_here(None)
        except (DamagedSegmentError, UnsupportedFormatError) as error:
            return self.stop_here(error)
        return self.stop_here(self._cut()) if is_last else self._unless_decided(FeedResult.MORE)

    def stop_here(self, damage: SidetierError | None) -> FeedResult:
        """Note that the segment cannot be read further; `damage` is None if it just ends."""
        result = self._unless_decided(FeedResult.STUCK)
        if result is FeedResult.STUCK:
            self._set_stuck(self.offset, damage, None, self._assembler.position)
        return result

    def next_records(self, most: int) -> DecodedRecords | None:
        """Return up to `most` records.

        Returns:
            None if there are none now, or if the next batch cannot be decoded; then `stuck` is set.

        Raises:
            BatchTooLargeError: The next batch is larger than the limit. It is not skipped.
        """
        while self.has_batches:
            if self._current is None:
                self._current = _BatchesDecoder(self._decided.popleft(), self._settings)
            try:
                records = self._current.next(most)
            except DamagedBatchError as damaged:
                # The batches behind the damaged one are dropped, too: the caller
                # decides whether to read on behind it, and then they are fetched again.
                self._drop_batches()
                self.log = damaged.log
                self._set_stuck(damaged.first, damaged.error, damaged.end, damaged.position)
                return None
            if records is not None:
                self.returned_to = records.next_offset
                return records
            self.returned_to = self._current.next_offset
            self._current = None
        return None

    def _add(self, scanned: ScannedBatches) -> DamagedMarker | None:
        """Process the wanted batches. Return the first marker that cannot be read, if any."""
        rows = scanned.headers.rows
        # Batches that end below the wanted offset: a
        # range begins at an index entry, often before it.
        low = int(np.searchsorted(rows["last_offset"], self.offset, side="left"))
        high = int(np.searchsorted(rows["base_offset"], self.until, side="left"))
        batches = Batches(self.log, scanned, self.offset, self.until).rows(slice(low, high))
        self._is_below_until = self._is_below_until or high > 0
        damaged = None
        if len(batches.headers):
            # The transactions first: `ReadCommitted.add` decides with the markers of these batches.
            damaged = self._transactions.learn(batches) if self._transactions is not None else None
            if damaged is not None:
                batches = batches.rows(slice(0, damaged.row))
            self._decide(batches)
        if damaged is None and self._is_below_until and high < len(rows):
            # A batch below `until` and one above it follow each other in the file, so compaction
            # has removed the offsets between them. Another segment is valid from `until` on.
            self.offset = self.until
        return damaged

    def _decide(self, batches: Batches) -> None:
        if not len(batches.headers):
            return
        self.offset = max(self.offset, batches.next_offset)
        if self.waiting_for is None:
            wanted = batches if self._bound is None else batches.below(self._bound)
            self._decided += self._isolation.add(wanted)

    def _stop_at_marker(self, scanned: ScannedBatches, damaged: DamagedMarker) -> FeedResult:
        """Note a transaction marker that cannot be read. Its offsets are known."""
        result = self._unless_decided(FeedResult.STUCK)
        rows = scanned.headers.rows
        low = int(np.searchsorted(rows["last_offset"], self.offset, side="left"))
        row = rows[low]
        if result is FeedResult.STUCK:
            first, end = Offset(int(row["base_offset"])), Offset(int(row["last_offset"]) + 1)
            position = scanned.position + int(row["position"])
            self._set_stuck(max(first, self.offset), damaged.error, end, position)
        return result

    def _unless_decided(self, otherwise: FeedResult) -> FeedResult:
        if self.waiting_for is None or self._transactions is None:
            return otherwise
        is_decided = self._transactions.last_stable_offset > self.waiting_for
        return FeedResult.DECIDED if is_decided else otherwise

    def _cut(self) -> SidetierError | None:
        if not self._assembler.carried:
            return None
        return DamagedSegmentError(
            f"{self.log.key}: byte {self._assembler.position}: the object ends within a batch, "
            f"after {self._assembler.carried} bytes of it"
        )

    def _set_stuck(
        self, offset: Offset, damage: SidetierError | None, up_to: Offset | None, position: int
    ) -> None:
        """Remember each segment that could not be read at this offset, so that none is tried
        twice.
        """
        before = self._before
        tried = frozenset() if before is None or before.offset != offset else before.tried
        self.offset = offset
        self.stuck = Stuck(self.log, offset, damage, up_to, position, tried | {self.log.version})

    def _drop_batches(self) -> None:
        self._current = None
        self._decided.clear()
        if self._transactions is not None:
            self._isolation = ReadCommitted(self._transactions)


class _BatchesDecoder:
    """Decodes decided batches of one buffer, a piece at a time."""

    def __init__(self, decided: DecidedBatches, settings: ReaderSettings) -> None:
        batches = decided.batches
        self._decided = decided
        self._columns = settings.decoded_columns
        self._max_batch_bytes = settings.max_batch_bytes
        self._position = batches.first
        self._remainder: pa.RecordBatch | None = None
        self._row: int | None = None
        """Index of the next batch to decode by itself; None as long as no batch was damaged."""
        self._pieces = decode_in_pieces(
            batches.scanned.data,
            batches.headers,
            columns=self._columns,
            keep=decided.keep,
            first=batches.first,
            end=batches.until,
            name=batches.log.key,
            position=batches.scanned.position,
            most_batch_bytes=self._max_batch_bytes,
            piece_bytes=DECODED_BYTES,
        )

    @property
    def held_bytes(self) -> int:
        """Size of the buffer that is being decoded, in bytes."""
        return len(self._decided.batches.scanned.data)

    @property
    def has_remainder(self) -> bool:
        """Whether some decoded records have not been returned yet."""
        return self._remainder is not None

    @property
    def next_offset(self) -> Offset:
        """Offset where reading continues when everything is decoded."""
        return self._decided.batches.next_offset

    def next(self, most: int) -> DecodedRecords | None:
        """Return up to `most` records; None when there are no more.

        Raises:
            DamagedBatchError: The next batch cannot be decoded.
            BatchTooLargeError: The next batch is larger, decompressed, than the limit. It stays the
                next one.
        """
        if self._remainder is None:
            self._remainder = self._decode()
        if self._remainder is None:
            return None
        records = self._remainder
        self._remainder = None
        if records.num_rows > most:
            self._remainder, records = records.slice(most), records.slice(0, most)
        self._position = Offset(records.column("offset")[-1].as_py() + 1)
        return DecodedRecords(records, self._position)

    def _decode(self) -> pa.RecordBatch | None:
        if self._row is None:
            try:
                return next(self._pieces, None)
            except (BatchTooLargeError, DamagedSegmentError, UnsupportedFormatError):
                # A piece has many batches, and its error does not show which of them are sound.
                self._row = 0
        return self._decode_single_batch()

    def _decode_single_batch(self) -> pa.RecordBatch | None:
        """Decode batch by batch, so that all batches before the damaged one are returned."""
        batches = self._decided.batches
        while self._row is not None and self._row < len(batches.headers):
            row, self._row = self._row, self._row + 1
            header = batches.headers.rows[row]
            # These were returned before the damaged piece failed.
            if not self._decided.keep[row] or header["last_offset"] < self._position:
                continue
            try:
                records = decode_batches(
                    batches.scanned.data,
                    batches.headers.where(slice(row, row + 1)),
                    columns=self._columns,
                    first=self._position,
                    end=batches.until,
                    name=batches.log.key,
                    position=batches.scanned.position,
                    most_batch_bytes=self._max_batch_bytes,
                )
            except BatchTooLargeError:
                # The caller may raise the limit, or give up. The batch is not skipped silently.
                self._row = row
                raise
            except (DamagedSegmentError, UnsupportedFormatError) as error:
                raise DamagedBatchError(
                    error,
                    batches.log,
                    max(self._position, Offset(int(header["base_offset"]))),
                    min(Offset(int(header["last_offset"]) + 1), batches.until),
                    batches.scanned.position + int(header["position"]),
                ) from error
            if records.num_rows:
                return records
        return None
