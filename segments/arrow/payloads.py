"""The bytes of records: in the buffer itself, or decompressed.

Batches come in pieces of whole batches. Uncompressed batches are decoded in place. If any batch is
compressed, the records of all are collected in one buffer, which is reused for the next piece.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from sidetier.segments.arrow.arrays import Buffer, Bytes, Longs, Place, bytes_of
from sidetier.segments.arrow.codecs import CodecError, NoRoomError, decompress_into
from sidetier.segments.arrow.fields import MIN_RECORD_BYTES
from sidetier.segments.arrow.header_table import HeaderTable
from sidetier.segments.crc import crc32c
from sidetier.segments.headers import CRC_START, HEADER_BYTES, Compression

_SOME_BYTES: Final = 8 << 20
_LAST_CODEC: Final = max(codec.value for codec in Compression)


@dataclass(frozen=True, slots=True)
class Payload:
    """The batches of one piece, and the positions in `data` where the records of each begin and
    end.
    """

    batches: HeaderTable
    data: Bytes
    begins: Longs
    ends: Longs

    @property
    def counts(self) -> Longs:
        """Number of records that each batch's header states."""
        return counts_of(self.batches)


def counts_of(batches: HeaderTable) -> Longs:
    """Return the number of records that each batch's header states, in 64 bits."""
    return batches.column("record_count").astype(np.int64)


@dataclass(frozen=True, slots=True)
class PayloadReader:
    """Checks batches, and provides their records' bytes.

    Args:
        data: The buffer that holds the batches.
        place: The buffer's origin, for errors.
        check_crc: Whether each batch's CRC32C is checked.
        most_batch_bytes: Maximum bytes of the records of one compressed batch, decompressed: a
            limit against decompression bombs.
    """

    data: Buffer
    place: Place
    check_crc: bool
    most_batch_bytes: int

    def pieces(self, batches: HeaderTable, piece_bytes: int | None) -> Iterator[Payload]:
        """Yield the batches in pieces. Each piece ends with the batch that brings it to
        `piece_bytes`.

        With None, uncompressed batches are one piece, and others come in pieces of 8 MiB. Decode a
        piece before the next one is requested: its buffer is reused.

        Raises:
            DamagedSegmentError: A CRC32C is wrong, a batch is too small for its number of records,
                or compressed data is damaged.
            BatchTooLargeError: A batch is larger, decompressed, than `most_batch_bytes`.
            UnsupportedFormatError: A batch with a right CRC32C has an unknown codec.
        """
        codecs = batches.codecs
        unknown = np.flatnonzero(codecs > _LAST_CODEC)
        if len(unknown):
            row = int(unknown[0])
            self.check(batches.where(slice(row, row + 1)))  # a flipped bit is damage, not a codec
            raise batches.unsupported(self.place, row, f"unknown compression {codecs[row]}")
        if codecs.any():
            yield from self._decompressed(batches, piece_bytes or _SOME_BYTES)
            return
        for chosen in cuts(batches.column("length"), piece_bytes):
            yield self._in_place(batches.where(chosen))

    def check(self, batches: HeaderTable) -> None:
        """Only check the CRC32C of each batch. Raises DamagedSegmentError."""
        if self.check_crc:
            for _ in self._sources(batches):
                pass

    def can_be(self, batches: HeaderTable) -> bool:
        """Return whether each batch is large enough for the number of records in its header.

        Check it before memory is allocated for that number.
        """
        sizes = batches.column("length") - HEADER_BYTES
        most = np.where(batches.codecs > 0, self.most_batch_bytes, sizes)
        return bool((counts_of(batches) * MIN_RECORD_BYTES <= most).all())

    def _in_place(self, batches: HeaderTable) -> Payload:
        self.check(batches)
        begins = batches.column("position") + HEADER_BYTES
        ends = batches.column("position") + batches.column("length")
        return self._checked(Payload(batches, bytes_of(self.data), begins, ends))

    def _decompressed(self, batches: HeaderTable, piece_bytes: int) -> Iterator[Payload]:
        # The kernel allocates pages when they are written to: a large buffer costs nothing.
        longest = int(batches.column("length").max())
        # A piece ends with the batch that brings it to `piece_bytes`, so the
        # last batch begins below that limit and needs its own maximum behind it.
        # An uncompressed batch can be longer than the limit for compressed ones.
        room = np.empty(piece_bytes + max(self.most_batch_bytes, longest), dtype=np.uint8)
        codecs = [Compression(codec) for codec in batches.codecs.tolist()]
        borders, first = [0], 0
        for row, source in enumerate(self._sources(batches)):
            try:
                borders.append(borders[-1] + self._fill(room[borders[-1] :], codecs[row], source))
            except NoRoomError:
                raise batches.too_large(self.place, row, self.most_batch_bytes) from None
            except CodecError as error:
                raise batches.damaged(self.place, row, str(error)) from None
            if borders[-1] >= piece_bytes or row == len(batches) - 1:
                places = np.array(borders, dtype=np.int64)
                piece = batches.where(slice(first, row + 1))
                yield self._checked(Payload(piece, room, places[:-1], places[1:]))
                borders, first = [0], row + 1

    def _fill(self, room: Bytes, codec: Compression, source: memoryview) -> int:
        """Write a batch's records to the buffer. Return their size in bytes."""
        # Only the output of a codec is limited. An uncompressed batch is as large as it was stored.
        if codec is not Compression.NONE:
            return decompress_into(codec, source, room[: self.most_batch_bytes])
        room[: len(source)] = bytes_of(source)
        return len(source)

    def _sources(self, batches: HeaderTable) -> Iterator[memoryview]:
        """Yield the stored records of each batch, after its CRC check."""
        view = memoryview(self.data)
        begins, ends = (
            batches.column("position"),
            batches.column("position") + batches.column("length"),
        )
        crcs = batches.column("crc").tolist()
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            if self.check_crc and crc32c(view[begin + CRC_START : end]) != crcs[row]:
                raise batches.damaged(self.place, row, "its CRC32C does not match its bytes")
            yield view[begin + HEADER_BYTES : end]

    def _checked(self, payload: Payload) -> Payload:
        """Refuse impossible record counts before memory is allocated for them: a CRC does not prove
        them.
        """
        counts, sizes = payload.counts, payload.ends - payload.begins
        # A batch with bytes and without records is damage too: no broker writes one.
        bad = (counts < 0) | (counts * MIN_RECORD_BYTES > sizes) | ((counts == 0) & (sizes > 0))
        if bad.any():
            row = int(np.argmax(bad))
            reason = f"{sizes[row]} bytes cannot be {counts[row]} records"
            raise payload.batches.damaged(self.place, row, reason)
        return payload


def cuts(lengths: Longs, piece_bytes: int | None) -> Iterator[slice]:
    """Cut batches of these lengths into pieces of about `piece_bytes`."""
    behind = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        end = len(lengths)
        if piece_bytes is not None:
            before = int(behind[first - 1]) if first else 0
            end = min(end, int(np.searchsorted(behind, before + piece_bytes)) + 1)
        yield slice(first, end)
        first = end
