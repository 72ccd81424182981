"""The transaction index of a segment: the transactions that were aborted in it.

Source: Kafka's `TransactionIndex` and `AbortedTxn` (KIP-98). A `.txnindex` exists only if the
segment has an abort marker. It has an entry for each abort marker, in the order of the markers::

    0 version i16 | 2 producer id i64 | 10 first offset i64 | 18 last offset i64
    26 last stable offset i64

The last offset is the marker's offset, so it is in the segment; the transaction may have begun in
an earlier one. The last stable offset is the one after the marker was written: every transaction
with a record below it is decided.

A read-committed reader of the offsets from A up to B, exclusive, needs the entries whose last
offset is A or higher and whose first offset is below B. It begins with the segment that holds A,
and ends when an entry's last stable offset reaches B (`TransactionIndex.collectAbortedTxns`).
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.offsets import Offset

ABORTED_TXN_BYTES: Final = 34
WHOLE_ABORTED_TXNS_BYTES: Final = ABORTED_TXN_BYTES * 2048
"""A piece of this size holds a whole number of entries."""

_VERSION: Final = 0
_ENTRY = struct.Struct(">hqqqq")


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """One aborted transaction of one producer.

    Its records are in the offsets from `first_offset` up to `last_offset`, exclusive, the offset of
    its marker.
    """

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


def parse_txn_index(data: bytes, name: str = "txnindex") -> tuple[AbortedTxn, ...]:
    """Parse a `.txnindex`. Entries are in ascending order of last offset.

    Raises:
        DamagedSegmentError: The file ends within an entry, an entry has offsets that no transaction
            can have, or markers do not ascend.
        UnsupportedFormatError: An entry has another version than 0.
    """
    try:
        return tuple(read_txn_index([data]))
    except (DamagedSegmentError, UnsupportedFormatError) as error:
        raise type(error)(f"{name}: {error}") from None


def read_txn_index(
    pieces: Iterable[bytes], start: int = 0, end: int | None = None
) -> Iterator[AbortedTxn]:
    """Yield the entries of a `.txnindex` that comes in pieces.

    Args:
        pieces: The bytes in order. Each piece has whole entries, except a damaged last one.
        start: Start of the segment. No marker may be below it.
        end: End of the segment, exclusive; None to not check it.

    Raises:
        DamagedSegmentError: As `parse_txn_index`, or a marker is outside the segment.
        UnsupportedFormatError: An entry has another version than 0.
    """
    floor = start
    for piece in pieces:
        if len(piece) % ABORTED_TXN_BYTES:
            raise DamagedSegmentError(
                f"{len(piece)} bytes are not a multiple of {ABORTED_TXN_BYTES}: an entry is cut"
            )
        for fields in _ENTRY.iter_unpack(piece):
            entry = _checked(*fields)
            if entry.last_offset < floor or (end is not None and entry.last_offset >= end):
                raise DamagedSegmentError(
                    f"an abort marker at offset {entry.last_offset}, expected at {floor} or later"
                    + (f", below {end}" if end is not None else "")
                )
            floor = entry.last_offset + 1
            yield entry


def _checked(version: int, producer: int, first: int, last: int, stable: int) -> AbortedTxn:
    if version != _VERSION:
        raise UnsupportedFormatError(f"an entry of version {version}, expected {_VERSION}")
    if not 0 <= first <= last or not 0 <= stable <= last + 1:
        raise DamagedSegmentError(
            f"no transaction has the first offset {first}, the last offset {last} and the last "
            f"stable offset {stable}"
        )
    return AbortedTxn(producer, Offset(first), Offset(last), Offset(stable))


def encode_txn_index(entries: Iterable[AbortedTxn]) -> bytes:
    """Encode a `.txnindex` as a broker writes it."""
    return b"".join(
        _ENTRY.pack(
            _VERSION,
            entry.producer_id,
            entry.first_offset,
            entry.last_offset,
            entry.last_stable_offset,
        )
        for entry in entries
    )
