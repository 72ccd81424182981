import struct
from pathlib import Path

import pytest

from sidetier.segments.crc import crc32c
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.names import FileKind
from sidetier.segments.producer_snapshot import (
    EMPTY_SNAPSHOT_BYTES,
    check_snapshot,
    encode_snapshot,
    open_transactions,
)
from tests.harness.broker_segments import directories

GENUINE = [
    path for folder in directories() for path in sorted(folder.glob(f"*{FileKind.SNAPSHOT}"))
]
SOUND = encode_snapshot([b"p" * 46, b"q" * 46])


def with_crc(data: bytes) -> bytes:
    return data[:2] + struct.pack(">I", crc32c(data[6:])) + data[6:]


@pytest.mark.parametrize("path", GENUINE, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_genuine_snapshots_are_valid(path: Path) -> None:
    data = path.read_bytes()
    producers = check_snapshot([data])
    assert (producers == 0) == (len(data) == EMPTY_SNAPSHOT_BYTES)
    rows = [data[at : at + 46] for at in range(EMPTY_SNAPSHOT_BYTES, len(data), 46)]
    assert len(rows) == producers
    assert encode_snapshot(rows) == data


def test_genuine_snapshots_exist_with_and_without_producers() -> None:
    assert {check_snapshot([path.read_bytes()]) for path in GENUINE} >= {0, 1, 2}


def test_pieces_are_read_as_one_snapshot() -> None:
    assert check_snapshot([SOUND[:16], SOUND[16:50], SOUND[50:]]) == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes are too few"),
        (SOUND[:9], "9 bytes are too few"),
        (SOUND[:-1], "101 bytes do not fit a snapshot of 2 producers"),
        (SOUND + b"p", "103 bytes do not fit"),
        (with_crc(b"\0\1" + bytes(4) + b"\xff\xff\xff\xff"), "of -1 producers"),
        (SOUND[:20] + b"x" + SOUND[21:], "CRC32C does not match"),
    ],
)
def test_damaged_snapshot_is_described(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedSegmentError, match=reason):
        check_snapshot([data])


def test_other_versions_are_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 2, expected 1"):
        check_snapshot([b"\0\2" + SOUND[2:]])


def producer(name: int, first_offset: int) -> bytes:
    """A producer whose transaction began at this offset; -1 means no open transaction."""
    return struct.pack(">qhiqiqiq", name, 3, 9, 90, 4, 1_700_000_000_000, 7, first_offset)


def test_open_transactions_are_those_with_a_first_offset() -> None:
    found = open_transactions(encode_snapshot([producer(5, 70), producer(6, -1), producer(7, 0)]))
    assert [(txn.producer_id, txn.first_offset) for txn in found] == [(5, 70), (7, 0)]
    assert open_transactions(encode_snapshot()) == ()


def test_genuine_snapshots_contain_open_transactions() -> None:
    found = {path: open_transactions(path.read_bytes()) for path in GENUINE}
    assert any(found.values())
    for path, transactions in found.items():
        assert all(0 <= txn.first_offset < int(path.stem) for txn in transactions)


def test_error_for_a_damaged_snapshot_names_it() -> None:
    with pytest.raises(DamagedSegmentError, match=r"7\.snapshot: .*CRC32C"):
        open_transactions(SOUND[:20] + b"x" + SOUND[21:], "7.snapshot")
