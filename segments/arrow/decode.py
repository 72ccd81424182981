"""Decode the wanted records of batches to Arrow, at once or in pieces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sidetier.segments.arrow.arrays import UNNAMED, Buffer, Flags, Place
from sidetier.segments.arrow.batch_records import (
    Wanted,
    from_headers,
    headers_suffice,
    records_of,
)
from sidetier.segments.arrow.header_table import HeaderTable, scan_headers
from sidetier.segments.arrow.payloads import PayloadReader, counts_of, cuts
from sidetier.segments.arrow.schema import schema_of
from sidetier.segments.offsets import Offset
from sidetier.segments.records import MAX_BATCH_BYTES

PIECE_BYTES: Final = 8 << 20
_ROW_BYTES: Final = 64
"""Maximum size of a row that has only numbers."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The contents of a buffer.

    Attributes:
        records: The records in order of offsets, with the requested columns.
        position: Byte of the buffer where the whole batches end. A cut tail begins there, and stays
            with the caller.
        next_offset: One past the last offset of the last whole batch; None if there is none.
    """

    records: pa.RecordBatch
    position: int
    next_offset: Offset | None


def decode(
    data: Buffer,
    *,
    columns: Sequence[str] | None = None,
    first: int = 0,
    end: int | None = None,
    name: str = UNNAMED,
    position: int = 0,
) -> Decoded:
    """Scan and decode a buffer of batches in one call: `scan_headers`, then `decode_batches`."""
    headers = scan_headers(data, name=name, position=position)
    records = decode_batches(
        data, headers, columns=columns, first=first, end=end, name=name, position=position
    )
    return Decoded(records, headers.next_position, headers.next_offset)


def decode_batches(  # noqa: PLR0913 - all but two are named and have a default
    data: Buffer,
    headers: HeaderTable,
    *,
    columns: Sequence[str] | None = None,
    keep: Flags | None = None,
    first: int = 0,
    end: int | None = None,
    name: str = UNNAMED,
    position: int = 0,
    check_crc: bool = True,
    most_batch_bytes: int = MAX_BATCH_BYTES,
) -> pa.RecordBatch:
    """Decode the batches of `headers`, which `scan_headers` has found in `data`.

    Keeps no reference to `data`: the caller may change it after the call. The records' bytes are
    not read if the headers determine all requested columns, such as the offsets of batches that
    were not compacted.

    Args:
        data: The buffer that was scanned.
        headers: All headers found there, or some (`HeaderTable.where`), in order of offsets.
        columns: Names of `RECORD_SCHEMA`; None for all. Only these are decoded.
        keep: A flag per batch of `headers`, for isolation and pruning. Other batches are not even
            checked. None keeps all but control batches.
        first: Records below this offset are omitted.
        end: Records at or above this offset are omitted.
        name: File or key of the segment, for errors.
        position: Position of the buffer's first byte in the segment, for errors.
        check_crc: Whether each batch's CRC32C is checked before it is decoded.
        most_batch_bytes: Maximum size of one batch, decompressed.

    Raises:
        DamagedSegmentError: A CRC32C is wrong, or bytes are not compressed data or records. The
            message names segment, byte position and base offset, as for the other errors.
        BatchTooLargeError: A batch is larger than `most_batch_bytes`.
        UnsupportedFormatError: The codec is unknown.
        ValueError: A column is unknown, or there are two GiB or more of keys or of values: use
            `decode_in_pieces`.
    """
    wanted = Wanted(schema_of(columns), first, end)
    reader = PayloadReader(data, Place(name, position), check_crc, most_batch_bytes)
    pieces = list(_pieces(reader, _chosen(headers, keep, wanted), wanted, None))
    if len(pieces) == 1:
        # `concat_batches` would copy the only piece.
        return pieces[0]
    return pa.concat_batches(pieces) if pieces else wanted.nothing


def decode_in_pieces(  # noqa: PLR0913 - see decode_batches
    data: Buffer,
    headers: HeaderTable,
    *,
    columns: Sequence[str] | None = None,
    keep: Flags | None = None,
    first: int = 0,
    end: int | None = None,
    name: str = UNNAMED,
    position: int = 0,
    check_crc: bool = True,
    most_batch_bytes: int = MAX_BATCH_BYTES,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[pa.RecordBatch]:
    """As `decode_batches`, in pieces of whole batches, each decoded when it is requested.

    A piece ends with the batch that brings it to `piece_bytes` of decompressed records, so memory
    is bounded for every codec. Pieces without a record are omitted. `data` must not change before
    the last piece.
    """
    wanted = Wanted(schema_of(columns), first, end)
    reader = PayloadReader(data, Place(name, position), check_crc, most_batch_bytes)
    for records in _pieces(reader, _chosen(headers, keep, wanted), wanted, piece_bytes):
        if records.num_rows:
            yield records


def _pieces(
    reader: PayloadReader, batches: HeaderTable, wanted: Wanted, piece_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    # `can_be` comes before the rows are made: a header that states
    # two billion records would otherwise allocate memory for them.
    if headers_suffice(batches, wanted.schema.names) and reader.can_be(batches):
        for chosen in cuts(counts_of(batches) * _ROW_BYTES, piece_bytes):
            piece_batches = batches.where(chosen)
            reader.check(piece_batches)
            yield from_headers(piece_batches, wanted)
        return
    for piece in reader.pieces(batches, piece_bytes):
        yield records_of(piece, wanted, reader.place)


def _chosen(headers: HeaderTable, keep: Flags | None, wanted: Wanted) -> HeaderTable:
    """Return the kept batches that may hold a wanted record."""
    chosen = ~headers.is_control if keep is None else np.asarray(keep, dtype=np.bool_)
    if len(chosen) != len(headers):
        raise ValueError(f"keep has {len(chosen)} flags, there are {len(headers)} batches")
    # Not in place: `keep` belongs to the caller.
    chosen = chosen & (headers.column("last_offset") >= wanted.first)
    if wanted.end is not None:
        chosen &= headers.column("base_offset") < wanted.end
    return headers if chosen.all() else headers.where(chosen)
