"""Record batches, format v2: the header, and a walk over the headers of a segment.

Source: Kafka's `DefaultRecordBatch` (KIP-98). A batch is 61 bytes of header and the records::

    0 base offset i64 | 8 length of the rest i32 | 12 partition leader epoch i32 | 16 magic i8
    17 CRC32C u32 over all following bytes | 21 attributes i16 | 23 last offset delta i32
    27 base timestamp i64 | 35 max timestamp i64 | 43 producer id i64 | 51 producer epoch i16
    53 base sequence i32 | 57 record count i32 | 61 records

The CRC covers everything from the attributes on. The broker writes base offset, leader epoch and
length after the producer has computed the CRC, so they and the magic are not covered.
"""

import struct
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple

from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.offsets import LeaderEpoch, Offset

HEADER_FIELDS: Final = {
    "base_offset": "q",
    "length": "i",
    "leader_epoch": "i",
    "magic": "B",
    "crc": "I",
    "attributes": "h",
    "last_offset_delta": "i",
    "base_timestamp": "q",
    "max_timestamp": "q",
    "producer_id": "q",
    "producer_epoch": "h",
    "base_sequence": "i",
    "record_count": "i",
}
"""The fields of a header in order, with their types as in `struct`, big-endian and unaligned."""

_SIZES: Final = {name: struct.calcsize(f">{code}") for name, code in HEADER_FIELDS.items()}
FIELD_AT: Final = dict(zip(HEADER_FIELDS, accumulate(_SIZES.values(), initial=0), strict=False))
"""Position in a batch of the first byte of each field."""


def header_struct(*names: str) -> struct.Struct:
    """Return the struct that unpacks some fields at a batch's first byte, in order of the bytes.

    Do not pack with it: it sets the bytes of the other fields to 0.
    """
    codes = [code if name in names else f"{_SIZES[name]}x" for name, code in HEADER_FIELDS.items()]
    while codes[-1].endswith("x"):
        codes.pop()
    return struct.Struct(">" + "".join(codes))


HEADER: Final = header_struct(*HEADER_FIELDS)
HEADER_BYTES: Final = HEADER.size
LENGTH_PREFIX_BYTES: Final = FIELD_AT["leader_epoch"]
"""The bytes of a batch that its length field does not count."""
MIN_LENGTH: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES
"""The length field of a batch without records."""
CRC_START: Final = FIELD_AT["attributes"]
"""Position in a batch of the first byte that its CRC covers."""
MAGIC: Final = 2

# Bits of the attributes.
CODEC_BITS: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""Set by the log cleaner on compacted batches (KIP-534)."""

_BEGINNING = header_struct("length", "magic")
_MESSAGE = header_struct("base_offset", "length", "magic")  # formats v0 and v1 begin like batches
_OLD_FORMATS: Final = frozenset({0, 1})
_MIN_LEGACY_LENGTH = 14  # a message of format v0 with neither key nor value
_READ_AHEAD = 128 * 1024


class Compression(Enum):
    """The codec of a batch's records; the value is the one in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(Enum):
    """Whether the producer set the timestamps, or the broker on append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The header of a batch. A tuple, because it is created faster than a dataclass.

    `length` is the size of the whole batch in bytes. Timestamps are ms since 1970 (-1: none).
    `producer_id` is -1 without idempotence. `last_offset` can be higher than the last record's
    offset if compaction has removed records.
    """

    base_offset: Offset
    length: int
    leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset: Offset
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> Compression:
        """The codec of the records. Raises UnsupportedFormatError for an unknown one."""
        try:
            return Compression(self.attributes & CODEC_BITS)
        except ValueError:
            codec = self.attributes & CODEC_BITS
            raise UnsupportedFormatError(
                f"batch at offset {self.base_offset}: unknown compression {codec}"
            ) from None

    @property
    def timestamp_type(self) -> TimestampType:
        """Origin of the timestamps. With LOG_APPEND_TIME, all records have the max timestamp."""
        return TimestampType(bool(self.attributes & LOG_APPEND_TIME))

    @property
    def is_transactional(self) -> bool:
        """Whether the records are part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether this is a commit or abort marker, which no consumer returns."""
        return bool(self.attributes & CONTROL)

    @property
    def next_offset(self) -> Offset:
        """One past the last offset."""
        return Offset(self.last_offset + 1)


def parse_batch_header(buffer: bytes | bytearray | memoryview, at: int = 0) -> BatchHeader:
    """Parse the header of the batch that begins at byte `at`. The CRC is not checked.

    Raises:
        UnsupportedFormatError: Message format v0, v1, or an unknown one.
        DamagedSegmentError: Fewer than 61 bytes, or a length or offset that no batch can have.
    """
    available = len(buffer) - at
    if available < HEADER_BYTES:
        check_beginning(buffer, at)
        raise DamagedSegmentError(f"{available} bytes are too few for a batch header")
    base, size, epoch, magic, crc, attributes, delta, *rest = HEADER.unpack_from(buffer, at)
    if magic != MAGIC:
        check_magic(magic, size)
    # No CRC protects these fields. A wrong length would let the walk continue at random bytes.
    if size < MIN_LENGTH or base < 0 or delta < 0:
        raise DamagedSegmentError(
            f"no batch has base offset {base}, length {size} and last offset delta {delta}"
        )
    length = size + LENGTH_PREFIX_BYTES
    return BatchHeader._make((base, length, epoch, magic, crc, attributes, base + delta, *rest))


def check_beginning(buffer: bytes | bytearray | memoryview, at: int = 0) -> None:
    """Call `check_magic` if at least 17 bytes of the batch are there; do nothing otherwise."""
    if len(buffer) - at >= _BEGINNING.size:
        length, magic = _BEGINNING.unpack_from(buffer, at)
        check_magic(magic, length)


def check_magic(magic: int, length: int) -> None:
    """Raise unless this is the magic byte of format v2.

    The magic byte is at the same position in all formats. `length` distinguishes old messages from
    zeros: a file system fills a file with zeros if a crash has lost its bytes.

    Raises:
        UnsupportedFormatError: A message of format v0 or v1.
        DamagedSegmentError: Neither a batch nor a message.
    """
    if magic in _OLD_FORMATS and length >= _MIN_LEGACY_LENGTH:
        raise UnsupportedFormatError(
            f"message format v{magic} (brokers before 0.11, or log.message.format.version); "
            "only v2 can be archived"
        )
    if magic != MAGIC:
        raise DamagedSegmentError(f"magic byte {magic}, expected {MAGIC}")


def end_of_old_message(buffer: bytes | bytearray | memoryview, at: int = 0) -> Offset | None:
    """Return the offset after the message of format v0 or v1 that begins at byte `at`.

    A message with compressed messages has the offset of the last one of them.

    Returns:
        None for anything else, such as a batch of format v2.
    """
    if len(buffer) - at < _MESSAGE.size:
        return None
    offset, length, magic = _MESSAGE.unpack_from(buffer, at)
    is_old = magic in _OLD_FORMATS and length >= _MIN_LEGACY_LENGTH
    return Offset(offset + 1) if is_old else None


def batch_bytes(buffer: bytes | bytearray | memoryview) -> int:
    """Return the size of the batch that begins a buffer, from its length field alone.

    0 if the length field is not whole. The field is not checked, but a negative one counts as 0.
    """
    if len(buffer) < LENGTH_PREFIX_BYTES:
        return 0
    length = int.from_bytes(buffer[FIELD_AT["length"] : LENGTH_PREFIX_BYTES], signed=True)
    return LENGTH_PREFIX_BYTES + max(length, 0)


def walk_headers(
    read: Callable[[int, int], bytes], size: int, *, start: int = 0
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each batch, from byte `start`, which must begin a batch.

    `read(position, length)` returns up to `length` bytes, as `os.pread` does. Small batches are
    read in large pieces; of large batches only the header is read.

    Raises:
        DamagedSegmentError: A header is invalid, offsets do not ascend, or a batch ends beyond
            `size`. The message names the byte position.
        UnsupportedFormatError: Message format v0 or v1.
    """
    position, floor = start, 0
    window, window_start, ahead = b"", 0, HEADER_BYTES
    while position < size:
        at = position - window_start
        if at + HEADER_BYTES > len(window):
            window, window_start, at = read(position, min(ahead, size - position)), position, 0
        header = _header_at(window, at, position)
        _check_place(header, position, floor, size)
        yield position, header
        # Small batches come in runs: reading ahead saves calls. Large ones are skipped.
        ahead = _READ_AHEAD if header.length < _READ_AHEAD // 8 else HEADER_BYTES
        position += header.length
        floor = header.next_offset


def _header_at(window: bytes, at: int, position: int) -> BatchHeader:
    try:
        return parse_batch_header(window, at)
    except (DamagedSegmentError, UnsupportedFormatError) as error:
        raise type(error)(f"byte {position}: {error}") from None


def _check_place(header: BatchHeader, position: int, floor: int, size: int) -> None:
    if header.base_offset < floor:
        raise DamagedSegmentError(
            f"byte {position}: base offset {header.base_offset} after next offset {floor}"
        )
    if position + header.length > size:
        raise DamagedSegmentError(
            f"byte {position}: the batch at offset {header.base_offset} is {header.length} bytes "
            f"long, but only {size - position} are left"
        )
