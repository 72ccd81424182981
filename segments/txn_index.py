"""The transaction index of a segment: which transactions were aborted in it.

Source: Kafka's `TransactionIndex` and `AbortedTxn` (KIP-98). A `.txnindex` exists only when an
abort marker lies in the segment, and has an entry for each, in the order of the markers::

    0 version i16 | 2 producer id i64 | 10 first offset i64 | 18 last offset i64
    26 last stable offset i64

The last offset is that of the marker, so it lies in the segment; the transaction may have begun in
an earlier one. The last stable offset is the one after the marker was written: every transaction
with a record below it is decided.

A read-committed reader of the offsets from A up to B needs the entries whose last offset is A or
higher and whose first offset is below B, from the segment that holds A on, until an entry's last
stable offset reaches B (`TransactionIndex.collectAbortedTxns`).
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

    Its records lie from `first_offset` up to, not including, `last_offset`, where its marker is.
    """

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


def parse_txn_index(data: bytes, name: str = "txnindex") -> tuple[AbortedTxn, ...]:
    """The entries of a `.txnindex`, by rising last offset.

    Raises:
        DamagedSegmentError: half an entry, offsets that no transaction can have, or markers that do
            not rise.
        UnsupportedFormatError: an entry of another version than 0.
    """
    try:
        return tuple(read_txn_index([data]))
    except (DamagedSegmentError, UnsupportedFormatError) as error:
        raise type(error)(f"{name}: {error}") from None


def read_txn_index(
    pieces: Iterable[bytes], start: int = 0, end: int | None = None
) -> Iterator[AbortedTxn]:
    """The entries in pieces of a `.txnindex`, each of whole entries but for a damaged last one.

    All markers must lie from `start` up to, not including, `end`: in their segment.

    Raises:
        DamagedSegmentError: see `parse_txn_index`; or a marker outside the segment.
        UnsupportedFormatError: an entry of another version than 0.
    """
    floor = start
    for piece in pieces:
        if len(piece) % ABORTED_TXN_BYTES:
            raise DamagedSegmentError(
                f"{len(piece)} bytes are no multiple of {ABORTED_TXN_BYTES}: an entry is cut"
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
    """The bytes of a `.txnindex` as a broker writes it."""
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
