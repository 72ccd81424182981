"""Where a tail begins: archives that diverge, DeleteRecords, and rows that no leader has stored."""

from collections.abc import Callable

import pytest

from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart
from sidetier.archive.tail.pack import claim
from sidetier.segments.epoch_history import NO_EPOCHS
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import BrokerId, Offset, OffsetRange
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.tail import cycle as cycle_module
from sidetier.uploader.tail import readings as readings_module
from sidetier.uploader.tail.begin import find_begin
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.cycle import TailCycle
from sidetier.uploader.tail.packs import TailPlace
from sidetier.wire.log_offsets import OffsetKind
from tests.harness.daemons import LAYOUT
from tests.harness.log_dir import PartitionLog
from tests.harness.tail_packs import MadePack, history
from tests.harness.tail_writing import TailSite, log_bytes, merged, replicate, tail_bytes


def safe_up_to(site: TailSite, log: PartitionLog) -> Offset | None:
    return site.cycle.safe()[log.tp].safe_up_to


def diverged(site: TailSite) -> PartitionLog:
    """The archive has [0, 100) of epoch 4; epoch 5 was elected at 50."""
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(100)
    log.truncate(50)
    log.lead(5)
    log.append(100, size=60)
    site.archive_ends[log.tp], site.archived_epochs[log.tp] = 100, history((4, 0))
    return log


@pytest.mark.parametrize("restarts", [False, True])
def test_a_diverged_archive_is_stored_again_from_the_divergence_on(
    site: TailSite, store: FakeStorage, *, restarts: bool
) -> None:
    log = diverged(site)
    site.run()
    site.run()
    # Readers join nothing to a diverged archive.
    assert safe_up_to(site, log) == 50
    if restarts:
        site.restart()
        site.run()
        assert safe_up_to(site, log) == 50
    # The sidecar moves [50, 100) to quarantine.
    site.archive_ends[log.tp] = 50
    site.run()
    assert safe_up_to(site, log) == merged(store, log, 50, history((4, 0))).end == 150
    log.append(5)
    site.run()
    tail = merged(store, log, 50, history((4, 0)))
    assert tail.end == safe_up_to(site, log) == 155
    assert tail_bytes(store, tail) == log_bytes(log)[-len(tail_bytes(store, tail)) :]
    assert site.packs() == 2


def test_an_archive_that_an_old_leader_still_writes_hides_no_record(
    site: TailSite, store: FakeStorage
) -> None:
    """The paused sidecar of the leader of epoch 4 commits [50, 100) after epoch 5 has begun."""
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(50)
    log.lead(5)
    log.append(10)
    site.archive_ends[log.tp], site.archived_epochs[log.tp] = 50, history((4, 0))
    site.run()
    assert safe_up_to(site, log) == 60
    site.archive_ends[log.tp] = 100
    for _ in range(3):
        log.append(10)
        site.run()
    assert safe_up_to(site, log) == 50
    site.archive_ends[log.tp] = 50
    site.run()
    assert safe_up_to(site, log) == merged(store, log, 50, history((4, 0))).end == log.log_end


def test_an_archive_end_that_falls_begins_the_tail_anew(site: TailSite, store: FakeStorage) -> None:
    """Also if the epochs of the archive did not show that it had diverged."""
    log = site.log_dir.create("t", 0)
    log.append(100)
    site.archive_ends[log.tp] = 80
    site.run()
    assert safe_up_to(site, log) == 100
    site.archive_ends[log.tp] = 50
    site.run()
    assert safe_up_to(site, log) == merged(store, log, 50).end == 100
    assert site.rows()[-1].start == 50


def test_gaps_of_the_archive_excuse_a_contradiction(site: TailSite, store: FakeStorage) -> None:
    """The archive ends with a recorded gap, in which the log has epoch 4. Gaps are read once."""
    asked = []

    def gaps_of(_: TailPlace, tp: object) -> list[OffsetRange]:
        asked.append(tp)
        return [OffsetRange(Offset(50), Offset(80))]

    site.cycle = TailCycle(
        site.source,
        lambda _: TailPlace(store, LAYOUT, encrypts=False),
        site.inventory_of,
        site.sender,
        site.broker,
        site.time.clock,
        gaps_of=gaps_of,
    )
    log = site.log_dir.create("t", 0, epoch=3)
    log.append(50)
    log.lead(4)
    log.append(30)
    log.lead(5)
    log.append(20)
    site.archived_epochs[log.tp] = history((3, 0))
    site.archive_ends[log.tp] = 80
    site.run()
    assert safe_up_to(site, log) == 100
    assert site.rows()[-1].start == 80
    log.append(10)
    site.archived_epochs[log.tp] = history((3, 0), (5, 80))
    site.archive_ends[log.tp] = 90
    site.run()
    assert (safe_up_to(site, log), len(asked)) == (110, 1)


# -- the log start ------------------------------------------------------------------------------


def delete_records(site: TailSite, log: PartitionLog, start: int) -> None:
    """DeleteRecords within the active segment: the file is unchanged, the checkpoint is cut."""
    log.start_at(start)
    site.source.log_starts[log.tp] = start


def test_delete_records_within_the_active_segment_does_not_stop_the_tail(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    """Neither on this leader nor on the next one, which goes on below the log start."""
    log = site.log_dir.create("t", 0, epoch=3)
    log.append(20)
    log.lead(4)
    log.append(20)
    site.run()
    log.append(60)
    delete_records(site, log, 60)
    copy = replicate(log, other)
    copy.lead(5)
    copy.append(20)
    other.source.log_starts[log.tp] = 60
    assert copy.epochs()[0] == (4, 60)
    other.run()
    tail = merged(store, copy)
    assert (tail.end, tail.log_start) == (120, 60)
    assert tail_bytes(store, tail) == log_bytes(copy)
    assert safe_up_to(other, copy) == 120
    # Without the packs of the former leader: from the archive end on, over the border of epochs.
    for each in list(store.list_objects(LAYOUT.tails_prefix())):
        store.delete_object(each.key)
    other.restart()
    other.run()
    assert tail_bytes(store, merged(store, copy)) == log_bytes(copy)


def test_a_batch_that_contradicts_the_first_known_epoch_is_not_stored(
    site: TailSite, store: FakeStorage
) -> None:
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(10)
    log._epochs = [(2, 0), (5, 60)]
    log._write_epochs()
    log.epoch = 5
    site.run()
    assert merged(store, log).end == 0
    assert "leader epoch 4" in (site.cycle.safe()[log.tp].error or "")
    log._epochs = [(3, 5), (5, 60)]
    log._write_epochs()
    site.restart()
    site.run()
    assert merged(store, log).end == 0
    assert "the checkpoint begins with epoch 3" in (site.cycle.safe()[log.tp].error or "")


def test_records_that_are_deleted_before_they_are_stored_are_not_called_safe(
    site: TailSite, store: FakeStorage
) -> None:
    """Readers stop at the gap, until the archive has passed it."""
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    log.append(15)
    log.roll()
    log.append(10)
    log.stage(0)
    log.start_at(20)
    site.run()
    tail = merged(store, log)
    assert (tail.end, safe_up_to(site, log)) == (5, 5)
    site.archive_ends[log.tp] = 20
    site.run()
    assert (merged(store, log, 20).end, safe_up_to(site, log)) == (30, 30)


def test_the_log_start_of_a_quiet_partition_reaches_the_packs(
    site: TailSite, store: FakeStorage
) -> None:
    log, archived = site.log_dir.create("t", 0), site.log_dir.create("archived", 0)
    log.append(20)
    archived.append(20)
    site.archive_ends[archived.tp] = 20
    site.run()
    for each in (log, archived):
        delete_records(site, each, 20)
    site.time.now += cycle_module.LOG_START_SECONDS
    store.fail("put", MalformedObjectError("lost"))
    for _ in range(3):
        site.run()
    assert merged(store, log).log_start == 20
    assert merged(store, archived, 20).log_start == 0  # readers find those in the archive
    packs = site.packs()
    site.time.now += cycle_module.LOG_START_SECONDS
    site.run()
    assert site.packs() == packs


# -- rows that no leader has stored -------------------------------------------------------------


def stored_claim(store: FakeStorage, log: PartitionLog) -> None:
    pack = MadePack()
    epochs = history((0, 0), (2**31 - 1, 0))
    pack.builder.add(claim(log.tp, log.topic_id, epochs, Offset(0), Offset(0)))
    store.put_object(LAYOUT.tail_pack_key(9, 0), pack.builder.body())


def stored_range(store: FakeStorage, log: PartitionLog) -> None:
    pack = MadePack()
    pack.range(history((0, 0)), 0, 1000, tp=log.tp, topic_id=log.topic_id)
    store.put_object(LAYOUT.tail_pack_key(9, 0), pack.builder.body())


@pytest.mark.parametrize("put", [stored_claim, stored_range])
def test_the_own_broker_is_the_witness_and_no_row_stops_the_writer(
    site: TailSite, store: FakeStorage, put: Callable[[FakeStorage, PartitionLog], None]
) -> None:
    log = site.log_dir.create("t", 0)
    log.append(10)
    put(store, log)
    site.run()
    log.append(5)
    site.run()
    ends = [(row.start, row.end) for row in site.rows() if not row.is_claim]
    assert ends == [(0, 10), (10, 15)]
    # Readers go by the claim of a later epoch.
    assert safe_up_to(site, log) == (0 if put is stored_claim else 15)


def test_a_damaged_index_object_stops_no_writer(site: TailSite, store: FakeStorage) -> None:
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    store.put_object(LAYOUT.tail_index_key(1), BytesBody(b"{"))
    site.restart()
    log.append(5)
    site.run()
    assert safe_up_to(site, log) == 10
    assert [(row.start, row.end) for row in site.rows() if not row.is_claim] == [(0, 5), (5, 10)]


def damage_packs(store: FakeStorage, broker: int) -> None:
    for each in list(store.list_objects(LAYOUT.tail_packs_prefix(BrokerId(broker)))):
        store.put_object(each.key, BytesBody(store.contents()[each.key][:-1] + b"\xff"))


def read_up_to(store: FakeStorage, log: PartitionLog, end: int = 0) -> Offset:
    archived = ArchivedPart(Offset(end), NO_EPOCHS, log.topic_id)
    return TailInventory(store, LAYOUT).read().merged(log.tp, archived).end


@pytest.mark.parametrize("is_quiet", [True, False])
def test_what_readers_do_not_join_for_an_unread_pack_is_not_called_safe(
    site: TailSite, other: TailSite, store: FakeStorage, *, is_quiet: bool
) -> None:
    """A claim that is stored long enough after the pack ends it."""
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(50)
    site.run()
    copy = replicate(log, other)
    copy.lead(5)
    copy.append(10)
    other.run()
    assert safe_up_to(other, copy) == read_up_to(store, copy) == 60
    damage_packs(store, 1)
    other.restart()
    for _ in range(3):
        other.run()
        assert safe_up_to(other, copy) == read_up_to(store, copy) == 0
        assert other.cycle.safe()[copy.tp].waiting_since_ms is not None
        if not is_quiet:
            copy.append(1)
    packs = other.packs()
    other.time.now += cycle_module.LOOK_AGAIN_SECONDS + 60
    for _ in range(4):
        other.run()
    assert safe_up_to(other, copy) == read_up_to(store, copy) == copy.log_end
    assert other.cycle.safe()[copy.tp].waiting_since_ms is None
    assert other.packs() == packs + 1


def test_a_new_leader_behind_an_old_unread_pack_claims_first(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(50)
    site.run()
    damage_packs(store, 1)
    site.time.now += 3600
    copy = replicate(log, other)
    copy.lead(5)
    for _ in range(3):
        other.run()
        assert (safe_up_to(other, copy) or 0) <= read_up_to(store, copy)
    assert safe_up_to(other, copy) == 50
    packs = other.packs()
    other.time.now += 3600
    other.run()
    assert other.packs() == packs


def test_a_claim_does_not_wait_for_a_long_reading(site: TailSite) -> None:
    """It shows readers what is stale. Ranges wait for the end of the tail."""
    works = site.read_packs_by_hand()
    log = site.log_dir.create("t", 0)
    log.append(10)
    for _ in range(3):
        site.run()
    assert [(row.is_claim, row.leader_epoch) for row in site.rows()] == [(True, 0)]
    works.pop()()
    site.run()
    assert [row.end for row in site.rows()] == [0, 10]


def test_an_error_in_one_begin_holds_one_partition(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(led: TailPartition, *args: object) -> object:
        if led.tp.partition == 0:
            raise KeyError("a defect")
        return find_begin(led, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(readings_module, "find_begin", broken)
    bad, good = site.log_dir.create("t", 0), site.log_dir.create("t", 1)
    for log in (bad, good):
        log.append(5)
    site.run()
    assert (safe_up_to(site, bad), safe_up_to(site, good)) == (None, 5)
    assert site.cycle.safe()[bad.tp].error == "KeyError: 'a defect'"
    monkeypatch.undo()
    site.time.now += 60
    site.run()
    assert safe_up_to(site, bad) == 5
    assert site.source.asked[-1] == (OffsetKind.HIGH_WATERMARK, 1)
    assert merged(store, bad).end == 5
