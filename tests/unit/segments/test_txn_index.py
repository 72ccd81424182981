import struct

import pytest

from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset
from sidetier.segments.records import read_records
from sidetier.segments.txn_index import (
    ABORTED_TXN_BYTES,
    AbortedTxn,
    encode_txn_index,
    parse_txn_index,
    read_txn_index,
)
from tests.harness.broker_segments import BrokerSegment, closed_segments

ABORTING = [s for s in closed_segments() if s.path(FileKind.TXNINDEX).exists()]


def txn(first: int, last: int, producer: int = 1, stable: int | None = None) -> AbortedTxn:
    following = last + 1 if stable is None else stable
    return AbortedTxn(producer, Offset(first), Offset(last), Offset(following))


def entry(version: int = 0, first: int = 5, last: int = 9, stable: int = 10) -> bytes:
    return struct.pack(">hqqqq", version, 1, first, last, stable)


def test_fixtures_contain_genuine_transaction_indexes() -> None:
    assert len(ABORTING) >= 2


@pytest.mark.parametrize("segment", ABORTING, ids=str)
def test_genuine_index_names_the_abort_markers_of_its_segment(segment: BrokerSegment) -> None:
    data = segment.read(FileKind.TXNINDEX)
    found = parse_txn_index(data)
    markers = {
        int(record.offset)
        for record in read_records(segment.read(FileKind.LOG), str(segment))
        if record.control and (record.key or b"")[2:4] == b"\0\0"
    }
    assert {int(one.last_offset) for one in found} == markers
    assert list(read_txn_index([data], segment.base, segment.next_base)) == list(found)
    assert encode_txn_index(found) == data


def test_pieces_are_read_as_one_index() -> None:
    entries = [txn(at, at + 2) for at in range(0, 40, 4)]
    data = encode_txn_index(entries)
    size = 3 * ABORTED_TXN_BYTES
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(read_txn_index(pieces)) == entries


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (entry()[:-1], "an entry is cut"),
        (entry(first=10), "no transaction has the first offset 10, the last offset 9"),
        (entry(first=-1), "no transaction has the first offset -1"),
        (entry(stable=11), "last stable offset 11"),
        (entry(stable=-1), "last stable offset -1"),
        (entry() + entry(), "at offset 9, expected at 10 or later"),
    ],
)
def test_damaged_index_is_described(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedSegmentError, match=f"^x.txnindex: .*{reason}"):
        parse_txn_index(data, "x.txnindex")


def test_other_versions_are_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"x\.txnindex: an entry of version 1"):
        parse_txn_index(entry(version=1), "x.txnindex")


@pytest.mark.parametrize(("start", "end"), [(10, 20), (0, 9)])
def test_marker_outside_the_segment_is_damage(start: int, end: int) -> None:
    assert list(read_txn_index([entry()], 9, 10)) == [txn(5, 9)]
    with pytest.raises(DamagedSegmentError, match="an abort marker at offset 9"):
        list(read_txn_index([entry()], start, end))
