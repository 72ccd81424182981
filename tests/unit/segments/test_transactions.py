import struct
from itertools import pairwise
from pathlib import Path

import pytest

from sidetier.segments.arrow import read_markers, scan_headers
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import HEADER_BYTES, parse_batch_header
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction, open_transactions
from sidetier.segments.transactions import Marker, TransactionTracker, read_marker
from sidetier.segments.txn_index import AbortedTxn, parse_txn_index
from tests.harness.broker_segments import directories
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog
from tests.harness.transactions import FEEDS, Feed, feed_headers

Open = tuple[int, int, int]
"""Producer id, first offset, epoch."""
Aborted = tuple[int, int, int, int]
"""Producer id, first offset, offset of the marker, last stable offset."""

all_feeds = pytest.mark.parametrize("feed", FEEDS, ids=lambda feed: feed.__name__)


def log_of(events: str, start: int = 0) -> bytes:
    """Write a log with one offset for each event.

    `w1` is a batch in a transaction of producer 1, `n1` one outside of a transaction, `a1` and `c1`
    are markers that abort and commit, and `w1.5` has epoch 5.
    """
    log = TransactionalLog(next_offset=start)
    for event in events.split():
        producer, _, epoch = event[1:].partition(".")
        if event[0] in "wn":
            log.write(int(producer), transactional=event[0] == "w", epoch=int(epoch or 0))
        else:
            log.mark(int(producer), commit=event[0] == "c", epoch=int(epoch or 0))
    return log.encoded


def opened(*transactions: Open) -> list[OpenTransaction]:
    return [OpenTransaction(name, Offset(first), epoch) for name, first, epoch in transactions]


def state(tracker: TransactionTracker) -> tuple[list[Open], list[Aborted], int, int]:
    assert list(tracker.open) == [entry.producer_id for entry in tracker.open.values()]
    return (
        [(one.producer_id, one.first_offset, one.producer_epoch) for one in tracker.open.values()],
        [
            (one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset)
            for one in tracker.aborted
        ],
        tracker.last_stable_offset,
        tracker.end,
    )


@all_feeds
@pytest.mark.parametrize(
    ("events", "still_open", "aborted", "stable"),
    [
        pytest.param("n1 n1", [], [], 2, id="no transaction"),
        pytest.param("w1 w1", [(1, 0, 0)], [], 0, id="first batch counts"),
        pytest.param("n1 w1 n2", [(1, 1, 0)], [], 1, id="only transactional batches count"),
        pytest.param("w1 w1 c1", [], [], 3, id="committed"),
        pytest.param("w1 w1 a1", [], [(1, 0, 2, 3)], 3, id="aborted"),
        pytest.param("w1 w2 a1 w1 c2", [(1, 3, 0)], [(1, 0, 2, 1)], 3, id="interleaved"),
        pytest.param("w1 a1 w1 a1", [], [(1, 0, 1, 2), (1, 2, 3, 4)], 4, id="again"),
        pytest.param("w3 w2 w1 c3", [(2, 1, 0), (1, 2, 0)], [], 1, id="oldest one holds"),
        pytest.param("a1 c2 w1", [(1, 2, 0)], [], 2, id="marker without a batch"),
        pytest.param("w1.5 w1.6 w1.6", [(1, 0, 6)], [], 0, id="marker in a gap"),
        pytest.param("w1.5 w1.6 a1.7", [], [(1, 0, 2, 3)], 3, id="marker in a gap, then aborted"),
        pytest.param("w1.5 a1.6 w1.6 c1.7", [], [(1, 0, 1, 2)], 4, id="epochs of transactions v2"),
        pytest.param("w1.5 a1.9", [], [(1, 0, 1, 2)], 2, id="fenced"),
    ],
)
def test_next_marker_of_a_producer_ends_its_transaction(
    events: str, still_open: list[Open], aborted: list[Aborted], stable: int, feed: Feed
) -> None:
    tracker = TransactionTracker()
    feed(tracker, log_of(events))
    assert state(tracker) == (still_open, aborted, stable, len(events.split()))


@all_feeds
def test_transactions_from_before_the_start(feed: Feed) -> None:
    log = log_of("n9 w5 a5 c6", start=50)
    before = opened((6, 30, 2), (5, 20, 0))
    tracker = TransactionTracker(50, before)
    feed(tracker, log)
    assert state(tracker) == ([], [(5, 20, 52, 30)], 54, 54)
    unknown = TransactionTracker(50)
    feed(unknown, log)
    assert state(unknown) == ([], [(5, 51, 52, 53)], 54, 54), "seen at the next batch"


@all_feeds
def test_batches_that_were_fed_are_ignored(feed: Feed) -> None:
    log = log_of("w1 w2 a1 w1 c2")
    tracker = TransactionTracker()
    feed(tracker, log)
    before = state(tracker)
    feed(tracker, log)
    assert state(tracker) == before


def test_files_beside_a_segment_replace_its_batches() -> None:
    tracker = TransactionTracker()
    feed_headers(tracker, log_of("w1 w2 w4"))
    entries = [AbortedTxn(1, Offset(0), Offset(3), Offset(1))]
    # In the order of the snapshot's bytes, which is any order.
    tracker.skip_to(8, entries, opened((3, 7, 0), (2, 1, 0)))
    expected = [(2, 1, 0), (3, 7, 0)], [(1, 0, 3, 1)], 1, 8
    assert state(tracker) == expected, "replaced, not merged: the transaction of 4 has ended"
    tracker.skip_to(8, [AbortedTxn(2, Offset(1), Offset(4), Offset(1))], [])
    assert state(tracker) == expected, "no offset is new"
    tracker.skip_to(9, entries, opened((3, 7, 0)))
    assert state(tracker) == ([(3, 7, 0)], [(1, 0, 3, 1)], 7, 9), "the marker was known"


def test_ended_transactions_are_returned() -> None:
    tracker = TransactionTracker()
    batch, commit, abort = (
        parse_batch_header(log_of(event, start))
        for start, event in enumerate(("w1.4", "c1.5", "a1.5"))
    )
    assert tracker.feed(batch) is None
    assert tracker.feed(commit, Marker.COMMIT) == OpenTransaction(1, Offset(0), 4)
    assert tracker.feed(abort, Marker.ABORT) is None, "nothing was open"


def test_aborted_transactions_below_an_offset_are_forgotten() -> None:
    tracker = TransactionTracker()
    feed_headers(tracker, log_of("w1 a1 " * 100))
    tracker.forget_below(190)
    assert [one.last_offset for one in tracker.aborted] == [191, 193, 195, 197, 199]


@all_feeds
@pytest.mark.parametrize("folder", directories(), ids=lambda folder: folder.name)
def test_state_at_the_end_of_each_segment_equals_the_brokers(folder: Path, feed: Feed) -> None:
    tracker = TransactionTracker()
    for path, following in pairwise(sorted(folder.glob("*.log"))):
        feed(tracker, path.read_bytes())
        index, snapshot = (
            path.with_suffix(FileKind.TXNINDEX.value),
            following.with_suffix(FileKind.SNAPSHOT.value),
        )
        assert list(tracker.aborted) == list(
            parse_txn_index(index.read_bytes()) if index.exists() else ()
        )
        if snapshot.exists():
            theirs = open_transactions(snapshot.read_bytes())
            assert sorted(tracker.open.values(), key=repr) == sorted(theirs, key=repr)
        tracker.forget_below(int(following.stem))


def control(key: bytes | None, *, is_empty: bool = False) -> bytes:
    records = () if is_empty else (MadeRecord(0, key=key),)
    return MadeBatch(
        records,
        base_offset=0,
        last_offset=0,
        is_control=True,
        is_transactional=True,
        producer_id=1,
    ).encoded()


def markers_of(log: bytes) -> set[int]:
    """Read the marker of a control batch in both ways."""
    scalar = read_marker(parse_batch_header(log), log[HEADER_BYTES:])
    return {scalar, *read_markers(log, scan_headers(log)).tolist()}


@pytest.mark.parametrize(
    ("log", "marker"),
    [
        (control(struct.pack(">hh", 0, 0)), Marker.ABORT),
        (control(struct.pack(">hh", 0, 1)), Marker.COMMIT),
        (control(struct.pack(">hhi", 1, 1, 7)), Marker.COMMIT),
        (control(struct.pack(">hh", 0, 2)), Marker.NONE),
        (control(struct.pack(">hh", 0, -1)), Marker.NONE),
        (control(None, is_empty=True), Marker.NONE),
    ],
    ids=["abort", "commit", "longer", "leader change", "unknown", "emptied"],
)
@all_feeds
def test_marker_of_a_control_batch(log: bytes, marker: Marker, feed: Feed) -> None:
    assert markers_of(log) == {marker}
    tracker = TransactionTracker(0, opened((1, 0, -1)))
    feed(tracker, log)
    assert (not tracker.open) == (marker is not Marker.NONE)
    assert len(tracker.aborted) == (marker is Marker.ABORT)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_control_record_without_its_key_is_damage(key: bytes | None) -> None:
    log = control(key)
    with pytest.raises(DamagedSegmentError, match="offset 0 is not a transaction marker"):
        read_marker(parse_batch_header(log), log[HEADER_BYTES:])
    with pytest.raises(DamagedSegmentError, match=r"t: byte 9: batch with base offset 0: .*key"):
        read_markers(log, scan_headers(log), name="t", position=9)
