import struct

import numpy as np
import pytest

from sidetier.segments.arrow import (
    Fate,
    HeaderTable,
    fates_of,
    feed_table,
    read_markers,
    scan_headers,
)
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import Compression
from sidetier.segments.transactions import Marker, TransactionTracker
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog


def fates(tracker: TransactionTracker, headers: HeaderTable) -> str:
    """One letter per batch: A (aborted), U (undecided), C (committed, or a control batch)."""
    return "".join(Fate(int(fate)).name[0] for fate in fates_of(tracker, headers))


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


def test_transactional_batch_without_a_marker_is_undecided() -> None:
    log = interleaved().encoded
    headers = scan_headers(log)
    tracker = TransactionTracker()
    assert fates(tracker, headers) == "UUUCUCCUCCUC"
    for rows, expected in ((4, "AUACUCCUCCUC"), (12, "ACACCCCUCCAC")):
        part = headers.where(slice(0, rows))
        feed_table(tracker, part, read_markers(log, part))
        assert fates(tracker, headers) == expected


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


def test_damaged_marker_is_reported() -> None:
    record = MadeRecord(0, key=struct.pack(">hh", 0, 1))
    log = bytearray(MadeBatch((record,), is_control=True, is_transactional=True).encoded())
    log[-1] ^= 1
    with pytest.raises(DamagedSegmentError, match=r"t: byte 0: .*CRC32C"):
        read_markers(log, scan_headers(log), name="t")


def test_thousands_of_producers_and_transactions_are_decided() -> None:
    log = TransactionalLog()
    for producer in range(300):
        log.write(2**62 + producer)
    for producer in range(0, 300, 2):
        log.mark(2**62 + producer, commit=producer % 4 == 0)
    tracker, headers = TransactionTracker(), scan_headers(log.encoded)
    feed_table(tracker, headers, read_markers(log.encoded, headers))
    wanted = np.full(300, Fate.UNDECIDED)
    wanted[0::4], wanted[2::4] = Fate.COMMITTED, Fate.ABORTED
    assert fates_of(tracker, headers)[:300].tolist() == wanted.tolist()
    assert tracker.last_stable_offset == 1


def test_decompression_bomb_in_a_control_batch_is_damage() -> None:
    """No reader limit applies to it: a broker writes a control record of a few bytes."""
    record = MadeRecord(0, key=bytes(4), value=bytes(2 << 20))
    bomb = MadeBatch((record,), Compression.ZSTD, is_transactional=True, is_control=True).encoded()
    with pytest.raises(DamagedSegmentError, match=r"t: a control batch .* more than 1048576 bytes"):
        read_markers(bomb, scan_headers(bomb), name="t")
