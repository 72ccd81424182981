"""Decode the records of record batches (format v2) in plain Python.

Source: Kafka's `DefaultRecord` (KIP-82, KIP-98). The records of a batch follow its header,
compressed as a whole by the batch's codec. Each record is::

    length varint | attributes i8 | timestamp delta varlong | offset delta varint
    | key length varint, key | value length varint, value | count varint, headers

with zigzag varints, -1 as the length of a null, and for each header a key (never null) and a value.

For inspection and verification of segments: about 100,000 records per second. It knows the codecs
of the standard library only; the consumer's decoder (`segments.arrow`) knows all of them.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidetier.segments.batches import check_crc
from sidetier.segments.errors import (
    BatchTooLargeError,
    DamagedSegmentError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    TimestampType,
    walk_headers,
)
from sidetier.segments.offsets import Offset
from sidetier.segments.varints import read_zigzag

Header = tuple[str, bytes | None]

# 16 tells zlib to expect gzip's header and trailer, and nothing else.
_GZIP_ONLY: Final = 16 + zlib.MAX_WBITS
MAX_BATCH_BYTES: Final = 256 << 20
"""Default limit for the records of one compressed batch, decompressed, in bytes."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. The timestamp is in ms since 1970 (-1: none).

    A `control` record is a commit or abort marker, which no consumer returns.
    """

    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    control: bool = False


def read_records(log: bytes, name: str) -> Iterator[Record]:
    """Yield every record in the bytes of a `.log`, in order; `name` is for errors.

    Raises:
        DamagedSegmentError: The tail is cut, a CRC32C is wrong, or bytes are not records.
        UnsupportedFormatError: Message format v0 or v1, or an unknown codec.
        BatchTooLargeError: A batch is larger, decompressed, than `MAX_BATCH_BYTES`.
    """
    try:
        for position, header in walk_headers(lambda at, size: log[at : at + size], len(log)):
            batch = log[position : position + header.length]
            check_crc(memoryview(batch))
            yield from decode_records(header, batch[HEADER_BYTES:])
    except (BatchTooLargeError, DamagedSegmentError, UnsupportedFormatError) as error:
        raise type(error)(f"{name}: {error}") from None


def decode_records(
    header: BatchHeader, payload: bytes, most_batch_bytes: int = MAX_BATCH_BYTES
) -> tuple[Record, ...]:
    """Decode one batch from the bytes that follow its header. The CRC is not checked.

    Raises:
        BatchTooLargeError: The batch is larger, decompressed, than `most_batch_bytes`.
        DamagedSegmentError: The payload does not hold the number of records that the header states.
        UnsupportedFormatError: The codec is unknown here.
    """
    data = _decompressed(header, payload, most_batch_bytes)
    walk = _Walk(data, header)
    if header.record_count < 0:
        raise _damaged(header, f"a count of {header.record_count} records")
    try:
        records = tuple(walk.record() for _ in range(header.record_count))
    except ValueError as error:
        raise _damaged(header, f"in the record at byte {walk.at} of its records: {error}") from None
    if walk.at != len(data):
        raise _damaged(header, f"{len(data) - walk.at} bytes follow its last record")
    _check_offsets(header, records)
    return records


def _check_offsets(header: BatchHeader, records: tuple[Record, ...]) -> None:
    """Check that offsets ascend, and are within the batch."""
    # Not necessarily dense: compaction removes records and keeps the batch's offsets.
    floor = int(header.base_offset)
    for record in records:
        if not floor <= record.offset <= header.last_offset:
            raise _damaged(
                header, f"a record with offset {record.offset}, expected {floor} or later"
            )
        floor = record.offset + 1


def _decompressed(header: BatchHeader, payload: bytes, most_bytes: int) -> bytes:
    codec = header.compression
    if codec is Compression.NONE:
        return payload
    if codec is not Compression.GZIP:
        raise UnsupportedFormatError(
            f"batch with base offset {header.base_offset}: compressed by {codec.name.lower()}, "
            "which this decoder does not know (none and gzip only); the consumer's decoder does"
        )
    try:
        return _gunzip(header, payload, most_bytes)
    except zlib.error as error:
        raise _damaged(header, f"its gzip data: {error}") from None


def _gunzip(header: BatchHeader, payload: bytes, most_bytes: int) -> bytes:
    """Decompress all members of a gzip file; never more than `most_bytes` in memory."""
    pieces, size = [], 0
    # Java's GZIPInputStream reads concatenated members, so consumers accept such batches.
    while payload:
        member = zlib.decompressobj(wbits=_GZIP_ONLY)
        # One byte above the limit shows a decompression bomb without decompressing it.
        pieces.append(member.decompress(payload, most_bytes - size + 1))
        size += len(pieces[-1])
        if size > most_bytes:
            raise BatchTooLargeError(
                f"batch with base offset {header.base_offset}: its records are more than "
                f"{most_bytes} bytes, decompressed"
            )
        if not member.eof:
            raise _damaged(header, "its gzip data: it is cut off")
        payload = member.unused_data
    return b"".join(pieces)


def _damaged(header: BatchHeader, reason: str) -> DamagedSegmentError:
    return DamagedSegmentError(f"batch with base offset {header.base_offset}: {reason}")


class _Walk:
    """Walks once over a batch's records. Raises ValueError if the bytes are not records."""

    __slots__ = ("_append_time", "_base", "_base_timestamp", "_control", "_data", "at")

    def __init__(self, data: bytes, header: BatchHeader) -> None:
        self.at = 0
        self._data = data
        self._base = header.base_offset
        self._base_timestamp = header.base_timestamp
        self._control = header.is_control
        by_broker = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        self._append_time = header.max_timestamp if by_broker else None

    def record(self) -> Record:
        """Decode the next record."""
        data = self._data
        size, at = read_zigzag(data, self.at)
        end = at + size
        if size < 0 or end > len(data):
            raise ValueError(f"a record of {size} bytes")
        timestamp, at = read_zigzag(data, at + 1)  # after the attributes, unused
        delta, at = read_zigzag(data, at)
        key, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)
        count, at = read_zigzag(data, at)
        if count < 0:
            raise ValueError(f"{count} headers")
        headers = []
        for _ in range(count):
            name, at = _read_bytes(data, at)
            if name is None:
                raise ValueError("a header without a key")
            content, at = _read_bytes(data, at)
            headers.append((name.decode(errors="replace"), content))  # as Kafka's client does
        if at != end:
            raise ValueError(f"the record ends {at - end} bytes after its length")
        self.at = end
        timestamp += self._base_timestamp
        return Record(
            offset=Offset(self._base + delta),
            timestamp=timestamp if self._append_time is None else self._append_time,
            key=key,
            value=value,
            headers=tuple(headers),
            control=self._control,
        )


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the bytes that follow their length, and the position after them; None for null."""
    size, at = read_zigzag(data, at)
    if size < 0:
        return None, at
    end = at + size
    if end > len(data):
        raise ValueError(f"{size} bytes are wanted where {len(data) - at} are left")
    return data[at:end], end
