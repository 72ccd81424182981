"""The stored `leader-epoch-checkpoint` has the epoch of every stored record and needs few
requests.
"""

from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Barrier

import pytest

from sidetier.archive.objects.leader_epochs import StoredEpochHistory
from sidetier.archive.objects.pinterest_metadata import PartitionMetadata, encode_metadata
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.epoch_history import EpochHistory, encode_leader_epoch_checkpoint
from sidetier.segments.errors import (
    ArchiveConflictError,
    MalformedObjectError,
    PreconditionFailedError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.segments.names import FileKind
from sidetier.segments.notes import EPOCHS_KEY, LEADER_EPOCH_KEY, NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfAbsent, PutOptions, StoredObject
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.epoch_history_file import NOT_STORED, EpochHistoryFile
from sidetier.uploader.archive.takeover import HELPERS
from sidetier.uploader.archive.watermark_file import WatermarkFile
from sidetier.uploader.daemon import DaemonDiedError
from sidetier.uploader.errors import DivergenceBelowError
from sidetier.uploader.state.segment import StoredSegment
from tests.harness.daemons import LAYOUT, LeadershipByHand, Site, stored_logs, stored_next
from tests.harness.intercepted_store import InterceptedStore, MortalStore, StoreCall
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.stored_log import read_batches

TP = TopicPartition("t", 0)
KEY = LAYOUT.epoch_checkpoint_key(TP)


def epoch_history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in entries))


def segment(base: int, end: int, known: EpochHistory, *, sparse: bool = False) -> StoredSegment:
    return StoredSegment(BaseOffset(base), Offset(end), 0, 10, 10, known, sparse)


def text(store: FakeStorage) -> str:
    return store.contents()[KEY].decode()


FULL = epoch_history((0, 0), (3, 15), (5, 40))


def test_file_is_kafkas_checkpoint_text_up_to_the_stored_offset(store: FakeStorage) -> None:
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL), segment(20, 40, FULL)])
    assert text(store) == "0\n2\n0 0\n3 15\n"
    assert known.epoch_history == epoch_history((0, 0), (3, 15))
    assert [r.operation for r in store.requests] == ["put"]


def test_unchanged_epochs_send_no_request(store: FakeStorage) -> None:
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    again = file.cover(TP, known, Offset(20), [segment(20, 40, FULL)])
    assert again == known
    assert len(store.requests) == 1
    file.cover(TP, known, Offset(40), [segment(40, 50, FULL)])
    assert text(store) == "0\n3\n0 0\n3 15\n5 40\n"
    assert [r.operation for r in store.requests] == ["put", "put"]


def test_file_of_an_existing_archive_is_read_once(store: FakeStorage) -> None:
    EpochHistoryFile(store, LAYOUT).cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, None, Offset(20), [segment(20, 30, FULL)])
    file.cover(TP, known, Offset(30), [segment(30, 40, FULL)])
    assert [r.operation for r in store.requests] == ["put", "get"]


def test_broker_retention_never_shortens_the_file(store: FakeStorage) -> None:
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    retained = epoch_history((3, 30), (5, 40))
    file.cover(TP, known, Offset(20), [segment(20, 50, retained)])
    assert text(store) == "0\n3\n0 0\n3 15\n5 40\n"


def test_epochs_that_retention_drops_between_two_segments_are_kept(store: FakeStorage) -> None:
    """The first segment was verified before the broker shortened its checkpoint, the second after
    that.
    """
    file = EpochHistoryFile(store, LAYOUT)
    stored = [
        segment(0, 20, epoch_history((0, 0), (3, 15))),
        segment(20, 50, epoch_history((5, 45))),
    ]
    file.cover(TP, NOT_STORED, Offset(0), stored)
    assert text(store) == "0\n3\n0 0\n3 15\n5 45\n"


def test_lost_race_is_merged(store: FakeStorage) -> None:
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    EpochHistoryFile(store, LAYOUT).cover(TP, known, Offset(20), [segment(20, 45, FULL)])
    later = epoch_history((0, 0), (3, 15), (5, 40), (7, 50))
    file.cover(TP, known, Offset(45), [segment(45, 60, later)])
    assert text(store) == "0\n4\n0 0\n3 15\n5 40\n7 50\n"


def test_lost_answer_is_no_lost_race(store: FakeStorage) -> None:
    file = EpochHistoryFile(store, LAYOUT)
    store.fail("put", StoreTimeoutError("no answer"), key=KEY, after=True)
    with pytest.raises(StoreTimeoutError):
        file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    assert known == StoredEpochHistory(epoch_history((0, 0), (3, 15)), store.head_object(KEY).etag)


def test_writer_gives_up_with_a_conflict_after_five_lost_races() -> None:
    store = _AlwaysChanged(FakeStorage())
    with pytest.raises(ArchiveConflictError, match="5 times"):
        EpochHistoryFile(store, LAYOUT).cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])


def test_epochs_of_an_abandoned_commit_are_replaced(store: FakeStorage) -> None:
    """The sidecar was killed before the watermark; then an unclean election removed the records."""
    file = EpochHistoryFile(store, LAYOUT)
    file.cover(TP, NOT_STORED, Offset(0), [segment(0, 50, FULL)])
    other = epoch_history((0, 0), (3, 15), (8, 35))
    file.cover(TP, None, Offset(20), [segment(20, 45, other)])
    assert text(store) == "0\n3\n0 0\n3 15\n8 35\n"


def test_loser_of_a_commit_does_not_shorten_the_winners_file(
    store: FakeStorage,
) -> None:
    """A follower that stands in began from the same watermark and is slower."""
    file = EpochHistoryFile(store, LAYOUT)
    file.cover(TP, NOT_STORED, Offset(0), [segment(0, 50, FULL)])
    file.cover(TP, None, Offset(0), [segment(0, 15, FULL)])
    assert text(store) == "0\n3\n0 0\n3 15\n5 40\n"


def test_divergence_below_the_watermark_is_a_conflict(store: FakeStorage) -> None:
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 50, FULL)])
    with pytest.raises(ArchiveConflictError, match=f"{KEY}: archive and log have diverged"):
        file.cover(
            TP, known, Offset(50), [segment(50, 60, epoch_history((0, 0), (3, 15), (8, 35)))]
        )
    assert text(store) == "0\n3\n0 0\n3 15\n5 40\n"


def test_epoch_that_starts_at_a_stored_epochs_start_replaces_it(store: FakeStorage) -> None:
    """A commit of records that an election truncated, followed by a commit of their replacement."""
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 6, epoch_history((0, 0)))])
    for after in (epoch_history((1, 0)), epoch_history((0, 0), (1, 0))):
        with pytest.raises(ArchiveConflictError, match="offset 0 is of leader epoch 0 in the arch"):
            file.cover(TP, known, Offset(6), [segment(6, 12, after)])
    file.cover(TP, known, Offset(6), [segment(6, 12, epoch_history((0, 4), (1, 6)))])
    assert text(store) == "0\n2\n0 0\n1 6\n"


def test_epochs_within_a_gap_are_not_compared(store: FakeStorage) -> None:
    """Another epoch began within the gap; otherwise the segments stored after it show the epoch."""
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 14, epoch_history((0, 0)))])
    key = LAYOUT.gap_key(TP, Offset(14), Offset(20))
    store.put_object(key, BytesBody(b"{}"))
    here = epoch_history((0, 0), (4, 14))
    assert file.compare(TP, Offset(20), here) == known
    with pytest.raises(
        DivergenceBelowError, match="offset 20 is of leader epoch 0 in the archive and of"
    ):
        file.compare(TP, Offset(21), here)
    with pytest.raises(
        DivergenceBelowError, match="offset 20 is of leader epoch 0 in the archive and of"
    ):
        file.cover(TP, known, Offset(21), [segment(21, 26, here)])
    file.cover(TP, known, Offset(20), [segment(20, 26, here)])
    assert text(store) == "0\n2\n0 0\n4 14\n"


def test_epoch_that_began_in_a_gap_gets_the_start_another_replica_knows(
    store: FakeStorage,
) -> None:
    """On the replica that recorded the gap, retention deleted it and moved the epoch's start after
    it. The next leader's log begins earlier. It is a divergence unless gaps cover everything
    between the two starts.
    """
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 14, epoch_history((0, 0)))])
    known = file.cover(TP, known, Offset(20), [segment(20, 26, epoch_history((2, 20)))])
    whole = epoch_history((0, 0), (2, 16), (3, 26))
    for gap, divergence in ((None, 16), ((14, 19), 19), ((17, 20), None)):
        if gap is not None:
            store.put_object(LAYOUT.gap_key(TP, *map(Offset, gap)), BytesBody(b"{}"))
        if divergence is not None:
            with pytest.raises(
                DivergenceBelowError, match=f"offset {divergence} is of leader epoch 0 in the"
            ):
                file.cover(TP, known, Offset(26), [segment(26, 30, whole)])
    assert file.compare(TP, Offset(26), whole) == known
    file.cover(TP, known, Offset(26), [segment(26, 30, whole)])
    assert text(store) == "0\n3\n0 0\n2 16\n3 26\n"


def test_divergence_after_an_epoch_that_began_in_a_gap_is_detected(store: FakeStorage) -> None:
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 14, epoch_history((0, 0)))])
    store.put_object(LAYOUT.gap_key(TP, Offset(14), Offset(20)), BytesBody(b"{}"))
    file.cover(TP, known, Offset(20), [segment(20, 26, epoch_history((2, 20)))])
    with pytest.raises(
        DivergenceBelowError, match="offset 24 is of leader epoch 2 in the archive and"
    ):
        file.compare(TP, Offset(26), epoch_history((0, 0), (2, 16), (3, 24)))


def test_compacted_log_may_have_a_higher_epoch_start(store: FakeStorage) -> None:
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 50, FULL)])
    compacted = epoch_history((0, 3), (3, 18), (5, 44), (6, 55))
    with pytest.raises(ArchiveConflictError, match="leader epoch 3 starts at 15 in the archive"):
        file.cover(TP, known, Offset(50), [segment(50, 60, compacted)])
    file.cover(TP, known, Offset(50), [segment(50, 60, compacted, sparse=True)])
    assert text(store) == "0\n4\n0 0\n3 15\n5 40\n6 55\n"


@pytest.mark.parametrize("data", [b"nonsense", b"1\n0\n", b"0\n2\n3 10\n2 20\n", b"\xff"])
def test_malformed_file_is_not_overwritten(store: FakeStorage, data: bytes) -> None:
    store.put_object(KEY, BytesBody(data))
    with pytest.raises(MalformedObjectError, match=f"{KEY}: not a leader epoch checkpoint"):
        EpochHistoryFile(store, LAYOUT).cover(TP, None, Offset(20), [segment(20, 30, FULL)])
    assert store.contents()[KEY] == data


# -- two concurrent commits -----------------------------------------------------------------------


def _stored(
    store: FakeStorage, *, end: int, epochs: str | None, base: int = 0, last: int | None = None
) -> None:
    notes = {NEXT_OFFSET_KEY: f"{end}"} | ({EPOCHS_KEY: epochs} if epochs else {})
    notes |= {} if last is None else {LEADER_EPOCH_KEY: f"{last}"}
    key = LAYOUT.object_key(TP, BaseOffset(base), FileKind.LOG)
    store.put_object(key, BytesBody(b"log"), PutOptions(metadata=notes))


def _moved(store: FakeStorage, known: StoredEpochHistory, base: int, end: int) -> Watermark:
    leader = Leader(BrokerId(1), LeaderEpoch(9), None)
    archive = ArchiveState(epoch_history=known)
    moved = WatermarkFile(store, LAYOUT).move(TP, archive, BaseOffset(base), Offset(end), leader)
    assert moved.watermark is not None
    return moved.watermark


def test_epoch_history_of_a_lost_commit_is_rewritten(
    store: FakeStorage,
) -> None:
    """A follower stored records of epoch 2 where the leader's log has epoch 3; the leader overwrote
    the follower's epoch history, and then the follower moved the watermark.
    """
    file, leaders = EpochHistoryFile(store, LAYOUT), epoch_history((2, 0), (3, 20), (5, 40))
    _stored(store, end=30, epochs="2@0")
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 30, epoch_history((2, 0)))])
    file.cover(TP, NOT_STORED, Offset(0), [segment(0, 50, leaders)])
    assert text(store) == "0\n3\n2 0\n3 20\n5 40\n"
    assert file.compare(TP, Offset(30), leaders).epoch_history == leaders  # no visible divergence
    below = file.below(_moved(store, known, 0, 30))
    with pytest.raises(
        DivergenceBelowError, match="offset 20 is of leader epoch 2 in the archive and"
    ):
        below.compare(TP, Offset(30), leaders)
    assert text(store) == "0\n2\n2 0\n5 40\n"  # entries above 30 are kept for their writer
    with pytest.raises(
        DivergenceBelowError, match="offset 20 is of leader epoch 2 in the archive and"
    ):
        below.cover(TP, known, Offset(30), [segment(30, 50, leaders)])


class _ParallelHeads(InterceptedStore):
    """Answer HEAD requests only when `HELPERS` of them are under way at the same time."""

    def __init__(self) -> None:
        super().__init__(FakeStorage())
        self._met = Barrier(HELPERS, timeout=30)

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "head":
            self._met.wait()
        return super().intercept(call)


def test_segments_of_a_long_archive_are_read_in_parallel() -> None:
    """Sequential requests for 10,000 segments would hold up the partition for minutes."""
    heads = _ParallelHeads()
    store = heads.store
    file, count = EpochHistoryFile(heads, LAYOUT), 3 * HELPERS
    truth = epoch_history((1, 0), (2, 100))
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 10 * count, truth)])
    watermark = _moved(store, known, 10 * (count - 1), 10 * count)
    for base in range(0, 10 * count, 10):
        _stored(store, base=base, end=base + 10, epochs=f"{1 if base < 100 else 2}@{base}")
    others = encode_leader_epoch_checkpoint(epoch_history((1, 0), (2, 50)))
    store.put_object(KEY, BytesBody(others.encode()))
    assert file.below(watermark).read(TP).epoch_history == truth


def test_epoch_history_that_the_watermark_names_needs_no_check(store: FakeStorage) -> None:
    """Also when a later commit under way has appended epochs to it."""
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    watermark = _moved(store, known, 0, 20)
    file.cover(TP, known, Offset(20), [segment(20, 50, FULL)])
    before = len(store.requests)
    assert file.below(watermark).compare(TP, Offset(20), FULL).epoch_history == FULL
    assert [r.operation for r in store.requests[before:]] == ["get"]
    store.delete_object(KEY)  # as an operator does whom the error told so
    assert file.below(watermark).compare(TP, Offset(20), FULL) == NOT_STORED


def test_epoch_history_is_rebuilt_from_the_segments_notes(store: FakeStorage) -> None:
    """A segment that was taken over has no notes. An overlapping segment adds epochs only beyond
    the overlap. Segments below the archive start or above the watermark do not count.
    """
    file = EpochHistoryFile(store, LAYOUT)
    truth = epoch_history((1, 10), (4, 35), (6, 60))
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(10, 70, truth)])
    watermark = replace(_moved(store, known, 50, 70), start_offset=Offset(10))
    for base, end, epochs in (
        (0, 5, "0@0"),
        (10, 30, None),
        (30, 45, "1@30,4@35"),
        (38, 42, "2@38,5@40"),
        (40, 50, "4@40"),
        (50, 70, "4@50,6@60"),
        (70, 80, "9@70"),
    ):
        _stored(store, base=base, end=end, epochs=epochs)
    others = epoch_history((1, 10), (3, 33), (7, 55), (8, 75))
    store.put_object(KEY, BytesBody(encode_leader_epoch_checkpoint(others).encode()))
    told = file.below(watermark).read(TP)
    assert told.epoch_history == epoch_history((1, 10), (4, 35), (6, 60), (8, 75))
    assert store.contents()[KEY].decode() == encode_leader_epoch_checkpoint(told.epoch_history)
    store.put_object(KEY, BytesBody(encode_leader_epoch_checkpoint(others).encode()))
    _stored(store, base=47, end=50, epochs=None)  # so many that they are not noted
    assert file.below(watermark).read(TP).epoch_history == others


def test_segments_missing_in_metadata_do_not_count_for_the_epoch_history(
    store: FakeStorage,
) -> None:
    """A late upload of a former leader overlaps two segments of a later leader."""
    file = EpochHistoryFile(store, LAYOUT)
    truth = epoch_history((2, 0), (3, 22), (4, 32))
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 40, truth)])
    watermark = _moved(store, known, 30, 40)
    named = PartitionMetadata(TP).with_segments([(BaseOffset(b), 0) for b in (0, 20, 30)])
    store.put_object(LAYOUT.metadata_key(TP), BytesBody(encode_metadata(named)))
    stored = ((0, 20, "2@0"), (20, 30, "2@20,3@22"), (25, 35, "2@25"), (30, 40, "3@30,4@32"))
    for base, end, epochs in stored:
        _stored(store, base=base, end=end, epochs=epochs)
    others = epoch_history((2, 0), (5, 30))
    store.put_object(KEY, BytesBody(encode_leader_epoch_checkpoint(others).encode()))
    assert file.below(watermark).read(TP).epoch_history == truth


def test_epochs_that_no_segment_contradicts_are_not_overwritten(store: FakeStorage) -> None:
    """The next leader's log begins earlier: it wrote the start of epoch 2 and was killed before the
    watermark. Epoch 4 began in a gap, so no segment notes its start.
    """
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(
        TP, NOT_STORED, Offset(10), [segment(10, 40, epoch_history((2, 10), (4, 28)))]
    )
    watermark = _moved(store, known, 30, 40)
    _stored(store, base=10, end=20, epochs="2@10")
    _stored(store, base=30, end=40, epochs="4@30")
    rows = encode_leader_epoch_checkpoint(epoch_history((2, 4), (4, 28))).encode()
    store.put_object(KEY, BytesBody(rows))
    assert file.below(watermark).read(TP).epoch_history == epoch_history((2, 4), (4, 28))
    assert store.contents()[KEY] == rows
    asked = store.count("head")
    assert asked
    assert file.below(watermark).read(TP).epoch_history == epoch_history((2, 4), (4, 28))
    assert store.count("head") == asked, "the segments are asked once"
    moved = replace(watermark, nonce="another")
    assert file.below(moved).read(TP).epoch_history == epoch_history((2, 4), (4, 28))
    assert store.count("head") > asked, "another watermark may lie over other segments"
    wrong = encode_leader_epoch_checkpoint(epoch_history((2, 4), (3, 15), (4, 28))).encode()
    store.put_object(KEY, BytesBody(wrong))
    assert file.below(moved).read(TP).epoch_history != epoch_history((2, 4), (3, 15), (4, 28))
    assert store.contents()[KEY] != wrong, "who lost the race may write again"


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (epoch_history((1, 0), (2, 12), (5, 40)), epoch_history((1, 0), (2, 12), (3, 20))),
        (epoch_history((1, 0), (5, 30)), epoch_history((1, 0), (2, 10), (3, 20))),
    ],
    ids=["it ends as the segment does", "it does not"],
)
def test_segment_with_only_its_last_epoch_noted_hides_no_epoch(
    store: FakeStorage, others: EpochHistory, told: EpochHistory
) -> None:
    """It has too many epochs for the notes, or an earlier version cut it at a divergence."""
    file = EpochHistoryFile(store, LAYOUT)
    truth = epoch_history((1, 0), (2, 12), (3, 20))
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 50, truth)])
    watermark = _moved(store, known, 20, 50)
    _stored(store, base=0, end=10, epochs="1@0", last=1)
    _stored(store, base=10, end=20, epochs=None, last=2)
    _stored(store, base=20, end=50, epochs="3@20", last=3)
    store.put_object(KEY, BytesBody(encode_leader_epoch_checkpoint(others).encode()))
    assert file.below(watermark).read(TP).epoch_history == told


def test_concurrent_write_of_another_sidecar_is_not_overwritten(store: FakeStorage) -> None:
    file = EpochHistoryFile(store, LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, FULL)])
    watermark = replace(_moved(store, known, 0, 20), epoch_history="00000000")
    _stored(store, end=20, epochs="0@0,2@15")
    store.fail("put", PreconditionFailedError(KEY), key=KEY)
    with pytest.raises(ArchiveConflictError, match="was written while it was read"):
        file.below(watermark).read(TP)
    assert file.below(watermark).read(TP).epoch_history == epoch_history((0, 0), (2, 15))


# -- end to end -----------------------------------------------------------------------------------


def _rising(log: PartitionLog, epochs: int, first: int = 0) -> None:
    """Write two closed segments in each epoch; the last one reaches into the next epoch."""
    for epoch in range(first, first + epochs):
        if epoch:
            log.lead(epoch)
        log.append(5)
        log.roll()
        log.closed_segment()
        log.append(5)
    log.roll()


def _check(store: FakeStorage, tp: TopicPartition) -> None:
    """Assert that the stored checkpoint gives the epoch of every stored batch."""
    stored = EpochHistoryFile(store, LAYOUT).read(tp).epoch_history
    seen = set()
    for base, data in stored_logs(store, tp).items():
        for batch in read_batches(data, f"{base}.log"):
            assert stored.epoch_at(batch.base_offset) == batch.leader_epoch
            seen.add(batch.leader_epoch)
    assert seen == {epoch for epoch, _ in stored.entries}


def test_batches_give_the_epoch_where_retention_moved_the_first_start(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, site: Site
) -> None:
    """Another replica with lagging retention knows the true epoch starts, which is no
    divergence.
    """
    _rising(log, 2)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    _rising(log, 2, first=2)
    checkpoint = log.path / "leader-epoch-checkpoint"
    whole = checkpoint.read_text()
    checkpoint.write_text(f"0\n1\n3 {log.active}\n")
    log_dir.checkpoint_high_watermarks()
    site.settle()
    _check(store, log.tp)
    checkpoint.write_text(whole)
    log.append(10)
    log.roll()
    log_dir.checkpoint_high_watermarks()
    site.settle()
    assert stored_next(store, log.tp) == log.active
    _check(store, log.tp)


@pytest.mark.usefixtures("quick_gaps")
def test_leader_continues_after_a_gap_in_which_an_epoch_began(
    tmp_path: Path, store: FakeStorage
) -> None:
    """The first leader's log loses offsets [10, 20), with the start of epoch 1 at 15, before they
    are stored; the next leader still has them.
    """
    log_dirs = [LogDir(tmp_path / name) for name in ("first", "next")]
    first, following = (log_dir.create() for log_dir in log_dirs)
    first.closed_segment()
    log_dirs[0].checkpoint_high_watermarks()
    Site(log_dirs[:1], store).settle()
    following.closed_segment()
    for log in (first, following):
        log.append(5)
        log.lead(1)
        log.append(5)
        log.roll()
        log.closed_segment()
    first.unlink(0)
    first.unlink(10)
    first._epochs = [(1, 20)]
    first._write_epochs()
    log_dirs[0].checkpoint_high_watermarks()
    Site(log_dirs[:1], store).settle()
    assert stored_next(store, TP) == 30
    assert text(store) == "0\n2\n0 0\n1 20\n"
    following.lead(2)
    following.closed_segment()
    log_dirs[1].checkpoint_high_watermarks()
    Site(log_dirs[1:], store).settle()
    assert stored_next(store, TP) == 40
    assert text(store) == "0\n3\n0 0\n1 15\n2 30\n"


def test_every_stored_record_has_its_epoch_in_the_file(
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
    stored = EpochHistoryFile(store, LAYOUT).read(log.tp).epoch_history
    assert [epoch for epoch, _ in stored.entries] == [0, 1, 2, 3, 4, 5]


def test_five_segments_of_a_new_partition_need_one_write(
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


def test_file_is_written_before_the_watermark_moves(
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


def test_segments_of_a_killed_leader_get_their_epochs_in_the_file(
    tmp_path: Path, store: FakeStorage
) -> None:
    """Segments of two epochs lie above the watermark, and the new leader has deleted them
    locally.
    """
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
def test_kill_at_any_request_leaves_a_correct_epoch_history(tmp_path: Path, *, after: bool) -> None:
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


class _AlwaysChanged(InterceptedStore):
    """Let another writer change the checkpoint after each GET, and create it before each create."""

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "put" and call.condition == IfAbsent():
            self.store.put_object(call.key, BytesBody(b"0\n1\n10 0\n"))
        answer = super().intercept(call)
        if isinstance(answer, StoredObject):
            rows = answer.data.decode().split("\n")[2:-1]
            epoch = int(rows[-1].split()[0]) + 1 if rows else 10
            self.store.put_object(call.key, BytesBody(f"0\n1\n{epoch} 0\n".encode()))
        return answer


def test_paused_leader_does_not_remove_epochs_of_a_later_leader() -> None:
    """The leader of epoch 5 is about to record a gap from 20 on; the leader of epoch 6 has recorded
    it already and has continued after it.
    """
    file = EpochHistoryFile(FakeStorage(), LAYOUT)
    known = file.cover(TP, NOT_STORED, Offset(0), [segment(0, 20, epoch_history((4, 0)))])
    later = epoch_history((6, 35))
    ahead = file.cover(TP, known, Offset(20), [segment(20, 35, later)], LeaderEpoch(6))
    ahead = file.cover(TP, ahead, Offset(35), [segment(35, 50, later)], LeaderEpoch(6))
    lost = segment(20, 40, epoch_history((5, 30)))
    for looked in (known, None):
        with pytest.raises(
            ArchiveConflictError, match="leader of epoch 6 has gone on at offset 35"
        ):
            file.cover(TP, looked, Offset(20), [lost], LeaderEpoch(5))
        assert file.read(TP) == ahead
    own = file.cover(
        TP, None, Offset(20), [segment(20, 40, epoch_history((6, 38)))], LeaderEpoch(6)
    )
    assert own.epoch_history == epoch_history(
        (4, 0), (6, 38)
    )  # that of a commit of its own that never came
