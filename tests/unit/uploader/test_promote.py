"""Promotion of tails: the archive afterwards, kills, repetition, and sidecars beside it."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from sidetier.archive.objects.watermark import decode_watermark
from sidetier.archive.reader import IsolationLevel
from sidetier.archive.tail.merge import Reason
from sidetier.archive.tail.pack import PackBuilder, TailRow, claim, epochs_from
from sidetier.archive.tail.survey import TailSurvey, survey
from sidetier.segments.batches import split_batches
from sidetier.segments.names import FileKind
from sidetier.segments.notes import MISSING, NONE, NOTE_KEYS, TOPIC_ID_KEY
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.archive_state import Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.promote import SEGMENT_BYTES, Promoted, promote
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY
from sidetier.uploader.stores import Place
from tests.harness import daemons
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.intercepted_store import InterceptedStore, KilledError, MortalStore, StoreCall
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.made_archive import LAYOUT, TP, access_to, read_from
from tests.harness.tail_packs import TOPIC_ID, history
from tests.harness.tailed_log import TailedLog, mixed_log, read_offsets, store_pack

LEVELS = list(IsolationLevel)


def surveyed(store: RemoteStorage) -> TailSurvey:
    return survey(access_to(store))


def promoted(
    store: RemoteStorage,
    directory: Path,
    found: TailSurvey | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> Promoted:
    """Promote the only partition that has packs."""
    place = Place(store, LAYOUT, ArchiveWriter(store, LAYOUT, MetadataCache(1 << 20)))
    tails = (found or surveyed(store)).partitions
    access = access_to(store)
    [done] = promote(
        access, lambda _: place, tails, directory, parallel=8, segment_bytes=segment_bytes
    )
    assert not list(directory.iterdir()), "files are left"
    return done


def check(log: TailedLog, end: int, archived: Offset | None) -> None:
    """The archive ends there, and readers get what the log has."""
    assert archived == end
    for isolation in LEVELS:
        taken = read_from(log.archive, 0, isolation=isolation)
        assert read_offsets(taken) == log.offsets(isolation, end)


@pytest.mark.parametrize("segment_bytes", [1, 1 << 30])
def test_tail_becomes_segments_with_transactions_across_the_border(
    tmp_path: Path, segment_bytes: int
) -> None:
    log = mixed_log()
    end = log.next_offset
    log.archived(0, 5, 12)
    log.pack(1, 0, (5, 14))  # partly archived
    log.pack(1, 1, (14, 18), (18, 19))
    log.pack(2, 0, (14, 18), (19, end))  # of another broker, and partly twice
    before = surveyed(log.store)
    [tail] = before.partitions
    assert (tail.archived_up_to, tail.safe_up_to) == (12, end)
    assert tail.merged is not None
    assert tail.merged.newest_ms == 1_700_000_000_000 + end
    done = promoted(log.store, tmp_path, before, segment_bytes=segment_bytes)
    assert (done.problem, done.segments) == (None, 4 if segment_bytes == 1 else 1)
    check(log, end, done.archived_up_to)

    head = log.store.head_object(log.archive.key(12))
    # A transaction that began below the tail is aborted in it.
    assert head.metadata[NOTE_KEYS[FileKind.TXNINDEX]] == MISSING
    assert head.metadata[NOTE_KEYS[FileKind.SNAPSHOT]] == MISSING

    # Again: nothing is left to do, and nothing is written.
    store = cast("FakeStorage", log.store)
    contents = store.contents()
    again = promoted(log.store, tmp_path)
    assert (again.segments, again.archived_up_to, again.problem) == (0, end, None)
    assert store.contents() == contents


def test_archive_begins_with_a_tail_that_begins_with_the_log(tmp_path: Path) -> None:
    log = mixed_log()
    log.pack(1, 0, (0, 7), (7, log.next_offset))
    done = promoted(log.store, tmp_path)
    assert done.problem is None
    check(log, log.next_offset, done.archived_up_to)
    head = log.store.head_object(log.archive.key(0))
    assert head.metadata[NOTE_KEYS[FileKind.SNAPSHOT]] == NONE
    assert head.metadata[NOTE_KEYS[FileKind.TXNINDEX]] not in {NONE, MISSING}
    log.store.head_object(log.archive.key(0, FileKind.TXNINDEX))


def test_archive_does_not_begin_without_the_first_records(tmp_path: Path) -> None:
    log = mixed_log()
    log.pack(1, 0, (7, log.next_offset))
    done = promoted(log.store, tmp_path)
    assert done.segments == 0
    assert "no pack has the offsets [0, 7) of the log" in str(done.problem)


def test_full_disk_is_the_problem_of_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, log.next_offset))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sidetier.uploader.promote._Run._spool", full)
    done = promoted(log.store, tmp_path)
    assert "No space left" in str(done.problem)


def test_gap_ends_the_promotion_and_is_named(tmp_path: Path) -> None:
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 14))
    log.pack(1, 1, (18, log.next_offset))
    found = surveyed(log.store)
    [tail] = found.partitions
    assert (tail.safe_up_to, tail.gap) == (14, (14, 18))
    assert [(out.offsets, out.reason) for out in tail.not_read] == [
        ((18, log.next_offset), Reason.GAP)
    ]
    done = promoted(log.store, tmp_path, found)
    check(log, 14, done.archived_up_to)


@pytest.mark.parametrize(
    "claimed", [(4, 14), (2**31 - 1, 14)], ids=["claim", "claim of an epoch that never was"]
)
def test_claim_makes_records_stale_and_does_not_lock_the_archive(
    tmp_path: Path, claimed: tuple[int, int]
) -> None:
    """One wrong claim must not make the sidecars of all later leaders stand down."""
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 18))
    builder = PackBuilder()
    builder.add(claim(TP, TOPIC_ID, history((0, 0), claimed), Offset(0), Offset(claimed[1])))
    store_pack(log.store, LAYOUT, builder, 2, 0)
    done = promoted(log.store, tmp_path)
    check(log, 14, done.archived_up_to)
    stored = log.archive.store.get_object(LAYOUT.watermark_key(TP))
    watermark = decode_watermark(stored.data, "offset.wm")
    assert (watermark.leader_epoch, watermark.next_offset) == (0, 14)
    writer = ArchiveWriter(log.store, LAYOUT, MetadataCache(1 << 20))
    living = Leader(BrokerId(1), LeaderEpoch(1), TOPIC_ID)
    assert writer.load(TP, living).next_offset == 14


def test_newest_epoch_of_the_promoted_records_is_committed(tmp_path: Path) -> None:
    log = mixed_log()
    log.archived(0, 12)
    log.epochs = history((0, 0), (3, 14), (4, 18))
    log.pack(1, 0, (12, 14), (14, 18))
    damaged_pack(log, 18, 24)  # the epoch of records that are not promoted does not count
    done = promoted(log.store, tmp_path)
    assert done.archived_up_to == 18
    stored = log.archive.store.get_object(LAYOUT.watermark_key(TP))
    assert decode_watermark(stored.data, "offset.wm").leader_epoch == 3


@pytest.mark.parametrize(
    ("topic_id", "committed"), [(TOPIC_ID, 4), ("B" * 22, 0)], ids=["topic", "deleted topic"]
)
def test_files_of_a_leader_that_was_killed_before_its_commit(
    tmp_path: Path, topic_id: str, committed: int
) -> None:
    """Leader 4 has taken over, and was uploading a segment of epoch 0 when the cluster was lost."""
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 18))
    notes = {WRITER_EPOCH_KEY: "4", TOPIC_ID_KEY: topic_id}
    log.archive.put(log.archive.key(12, FileKind.INDEX), b"12345678", notes)
    done = promoted(log.store, tmp_path)
    assert done.problem is None
    check(log, 18, done.archived_up_to)
    stored = log.archive.store.get_object(LAYOUT.watermark_key(TP))
    assert decode_watermark(stored.data, "offset.wm").leader_epoch == committed


def test_later_leader_in_the_archive_and_recreated_topics(tmp_path: Path) -> None:
    log = mixed_log()
    log.archived(0, 12)
    log.archive.mark(0, 12, leader_epoch=7, topic_id=TOPIC_ID, start_offset=0)
    log.pack(1, 0, (12, 14))
    check(log, 14, promoted(log.store, tmp_path).archived_up_to)
    log.pack(1, 1, (14, 18))
    log.archive.mark(12, 14, topic_id="B" * 22, start_offset=0)
    assert promoted(log.store, tmp_path).segments == 0
    [tail] = surveyed(log.store).partitions
    assert not tail.has_records


def test_damaged_pack_costs_only_what_is_behind_it(tmp_path: Path) -> None:
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (18, 19))
    log.pack(1, 1, (12, 14))
    damaged_pack(log, 14, 18)
    done = promoted(log.store, tmp_path)
    assert "crc64nvme" in str(done.problem)
    check(log, 14, done.archived_up_to)


def test_records_of_a_pack_that_is_gone_are_not_taken_for_archived(tmp_path: Path) -> None:
    log = mixed_log()
    log.archived(0, 12)
    key = log.pack(1, 0, (12, log.next_offset))
    found = surveyed(log.store)
    log.store.delete_object(key)
    done = promoted(log.store, tmp_path, found)
    assert f"no pack has the records of offsets [12, {log.next_offset})" in str(done.problem)
    log.archived(0, 12, log.next_offset)
    assert promoted(log.store, tmp_path, found).problem is None


@pytest.mark.parametrize("group_bytes", [1, 1 << 30])
def test_damaged_pack_does_not_hold_up_other_partitions(tmp_path: Path, group_bytes: int) -> None:
    log = mixed_log()
    log.archived(0, 12)
    damaged_pack(log, 12, 18)
    other = TailedLog(log.batches, log.next_offset, log.store, tp=TopicPartition("zoo", 1))
    other.archived(0, 12)
    other.pack(3, 0, (12, 14))
    place = Place(log.store, LAYOUT, ArchiveWriter(log.store, LAYOUT, MetadataCache(1 << 20)))
    tails = surveyed(log.store).partitions
    access = access_to(log.store)
    first, second = promote(
        access, lambda _: place, tails, tmp_path, parallel=8, group_bytes=group_bytes
    )
    assert "crc64nvme" in str(first.problem)
    assert second.problem is None
    check(other, 14, second.archived_up_to)


def damaged_pack(log: TailedLog, start: int, end: int) -> None:
    """Store a pack of broker 2 in which a byte has changed."""
    builder = PackBuilder()
    log.row(start, end, builder)
    data = bytearray(b"".join(map(bytes, builder.body().pieces)))
    data[100] ^= 1
    log.archive.put(LAYOUT.tail_pack_key(BrokerId(2), 0), bytes(data))


def test_old_survey_does_not_move_the_archive_back(tmp_path: Path) -> None:
    """A sidecar has recorded a gap, and archived what is behind it, since the packs were read."""
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 19))
    old = surveyed(log.store)
    log.archive.gap(12, 14)
    log.archive.segment(14, log.between(14, 24))
    log.archive.mark(14, 24, topic_id=TOPIC_ID, start_offset=0, leader_epoch=0)
    done = promoted(log.store, tmp_path, old)
    assert (done.segments, done.archived_up_to, done.problem) == (0, 24, None)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_each_request(tmp_path: Path, *, after: bool) -> None:
    for lives in count():
        log = mixed_log()
        end = log.next_offset
        log.archived(0, 12)
        log.pack(1, 0, (12, 14), (14, 18))
        log.pack(1, 1, (18, end))
        mortal = MortalStore(cast("FakeStorage", log.store), lives, after=after)
        try:
            done = promoted(mortal, tmp_path, segment_bytes=1)
        except KilledError:
            pass
        else:
            check(log, end, done.archived_up_to)
            assert lives > 20
            return
        stored = log.archive.store.get_object(LAYOUT.watermark_key(TP))
        kept = decode_watermark(stored.data, "offset.wm").next_offset
        assert kept in {12, 14, 18, end}
        for isolation in LEVELS:
            taken = read_from(log.archive, 0, isolation=isolation)
            assert read_offsets(taken) == log.offsets(isolation, kept)
        # The packs have another cut now: the second one has all records.
        log.pack(2, 0, (12, end))
        check(log, end, promoted(log.store, tmp_path).archived_up_to)


class Beside(InterceptedStore):
    """Does something just before the first write of `offset.wm`."""

    def __init__(self, store: FakeStorage, action: Callable[[], object]) -> None:
        super().__init__(store)
        self._action: Callable[[], object] | None = action

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "put" and call.key.endswith("offset.wm") and self._action is not None:
            action, self._action = self._action, None
            action()
        return super().intercept(call)


@pytest.mark.parametrize("moved_to", [14, 18, 19, 24])
def test_archive_that_moves_on_is_merged_again(tmp_path: Path, moved_to: int) -> None:
    log = mixed_log()
    end = log.next_offset
    log.archived(0, 12)
    log.pack(1, 0, (12, 14), (14, 19))
    log.pack(1, 1, (19, end))
    store = Beside(cast("FakeStorage", log.store), lambda: log.archived(0, 12, moved_to))
    done = promoted(store, tmp_path)
    assert done.problem is None
    check(log, end, done.archived_up_to)


def test_no_conflict_without_end(tmp_path: Path) -> None:
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 14))
    store = cast("FakeStorage", log.store)

    class Restless(InterceptedStore):
        def intercept(self, call: StoreCall) -> object:
            if call.operation == "put" and call.key.endswith("offset.wm"):
                log.archive.mark(0, 12, topic_id=TOPIC_ID, start_offset=0, leader_epoch=0)
            return super().intercept(call)

    done = promoted(Restless(store), tmp_path)
    assert done.segments == 0
    assert "was moved to 12" in str(done.problem)


def stored_tail(log: PartitionLog, store: RemoteStorage, number: int, start: int) -> None:
    """Store the rest of a log from an offset on in a pack."""
    data = b"".join(log.written[base] for base in log.bases())
    batches = [(batch, header) for batch, header in split_batches(memoryview(data))]
    wanted = [(batch, header) for batch, header in batches if header.base_offset >= start]
    epochs = history(*log.epochs())
    builder = PackBuilder()
    builder.add(
        TailRow(
            log.tp,
            log.topic_id,
            epochs_from(epochs, start),
            Offset(start),
            wanted[-1][1].next_offset,
            Offset(0),
            wanted[-1][1].next_offset,
            len(wanted),
            max(header.max_timestamp for _, header in wanted),
        ),
        *(bytes(batch) for batch, _ in wanted),
    )
    store_pack(store, daemons.LAYOUT, builder, 1, number)


def promote_beside(store: RemoteStorage, directory: Path) -> Promoted:
    place = daemons.place_of(store)
    access = access_to(store, daemons.LAYOUT)
    [done] = promote(access, lambda _: place, survey(access).partitions, directory, parallel=8)
    return done


def test_sidecar_goes_on_behind_promoted_records(
    site: daemons.Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    site.settings["rescan_interval"] = 0.1
    log.closed_segment(10)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        running.wait(lambda: daemons.stored_next(store, log.tp) == 10, "the first segment")
        log.append(20)
        stored_tail(log, store, 0, 10)
        assert promote_beside(store, work).archived_up_to == 30
        log.append(10)
        log.roll()
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: daemons.stored_next(store, log.tp) == 40, "the rest of the segment")
        # A new leader, whose sidecar takes over behind promoted records.
        log.append(5)
        stored_tail(log, store, 1, 40)
        assert promote_beside(store, work).archived_up_to == 45
    log.lead(3)
    log.append(5)
    log.roll()
    log_dir.checkpoint_high_watermarks()
    site.settle()
    assert daemons.stored_next(store, log.tp) == 50
    assert sorted(daemons.stored_logs(store, log.tp)) == [0, 10, 30, 40, 45]
    check_archive(store, log.tp)
    assert not recorded_gaps(store, log.tp)


def test_old_survey_beside_a_sidecar_changes_nothing(
    site: daemons.Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    log.append(20)
    stored_tail(log, store, 0, 0)
    access, place = access_to(store, daemons.LAYOUT), daemons.place_of(store)
    old = survey(access)
    log.append(10)
    log.roll()
    log_dir.checkpoint_high_watermarks()
    site.settle()
    contents = store.contents()
    [done] = promote(access, lambda _: place, old.partitions, work, parallel=8)
    assert (done.segments, done.archived_up_to, done.problem) == (0, 30, None)
    assert store.contents() == contents
