"""Record batches of the metadata log, and the values in them."""

from collections.abc import Iterator
from dataclasses import dataclass

from sidetier.segments.crc import crc32c
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import CRC_START, HEADER_BYTES, BatchHeader, parse_batch_header
from sidetier.segments.offsets import Offset
from sidetier.segments.records import decode_records


@dataclass(frozen=True, slots=True)
class Batch:
    """One whole batch; `start` (inclusive) and `end` (exclusive) are byte positions in the file."""

    start: int
    end: int
    raw_header: bytes
    base_offset: Offset
    next_offset: Offset
    values: tuple[bytes, ...]
    """One value per offset; empty for a control batch (leader change, snapshot header, footer)."""


def read_batches(data: bytes, origin: int = 0) -> Iterator[Batch]:
    """Yield the whole batches of `data`; stop without an error at one that is cut off.

    A batch at the very end with a wrong CRC counts as cut off: the broker may still be writing it.

    Args:
        data: Bytes that begin at a batch.
        origin: Byte position of `data` in its file.

    Raises:
        DamagedSegmentError: A batch that is followed by others has a wrong CRC.
        UnsupportedFormatError: A batch has another message format, or an unknown compression codec
            (metadata logs are never compressed).
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
