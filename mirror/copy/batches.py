"""Decide which source batches a mirror copies, re-encodes or drops, and re-encode them. No I/O.

A batch is copied as it is, except for its header, if the target's broker accepts its records. The
broker requires dense offsets inside a batch (`LogValidator`, KIP-98), so a compacted batch is
re-encoded. A batch whose timestamps the source's broker has set (LogAppendTime) is re-encoded too:
no producer may send that attribute, and without it the target would show the producer's timestamps.

Re-encoding moves keys, values and headers unchanged. Only the length, the timestamp delta and the
offset delta of each record are written again, and the batch keeps its codec.

Control batches, batches of aborted transactions and batches without records are dropped. The
position moves past them.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import cramjam

from sidetier.segments.arrow.codecs import CodecError, NoRoomError, decompress
from sidetier.segments.batches import build_batch, check_crc, split_batches
from sidetier.segments.errors import BatchTooLargeError, DamagedSegmentError
from sidetier.segments.headers import (
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    Compression,
    TimestampType,
)
from sidetier.segments.offsets import MAX_OFFSET, Offset
from sidetier.segments.varints import encode_zigzag, read_zigzag
from sidetier.wire.record_requests import AbortedTransaction

_NOT_OF_PRODUCERS: Final = LOG_APPEND_TIME | DELETE_HORIZON
"""Batch attributes that the broker does not accept from a producer."""


class SourceBatch(NamedTuple):
    """A batch of which all or some records are sent to the target.

    Attributes:
        header: The parsed header of the batch.
        data: The whole batch, header included.
        start: The first offset to copy, inclusive. Above the batch's base offset if the copy begins
            inside the batch.
        end: The end of the offsets to copy, exclusive. Below the batch's next offset if the copy
            ends inside the batch.
    """

    header: BatchHeader
    data: memoryview
    start: Offset
    end: Offset

    @property
    def must_be_reencoded(self) -> bool:
        """Whether the record bytes must change for the broker or for the range to copy."""
        header, start, end = self.header, self.start, self.end
        return (
            start > header.base_offset
            or end < header.next_offset
            or end - start != header.record_count  # brokers accept only dense offsets
            or header.attributes & _NOT_OF_PRODUCERS != 0
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """The batches to copy out of some bytes that were read from the source.

    Attributes:
        batches: The batches to copy, by ascending offset.
        next_offset: The offset of the next source record to handle, after these bytes.
        dropped_records: Number of records of aborted transactions that were left out.
    """

    batches: tuple[SourceBatch, ...]
    next_offset: Offset
    dropped_records: int


def select_batches(
    data: memoryview,
    position: Offset,
    aborted: Iterable[AbortedTransaction],
    *,
    until: Offset = MAX_OFFSET,
) -> Selection:
    """Select the batches to copy to the target.

    Args:
        data: Consecutive batches. The last one may be incomplete; it is left for the next read.
        position: The first offset to copy, inclusive. Batches that end at or below it are skipped.
        aborted: Every aborted transaction with a record or its marker at `position` or above in
            these bytes, as a Fetch response lists them. Leave out transactions that ended below
            `position`: otherwise records that the same producer committed since then would be
            dropped.
        until: The end of the offsets to copy, exclusive.

    Raises:
        DamagedSegmentError: A batch header is not valid. CRCs are checked when a batch is sent.
        UnsupportedFormatError: The message format is v0 or v1.
    """
    coming = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
    aborting: set[int] = set()
    taken: list[SourceBatch] = []
    dropped = 0
    for batch, header in split_batches(data):
        start, end = header.base_offset, header.next_offset
        if start >= until:
            position = max(position, until)
            break
        # A transaction counts from the batch that has its first offset on.
        # Batches of the same producer before it are of an earlier transaction.
        while coming and coming[0].first_offset < end:
            aborting.add(coming.popleft().producer_id)
        is_control = header.is_control
        if is_control:
            # Either kind of marker ends the producer's aborted transaction: a commit marker of this
            # producer can only come after the abort marker.
            aborting.discard(header.producer_id)
        if end > position and not is_control:
            if aborting and header.is_transactional and header.producer_id in aborting:
                dropped += header.record_count
            elif header.record_count > 0:
                taken.append(SourceBatch(header, batch, max(start, position), min(end, until)))
        position = max(position, min(end, until))
    return Selection(tuple(taken), position, dropped)


_LZ4_HEAD: Final = bytes.fromhex("04224d18604082")
"""Header of an lz4 frame with independent blocks of up to 64 KiB and no checksum: Kafka's decoder
refuses dependent blocks. The last byte is the checksum of the two bytes before it.
"""
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_UNCOMPRESSED: Final = 0x80000000
_XERIAL_HEAD: Final = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
# The default of snappy-java, with which Kafka's Java client compresses.
_XERIAL_BLOCK_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class ReencodedBatch:
    """A batch with dense offsets from 0 on.

    Attributes:
        data: The whole batch, header included.
        source_offsets: The source offset of each record.
        max_timestamp: The largest timestamp of the records, in ms since 1970.
    """

    data: bytearray
    source_offsets: tuple[Offset, ...]
    max_timestamp: int


class _Record(NamedTuple):
    """A record without its length and its two deltas.

    Attributes:
        attributes: The byte of attributes.
        contents: Key, value and headers, encoded.
        timestamp_delta: Milliseconds after the base timestamp of the batch.
        offset: The source offset.
    """

    attributes: bytes
    contents: bytes
    timestamp_delta: int
    offset: Offset


def reencode(
    batch: SourceBatch, max_bytes: int, name: str, target_bytes: int | None = None
) -> list[ReencodedBatch]:
    """Re-encode a batch's wanted records with dense offsets; nothing if compaction has left none.

    Args:
        batch: The source batch.
        max_bytes: Maximum decompressed bytes of its records.
        name: Where the batch belongs, for error messages.
        target_bytes: Size above which a result is split between two records. Only a result with one
            record can be larger.

    Raises:
        DamagedSegmentError: The batch does not hold the records that its header announces.
        BatchTooLargeError: Its records have more than `max_bytes`.
        UnsupportedFormatError: The codec is unknown.
    """
    # Before decoding: `build_batch` computes a new CRC, which would make damaged bytes look sound.
    check_crc(batch.data)
    header = batch.header
    where = f"{name}: the batch at offset {header.base_offset}"
    records = _wanted_records(batch, max_bytes, where)
    # With LogAppendTime, each record has the batch's largest timestamp, whatever its own delta is.
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    base_timestamp = header.max_timestamp if is_append_time else header.base_timestamp
    if is_append_time:
        records = [record._replace(timestamp_delta=0) for record in records]
    return _split(records, header.compression, base_timestamp, target_bytes) if records else []


def _wanted_records(batch: SourceBatch, max_bytes: int, where: str) -> list[_Record]:
    header, payload = batch.header, batch.data[HEADER_BYTES:]
    data = _decompressed(header.compression, payload, max_bytes, where)
    last_delta = header.next_offset - 1 - header.base_offset
    records: list[_Record] = []
    at, before = 0, -1
    try:
        for _ in range(header.record_count):
            size, at = read_zigzag(data, at)
            end = at + size
            timestamp_delta, after_timestamp = read_zigzag(data, at + 1)
            offset_delta, contents = read_zigzag(data, after_timestamp)
            # A record with an offset of another batch would be left out, without a trace.
            if not contents <= end <= len(data) or not before < offset_delta <= last_delta:
                raise ValueError  # noqa: TRY301 -- handled like the end of the bytes
            offset = Offset(header.base_offset + offset_delta)
            if batch.start <= offset < batch.end:
                # A record begins with a byte of attributes. Key, value and headers follow the two
                # deltas, and are copied as they are.
                attributes = data[at : at + 1]
                records.append(_Record(attributes, data[contents:end], timestamp_delta, offset))
            at, before = end, offset_delta
        if at < len(data):
            raise ValueError  # noqa: TRY301 -- more records than the header announces
    except ValueError:
        raise DamagedSegmentError(f"{where}: its records are cut or damaged") from None
    return records


def _split(
    records: list[_Record], codec: Compression, base_timestamp: int, target_bytes: int | None
) -> list[ReencodedBatch]:
    built = _encoded(records, codec, base_timestamp)
    if target_bytes is None or len(built.data) <= target_bytes or len(records) == 1:
        return [built]
    # In halves, because the size after compression is known only afterwards.
    middle = len(records) // 2
    return [
        *_split(records[:middle], codec, base_timestamp, target_bytes),
        *_split(records[middle:], codec, base_timestamp, target_bytes),
    ]


def _encoded(records: list[_Record], codec: Compression, base_timestamp: int) -> ReencodedBatch:
    out = bytearray()
    for position, record in enumerate(records):
        head = record.attributes + encode_zigzag(record.timestamp_delta) + encode_zigzag(position)
        out += encode_zigzag(len(head) + len(record.contents)) + head + record.contents
    latest = base_timestamp + max(record.timestamp_delta for record in records)
    data = build_batch(
        compress(codec, bytes(out)),
        record_count=len(records),
        attributes=codec.value,
        base_timestamp=base_timestamp,
        max_timestamp=latest,
    )
    return ReencodedBatch(data, tuple(record.offset for record in records), latest)


def encode_record(key: bytes, value: bytes | None, position: int) -> bytes:
    """Encode a record without headers, at the batch's base timestamp."""
    body = b"\0" + encode_zigzag(0) + encode_zigzag(position)
    body += encode_zigzag(len(key)) + key
    body += encode_zigzag(-1) if value is None else encode_zigzag(len(value)) + value
    body += encode_zigzag(0)  # headers
    return encode_zigzag(len(body)) + body


def compress(codec: Compression, data: bytes) -> bytes:
    """Compress records as Kafka's own producer does."""
    return _COMPRESS[codec](data)


def _lz4(data: bytes) -> bytes:
    out = bytearray(_LZ4_HEAD)
    for at in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[at : at + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        # A block that does not shrink is stored as it is, with the high bit of its length set.
        if len(block) < len(plain):
            out += struct.pack("<I", len(block)) + block
        else:
            out += struct.pack("<I", len(plain) | _LZ4_UNCOMPRESSED) + plain
    return bytes(out + struct.pack("<I", 0))


def _snappy(data: bytes) -> bytes:
    out = bytearray(_XERIAL_HEAD)
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK_BYTES]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


_COMPRESS: Final[dict[Compression, Callable[[bytes], bytes]]] = {
    Compression.NONE: bytes,
    Compression.GZIP: lambda data: bytes(cramjam.gzip.compress(data)),
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}


def _decompressed(codec: Compression, payload: memoryview, max_bytes: int, where: str) -> bytes:
    try:
        return decompress(codec, payload, max_bytes)
    except CodecError as error:
        raise DamagedSegmentError(f"{where}: {error}") from None
    except NoRoomError:
        raise BatchTooLargeError(
            f"{where}: its records are more than {max_bytes} bytes, decompressed; raise "
            "--max-batch-bytes to copy it"
        ) from None
