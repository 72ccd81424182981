"""Whole record batches: split, check, build, and change fields of the header.

Source: `segments.headers` for the format; Kafka's `LogValidator` for the batches that a broker
accepts from a producer: dense offsets inside the batch, no control batch, no LogAppendTime.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from awscrt.checksums import combine_crc32c  # type: ignore[import-untyped]  # ships no types

from sidetier.segments.crc import crc32c
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import (
    CODEC_BITS,
    CRC_START,
    FIELD_AT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MIN_LENGTH,
    TRANSACTIONAL,
    BatchHeader,
    parse_batch_header,
)

SEQUENCE_LIMIT: Final = 2**31
"""Sequence numbers wrap around to 0 here."""
NO_PRODUCER_ID: Final = -1

_BASE_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_EPOCH_AT: Final = FIELD_AT["leader_epoch"]
_CRC = struct.Struct(">I")
_CRC_AT: Final = FIELD_AT["crc"]
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_AT: Final = FIELD_AT["producer_id"]


@dataclass(frozen=True, slots=True)
class Producer:
    """Identity of an idempotent or transactional producer, as InitProducerId returns it."""

    id: int
    epoch: int


def split_batches(records: memoryview) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Yield the whole batches of fetched records, each with its header, without copying bytes.

    The last batch is left out if the broker cut it off (KIP-74).

    Raises:
        DamagedSegmentError: A header is invalid.
        UnsupportedFormatError: A batch has message format v0 or v1.
    """
    position, size = 0, len(records)
    while position + HEADER_BYTES <= size:
        header = parse_batch_header(records, position)
        end = position + header.length
        if end > size:
            return
        yield records[position:end], header
        position = end


def next_sequence(base_sequence: int, record_count: int) -> int:
    """Return the base sequence of a producer's next batch in the same partition."""
    return (base_sequence + record_count) % SEQUENCE_LIMIT


def set_leader_epoch(buffer: bytearray | memoryview, epoch: int, at: int = 0) -> None:
    """Set the partition leader epoch of the batch at byte `at`. The CRC does not cover it."""
    _EPOCH.pack_into(buffer, at + _EPOCH_AT, epoch)


def build_batch(
    payload: bytes, *, record_count: int, attributes: int, base_timestamp: int, max_timestamp: int
) -> bytearray:
    """Build a batch with dense offsets from 0 on, without a producer id and a leader epoch.

    Args:
        payload: The records, compressed by the codec of the attributes.
        record_count: Number of records.
        attributes: The attributes. Only the codec is used.
        base_timestamp: In ms since 1970.
        max_timestamp: In ms since 1970.
    """
    header = HEADER.pack(
        0,
        MIN_LENGTH + len(payload),
        -1,
        MAGIC,
        0,
        attributes & CODEC_BITS,
        record_count - 1,
        base_timestamp,
        max_timestamp,
        NO_PRODUCER_ID,
        -1,
        -1,
        record_count,
    )
    batch = bytearray(header + payload)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def set_producer(
    batch: memoryview, producer: Producer | None, base_sequence: int, *, transactional: bool
) -> None:
    """Turn a batch into a batch of the given producer, in place, ready for a Produce request.

    The CRC is verified, and then recomputed from the header's change alone. A damaged batch raises
    an error and never gets a matching CRC.

    A LogAppendTime bit is cleared, because brokers reject it. The records then show the timestamps
    of their producer instead of the source broker's; to keep the latter they must be encoded again.

    Args:
        batch: One whole batch, writable.
        producer: New producer; None for a producer without idempotence.
        base_sequence: Sequence number of the first record in the target partition; see
            `next_sequence`.
        transactional: Whether the batch becomes part of the producer's open transaction.

    Raises:
        DamagedSegmentError: The CRC does not match.
    """
    # Before any change: afterwards, a damaged batch could not be distinguished from a sound one.
    crc = _checked_crc(batch)
    # A view: `crc32c(covered_header)` differs after the fields below are written.
    covered_header = batch[CRC_START:HEADER_BYTES]
    before = crc32c(covered_header)
    (attributes,) = _ATTRIBUTES.unpack_from(covered_header)
    attributes &= ~(TRANSACTIONAL | LOG_APPEND_TIME)
    if transactional:
        attributes |= TRANSACTIONAL
    # The CRC covers the bytes from the attributes on.
    _ATTRIBUTES.pack_into(covered_header, 0, attributes)
    if producer is None:
        _PRODUCER.pack_into(batch, _PRODUCER_AT, NO_PRODUCER_ID, -1, -1)
    else:
        _PRODUCER.pack_into(batch, _PRODUCER_AT, producer.id, producer.epoch, base_sequence)
    # CRCs are linear: the header's CRC change, shifted over the records, is the batch's CRC change.
    change = before ^ crc32c(covered_header)
    _CRC.pack_into(batch, _CRC_AT, crc ^ combine_crc32c(change, 0, len(batch) - HEADER_BYTES))
    _BASE_OFFSET.pack_into(batch, 0, 0)  # offsets of a producer's batch begin at 0
    # The target's leader sets its own epoch.
    set_leader_epoch(batch, -1)


def check_crc(batch: memoryview) -> None:
    """Check the CRC of a batch.

    Raises:
        DamagedSegmentError: The CRC does not match.
    """
    _checked_crc(batch)


def _checked_crc(batch: memoryview) -> int:
    expected: int
    (expected,) = _CRC.unpack_from(batch, _CRC_AT)
    if crc32c(batch[CRC_START:]) != expected:
        (offset,) = _BASE_OFFSET.unpack_from(batch)
        raise DamagedSegmentError(
            f"batch with base offset {offset}: its CRC32C does not match its bytes"
        )
    return expected
