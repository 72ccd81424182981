"""Record batches that pass unchanged but for their headers.

Source: `segments.headers` for the format; Kafka's `LogValidator` for what a broker accepts of a
producer: dense offsets inside the batch, no control batch, no LogAppendTime.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from awscrt.checksums import combine_crc32c  # type: ignore[import-untyped]  # ships no types

from sidetier.segments.crc import crc32c
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import (
    CRC_START,
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    parse_batch_header,
)

SEQUENCE_LIMIT: Final = 2**31
"""Sequence numbers continue at 0 here."""
NO_PRODUCER_ID: Final = -1

_BASE_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_EPOCH_AT: Final = 12
_CRC = struct.Struct(">I")
_CRC_AT: Final = 17
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_AT: Final = 43
_LOG_APPEND_TIME: Final = 0x08


@dataclass(frozen=True, slots=True)
class Producer:
    """The identity of an idempotent or transactional producer, as InitProducerId hands it out."""

    id: int
    epoch: int


def split_batches(records: memoryview) -> Iterator[tuple[memoryview, BatchHeader]]:
    """The whole batches of fetched records, each with its header; no bytes are copied.

    A broker may cut the last batch off (KIP-74), which is then left out.

    Raises:
        DamagedSegmentError: a header that cannot be one.
        UnsupportedFormatError: message format v0 or v1.
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
    """The base sequence of a producer's next batch in the same partition."""
    return (base_sequence + record_count) % SEQUENCE_LIMIT


def set_leader_epoch(batch: memoryview, epoch: int) -> None:
    """Set the partition leader epoch in place, which no CRC covers."""
    _EPOCH.pack_into(batch, _EPOCH_AT, epoch)


def set_producer(
    batch: memoryview, producer: Producer | None, base_sequence: int, *, transactional: bool
) -> None:
    """Make a batch one of a producer's own, in place, ready for a Produce request.

    The CRC is checked and computed anew in one pass over the records: a batch that was damaged
    before is refused, never given a fitting CRC.

    A LogAppendTime bit is cleared, since brokers refuse it. The records then show the timestamps of
    their producer instead of the source broker's; to keep the latter they must be encoded anew.

    Args:
        batch: One whole batch, writable.
        producer: None for a producer without idempotence.
        base_sequence: Of this producer in the target partition; see `next_sequence`.
        transactional: Whether the batch becomes part of the producer's open transaction.

    Raises:
        DamagedSegmentError: the batch does not have its CRC.
    """
    crc = _checked_crc(batch)
    covered_header = batch[CRC_START:HEADER_BYTES]
    before = crc32c(covered_header)
    (attributes,) = _ATTRIBUTES.unpack_from(covered_header)
    attributes &= ~(TRANSACTIONAL | _LOG_APPEND_TIME)
    if transactional:
        attributes |= TRANSACTIONAL
    _ATTRIBUTES.pack_into(covered_header, 0, attributes)
    if producer is None:
        _PRODUCER.pack_into(batch, _PRODUCER_AT, NO_PRODUCER_ID, -1, -1)
    else:
        _PRODUCER.pack_into(batch, _PRODUCER_AT, producer.id, producer.epoch, base_sequence)
    # A CRC is linear: the header's change, moved over the records, is the change of the whole.
    change = before ^ crc32c(covered_header)
    _CRC.pack_into(batch, _CRC_AT, crc ^ combine_crc32c(change, 0, len(batch) - HEADER_BYTES))
    _BASE_OFFSET.pack_into(batch, 0, 0)  # a producer's offsets begin at 0
    set_leader_epoch(batch, -1)


def check_crc(batch: memoryview) -> None:
    """Refuse a batch whose CRC does not fit.

    Raises:
        DamagedSegmentError: the batch does not have its CRC.
    """
    _checked_crc(batch)


def _checked_crc(batch: memoryview) -> int:
    expected: int
    (expected,) = _CRC.unpack_from(batch, _CRC_AT)
    if crc32c(batch[CRC_START:]) != expected:
        (offset,) = _BASE_OFFSET.unpack_from(batch)
        raise DamagedSegmentError(f"the batch at offset {offset} does not have its CRC")
    return expected
