"""Record batches into Arrow: what is wanted of them, whole or a piece at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sidetier.segments.arrow.arrays import Buffer, Flags
from sidetier.segments.arrow.batch_records import (
    Wanted,
    from_headers,
    headers_suffice,
    records_of,
)
from sidetier.segments.arrow.header_table import HeaderTable, scan_headers
from sidetier.segments.arrow.payloads import PayloadReader, counts_of, cuts
from sidetier.segments.arrow.place import UNNAMED, Place
from sidetier.segments.arrow.schema import schema_of
from sidetier.segments.offsets import Offset
from sidetier.segments.records import MOST_BATCH_BYTES

PIECE_BYTES: Final = 8 << 20
_ROW_BYTES: Final = 64
"""What a row of numbers alone takes, at most."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a buffer holds.

    `records` are in order of offsets, of the columns that were asked for. `position` is the byte of
    the buffer where the whole batches end: a cut tail begins there, and stays with the caller.
    `next_offset` is one past the last offset of the last whole batch, None where there is none.
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


def decode_batches(  # noqa: PLR0913  all but two have a default, and a call names what it needs
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
    most_batch_bytes: int = MOST_BATCH_BYTES,
) -> pa.RecordBatch:
    """The records of the batches of `headers`, which `scan_headers` has found in `data`.

    Nothing of `data` is kept: it may be changed after the call. Where the headers say all that is
    asked for, the offsets of batches that were not compacted say, the records are not looked into.

    Args:
        data: the buffer that was scanned.
        headers: all that were found there, or some (`HeaderTable.where`), in order of offsets.
        columns: names of `RECORD_SCHEMA`, all with None. Only they are decoded.
        keep: a flag per batch of `headers`, for isolation and pruning; what is not kept is not
            even checked. None keeps all but control batches.
        first: records below this offset are left out.
        end: so are those at or above this one.
        name: file or key of the segment, for errors.
        position: the place of the buffer's first byte in the segment, for errors.
        check_crc: whether each batch's CRC32C is checked before it is decoded.
        most_batch_bytes: what one batch may be, decompressed.

    Raises:
        DamagedSegmentError: a wrong CRC32C, compressed data that are none, or records that are
            none; names segment, byte position and base offset, as the others do.
        BatchTooLargeError: a batch is more than `most_batch_bytes`.
        UnsupportedFormatError: a codec that is not known.
        ValueError: an unknown column, or two GiB and more of keys or of values: take
            `decode_in_pieces`.
    """
    wanted = Wanted(schema_of(columns), first, end)
    reader = PayloadReader(data, Place(name, position), check_crc, most_batch_bytes)
    pieces = list(_pieces(reader, _chosen(headers, keep, wanted), wanted, None))
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_batches(pieces) if pieces else wanted.nothing


def decode_in_pieces(  # noqa: PLR0913  see decode_batches
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
    most_batch_bytes: int = MOST_BATCH_BYTES,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[pa.RecordBatch]:
    """As `decode_batches`, in pieces of whole batches, each as soon as it is wanted.

    A piece ends with the batch that brings it to `piece_bytes` of records, decompressed: memory is
    bounded whatever the codec has made of them. Pieces without a record are left out. `data` must
    stay as it is until the last piece.
    """
    wanted = Wanted(schema_of(columns), first, end)
    reader = PayloadReader(data, Place(name, position), check_crc, most_batch_bytes)
    for records in _pieces(reader, _chosen(headers, keep, wanted), wanted, piece_bytes):
        if records.num_rows:
            yield records


def _pieces(
    reader: PayloadReader, batches: HeaderTable, wanted: Wanted, piece_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    if headers_suffice(batches, wanted.schema.names) and reader.can_be(batches):
        for chosen in cuts(counts_of(batches) * _ROW_BYTES, piece_bytes):
            some = batches.where(chosen)
            reader.check(some)
            yield from_headers(some, wanted)
        return
    for piece in reader.pieces(batches, piece_bytes):
        yield records_of(piece, wanted, reader.place)


def _chosen(headers: HeaderTable, keep: Flags | None, wanted: Wanted) -> HeaderTable:
    """The batches that are kept and may hold a record that is wanted."""
    chosen = ~headers.is_control if keep is None else np.asarray(keep, dtype=np.bool_)
    if len(chosen) != len(headers):
        raise ValueError(f"keep has {len(chosen)} flags, there are {len(headers)} batches")
    chosen = chosen & (headers.column("last_offset") >= wanted.first)
    if wanted.end is not None:
        chosen &= headers.column("base_offset") < wanted.end
    return headers if chosen.all() else headers.where(chosen)
