"""The bytes in which records lie: those of the buffer itself, or decompressed.

Batches come in pieces, whole ones. Uncompressed batches are decoded where they lie; where any is
compressed, the records of all are gathered in a room that is used again for the next piece.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from sidetier.segments.arrow.arrays import Buffer, Bytes, Longs, bytes_of
from sidetier.segments.arrow.codecs import CodecError, NoRoomError, decompress_into
from sidetier.segments.arrow.fields import LEAST_RECORD_BYTES
from sidetier.segments.arrow.header_table import HeaderTable
from sidetier.segments.arrow.place import Place
from sidetier.segments.crc import crc32c
from sidetier.segments.headers import CRC_START, HEADER_BYTES, Compression

_SOME_BYTES: Final = 8 << 20
_LAST_CODEC: Final = max(codec.value for codec in Compression)


@dataclass(frozen=True, slots=True)
class Payload:
    """The batches of one piece, and where in `data` the records of each begin and end."""

    batches: HeaderTable
    data: Bytes
    begins: Longs
    ends: Longs

    @property
    def counts(self) -> Longs:
        """How many records each batch says it has."""
        return counts_of(self.batches)


def counts_of(batches: HeaderTable) -> Longs:
    """How many records each batch says it has, as numbers that can be multiplied."""
    return batches.column("record_count").astype(np.int64)


@dataclass(frozen=True, slots=True)
class PayloadReader:
    """Checks batches, and makes their records' bytes accessible.

    Args:
        data: the buffer in which the batches lie.
        place: where it comes from.
        check_crc: whether each batch's CRC32C is checked.
        most_batch_bytes: what the records of one compressed batch may be, decompressed: a bound
            against decompression bombs.
    """

    data: Buffer
    place: Place
    check_crc: bool
    most_batch_bytes: int

    def pieces(self, batches: HeaderTable, piece_bytes: int | None) -> Iterator[Payload]:
        """The batches in pieces, each ending with the one that brings it to `piece_bytes`.

        With None, uncompressed batches are one piece, others come in pieces of some size. A piece
        is to be decoded before the next one is asked for.

        Raises:
            DamagedSegmentError: a wrong CRC32C, a count of records that their bytes cannot hold,
                damaged compressed data.
            BatchTooLargeError: a batch is larger, decompressed, than `most_batch_bytes`.
            UnsupportedFormatError: a codec that is not known, of a batch whose CRC32C is right.
        """
        codecs = batches.codecs
        unknown = np.flatnonzero(codecs > _LAST_CODEC)
        if len(unknown):
            row = int(unknown[0])
            self.check(batches.where(slice(row, row + 1)))  # a flipped bit is damage, and no codec
            raise batches.unsupported(self.place, row, f"unknown compression {codecs[row]}")
        if codecs.any():
            yield from self._decompressed(batches, piece_bytes or _SOME_BYTES)
            return
        for chosen in cuts(batches.column("length"), piece_bytes):
            yield self._in_place(batches.where(chosen))

    def check(self, batches: HeaderTable) -> None:
        """Only that the batches are what was written; raises DamagedSegmentError."""
        if self.check_crc:
            for _ in self._sources(batches):
                pass

    def can_be(self, batches: HeaderTable) -> bool:
        """Whether the bytes of each can be as many records as its header says, compressed or not:
        to be known before anything is made as large.
        """
        sizes = batches.column("length") - HEADER_BYTES
        most = np.where(batches.codecs > 0, self.most_batch_bytes, sizes)
        return bool((counts_of(batches) * LEAST_RECORD_BYTES <= most).all())

    def _in_place(self, batches: HeaderTable) -> Payload:
        self.check(batches)
        begins = batches.column("position") + HEADER_BYTES
        ends = batches.column("position") + batches.column("length")
        return self._checked(Payload(batches, bytes_of(self.data), begins, ends))

    def _decompressed(self, batches: HeaderTable, piece_bytes: int) -> Iterator[Payload]:
        # Memory is taken page by page as it is written to: an ample room costs nothing.
        longest = int(batches.column("length").max())
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
        """Put a batch's records into the room; returns how many bytes they are."""
        if codec is not Compression.NONE:
            return decompress_into(codec, source, room[: self.most_batch_bytes])
        room[: len(source)] = bytes_of(source)
        return len(source)

    def _sources(self, batches: HeaderTable) -> Iterator[memoryview]:
        """The records of each batch as they are stored, once its CRC is found to be right."""
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
        """Before anything is made as large as a header says, which no CRC makes true."""
        counts, sizes = payload.counts, payload.ends - payload.begins
        bad = (counts < 0) | (counts * LEAST_RECORD_BYTES > sizes) | ((counts == 0) & (sizes > 0))
        if bad.any():
            row = int(np.argmax(bad))
            reason = f"{sizes[row]} bytes cannot be {counts[row]} records"
            raise payload.batches.damaged(self.place, row, reason)
        return payload


def cuts(lengths: Longs, piece_bytes: int | None) -> Iterator[slice]:
    """Where batches of these lengths are cut into pieces."""
    behind = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        end = len(lengths)
        if piece_bytes is not None:
            before = int(behind[first - 1]) if first else 0
            end = min(end, int(np.searchsorted(behind, before + piece_bytes)) + 1)
        yield slice(first, end)
        first = end
