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

from sidetier.segments.crc import crc32c
from sidetier.segments.errors import (
    BatchTooLargeError,
    DamagedSegmentError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import (
    CRC_START,
    HEADER_BYTES,
    BatchHeader,
    Compression,
    TimestampType,
    walk_headers,
)
from sidetier.segments.offsets import Offset

Header = tuple[str, bytes | None]

# The shift of the tenth byte, the last of a 64-bit varint.
_MOST_VARINT_BITS: Final = 63
_64_BITS: Final = (1 << 64) - 1
# 16 tells zlib to expect gzip's header and trailer, and nothing else.
_GZIP_ONLY: Final = 16 + zlib.MAX_WBITS
MOST_BATCH_BYTES: Final = 256 << 20
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
        BatchTooLargeError: A batch is larger, decompressed, than `MOST_BATCH_BYTES`.
    """
    try:
        for position, header in walk_headers(lambda at, size: log[at : at + size], len(log)):
            batch = log[position : position + header.length]
            _check_crc(header, batch, position)
            yield from decode_records(header, batch[HEADER_BYTES:])
    except (BatchTooLargeError, DamagedSegmentError, UnsupportedFormatError) as error:
        raise type(error)(f"{name}: {error}") from None


def _check_crc(header: BatchHeader, batch: bytes, position: int) -> None:
    if crc32c(memoryview(batch)[CRC_START:]) != header.crc:
        raise DamagedSegmentError(
            f"byte {position}: batch with base offset {header.base_offset}: its CRC32C does not "
            "match its bytes"
        )


def decode_records(
    header: BatchHeader, payload: bytes, most_batch_bytes: int = MOST_BATCH_BYTES
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
    except (IndexError, ValueError) as error:
        raise _damaged(header, f"at byte {walk.at} of its records: {error}") from None
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
    """Walks once over a batch's records. Raises IndexError or ValueError if the bytes are not
    records.
    """

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
        size = self._varint()
        end = self.at + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"a record of {size} bytes")
        self.at += 1  # attributes, unused
        timestamp = self._base_timestamp + self._varint()
        record = Record(
            offset=Offset(self._base + self._varint()),
            timestamp=timestamp if self._append_time is None else self._append_time,
            key=self._bytes(),
            value=self._bytes(),
            headers=tuple(self._header() for _ in range(self._count())),
            control=self._control,
        )
        if self.at != end:
            raise ValueError(f"the record ends {self.at - end} bytes after its length")
        return record

    def _header(self) -> Header:
        key = self._bytes()
        if key is None:
            raise ValueError("a header without a key")
        return key.decode(errors="replace"), self._bytes()  # Kafka's client replaces, too

    def _count(self) -> int:
        count = self._varint()
        if count < 0:
            raise ValueError(f"{count} headers")
        return count

    def _bytes(self) -> bytes | None:
        size = self._varint()
        if size < 0:
            return None
        start, self.at = self.at, self.at + size
        if self.at > len(self._data):
            raise ValueError(f"{size} bytes are wanted where {len(self._data) - start} are left")
        return self._data[start : self.at]

    def _varint(self) -> int:
        """Decode a zigzag varint of up to 64 bits: seven bits per byte, lowest first."""
        data, at = self._data, self.at
        byte = data[at]
        raw, shift = byte & 0x7F, 7
        while byte > 0x7F:  # noqa: PLR2004 - the continuation bit
            if shift > _MOST_VARINT_BITS:
                raise ValueError("a varint of more than ten bytes")
            at += 1
            byte = data[at]
            raw |= (byte & 0x7F) << shift
            shift += 7
        self.at = at + 1
        raw &= _64_BITS
        return (raw >> 1) ^ -(raw & 1)
