"""Genuine segments of a broker decode to exactly the records that consumers read from them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sidetier.segments.arrow import (
    COLUMNS,
    Fate,
    decode_batches,
    decode_in_pieces,
    fates_of,
    scan_headers,
)
from sidetier.segments.headers import Compression, parse_batch_header, walk_headers
from sidetier.segments.producer_snapshot import open_transactions
from sidetier.segments.transactions import TransactionTracker
from sidetier.segments.txn_index import AbortedTxn, parse_txn_index
from tests.harness.arrow_reading import (
    WAYS,
    as_consumed,
    committed,
    decoded,
    expected,
    only,
    rows,
    uncommitted,
)
from tests.harness.batches import pread_of
from tests.harness.broker_segments import directories

FOLDERS = pytest.mark.parametrize("folder", directories(), ids=lambda path: path.name)


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


@FOLDERS
@pytest.mark.parametrize("few", WAYS.values(), ids=WAYS)
def test_read_uncommitted_equals_the_consumer_output(folder: Path, few: int) -> None:
    with only(few):
        assert list(uncommitted(logs(folder))) == expected(folder, "read_uncommitted")


@FOLDERS
def test_read_committed_by_markers_equals_the_consumer_output(folder: Path) -> None:
    assert list(committed(logs(folder))) == expected(folder, "read_committed")


@FOLDERS
def test_read_committed_by_transaction_indexes_equals_the_consumer_output(folder: Path) -> None:
    """The `.txnindex` of each closed segment, and the producer snapshot of the following
    segment.
    """
    tracker = TransactionTracker()
    closed = list(pairwise(logs(folder)))
    for log, following in closed:
        snapshot = following.with_suffix(".snapshot")
        tracker.skip_to(
            int(following.stem),
            aborted_in(log),
            open_transactions(snapshot.read_bytes(), snapshot.name) if snapshot.exists() else (),
        )
    end = tracker.last_stable_offset
    read = [row for log, _ in closed for row in committed_in(log, tracker, end)]
    wanted = expected(folder, "read_committed")
    assert read == [row for row in wanted if row["offset"] < end]
    assert read


def committed_in(log: Path, tracker: TransactionTracker, end: int) -> list[dict[str, Any]]:
    data = log.read_bytes()
    headers = scan_headers(data, name=log.name)
    keep = fates_of(tracker, headers) == Fate.COMMITTED
    return list(map(as_consumed, rows(decode_batches(data, headers, keep=keep, end=end))))


def aborted_in(log: Path) -> tuple[AbortedTxn, ...]:
    index = log.with_suffix(".txnindex")
    return parse_txn_index(index.read_bytes(), index.name) if index.exists() else ()


def test_fixtures_have_aborted_records_and_all_codecs() -> None:
    tx = next(folder for folder in directories() if folder.name == "tx-0")
    assert len(expected(tx, "read_committed")) < len(expected(tx, "read_uncommitted"))
    seen = {
        header.compression
        for folder in directories()
        for log in logs(folder)
        for data in [log.read_bytes()]
        for _, header in walk_headers(pread_of(data), len(data))
    }
    assert seen == set(Compression)


@FOLDERS
def test_headers_equal_those_of_the_pure_python_reader(folder: Path) -> None:
    for log in logs(folder):
        data = log.read_bytes()
        headers = scan_headers(data)
        assert headers.next_position == len(data)
        for row in range(len(headers)):
            header = parse_batch_header(data, int(headers.rows["position"][row]))
            for name in headers.rows.dtype.names or ():
                if name != "position":
                    assert headers.rows[name][row] == getattr(header, name)
            assert headers.codecs[row] == header.compression.value
            assert headers.timestamp_types[row] == header.timestamp_type.value
            assert headers.is_transactional[row] == header.is_transactional
            assert headers.is_control[row] == header.is_control


@FOLDERS
@pytest.mark.parametrize("piece_bytes", [1, 3000, 1 << 30])
def test_concatenated_pieces_equal_the_whole(folder: Path, piece_bytes: int) -> None:
    for log in logs(folder):
        data = log.read_bytes()
        headers = scan_headers(data)
        pieces = list(decode_in_pieces(data, headers, piece_bytes=piece_bytes))
        assert all(piece.num_rows for piece in pieces)
        assert [row for piece in pieces for row in rows(piece)] == decoded(data)
        if piece_bytes == 1:
            assert len(pieces) == int(
                (~headers.is_control & (headers.rows["record_count"] > 0)).sum()
            )


@FOLDERS
@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_decoded_alone_equals_the_column_among_others(folder: Path, name: str) -> None:
    for log in logs(folder):
        data = log.read_bytes()
        assert decoded(data, columns=[name]) == [{name: row[name]} for row in decoded(data)]
