import struct

import numpy as np
import pytest

from sidetier.segments.arrow import (
    Fate,
    HeaderTable,
    Marker,
    TransactionFilter,
    read_markers,
    scan_headers,
)
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import Compression
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.txn_index import AbortedTxn
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog

COMMITTED, ABORTED, UNDECIDED, CONTROL = (fate.name[0] for fate in Fate)


def fates(transactions: TransactionFilter, headers: HeaderTable) -> str:
    """One letter per batch: A (aborted), C (committed) or U (undecided)."""
    return "".join(Fate(int(fate)).name[0] for fate in transactions.fates(headers))


def fed(log: TransactionalLog, **seeds: object) -> tuple[TransactionFilter, HeaderTable]:
    transactions = TransactionFilter(**seeds)  # type: ignore[arg-type]
    headers = scan_headers(log.encoded)
    transactions.feed(headers, read_markers(log.encoded, headers))
    return transactions, headers


def open_at(producer: int, offset: int) -> OpenTransaction:
    return OpenTransaction(producer, Offset(offset))


def interleaved() -> TransactionalLog:
    """Offsets 0 to 11: producers 1 and 2 alternate, 9 writes without a transaction, and 3 never
    ends its transaction.
    """
    log = TransactionalLog()
    log.write(1)
    log.write(2)
    log.write(1)
    log.mark(1, commit=False)
    log.write(1)
    log.write(9, transactional=False)
    log.mark(2, commit=True)
    log.write(3)
    log.mark(1, commit=True)
    log.write(9, transactional=False)
    log.write(2)
    log.mark(2, commit=False)
    return log


def test_next_marker_of_its_producer_decides_a_batch() -> None:
    transactions, headers = fed(interleaved())
    assert fates(transactions, headers) == "ACACCCCUCCAC"
    assert (transactions.last_stable_offset, transactions.known_below) == (7, 12)


def test_transactional_batch_without_a_marker_is_undecided() -> None:
    headers = scan_headers(interleaved().encoded)
    transactions = TransactionFilter()
    assert fates(transactions, headers) == "UUUCUCCUCCUC"
    assert transactions.last_stable_offset == 0
    first = headers.where(slice(0, 4))
    transactions.feed(first, read_markers(interleaved().encoded, first))
    assert fates(transactions, headers) == "AUACUCCUCCUC"
    assert transactions.last_stable_offset == 1


def test_batches_may_be_fed_repeatedly() -> None:
    log = interleaved()
    headers = scan_headers(log.encoded)
    transactions = TransactionFilter()
    for start, end in [(0, 4), (2, 9), (0, 12), (5, 12)]:
        part = headers.where(slice(start, end))
        transactions.feed(part, read_markers(log.encoded, part))
    assert fates(transactions, headers) == "ACACCCCUCCAC"


def test_index_files_decide_batches_in_advance() -> None:
    """The content of `.txnindex` and producer snapshot for the offsets below 8."""
    headers = scan_headers(interleaved().encoded)
    transactions = TransactionFilter()
    aborted = [AbortedTxn(1, Offset(0), Offset(3), Offset(1))]
    transactions.learn(8, aborted, [open_at(1, 4), open_at(3, 7)])
    assert fates(transactions, headers) == "ACACUCCUCCUC"
    assert (transactions.last_stable_offset, transactions.known_below) == (4, 8)
    transactions.learn(5, [AbortedTxn(2, Offset(1), Offset(4), Offset(1))], [])
    assert transactions.last_stable_offset == 4, "what is known is not learnt again"
    assert len(transactions._aborted) == 1
    transactions.learn(9, aborted, [open_at(3, 7)])
    assert len(transactions._aborted) == 1, "nor is what was known before"
    rest = headers.where(slice(8, None))
    transactions.feed(rest, read_markers(interleaved().encoded, rest))
    assert fates(transactions, headers) == "ACACCCCUCCAC"


def test_transaction_from_before_the_start_holds_the_last_stable_offset() -> None:
    log = TransactionalLog(next_offset=50)
    log.write(9, transactional=False)
    log.write(5)
    transactions, headers = fed(log, start=50, open_transactions=[open_at(5, 20), open_at(6, 30)])
    assert (fates(transactions, headers), transactions.last_stable_offset) == ("CU", 20)
    log.mark(5, commit=False)
    log.mark(6, commit=True)
    transactions, headers = fed(log, start=50, open_transactions=[open_at(5, 20), open_at(6, 30)])
    assert (fates(transactions, headers), transactions.last_stable_offset) == ("CACC", 54)
    transactions, headers = fed(log, start=50)
    assert (fates(transactions, headers), transactions.last_stable_offset) == ("CACC", 54)


def test_marker_without_a_transaction_has_no_effect() -> None:
    log = TransactionalLog()
    log.mark(1, commit=False)
    log.write(1)
    log.mark(1, commit=True)
    transactions, headers = fed(log)
    assert fates(transactions, headers) == "CCC"


def test_decisions_below_the_read_offset_are_forgotten() -> None:
    log = TransactionalLog()
    for _ in range(100):
        log.write(1)
        log.mark(1, commit=False)
    transactions, headers = fed(log)
    transactions.forget_below(190)
    assert len(transactions._aborted) == 5
    assert fates(transactions, headers.where(slice(190, None))) == "AC" * 5


def test_markers_are_read_among_other_batches() -> None:
    log = interleaved()
    headers = scan_headers(log.encoded)
    markers = read_markers(log.encoded, headers)
    assert [Marker(int(marker)).name for marker in markers[[0, 3, 6]]] == [
        "NONE",
        "ABORT",
        "COMMIT",
    ]
    some = headers.where(slice(3, 9))
    assert read_markers(log.encoded, some).tolist() == markers[3:9].tolist()


def control(key: bytes | None, *, empty: bool = False) -> bytes:
    records = () if empty else (MadeRecord(0, key=key),)
    return MadeBatch(
        records, base_offset=0, last_offset=0, is_control=True, is_transactional=True
    ).encoded()


@pytest.mark.parametrize(
    "log", [control(struct.pack(">hh", 0, 2)), control(None, empty=True)], ids=["other", "emptied"]
)
def test_other_control_batches_decide_nothing(log: bytes) -> None:
    headers = scan_headers(log)
    assert read_markers(log, headers).tolist() == [Marker.NONE]
    transactions = TransactionFilter(0, [open_at(-1, 0)])
    transactions.feed(headers, read_markers(log, headers))
    assert transactions.last_stable_offset == 0


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_marker_without_a_key_is_damage(key: bytes | None) -> None:
    log = control(key)
    with pytest.raises(DamagedSegmentError, match=r"t: byte 9: batch with base offset 0: .*key"):
        read_markers(log, scan_headers(log), name="t", position=9)


def test_damaged_marker_is_reported() -> None:
    log = bytearray(control(struct.pack(">hh", 0, 1)))
    log[-1] ^= 1
    with pytest.raises(DamagedSegmentError, match=r"t: byte 0: .*CRC32C"):
        read_markers(log, scan_headers(log), name="t")


def test_thousands_of_producers_and_transactions_are_decided() -> None:
    log = TransactionalLog()
    for producer in range(300):
        log.write(2**62 + producer)
    for producer in range(0, 300, 2):
        log.mark(2**62 + producer, commit=producer % 4 == 0)
    transactions, headers = fed(log)
    found = transactions.fates(headers)[:300]
    wanted = np.full(300, Fate.UNDECIDED)
    wanted[0::4], wanted[2::4] = Fate.COMMITTED, Fate.ABORTED
    assert found.tolist() == wanted.tolist()
    assert transactions.last_stable_offset == 1


def test_decompression_bomb_in_a_control_batch_is_damage() -> None:
    """No reader limit applies to it: a broker writes a control record of a few bytes."""
    record = MadeRecord(0, key=bytes(4), value=bytes(2 << 20))
    bomb = MadeBatch((record,), Compression.ZSTD, is_transactional=True, is_control=True).encoded()
    with pytest.raises(DamagedSegmentError, match=r"t: a control batch .* more than 1048576 bytes"):
        read_markers(bomb, scan_headers(bomb), name="t")
