"""`.txnindex` and `.snapshot` are stored if they are valid and never block their segment."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sidetier.segments.crc import crc64nvme
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import OPTIONAL_KINDS, REQUIRED_KINDS, FileKind, segment_file_name
from sidetier.segments.notes import MISSING, NONE, NOTE_KEYS
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.segments.producer_snapshot import encode_snapshot
from sidetier.segments.txn_index import AbortedTxn, encode_txn_index, parse_txn_index
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.pinning import pins
from sidetier.uploader.pinning.pins import PinnedSegment, pin
from sidetier.uploader.sending.upload import Destination, ReadingRules, Uploader
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import StoredSegment
from tests.harness.broker_segments import ROOT, BrokerSegment, closed_segments
from tests.harness.daemons import LAYOUT, Site, key_of, stored_next
from tests.harness.log_dir import LogDir, PartitionLog

TP = TopicPartition("t", 0)
BASE, END = 8, 130
"""The real segment with aborted transactions and a snapshot of one producer."""
GENUINE = [s for s in closed_segments() if s.directory.name != "compacted-0"]
"""Without the segments that compaction has merged: their ends are no longer where they rolled."""


class Shelf:
    """A copy of a genuine partition, whose files can be damaged, and a store."""

    def __init__(self, directory: Path, store: FakeStorage) -> None:
        self.directory = directory
        self.store = store
        self.pinned: PinnedSegment | None = None

    def file(self, kind: FileKind, base: int = BASE) -> Path:
        return self.directory / segment_file_name(BaseOffset(base), kind)

    def pin(self, base: int = BASE, end: int = END) -> PinnedSegment:
        segment = ClosedSegment(BaseOffset(base), BaseOffset(end), marked_for_deletion=False)
        self.pinned = pin(str(self.directory), segment)
        return self.pinned

    def store_it(self, start: int = BASE, base: int = BASE, end: int = END) -> StoredSegment:
        pinned = self.pinned or self.pin(base, end)
        planned = PlannedSegment(pinned.segment, Offset(start))
        uploader = Uploader(ReadingRules(lambda _: None, give_back_cold=False))
        to = Destination(self.store, LAYOUT, TP, LeaderEpoch(0), BrokerId(1))
        stored = uploader.upload(to, pinned, planned, frozenset())
        pinned.close()
        return stored

    def kinds(self) -> list[str]:
        """File kinds of the PUT requests, in order."""
        return [Path(r.key).suffix for r in self.store.requests if r.operation == "put"]

    def notes(self, base: int = BASE) -> list[str]:
        """Checksums of both kinds in the metadata of the `.log`."""
        metadata = self.store.head_object(key_of(TP, base)).metadata
        return [metadata[NOTE_KEYS[kind]] for kind in OPTIONAL_KINDS]


@pytest.fixture
def shelf(tmp_path: Path, store: FakeStorage) -> Iterator[Shelf]:
    shutil.copytree(ROOT / "tx-0", tmp_path / "t-0")
    shelf = Shelf(tmp_path / "t-0", store)
    yield shelf
    if shelf.pinned is not None:
        shelf.pinned.close()


def test_optional_files_are_stored_between_the_indexes_and_the_log(shelf: Shelf) -> None:
    stored = shelf.store_it()
    assert shelf.kinds() == [".index", ".timeindex", ".txnindex", ".snapshot", ".log"]
    for kind in FileKind:
        assert shelf.store.contents()[key_of(TP, BASE, kind)] == shelf.file(kind).read_bytes()
    assert stored.left_out == ()
    sums = [f"{crc64nvme(shelf.file(kind).read_bytes()):016x}" for kind in OPTIONAL_KINDS]
    assert shelf.notes() == sums


@pytest.mark.parametrize("segment", GENUINE, ids=str)
def test_every_genuine_segment_is_stored_with_its_optional_files(
    segment: BrokerSegment, store: FakeStorage
) -> None:
    base, end = segment.base, segment.next_base
    shelf = Shelf(segment.directory, store)
    assert shelf.store_it(base, base, end).left_out == ()
    snapshot = shelf.file(FileKind.SNAPSHOT, base)
    there = {
        FileKind.TXNINDEX: shelf.file(FileKind.TXNINDEX, base).exists(),
        FileKind.SNAPSHOT: snapshot.exists() and snapshot.stat().st_size > 10,
    }
    found = {kind: key_of(TP, base, kind) in store.contents() for kind in OPTIONAL_KINDS}
    assert found == there
    assert [note != NONE for note in shelf.notes(base)] == [there[kind] for kind in OPTIONAL_KINDS]


def test_segment_without_optional_files_sends_no_request_for_them(shelf: Shelf) -> None:
    for kind in OPTIONAL_KINDS:
        shelf.file(kind).unlink()
    shelf.store_it()
    assert [(r.operation, Path(r.key).suffix) for r in shelf.store.requests] == [
        ("put", ".index"),
        ("put", ".timeindex"),
        ("put", ".log"),
    ]
    assert shelf.notes() == [NONE, NONE]


def test_snapshot_without_a_producer_is_neither_pinned_nor_stored(shelf: Shelf) -> None:
    shelf.file(FileKind.SNAPSHOT).write_bytes(encode_snapshot())
    assert set(shelf.pin().descriptors) == {*REQUIRED_KINDS, FileKind.TXNINDEX}
    shelf.store_it()
    assert ".snapshot" not in shelf.kinds()
    assert shelf.notes()[1] == NONE


@pytest.mark.parametrize(
    ("kind", "damage", "reason"),
    [
        (FileKind.TXNINDEX, lambda data: data[:-1], "an entry is cut"),
        (FileKind.TXNINDEX, lambda data: b"\0\1" + data[2:], "version 1"),
        (FileKind.TXNINDEX, lambda data: data + data[:34], "an abort marker at offset"),
        (
            FileKind.TXNINDEX,
            lambda data: (
                data + encode_txn_index([AbortedTxn(1, Offset(9), Offset(END), Offset(9))])
            ),
            f"below {END}",
        ),
        (FileKind.SNAPSHOT, lambda data: data[:-1], "do not fit"),
        (FileKind.SNAPSHOT, lambda data: data[:-1] + b"x", "CRC32C"),
        (FileKind.SNAPSHOT, lambda data: b"\0\2" + data[2:], "version 2"),
        (FileKind.SNAPSHOT, lambda _: b"", "too few"),
    ],
)
def test_damaged_optional_file_is_left_out_and_the_segment_is_stored(
    shelf: Shelf, kind: FileKind, damage: Callable[[bytes], bytes], reason: str
) -> None:
    path = shelf.file(kind)
    path.write_bytes(damage(path.read_bytes()))
    stored = shelf.store_it()
    assert kind.value not in shelf.kinds()
    assert shelf.kinds()[-1] == ".log"
    ((left_out, why),) = stored.left_out
    assert left_out is kind
    assert reason in why
    assert shelf.notes()[OPTIONAL_KINDS.index(kind)] == MISSING


@pytest.mark.parametrize("kind", OPTIONAL_KINDS)
def test_optional_file_that_cannot_be_opened_is_left_out(shelf: Shelf, kind: FileKind) -> None:
    path = shelf.file(kind)
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))  # never followed
    ((left_out, why),) = shelf.store_it().left_out
    assert left_out is kind
    assert path.name in why
    assert shelf.notes()[OPTIONAL_KINDS.index(kind)] == MISSING


@pytest.mark.parametrize("kind", OPTIONAL_KINDS)
def test_optional_file_that_cannot_be_read_is_left_out(shelf: Shelf, kind: FileKind) -> None:
    pinned = shelf.pin()
    os.close(pinned.descriptors[kind])
    pinned.descriptors[kind] = os.open(shelf.directory, os.O_RDONLY)  # EISDIR
    ((left_out, why),) = shelf.store_it().left_out
    assert left_out is kind
    assert "directory" in why
    assert shelf.kinds()[-1] == ".log"


def test_optional_file_unlinked_before_the_open_is_noted_as_missing(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker unlinks the `.log` first; after that nothing shows whether the optional file
    existed.
    """
    opened = pins._open

    def unlink_behind(directory: str, base: BaseOffset, kind: FileKind) -> int | None:
        descriptor = opened(directory, base, kind)
        if kind is FileKind.TIMEINDEX:
            for one in FileKind:
                shelf.file(one).unlink()
        return descriptor

    monkeypatch.setattr(pins, "_open", unlink_behind)
    stored = shelf.store_it()
    assert {kind for kind, _ in stored.left_out} == set(OPTIONAL_KINDS)
    assert shelf.notes() == [MISSING, MISSING]


def test_too_many_open_files_do_not_leave_an_optional_file_out(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = pins._open

    def refuse(directory: str, base: BaseOffset, kind: FileKind) -> int | None:
        if kind is FileKind.SNAPSHOT:
            raise OSError(24, "Too many open files")
        return opened(directory, base, kind)

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(pins, "_open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        shelf.pin()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# -- slices ---------------------------------------------------------------------------------------


def test_slice_has_the_transactions_that_end_in_it_and_no_snapshot(shelf: Shelf) -> None:
    whole = parse_txn_index(shelf.file(FileKind.TXNINDEX).read_bytes())
    middle = whole[len(whole) // 2]
    stored = shelf.store_it(start=middle.last_offset)
    base = stored.base_offset
    assert BASE < base <= middle.last_offset
    kept = tuple(txn for txn in whole if txn.last_offset >= base)
    assert 0 < len(kept) < len(whole)
    found = shelf.store.contents()[key_of(TP, base, FileKind.TXNINDEX)]
    assert parse_txn_index(found) == kept
    assert key_of(TP, base, FileKind.SNAPSHOT) not in shelf.store.contents()
    assert shelf.notes(base) == [f"{crc64nvme(found):016x}", MISSING]
    assert stored.left_out == (), "that is no fault"


def test_slice_without_aborted_transactions_has_no_transaction_index(shelf: Shelf) -> None:
    last = parse_txn_index(shelf.file(FileKind.TXNINDEX).read_bytes())[-1].last_offset
    stored = shelf.store_it(start=last + 1)
    assert ".txnindex" not in shelf.kinds()
    assert shelf.notes(stored.base_offset) == [NONE, MISSING]


# -- end to end -----------------------------------------------------------------------------------


def _transactional(log: PartitionLog, count: int = 3) -> None:
    """Write closed segments, each with an aborted transaction and a producer's state."""
    for _ in range(count):
        first = log.log_end
        base = log.closed_segment()
        entry = AbortedTxn(7, Offset(first), Offset(log.log_end - 1), Offset(log.log_end))
        log.file(base, FileKind.TXNINDEX).write_bytes(encode_txn_index([entry]))
        log.file(base, FileKind.SNAPSHOT).write_bytes(encode_snapshot([b"p" * 46]))


def test_daemon_counts_and_logs_files_that_it_leaves_out(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, site: Site
) -> None:
    _transactional(log)
    log.file(10, FileKind.SNAPSHOT).write_bytes(b"damaged")
    log_dir.checkpoint_high_watermarks()
    with capture_logs() as logs:
        site.settle()
    assert stored_next(store, log.tp) == 30
    (told,) = (entry for entry in logs if entry["event"] == "segment.file_left_out")
    assert (told["base_offset"], told["file"]) == (10, "snapshot")


def test_restart_does_not_upload_optional_files_again(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, site: Site
) -> None:
    _transactional(log)
    log_dir.checkpoint_high_watermarks()
    store.refuse(key_of(log.tp, 20))
    with site.running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 20, "two of three")
        snapshot = key_of(log.tp, 20, FileKind.SNAPSHOT)
        running.wait(lambda: snapshot in store.contents(), "the third's snapshot")
    store.heal()
    before = store.count("put", snapshot)
    site.settle()
    assert stored_next(store, log.tp) == 30
    assert store.count("put", snapshot) == before


def test_optional_files_marked_for_deletion_are_pinned_with_their_segment(
    log: PartitionLog,
) -> None:
    _transactional(log, 1)
    log.stage(0)
    pinned = pin(
        str(log.path), ClosedSegment(BaseOffset(0), BaseOffset(10), marked_for_deletion=True)
    )
    assert set(pinned.descriptors) == set(FileKind)
    pinned.close()
