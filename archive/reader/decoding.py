"""Decode batches of decided transactions into records, a piece at a time."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.reader.committed import Cleared
from sidetier.segments.arrow import decode_batches, decode_in_pieces
from sidetier.segments.errors import BatchTooLargeError, DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.offsets import Offset

DECODED_BYTES: Final = 4 << 20
"""Bytes of decompressed records that are decoded at once."""


@dataclass(frozen=True, slots=True)
class Batch:
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


class Decoding:
    """Decodes cleared batches on demand."""

    def __init__(
        self, cleared: Cleared, columns: tuple[str, ...] | None, max_batch_bytes: int
    ) -> None:
        self._cleared = cleared
        self._columns = columns
        self._max_batch_bytes = max_batch_bytes
        self._position = cleared.portion.first
        self._rest: pa.RecordBatch | None = None
        self._row: int | None = None
        """Index of the next batch to decode by itself; None as long as no batch was damaged."""
        portion = cleared.portion
        self._pieces = decode_in_pieces(
            portion.scanned.data,
            portion.headers,
            columns=columns,
            keep=cleared.keep,
            first=portion.first,
            end=portion.until,
            name=portion.log.key,
            position=portion.scanned.position,
            most_batch_bytes=max_batch_bytes,
            piece_bytes=DECODED_BYTES,
        )

    @property
    def held_bytes(self) -> int:
        """Size of the buffer that is being decoded, in bytes."""
        return len(self._cleared.portion.scanned.data)

    @property
    def has_rest(self) -> bool:
        """Whether some decoded records have not been returned yet."""
        return self._rest is not None

    @property
    def next_offset(self) -> Offset:
        """Offset where reading continues when everything is decoded."""
        return self._cleared.portion.next_offset

    def next(self, most: int) -> Batch | None:
        """Return up to `most` records; None when there are no more.

        Raises:
            DamagedBatchError: The next batch cannot be decoded.
            BatchTooLargeError: The next batch is larger, decompressed, than the limit. It stays the
                next one.
        """
        if self._rest is None:
            self._rest = self._decode()
        if self._rest is None:
            return None
        records = self._rest
        self._rest = None
        if records.num_rows > most:
            self._rest, records = records.slice(most), records.slice(0, most)
        self._position = Offset(records.column("offset")[-1].as_py() + 1)
        return Batch(records, self._position)

    def _decode(self) -> pa.RecordBatch | None:
        if self._row is None:
            try:
                return next(self._pieces, None)
            except (BatchTooLargeError, DamagedSegmentError, UnsupportedFormatError):
                self._row = 0
        return self._decode_one()

    def _decode_one(self) -> pa.RecordBatch | None:
        """Decode batch by batch, so that all batches before the damaged one are returned."""
        portion = self._cleared.portion
        while self._row is not None and self._row < len(portion.headers):
            row, self._row = self._row, self._row + 1
            batch = portion.headers.rows[row]
            if not self._cleared.keep[row] or batch["last_offset"] < self._position:
                continue
            try:
                records = decode_batches(
                    portion.scanned.data,
                    portion.headers.where(slice(row, row + 1)),
                    columns=self._columns,
                    first=self._position,
                    end=portion.until,
                    name=portion.log.key,
                    position=portion.scanned.position,
                    most_batch_bytes=self._max_batch_bytes,
                )
            except BatchTooLargeError:
                self._row = row
                raise
            except (DamagedSegmentError, UnsupportedFormatError) as error:
                raise DamagedBatchError(
                    error,
                    portion.log,
                    max(self._position, Offset(int(batch["base_offset"]))),
                    min(Offset(int(batch["last_offset"]) + 1), portion.until),
                    portion.scanned.position + int(batch["position"]),
                ) from error
            if records.num_rows:
                return records
        return None
