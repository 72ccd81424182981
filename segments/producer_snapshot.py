"""The state of a partition's producers, as a broker writes it beside a segment.

Source: Kafka's `ProducerStateManager` (KIP-98). `<base offset>.snapshot` is the state below the
segment's base offset::

    0 version i16, 1 | 2 CRC32C u32 over all following bytes | 6 number of producers i32
    10 the producers, 46 bytes each: producer id i64, epoch i16, last sequence i32, last offset i64,
       offset delta i32, timestamp i64, coordinator epoch i32, first offset of its open
       transaction i64 (-1: none)
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidetier.segments.crc import crc32c
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.offsets import Offset

EMPTY_SNAPSHOT_BYTES: Final = 10
"""Size of a snapshot without producers. Such a snapshot is not stored."""

_VERSION: Final = 1
_CRC_START: Final = 6
_HEAD = struct.Struct(">hIi")
_PRODUCER = struct.Struct(">qhiqiqiq")


def check_snapshot(pieces: Iterable[bytes]) -> int:
    """Check a `.snapshot` that comes in pieces, in order, and return its number of producers.

    The first piece must have at least the first 10 bytes.

    Raises:
        DamagedSegmentError: The size does not fit the number of producers, or the CRC32C is wrong.
        UnsupportedFormatError: Another version than 1.
    """
    rest = iter(pieces)
    first = next(rest, b"")
    if len(first) < EMPTY_SNAPSHOT_BYTES:
        raise DamagedSegmentError(f"{len(first)} bytes are too few for a producer snapshot")
    version, expected, producers = _HEAD.unpack_from(first)
    if version != _VERSION:
        raise UnsupportedFormatError(f"producer snapshot version {version}, expected {_VERSION}")
    size, crc = len(first), crc32c(memoryview(first)[_CRC_START:])
    for piece in rest:
        size, crc = size + len(piece), crc32c(piece, crc)
    # The size comes first: a cut file has a wrong CRC as well, and the size is the clearer message.
    if producers < 0 or size != EMPTY_SNAPSHOT_BYTES + producers * _PRODUCER.size:
        raise DamagedSegmentError(f"{size} bytes do not fit a snapshot of {producers} producers")
    if crc != expected:
        raise DamagedSegmentError("the snapshot's CRC32C does not match its bytes")
    return int(producers)


class ProducerState(NamedTuple):
    """One producer in a snapshot. The fields are in the order of the bytes.

    `first_offset` is its open transaction's; -1 if it has none.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    first_offset: int

    def encoded(self) -> bytes:
        """Return the 46 bytes of a snapshot."""
        return _PRODUCER.pack(*self)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction of one producer that is not decided yet.

    Attributes:
        producer_id: The producer.
        first_offset: Base offset of its first batch in the partition.
        producer_epoch: Epoch of its last batch.
    """

    producer_id: int
    first_offset: Offset
    producer_epoch: int = -1


def open_transactions(data: bytes, name: str = "snapshot") -> tuple[OpenTransaction, ...]:
    """Return the transactions that were open below the snapshot's offset; `name` is for errors.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: As `check_snapshot`.
    """
    try:
        check_snapshot([data])
    except (DamagedSegmentError, UnsupportedFormatError) as error:
        raise type(error)(f"{name}: {error}") from None
    states = map(
        ProducerState._make, _PRODUCER.iter_unpack(memoryview(data)[EMPTY_SNAPSHOT_BYTES:])
    )
    return tuple(
        OpenTransaction(state.producer_id, Offset(state.first_offset), state.producer_epoch)
        for state in states
        if state.first_offset >= 0
    )


def encode_snapshot(producers: Iterable[bytes] = ()) -> bytes:
    """Encode a snapshot of producers of 46 bytes each, as a broker writes it."""
    rows = list(producers)
    covered = struct.pack(">i", len(rows)) + b"".join(rows)
    return struct.pack(">hI", _VERSION, crc32c(covered)) + covered
