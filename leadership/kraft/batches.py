"""Record batches of the metadata log, and the values inside."""

from collections.abc import Iterator
from dataclasses import dataclass

from sidetier.segments.crc import crc32c
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import CRC_START, HEADER_BYTES, BatchHeader, parse_batch_header
from sidetier.segments.offsets import Offset
from sidetier.segments.records import decode_records


@dataclass(frozen=True, slots=True)
class Batch:
    """One whole batch; `start` and `end` are its place in the file, in bytes."""

    start: int
    end: int
    raw_header: bytes
    base_offset: Offset
    next_offset: Offset
    values: tuple[bytes, ...]
    """One per offset; none in a control batch (leader change, snapshot header and footer)."""


def read_batches(data: bytes, origin: int = 0) -> Iterator[Batch]:
    """The whole batches of `data`, which begins at a batch; stops quietly at one that is cut off.

    `origin` is where `data` begins in its file. A batch at the very end whose checksum does not fit
    counts as cut off: its writer may be at it.

    Raises:
        DamagedSegmentError: a batch that others follow does not have its checksum.
        UnsupportedFormatError: a batch is of another message format, or compressed by a codec that
            is not known here (a metadata log never is).
    """
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = parse_batch_header(data, position)
        end = position + header.length
        if end > len(data) or not _is_whole(data, position, header):
            return
        body = data[position + HEADER_BYTES : end]
        yield Batch(
            start=origin + position,
            end=origin + end,
            raw_header=data[position : position + HEADER_BYTES],
            base_offset=header.base_offset,
            next_offset=header.next_offset,
            values=() if header.is_control else _values(body, header),
        )
        position = end


def _is_whole(data: bytes, position: int, header: BatchHeader) -> bool:
    end = position + header.length
    if crc32c(memoryview(data)[position + CRC_START : end]) == header.crc:
        return True
    if end == len(data):
        return False
    raise DamagedSegmentError(
        f"the batch of base offset {header.base_offset} does not have its checksum"
    )


def _values(body: bytes, header: BatchHeader) -> tuple[bytes, ...]:
    return tuple(record.value or b"" for record in decode_records(header, body))
