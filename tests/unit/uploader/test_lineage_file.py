"""The stored `leader-epoch-checkpoint`: the epoch of every stored record, in few requests."""

from itertools import count
from pathlib import Path

import pytest

from sidetier.segments.errors import (
    ArchiveConflictError,
    MalformedObjectError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.segments.lineage import Lineage
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import Body, IfAbsent, StoredObject
from sidetier.uploader.archive.lineage_file import NOT_STORED, LineageFile, StoredLineage
from sidetier.uploader.daemon import DaemonDiedError
from sidetier.uploader.sending.upload import StoredSegment
from tests.harness.daemons import LAYOUT, LeadershipByHand, Site, stored_logs, stored_next
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.mortal_store import MortalStore
from tests.harness.stored_log import read_batches

TP = TopicPartition("t", 0)
KEY = LAYOUT.epoch_checkpoint_key(TP)


def lineage(*entries: tuple[int, int]) -> Lineage:
    return Lineage(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in entries))


def segment(base: int, end: int, known: Lineage, *, sparse: bool = False) -> StoredSegment:
    return StoredSegment(BaseOffset(base), Offset(end), 0, 10, 10, known, sparse)


def text(store: FakeStorage) -> str:
    return store.contents()[KEY].decode()


FULL = lineage((0, 0), (3, 15), (5, 40))


def test_it_is_kafkas_own_text_up_to_what_is_stored(store: FakeStorage) -> None:
    file = LineageFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL), segment(20, 40, FULL)])
    assert text(store) == "0\n2\n0 0\n3 15\n"
    assert known.lineage == lineage((0, 0), (3, 15))
    assert [r.operation for r in store.requests] == ["put"]


def test_what_does_not_change_it_costs_nothing(store: FakeStorage) -> None:
    file = LineageFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    again = file.cover(TP, known, Offset(20), [segment(20, 40, FULL)])
    assert again == known
    assert len(store.requests) == 1
    file.cover(TP, known, Offset(40), [segment(40, 50, FULL)])
    assert text(store) == "0\n3\n0 0\n3 15\n5 40\n"
    assert [r.operation for r in store.requests] == ["put", "put"]


def test_of_an_archive_that_exists_it_is_read_once(store: FakeStorage) -> None:
    LineageFile(store, LAYOUT).cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    file = LineageFile(store, LAYOUT)
    known = file.cover(TP, None, Offset(20), [segment(20, 30, FULL)])
    file.cover(TP, known, Offset(30), [segment(30, 40, FULL)])
    assert [r.operation for r in store.requests] == ["put", "get"]


def test_retention_on_the_broker_never_shortens_it(store: FakeStorage) -> None:
    file = LineageFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    retained = lineage((3, 30), (5, 40))
    file.cover(TP, known, Offset(20), [segment(20, 50, retained)])
    assert text(store) == "0\n3\n0 0\n3 15\n5 40\n"


def test_what_retention_took_between_two_segments_is_not_lost(store: FakeStorage) -> None:
    """The first was verified before the broker's file was cut, the second after it."""
    file = LineageFile(store, LAYOUT)
    stored = [segment(0, 20, lineage((0, 0), (3, 15))), segment(20, 50, lineage((5, 45)))]
    file.cover(TP, NOT_STORED, Offset(0), stored)
    assert text(store) == "0\n3\n0 0\n3 15\n5 45\n"


def test_a_lost_race_is_merged(store: FakeStorage) -> None:
    file = LineageFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    LineageFile(store, LAYOUT).cover(TP, known, Offset(20), [segment(20, 45, FULL)])
    later = lineage((0, 0), (3, 15), (5, 40), (7, 50))
    file.cover(TP, known, Offset(45), [segment(45, 60, later)])
    assert text(store) == "0\n4\n0 0\n3 15\n5 40\n7 50\n"


def test_a_lost_answer_is_no_race(store: FakeStorage) -> None:
    file = LineageFile(store, LAYOUT)
    store.fail("put", StoreTimeoutError("no answer"), key=KEY, after=True)
    with pytest.raises(StoreTimeoutError):
        file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    assert known == StoredLineage(lineage((0, 0), (3, 15)), store.head_object(KEY).etag)


def test_one_who_always_loses_gives_up_with_a_conflict() -> None:
    store = _AlwaysChanged()
    with pytest.raises(ArchiveConflictError, match="5 times"):
        LineageFile(store, LAYOUT).cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])


def test_a_commit_that_never_came_through_is_not_believed(store: FakeStorage) -> None:
    """Killed before the watermark; then an unclean election took what was to be stored."""
    file = LineageFile(store, LAYOUT)
    file.cover(TP, NOT_STORED, Offset(0), [segment(0, 50, FULL)])
    other = lineage((0, 0), (3, 15), (8, 35))
    file.cover(TP, None, Offset(20), [segment(20, 45, other)])
    assert text(store) == "0\n3\n0 0\n3 15\n8 35\n"


def test_a_fork_below_the_watermark_is_a_conflict(store: FakeStorage) -> None:
    file = LineageFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 50, FULL)])
    with pytest.raises(ArchiveConflictError, match=f"{KEY}: archive and log have forked"):
        file.cover(TP, known, Offset(50), [segment(50, 60, lineage((0, 0), (3, 15), (8, 35)))])
    assert text(store) == "0\n3\n0 0\n3 15\n5 40\n"


def test_an_epoch_that_starts_where_a_stored_one_did_has_replaced_it(store: FakeStorage) -> None:
    """A commit of what an election has thrown away meanwhile, and then one of what came instead."""
    file = LineageFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 6, lineage((0, 0)))])
    for after in (lineage((1, 0)), lineage((0, 0), (1, 0))):
        with pytest.raises(ArchiveConflictError, match="offset 0 is of leader epoch 0 in the arch"):
            file.cover(TP, known, Offset(6), [segment(6, 12, after)])
    file.cover(TP, known, Offset(6), [segment(6, 12, lineage((0, 4), (1, 6)))])
    assert text(store) == "0\n2\n0 0\n1 6\n"


def test_a_compacted_log_may_know_a_higher_start(store: FakeStorage) -> None:
    file = LineageFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 50, FULL)])
    compacted = lineage((0, 3), (3, 18), (5, 44), (6, 55))
    with pytest.raises(ArchiveConflictError, match="leader epoch 3 starts at 15 in the archive"):
        file.cover(TP, known, Offset(50), [segment(50, 60, compacted)])
    file.cover(TP, known, Offset(50), [segment(50, 60, compacted, sparse=True)])
    assert text(store) == "0\n4\n0 0\n3 15\n5 40\n6 55\n"


@pytest.mark.parametrize("data", [b"nonsense", b"1\n0\n", b"0\n2\n3 10\n2 20\n", b"\xff"])
def test_a_malformed_one_is_not_overwritten(store: FakeStorage, data: bytes) -> None:
    store.put_object(KEY, BytesBody(data))
    with pytest.raises(MalformedObjectError, match=f"{KEY}: not a leader epoch checkpoint"):
        LineageFile(store, LAYOUT).cover(TP, None, Offset(20), [segment(20, 30, FULL)])
    assert store.contents()[KEY] == data


# -- the whole way --------------------------------------------------------------------------------


def _rising(log: PartitionLog, epochs: int, first: int = 0) -> None:
    """Two closed segments in each epoch, the last one reaching into the next."""
    for epoch in range(first, first + epochs):
        if epoch:
            log.lead(epoch)
        log.append(5)
        log.roll()
        log.closed_segment()
        log.append(5)
    log.roll()


def _check(store: FakeStorage, tp: TopicPartition) -> None:
    """Every stored batch's epoch is the one that the stored checkpoint tells for its offset."""
    stored = LineageFile(store, LAYOUT).read(tp).lineage
    seen = set()
    for base, data in stored_logs(store, tp).items():
        for batch in read_batches(data, f"{base}.log"):
            assert stored.epoch_at(batch.base_offset) == batch.leader_epoch
            seen.add(batch.leader_epoch)
    assert seen == {epoch for epoch, _ in stored.entries}


def test_every_stored_record_finds_its_epoch(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, site: Site
) -> None:
    _rising(log, 4)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    _check(store, log.tp)
    for base in log.bases()[:6]:
        log.unlink(base)
    log._epochs = [(2, 55), (3, 60)]
    _rising(log, 2, 4)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    _check(store, log.tp)
    stored = LineageFile(store, LAYOUT).read(log.tp).lineage
    assert [epoch for epoch, _ in stored.entries] == [0, 1, 2, 3, 4, 5]


def test_five_segments_of_a_new_partition_cost_one_write_of_it(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, site: Site
) -> None:
    log.closed_segments(5)
    log_dir.checkpoint_high_watermarks()
    site.settle(threads=1)
    assert stored_next(store, log.tp) == 50
    assert [r.operation for r in store.requests if r.key == KEY] == ["put"]
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    site.settle(threads=1)
    assert [r.operation for r in store.requests if r.key == KEY] == ["put", "get"]


def test_it_stands_before_the_watermark_moves(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, site: Site
) -> None:
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    store.refuse(KEY, StoreUnavailableError("away"))
    with site.running() as running:
        running.wait(lambda: store.count("put", KEY) > 0, "a try")
    assert stored_next(store, log.tp) is None
    store.heal()
    site.settle()
    assert stored_next(store, log.tp) == 20


def test_what_a_killed_leader_left_is_named_with_its_epochs(
    tmp_path: Path, store: FakeStorage
) -> None:
    """Two epochs lie above the watermark, and the broker that goes on has deleted them."""
    log_dir = LogDir(tmp_path / "one")
    log = log_dir.create()
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    _rising(log, 2, 1)
    log_dir.checkpoint_high_watermarks()
    store.refuse(LAYOUT.watermark_key(log.tp))
    store.refuse(KEY)
    with Site([log_dir], store).running() as running:
        running.wait(lambda: len(stored_logs(store, log.tp)) == 6, "all logs")
    store.heal()
    log._epochs = [(2, log.log_end)]
    log.lead(3)
    for base in log.bases()[:-1]:
        log.unlink(base)
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()
    site = Site([log_dir], store, leadership=LeadershipByHand({log.tp: 3}))
    site.settle()
    assert stored_next(store, log.tp) == log.active
    _check(store, log.tp)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_request_leaves_a_true_lineage(tmp_path: Path, *, after: bool) -> None:
    kills = 0
    for lives in count():
        store = FakeStorage()
        log_dir = LogDir(tmp_path / f"{lives}")
        log = log_dir.create()
        _rising(log, 2)
        log_dir.checkpoint_high_watermarks()
        site = Site([log_dir], MortalStore(store, lives, after=after))
        try:
            site.settle(threads=1, request_threads=1)
        except DaemonDiedError:
            kills += 1
        else:
            break
        site.store = store
        site.settle()
        assert stored_next(store, log.tp) == log.active
        _check(store, log.tp)
    assert kills >= 10


class _AlwaysChanged(FakeStorage):
    """Somebody else writes the checkpoint whenever it was read."""

    def get_object(self, key: str) -> StoredObject:
        found = super().get_object(key)
        rows = found.data.decode().split("\n")[2:-1]
        epoch = int(rows[-1].split()[0]) + 1 if rows else 10
        super().put_object(key, BytesBody(f"0\n1\n{epoch} 0\n".encode()))
        return found

    def put_object(self, key: str, body: Body, **more: object) -> str:
        if more.get("condition") == IfAbsent():
            super().put_object(key, BytesBody(b"0\n1\n10 0\n"))
        return super().put_object(key, body, **more)  # type: ignore[arg-type]
