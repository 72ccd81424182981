"""Cleaning of tail packs: what is dropped, what is written again, and kills between the writes."""

import gc
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import structlog

from sidetier.archive.objects.gaps import recorded_gaps
from sidetier.archive.objects.notes import noted_checksum, noted_next_offset, noted_number
from sidetier.archive.objects.quarantine import MoveKind, read_plan
from sidetier.archive.objects.tail_index import read_tail_index
from sidetier.archive.objects.watermark import Watermark, read_watermark, write_watermark
from sidetier.archive.tail import pack as pack_module
from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart, PackRef, Reason
from sidetier.archive.tail.pack import TailRow
from sidetier.archive.tail.read import read_rows
from sidetier.archive.tail.retired import retired_parts
from sidetier.segments.batches import split_batches
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    ArchiveConflictError,
    ConfigurationError,
    MalformedObjectError,
    StorageError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.segments.notes import EPOCHS_KEY, MAX_TIMESTAMP_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.archive.quarantine.mover import MoveContext
from sidetier.uploader.archive.quarantine.retirement import retire
from sidetier.uploader.archive.unresolved import read_unresolved
from sidetier.uploader.tail import cleaning as cleaning_module
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.cleaning import (
    ArchivedOf,
    PackUse,
    StoredArchive,
    TailCleaner,
    plan_cleaning,
    stored_archive,
)
from sidetier.uploader.tail.copying import MAX_ROW_BYTES
from sidetier.uploader.tail.cycle import TailCycle
from sidetier.uploader.tail.packs import PackNumbers, TailPlace, store_pack
from sidetier.uploader.tail.quarantine import store_run
from tests.harness.daemons import LAYOUT
from tests.harness.log_dir import PartitionLog
from tests.harness.tail_packs import history, last_stable
from tests.harness.tail_writing import (
    TailSite,
    archive_log,
    archived_epochs,
    log_bytes,
    merged,
    replicate,
    tail_bytes,
    transactional,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidetier.storage.port import RemoteStorage

KEYS = LAYOUT.tail_packs_prefix(1)


def cleaner(
    site: TailSite,
    archived_of: "Callable[[TopicPartition], ArchivedPart | None] | None" = None,
    inventory: TailInventory | None = None,
    stored_of: ArchivedOf | None = None,
) -> TailCleaner:
    def stored(tp: TopicPartition) -> StoredArchive | None:
        part = (archived_of or site.stored_archive)(tp)
        gaps = partial(recorded_gaps, site.store, LAYOUT, [tp])
        return None if part is None else StoredArchive(part, lambda: gaps()[tp])

    return TailCleaner(
        site.cycle.stores,
        lambda numbers: inventory or TailInventory(numbers.store, numbers.layout),
        lambda _: TailPlace(site.store, LAYOUT, encrypts=False),
        stored_of or stored,
        partial(retired_parts, site.store, LAYOUT),
        site.broker,
        site.time.clock,
    )


def clean(
    site: TailSite,
    by: TailCleaner | None = None,
    led: dict[TopicPartition, TailPartition] | None = None,
) -> TailCleaner:
    by = by or cleaner(site)
    by.run(site.led if led is None else lambda: led)
    site.time.now += 600
    return by


def archived(log: PartitionLog, end: int | None = None) -> ArchivedPart:
    """What an archive that has a log up to an offset, or the end, shows."""
    end = log.log_end if end is None else end
    return ArchivedPart(Offset(end), archived_epochs(log, end), log.topic_id)


def live(store: FakeStorage) -> list[int]:
    """The live packs, counted from 0 in order of their creation."""
    created = sorted({each.key for each in store.requests if each.key.startswith(KEYS)} - {KEYS})
    return [
        created.index(pack.key) for pack in TailInventory(store, LAYOUT).listing(BrokerId(1)).packs
    ]


def key_of(store: FakeStorage, number: int) -> str:
    """The key of a stored pack, counted from 0."""
    return [each.key for each in store.list_objects(KEYS)][number]


def busy_and_slow(site: TailSite) -> tuple[PartitionLog, PartitionLog]:
    """Ten packs with 30 records of a busy partition and one of a slow one each."""
    busy, slow = site.log_dir.create("busy", 0), site.log_dir.create("slow", 0)
    for _ in range(10):
        busy.append(30)
        slow.append(1)
        site.run()
    return busy, slow


def test_packs_without_a_needed_row_are_dropped_and_deleted_an_hour_later(
    site: TailSite, store: FakeStorage
) -> None:
    log = site.packed_log(packs=6, records=5)
    site.archive_ends[log.tp] = 25
    by = clean(site)
    # The first pack has the claim, which the archive shows now.
    assert live(store) == [5]
    assert len(list(store.list_objects(KEYS))) == 6
    assert merged(store, log, 25).end == 30
    site.time.now += 2390
    by.run(site.led)
    assert len(list(store.list_objects(KEYS))) == 6
    site.time.now += 611
    by.run(site.led)
    assert len(list(store.list_objects(KEYS))) == 1
    assert by.totals.deleted_packs == 5
    assert by.totals.live_packs == 1
    site.restart()
    log.append(5)
    site.run()
    assert live(store) == [5, 6]
    assert merged(store, log, 25).end == 35


def test_new_packs_are_live_also_after_all_were_deleted(site: TailSite, store: FakeStorage) -> None:
    log = site.packed_log(packs=3, records=5)
    by = cleaner(site)
    log.delete_topic()
    site.log_dir.partitions[log.tp] = new = PartitionLog(log.path, log.tp, 0, 0, "B" * 21 + "A")
    clean(site, by)
    site.time.now += 4000
    by.run(site.led)
    assert not list(store.list_objects(KEYS))
    by.run(site.led)
    index = read_tail_index(store, LAYOUT, 1).index
    assert index is not None
    assert (index.packs, index.dropped) == ((), ())
    site.restart()
    new.append(5)
    site.run()
    assert live(store) == [3]
    assert merged(store, new).end == 5


def test_packs_of_which_little_is_needed_are_copied_and_their_rows_joined(
    site: TailSite, store: FakeStorage
) -> None:
    busy, slow = busy_and_slow(site)
    site.archive_ends[busy.tp] = 300
    by = clean(site)
    [number] = live(store)
    assert number > 9
    tail = merged(store, slow)
    assert tail_bytes(store, tail) == slow.written[0]
    assert [part[1:] for part in tail.slices] == [(0, 10)]
    [row] = [row for row in site.rows() if row.tp == slow.tp and not row.is_claim]
    # The time of its newest records, and not of the copy.
    assert row.first_stored_ms == (1_700_000_000 + 1000 + 50) * 1000
    assert by.totals.rewritten_bytes == len(slow.written[0])
    # The next one names the new pack, and the one after it has nothing to do.
    by.run(site.led)
    puts = len([each for each in store.requests if each.operation == "put"])
    clean(site, by)
    assert len([each for each in store.requests if each.operation == "put"]) == puts
    slow.append(3)
    site.run()
    assert merged(store, slow).end == 13


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_write_loses_nothing(
    site: TailSite, store: FakeStorage, nth: int, *, after: bool
) -> None:
    """The new pack, the index, and a deletion."""
    busy, slow = busy_and_slow(site)
    site.archive_ends[busy.tp] = 300
    by = cleaner(site)
    operation = "put" if nth < 3 else None
    if operation is None:
        clean(site, by)
        site.time.now += 4000
        store.fail("delete", StoreUnavailableError("killed"), after=after)
    else:
        store.fail(operation, StoreUnavailableError("killed"), nth=nth, after=after)
    with suppress(StorageError):
        clean(site, by)
        by.run(site.led)
    store._faults.clear()
    assert merged(store, slow).end == 10
    site.restart()
    slow.append(2)
    site.run()
    again = clean(site)
    site.time.now += 4000
    again.run(site.led)
    assert merged(store, slow).end == 12
    assert tail_bytes(store, merged(store, slow)) == slow.written[0]
    assert len(live(store)) <= 3
    site.time.now += 4000
    again.run(site.led)
    assert len(list(store.list_objects(KEYS))) <= 3


def test_packs_of_former_partitions_go_when_the_archive_has_their_records(
    site: TailSite, store: FakeStorage
) -> None:
    log = site.packed_log(packs=3, records=5)
    asked: list[TopicPartition] = []
    found: dict[TopicPartition, ArchivedPart | None] = {log.tp: None}

    def archived_of(tp: TopicPartition) -> ArchivedPart | None:
        asked.append(tp)
        return found[tp]

    by = cleaner(site, archived_of)
    clean(site, by, led={})
    assert live(store) == [0, 1, 2]
    found[log.tp] = archived(log)
    by.run(dict)
    # An archive is asked once an hour.
    assert (live(store), len(asked)) == ([0, 1, 2], 1)
    site.time.now += 3000
    by.run(dict)
    assert (live(store), len(asked)) == ([], 2)


def test_archived_rows_of_led_partitions_go_after_a_restart_too(
    site: TailSite, store: FakeStorage
) -> None:
    """The daemon has not read the archived epochs then. The store is asked, once an hour."""
    log, active = site.log_dir.create("t", 0), site.log_dir.create("active", 0)
    for _ in range(3):
        log.append(5)
        site.run([log.tp])
    active.append(5)
    site.run()
    site.archive_ends = {log.tp: 15, active.tp: 3}
    site.restart()
    site.run()
    assert not any(entry.archived_epochs.entries for entry in site.led().values())
    asked: list[TopicPartition] = []
    ends = {log.tp: 20}

    def archived_of(tp: TopicPartition) -> ArchivedPart | None:
        asked.append(tp)
        found = site.stored_archive(tp)
        assert found is not None
        return replace(found, end=Offset(ends.get(tp, 15)))

    by = cleaner(site, archived_of)
    clean(site, by)
    assert live(store) == [0, 1, 2, 3]  # its end has fallen since
    ends.clear()
    site.time.now += 3600
    for _ in range(5):
        clean(site, by)
    assert live(store) == [3]
    assert asked.count(log.tp) == 2
    # The row with records is not archived; for its claim, the store is asked, too.
    assert asked.count(active.tp) <= 2


def test_rows_are_not_archived_where_the_archive_has_diverged(
    site: TailSite, store: FakeStorage
) -> None:
    """A paused sidecar of epoch 4 archives what epoch 5 has discarded. Once that is in
    quarantine, the records of epoch 5 must be somewhere.
    """
    log = site.log_dir.create("t", 0, epoch=3)
    log.append(50)
    log.lead(5)
    site.run()
    log.append(50)
    site.run()
    site.archive_ends[log.tp] = 100
    site.archived_epochs[log.tp] = history((3, 0), (4, 50))
    by = clean(site)
    site.time.now += 4000
    by.run(site.led)
    assert merged(store, log, 50, history((3, 0))).end == 100


def test_what_the_packs_of_one_broker_show_to_be_stale_another_leader_may_have(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    """Two unclean elections. Broker 1 has lost its records of epoch 4; broker 2 has not, and
    continues behind them, because the packs of broker 1 have them.
    """
    log = site.log_dir.create("t", 0, epoch=3)
    log.append(50)
    site.run()
    log.lead(4)
    site.run()
    log.append(50)
    site.run()
    copy = replicate(log, other)
    log.truncate(50)
    log.lead(5)
    log.append(10)
    site.run()
    copy.lead(6)
    copy.append(10)
    other.run()
    other.run()
    assert merged(store, copy).end == 110
    del site.log_dir.partitions[log.tp]
    none = ArchivedPart(Offset(0), history(), log.topic_id)
    by = clean(site, cleaner(site, {log.tp: none}.get))
    site.time.now += 4000
    by.run(dict)
    assert merged(store, copy).end == 110


def test_what_only_packs_have_after_a_power_failure_is_kept_and_counted(
    site: TailSite, store: FakeStorage
) -> None:
    """The log comes back without acknowledged records, also once other records have their
    offsets and are archived.
    """
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(60)
    site.run()
    log.append(40)
    site.run()
    lost = log.written[0]
    log.truncate(60)
    log.lead(6)
    site.restart()
    log.append(5)
    site.run()
    by = cleaner(site)
    with structlog.testing.capture_logs() as logs:
        clean(site, by)
    assert by.totals.stale_offsets == 40
    [entry] = [each for each in logs if each["event"] == "tail.kept"]
    assert entry["what"] == "t-0, leader epoch 4"
    assert "lost committed records from offset 60 on" in entry["reason"]
    log.append(100)
    log.roll()
    site.archive_ends[log.tp] = log.log_end
    clean(site, by)
    assert by.totals.stale_offsets == 40
    [row] = site.rows()
    contents = TailInventory(store, LAYOUT).read()
    [(_, data)] = read_rows(store, contents.rows[log.tp])
    assert (row.start, row.end) == (60, 100)
    assert lost.endswith(data)
    # Readers see why they are not in the tail.
    tail = contents.merged(log.tp, archived(log))
    assert [(out.reason, *out.offsets) for out in tail.left_out] == [(Reason.STALE, 60, 100)]
    # An hour later, they are in quarantine, as archived records would be; and then in no pack.
    folder = LAYOUT.quarantine_prefix(log.tp) + f"{60:020d}-epoch-6/"
    site.time.now += 2999
    by.run(site.led)
    assert not list(store.list_objects(folder))
    store.fail("put", StoreUnavailableError("killed"), nth=2)
    site.time.now += 1
    by.run(site.led)
    assert [row.key for row in store.list_objects(folder)] == [folder + "plan.json"]
    by.run(site.led)
    assert store.contents()[folder + f"{60:020d}.log"] == data
    plan = read_plan(store, folder)
    assert plan is not None
    assert (plan.kind, plan.next_offset) == (MoveKind.QUARANTINE, 60)
    assert read_unresolved(store, LAYOUT, [log.tp]).quarantines == {log.tp: 1}
    assert by.totals.stale_offsets == 40
    by.run(site.led)
    assert (by.totals.stale_offsets, live(store)) == (0, [])


@pytest.mark.parametrize("how", ["gap", "start"])
def test_records_that_were_deleted_before_they_were_archived_go_to_quarantine(
    site: TailSite, store: FakeStorage, how: str
) -> None:
    """The archive continues in the same leader epoch behind a gap, or begins there."""
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(60)
    site.run()
    log.append(40)
    site.run()
    lost = log.written[0]
    log.start_at(100)
    log.append(10)
    archive = ArchivedPart(Offset(110), history((4, 0)), log.topic_id)
    first = 60
    if how == "gap":
        store.put_object(LAYOUT.gap_key(log.tp, Offset(60), Offset(100)), BytesBody(b"{}"))
    else:
        first = 0
        archive = replace(archive, gaps=[OffsetRange(Offset(0), Offset(100))])
    by = cleaner(site, {log.tp: archive}.get)
    with structlog.testing.capture_logs() as logs:
        clean(site, by, led={})
    assert by.totals.stale_offsets == 100 - first
    [entry] = [each for each in logs if each["event"] == "tail.kept"]
    assert "deleted them before they were archived" in entry["reason"]
    site.time.now += 3000
    by.run(dict)
    by.run(dict)
    assert (by.totals.stale_offsets, live(store)) == (0, [])
    data = store.contents()[
        LAYOUT.quarantine_prefix(log.tp) + f"{first:020d}-epoch-4/{first:020d}.log"
    ]
    assert lost.endswith(data)
    assert sum(header.record_count for _, header in split_batches(memoryview(data))) == 100 - first


def test_the_start_of_a_led_archive_is_known(site: TailSite, store: FakeStorage) -> None:
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(60)
    site.run()
    site.archive_ends[log.tp] = 60
    by, led = cleaner(site), site.led()
    clean(site, by, {log.tp: led[log.tp]._replace(archive_start=Offset(50))})
    assert by.totals.stale_offsets == 60
    clean(site, by, led)
    assert (by.totals.stale_offsets, live(store)) == (0, [])


def test_gaps_are_listed_once_and_rows_stay_while_they_are_unknown(
    site: TailSite, store: FakeStorage
) -> None:
    for number in range(3):
        log = site.log_dir.create("t", number)
        log.append(5)
    site.run()
    site.archive_ends = dict.fromkeys(site.log_dir.partitions, 5)
    by = cleaner(site)
    gaps = LAYOUT.gaps_prefix()
    store.fail("list", StoreUnavailableError("away"), key=gaps)
    clean(site, by)
    assert (live(store), by.totals.unknown_partitions) == ([0], 3)
    clean(site, by)
    assert (live(store), by.totals.unknown_partitions) == ([], 0)
    assert len([each for each in store.requests if each.key == gaps]) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_in_quarantine_leaves_the_packs_and_does_not_come_back(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """With a pack whose answer was lost, live rows beside, a restart, and gc of the quarantine.

    Also if no pack can be copied until the records are in quarantine.
    """
    log, beside = site.log_dir.create("t", 0, epoch=4), site.log_dir.create("u", 0)
    log.append(60)
    site.run()
    log.append(20)
    beside.append(10)
    site.log_dir.create("v", 0)  # its claim keeps the pack
    site.sender.held = True
    site.run()
    [job] = site.sender.waiting
    assert job.body is not None
    store_pack(job.numbers, job.body, 0)
    log.append(20)
    beside.append(10)
    site.sender.fail(job, StoreTimeoutError("timeout"))
    site.sender.held = False
    for _ in range(10):
        site.run()
    ranges = [(row.start, row.end) for row in site.rows() if row.tp == log.tp and row.start >= 60]
    assert sorted(ranges) == [(60, 80), (60, 100)]
    log.truncate(60)
    log.lead(6)
    site.restart()
    site.run()
    log.append(100)
    site.archive_ends[log.tp] = log.log_end
    by = cleaner(site)
    with monkeypatch.context() as patch:
        if fails:
            patch.setattr(TailCleaner, "_copy", lambda *_: None)
        for _ in range(7):
            clean(site, by)
    for _ in range(2):
        clean(site, by)
    folder = LAYOUT.quarantine_prefix(log.tp)
    stored = {each.key for each in store.list_objects(folder)}
    assert len(stored) == 2
    assert by.totals.stale_offsets == 0
    assert [row.tp for row in site.rows() if not row.is_claim] == [beside.tp]
    # gc deletes what an operator has acknowledged.
    store.delete_objects(list(stored))
    again = cleaner(site)
    for _ in range(9):
        clean(site, again)
    assert again.totals.stale_offsets == 0
    assert not list(store.list_objects(folder))
    assert merged(store, beside).end == beside.log_end


def test_a_repeat_adds_to_the_quarantine_what_is_new(site: TailSite, store: FakeStorage) -> None:
    """A restart before the rows are dropped; the archive has replaced more since."""
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(60)
    site.run()
    for _ in range(2):
        log.append(20)
        site.run()
    lost = log.written[0]
    log.truncate(60)
    log.lead(6)
    site.restart()
    site.run()
    log.append(60)
    site.archive_ends[log.tp] = 80
    by = cleaner(site)
    for _ in range(7):
        clean(site, by)
    folder = LAYOUT.quarantine_prefix(log.tp) + f"{60:020d}-epoch-6/"
    assert [each.key for each in store.list_objects(folder)] == [
        folder + f"{60:020d}.log",
        folder + "plan.json",
    ]
    site.archive_ends[log.tp] = 120
    by = cleaner(site)
    for _ in range(9):
        clean(site, by)
    assert by.totals.stale_offsets == 0
    logs = [each.key for each in store.list_objects(folder) if each.key.endswith(".log")]
    assert logs == [folder + f"{60:020d}.log", folder + f"{80:020d}.log"]
    assert lost.endswith(b"".join(store.contents()[key] for key in logs))
    # Their metadata are as those of archived segments.
    for key, end in zip(logs, (80, 100), strict=True):
        head = store.head_object(key)
        assert noted_next_offset(head) == end
        assert head.metadata[TOPIC_ID_KEY] == log.topic_id
        assert head.metadata[EPOCHS_KEY] == f"4@{end - 20}"
        assert noted_number(head, MAX_TIMESTAMP_KEY) == max(
            header.max_timestamp for _, header in split_batches(memoryview(store.contents()[key]))
        )
        assert noted_checksum(head) == crc64nvme(store.contents()[key])


def test_other_bytes_in_the_quarantine_are_a_conflict(site: TailSite, store: FakeStorage) -> None:
    log = site.log_dir.create("t", 0, epoch=4)
    log.append(60)
    site.run()
    [source] = [
        each for each in TailInventory(store, LAYOUT).read().rows[log.tp] if not each.row.is_claim
    ]
    prefix = store_run(store, LAYOUT, site.broker, [source], LeaderEpoch(5))
    key = f"{prefix}{0:020d}.log"
    before = store.contents()[key]
    assert store_run(store, LAYOUT, site.broker, [source], LeaderEpoch(5)) == prefix
    store.overwrite(key, before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(ArchiveConflictError, match="another batch at offset"):
        store_run(store, LAYOUT, site.broker, [source], LeaderEpoch(5))


def test_quiet_partitions_have_few_packs(site: TailSite, store: FakeStorage) -> None:
    """A week of a pack every 5 s would be 120,960 packs of some hundred bytes."""
    logs = [site.log_dir.create("t", number) for number in range(3)]
    by = cleaner(site)
    most, sent = 0, 0
    for _ in range(36):
        for _ in range(20):
            for log in logs:
                log.append(1)
            site.run()
            sent += 1
        site.time.now += 500
        by.run(site.led)
        most = max(most, by.totals.live_packs)
    assert sent == 720
    # Those since the last but one cleaning, and up to eight of each size.
    assert most <= 3 * 20 + 3 * 8
    for log in logs:
        tail = merged(store, log)
        assert tail.end == 720
        assert tail_bytes(store, tail) == log_bytes(log)
        # The rows of packs that follow each other are one row.
        assert len(tail.slices) <= 2 * 20 + 1
    site.time.now += 3600
    by.run(site.led)
    assert site.packs() <= 2 * most


def test_a_week_of_packs_that_are_all_needed() -> None:
    """Every 5 s, 20 kB of 200 partitions: the plans of 1,008 cleanings."""
    sizes: dict[int, tuple[int, int]] = {}
    numbers = count()
    settled, most, written = -1, 0, 0
    for _ in range(7 * 144):
        highest = 0
        for highest in islice(numbers, 120):
            sizes[highest] = 20_000, 200
        uses = [_use(number, *sizes[number]) for number in sizes if number <= settled]
        plan = plan_cleaning(uses, 0)
        assert not plan.drop
        assert len(plan.keep) + sum(map(len, plan.copy)) == len(uses)
        for batch in plan.copy:
            for use in batch:
                del sizes[use.pack.number]
            size = sum(use.size for use in batch)
            highest = next(numbers)
            sizes[highest] = size, max(200, size // MAX_ROW_BYTES)
            written += size
        settled, most = highest, max(most, len(sizes))
    assert most < 300
    assert sum(size for size, _ in sizes.values()) == 7 * 17_280 * 20_000
    # Each byte is copied about twice.
    assert written < 3 * 7 * 17_280 * 20_000


def _use(number: int, size: int, rows: int) -> PackUse:
    pack = PackRef(BrokerId(1), number, str(number), "etag", size, 0)
    return PackUse(pack, size, size, rows, b"")


def test_a_pack_that_is_stored_twice_is_needed_once(site: TailSite, store: FakeStorage) -> None:
    """A store that stores, and answers too late."""
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    for _ in range(10):
        log.append(5)
        site.sender.held = True
        site.run()
        for job in list(site.sender.waiting):
            assert job.body is not None
            store_pack(job.numbers, job.body, 0)
            site.sender.fail(job, StoreTimeoutError("timeout"))
        site.sender.held = False
    site.run()
    by = clean(site)
    assert by.totals.live_bytes == len(log_bytes(log))
    assert tail_bytes(store, merged(store, log)) == log_bytes(log)


def test_packs_of_a_recreated_topic_can_be_read_and_those_of_the_deleted_one_go(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    """Broker 1 led the deleted topic, and does not lead the new one. Its rows stay until the
    archive of the deleted topic is retired and has their records.
    """
    log = site.packed_log(packs=2, records=10)
    del site.log_dir.partitions[log.tp]
    new = other.log_dir.create("t", 0, topic_id="B" * 21 + "A")
    new.append(10)
    other.run()
    contents = TailInventory(store, LAYOUT).read()
    tail = contents.merged(log.tp, ArchivedPart())
    assert (tail.topic_id, tail.end) == (new.topic_id, 10)
    by = cleaner(site, {log.tp: archived(new)}.get)
    clean(site, by, led={})
    assert live(store) == [0, 1]
    retire_log(store, log, 10)
    site.time.now += 3000
    with structlog.testing.capture_logs() as logs:
        by.run(dict)
    assert live(store) == [1]
    [entry] = [each for each in logs if each["event"] == "tail.kept"]
    assert entry["what"] == f"t-0, topic id {log.topic_id}"
    assert "retired and does not have records from offset 10 on" in entry["reason"]


def retire_log(store: FakeStorage, log: PartitionLog, end: int) -> str:
    """Store the archive of a log up to an offset, and retire it; return its folder's prefix."""
    archive_log(store, log, end)
    stored = read_watermark(store, LAYOUT.watermark_key(log.tp))
    plan = retire(MoveContext(store, LAYOUT), log.tp, stored, "a test")
    assert plan is not None
    return plan.target


def test_rows_of_a_retired_topic_go_if_the_retired_archive_has_their_records(
    site: TailSite, store: FakeStorage
) -> None:
    """The topic is not created again, and the broker does not lead it. A plan alone, an archive of
    another topic id, or a gap in it show nothing.
    """
    log = site.packed_log(packs=3, records=10)
    prefix = retire_log(store, log, 20)
    gap = f"{prefix}gaps/{10:020d}-{20:020d}.json"
    store.put_object(gap, BytesBody(b"{}"))
    last = f"{prefix}{0:020d}.log"
    stored = store.get_object(last).data
    store.delete_object(last)
    steps: list[tuple[list[int], Callable[[], object]]] = [
        ([0, 1, 2], lambda: store.put_object(last, BytesBody(stored))),
        ([1, 2], lambda: store.delete_object(gap)),
        ([2], lambda: None),
    ]
    place = TailPlace(site.store, LAYOUT, encrypts=False)
    by = cleaner(site, stored_of=stored_archive(lambda _: place))
    for expected, step in steps:
        clean(site, by, led={})
        assert live(store) == expected
        step()
        site.time.now += 3600
    refused = f"{prefix}leader-epoch-checkpoint"
    store.put_object(refused, BytesBody(b"damaged"))
    clean(site, by, led={})
    assert (live(store), by.totals.unknown_partitions) == ([2], 1)


def test_rows_of_a_recreated_topic_stay_until_its_archive_is_moved(
    site: TailSite, store: FakeStorage
) -> None:
    """So that `sidetier retire` can promote them, also where this broker leads the new topic."""
    log = site.packed_log(packs=2, records=10)
    archive_log(store, log, 10)
    log.delete_topic()
    new = PartitionLog(log.path, log.tp, 0, 0, "B" * 21 + "A")
    site.log_dir.partitions[log.tp] = new
    place = TailPlace(site.store, LAYOUT, encrypts=False)
    by = cleaner(site, stored_of=stored_archive(lambda _: place))
    store.fail("get", StoreUnavailableError("away"), key=LAYOUT.watermark_key(log.tp))
    for expected in ([0, 1], [1], [1]):
        clean(site, by)
        assert live(store) == expected
    assert merged(store, log, 10).end == 20
    retire_log(store, log, 10)
    site.time.now += 3600
    clean(site, by)
    assert live(store) == []


@pytest.mark.parametrize("is_pending", [False, True])
def test_an_offset_wm_of_the_deleted_topic_shows_nothing_about_rows_of_the_new_one(
    site: TailSite, store: FakeStorage, *, is_pending: bool
) -> None:
    """Also if it is written later: by a promotion, by gc, or at the begin of the retirement."""
    log = site.log_dir.create("t", 0)
    log.append(20)
    site.run()
    site.time.now += 1
    pending = f"{LAYOUT.retired_prefix(log.tp)}{'B' * 21}A/" if is_pending else None
    mark = Watermark(BaseOffset(0), Offset(500), topic_id="B" * 21 + "A", pending=pending)
    write_watermark(store, LAYOUT.watermark_key(log.tp), mark, None)
    place = TailPlace(site.store, LAYOUT, encrypts=False)
    by = cleaner(site, stored_of=stored_archive(lambda _: place))
    clean(site, by, led={})
    assert live(store) == [0]


def test_one_damaged_pack_or_unknown_archive_does_not_end_the_cleaning(
    site: TailSite, store: FakeStorage
) -> None:
    """And both show in the totals."""
    log, refused = site.log_dir.create("t", 0), site.log_dir.create("refused", 0)
    for _ in range(4):
        log.append(5)
        site.run([log.tp])
    refused.append(5)
    site.run()
    damaged = key_of(store, 2)
    store.overwrite(damaged, store.contents()[damaged][:-1])

    def archived_of(_: TopicPartition) -> ArchivedPart:
        raise ConfigurationError("refused is in storage.encryption.refuse_plain")

    by = cleaner(site, archived_of)
    site.archive_ends[log.tp] = 20
    led = site.led([log.tp])
    with structlog.testing.capture_logs() as logs:
        clean(site, by, led)
    assert live(store) == [2, 4]
    assert (by.totals.unread_packs, by.totals.unknown_partitions) == (1, 1)
    assert {each["what"] for each in logs} == {damaged, "refused-0"}
    assert len(logs) == 2  # not again


def test_a_damaged_range_costs_the_copy_of_its_pack_alone(
    site: TailSite, store: FakeStorage
) -> None:
    """And is read again an hour later."""
    logs = [site.log_dir.create("t", number) for number in range(3)]

    def more() -> None:
        for _ in range(10):
            for log in logs:
                log.append(1)
            site.run()

    more()
    damaged = key_of(store, 0)
    data = store.contents()[damaged]
    store.overwrite(damaged, data[:70] + bytes([data[70] ^ 1]) + data[71:])
    by = cleaner(site)
    for _ in range(3):
        clean(site, by)
        assert damaged in {
            pack.key for pack in TailInventory(store, LAYOUT).listing(BrokerId(1)).packs
        }
        assert (by.totals.unread_packs, len(live(store))) == (1, 2)
        ends = [each.end for each in store.requests if each.key == damaged]
        assert len([end for end in ends if end and end < len(data)]) == 1, "not read again"
        more()
    store.overwrite(damaged, data)
    site.time.now += 3600
    clean(site, by)
    assert (by.totals.unread_packs, len(live(store))) == (0, 1)
    for log in logs:
        assert tail_bytes(store, merged(store, log)) == log_bytes(log)


def test_a_damaged_index_object_is_replaced_and_one_of_a_newer_version_stays(
    site: TailSite, store: FakeStorage
) -> None:
    log = site.packed_log(packs=3, records=5)
    site.archive_ends[log.tp] = 10
    by, key = clean(site), LAYOUT.tail_index_key(1)
    assert live(store) == [2]
    for body in (b"{", b'{"version": 1, "packs": [3, 2]}'):
        store.put_object(key, BytesBody(body))
        assert live_in_readers(store) == 3
        clean(site, by)
        assert live(store) == [2]
        assert merged(store, log, 10).end == 15
    newer = b'{"version": 2}'
    store.put_object(key, BytesBody(newer))
    with pytest.raises(MalformedObjectError, match="upgrade Sidetier"):
        clean(site, by)
    assert store.contents()[key] == newer


def live_in_readers(store: FakeStorage) -> int:
    return len(TailInventory(store, LAYOUT).listing(BrokerId(1)).packs)


def test_an_error_that_no_code_expects_ends_the_cleaning_of_one_store(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = site.packed_log(packs=3, records=5)
    site.archive_ends[log.tp] = 10
    [good] = site.cycle.stores()
    broken = PackNumbers(FakeStorage(), LAYOUT, BrokerId(1), count())
    by = TailCleaner(
        lambda: [broken, good],
        lambda numbers: TailInventory(numbers.store, numbers.layout),
        lambda _: TailPlace(site.store, LAYOUT, encrypts=False),
        lambda _: None,
        lambda *_: (),
        site.broker,
        site.time.clock,
    )

    def get_object(*_: object) -> object:
        raise ValueError("a defect")

    monkeypatch.setattr(broken.store, "get_object", get_object)
    with pytest.raises(ValueError, match="a defect"):
        by.run(site.led)
    assert live(store) == [2]


def test_copies_end_before_the_index_is_full(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_module, "MAX_INDEX_BYTES", 4000)
    monkeypatch.setattr(cleaning_module, "FULL_INDEX_BYTES", 3000)
    log = site.log_dir.create("t", 0)
    for number in range(20):  # each row has the transactions that are open, 24 bytes each
        log.append_bytes(transactional(log.log_end, 100 + number), 1)
        site.run()
    by = clean(site)
    assert 2 < len(live(store)) < 10
    assert by.totals.rewritten_bytes == len(log_bytes(log))
    assert tail_bytes(store, merged(store, log)) == log_bytes(log)


def test_memory_does_not_grow_with_the_number_of_packs(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of one pack at a time."""
    site.packed_log(packs=12, records=2)
    kept: list[int] = []
    real = TailInventory.rows

    def rows(self: TailInventory, pack: PackRef) -> tuple[TailRow, ...]:
        kept.append(sum(isinstance(each, TailRow) for each in gc.get_objects()))
        return real(self, pack)

    monkeypatch.setattr(TailInventory, "rows", rows)
    by = cleaner(site, inventory=TailInventory(store, LAYOUT))
    by.run(site.led)
    assert len(kept) == 24  # once more to copy them
    assert max(kept[:12]) - min(kept[:12]) <= 2


def test_a_copy_has_the_bytes_that_were_stored_or_is_not_made(
    site: TailSite, store: FakeStorage
) -> None:
    busy, slow = busy_and_slow(site)
    site.archive_ends[busy.tp] = 300
    key = key_of(store, 4)
    data = bytearray(store.contents()[key])
    [row] = [
        r
        for r in site.rows_of(TailInventory(store, LAYOUT).listing(BrokerId(1)).packs[4])
        if r.tp == slow.tp
    ]
    data[row.position + 30] ^= 1
    store.overwrite(key, bytes(data))
    by = clean(site)
    assert by.totals.rewritten_bytes == len(log_bytes(slow)) - row.size
    # Number 10 was taken for the copy that failed.
    assert live(store) == [4, 11]
    assert by.totals.unread_packs == 1


def test_rows_are_joined_within_one_leader_epoch_alone(site: TailSite, store: FakeStorage) -> None:
    log = site.log_dir.create("t", 0)
    for epoch in range(3):
        log.lead(epoch)
        for _ in range(4):
            log.append(2)
            site.run()
    by = clean(site)
    assert by.totals.rewritten_bytes == len(log_bytes(log))
    ranges = [(row.start, row.end) for row in site.rows() if not row.is_claim]
    assert ranges == [(0, 8), (8, 16), (16, 24)]
    assert tail_bytes(store, merged(store, log)) == log_bytes(log)


def test_transactions_are_in_rows_that_are_written_again(
    site: TailSite, store: FakeStorage
) -> None:
    busy, slow = site.log_dir.create("busy", 0), site.log_dir.create("slow", 0)
    batches = [(0, 7, None), (1, 8, None), (2, 7, 0), (3, 9, None)]
    for base, producer, marker in batches:
        busy.append(30)
        slow.append_bytes(transactional(base, producer, marker=marker), 1)
        site.run()
    before = merged(store, slow)
    site.archive_ends[busy.tp] = 120
    clean(site)
    tail = merged(store, slow)
    assert len(tail.slices) == 1
    row, last = tail.slices[0].source.row, before.slices[-1].source.row
    assert row.open == last.open
    assert [each.first_offset for each in row.aborted] == [0]
    assert (tail.end, last_stable(tail)) == (before.end, last_stable(before)) == (4, 1)


# -- other writers of the same packs ------------------------------------------------------------


class SameUrl:
    """Another store object over the same objects, as with `storage.overrides`."""

    def __init__(self, store: FakeStorage) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_two_stores_of_one_url_take_no_number_twice(site: TailSite, store: FakeStorage) -> None:
    """The packs of one are cleaned and deleted before the other one stores its next pack."""
    second = cast("RemoteStorage", SameUrl(store))
    site.cycle = TailCycle(
        site.source,
        lambda topic: TailPlace(second if topic == "audit" else store, LAYOUT, encrypts=False),
        site.inventory_of,
        site.sender,
        site.broker,
        site.time.clock,
    )
    busy, audit = site.log_dir.create("busy", 0), site.log_dir.create("audit", 0)
    for _ in range(2):
        audit.append(5)
        site.run()
    for _ in range(20):
        busy.append(5)
        site.run()
    site.archive_ends[busy.tp] = 100
    by = clean(site)
    site.time.now += 4000
    by.run(site.led)
    assert len(live(store)) < 5
    for _ in range(5):
        audit.append(5)
        site.run()
    assert site.cycle.safe()[audit.tp].safe_up_to == merged(store, audit).end == audit.log_end


def test_a_sidecar_that_was_paused_stores_live_packs(
    site: TailSite, store: FakeStorage, tmp_path: Path
) -> None:
    """Another sidecar of the broker has stored, cleaned and deleted packs since."""
    log = site.packed_log(packs=3, records=5)
    second = TailSite(tmp_path / "second", store, 1, site.time)
    second.log_dir, second.source = site.log_dir, site.source
    second.restart()
    for _ in range(20):
        log.append(5)
        second.run()
    archived = second.archive_ends[log.tp] = log.log_end - 5
    by = clean(second)
    second.time.now += 4000
    by.run(second.led)
    assert by.totals.deleted_packs > 15
    site.archive_ends[log.tp] = archived
    for _ in range(6):
        log.append(5)
        site.run()
        assert site.cycle.safe()[log.tp].safe_up_to == merged(store, log, archived).end
    assert merged(store, log, archived).end == log.log_end
    # The two clean at once: one index object wins, and names only what its writer has read.
    site.archive_ends[log.tp] = second.archive_ends[log.tp] = log.log_end - 10
    store.race("put", lambda: clean(second), key=LAYOUT.tail_index_key(1))
    clean(site)
    assert merged(store, log, log.log_end - 10).end == log.log_end


def test_a_pack_that_is_stored_while_cleaning_reads_is_live(
    site: TailSite, store: FakeStorage
) -> None:
    """Also if its number is the lowest: the index names what cleaning has read."""
    log = site.packed_log(packs=4, records=5)
    site.archive_ends[log.tp] = 15
    late = next(iter(store.list_objects(KEYS))).key
    body = store.get_object(late).data
    store.delete_object(late)
    store.race("put", lambda: store.put_object(late, BytesBody(body)), key=LAYOUT.tail_index_key(1))
    clean(site)
    assert late in {pack.key for pack in TailInventory(store, LAYOUT).listing(BrokerId(1)).packs}


def archive_behind_a_gap(store: FakeStorage, log: PartitionLog, gap: OffsetRange) -> None:
    """The sidecar records a gap, and archives what follows it."""
    store.put_object(LAYOUT.gap_key(log.tp, gap.start, gap.end), BytesBody(b"{}"))
    archive_log(store, log, log.log_end)


def former(site: TailSite, *stores: FakeStorage) -> TailCleaner:
    """A cleaner that reads the archives of the last store."""
    place = TailPlace(stores[-1], LAYOUT, encrypts=False)
    numbers = [PackNumbers(store, LAYOUT, site.broker, count(1000)) for store in stores]
    return TailCleaner(
        lambda: numbers,
        lambda each: TailInventory(each.store, each.layout),
        lambda _: place,
        stored_archive(lambda _: place),
        partial(retired_parts, stores[-1], LAYOUT),
        site.broker,
        site.time.clock,
    )


def test_gaps_belong_to_the_state_of_the_archive_that_was_read(
    site: TailSite, store: FakeStorage
) -> None:
    """A sidecar records a gap between the listing of all gaps, or of those of the partition, and
    the reading of `offset.wm`, or a retirement takes the gap records along.
    """
    gap = OffsetRange(Offset(5), Offset(15))
    first, log = site.log_dir.create("t", 0), site.log_dir.create("t", 1)
    for _ in range(4):
        log.append(5)
        site.run([log.tp])
    first.append(5)
    site.run([first.tp])  # judged first
    archive_log(store, first, 5)
    archive_log(store, log, 5)
    lost = {(5, 10), (10, 15)}

    def rows() -> set[tuple[int, int]]:
        return {(row.start, row.end) for row in site.rows() if row.tp == log.tp}

    key = LAYOUT.watermark_key(log.tp)
    store.race("get", lambda: archive_behind_a_gap(store, log, gap), key=key)
    by = former(site, store)
    by.run(dict)
    assert rows() >= lost
    by.run(dict)
    assert rows() >= lost
    assert by.totals.stale_offsets == 10
    # Remembered, and then retired with its gap records.
    retire(MoveContext(store, LAYOUT), log.tp, read_watermark(store, key), "a test")
    for _ in range(8):
        clean(site, by, led={})
    in_quarantine = any(LAYOUT.quarantine_prefix(log.tp) in each for each in store.contents())
    assert rows() >= lost or in_quarantine


def test_rows_stay_if_the_archive_changes_while_its_gaps_are_listed(
    site: TailSite, store: FakeStorage
) -> None:
    """The next cleaning reads it again."""
    log = site.packed_log(packs=2, records=5)
    archive_log(store, log, 5)
    by = former(site, store)
    store.race("list", lambda: archive_log(store, log, 10), key=LAYOUT.gap_prefix(log.tp))
    by.run(dict)
    assert live(store) == [0, 1]
    by.run(dict)
    assert live(store) == []


def test_rows_of_the_current_topic_are_not_those_of_a_deleted_one(
    site: TailSite, store: FakeStorage
) -> None:
    """The topic is created again while another store is cleaned, or behind the board's entry."""
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    stale = site.led()
    ours = "B" * 21 + "A"

    def recreated() -> None:
        log.delete_topic()
        site.log_dir.create("t", 0, topic_id=ours).append(5)
        site.run()

    first = FakeStorage()
    first.race("list", recreated, key=KEYS)
    former(site, first, store).run(site.led)
    assert {row.topic_id for row in site.rows()} == {ours}
    former(site, store).run(lambda: stale)
    assert {row.topic_id for row in site.rows()} == {ours}


def test_records_that_are_to_be_deleted_and_are_not_copied_yet_are_shown(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning_module, "MIN_COPIED_BYTES", 1)
    monkeypatch.setattr(cleaning_module, "COPIED_SHARE", 0)
    gone, lives = site.log_dir.create("gone", 0), site.log_dir.create("lives", 0)
    gone.append(5)
    lives.append(500)
    site.run()
    site.time.now += 2 * 86_400
    by = former(site, store)
    by._is_deleted = lambda topic, _: topic == "gone"
    by.run(dict)
    assert list(by.kept.values()) == [
        "one cleaning does not copy more bytes; the next one continues"
    ]
    assert {row.tp for row in site.rows()} == {gone.tp, lives.tp}


@pytest.mark.parametrize("is_led", [True, False])
def test_no_archive_is_never_remembered(
    site: TailSite, store: FakeStorage, *, is_led: bool
) -> None:
    """Where that would decide: rows that only packs have stay for the promotion."""
    log = site.packed_log(packs=2, records=5)
    by = former(site, store)
    deleted = {"all": False}
    by._is_deleted = lambda *_: deleted["all"]
    clean(site, by, led={})
    archive_log(store, log, 5)  # by another broker
    log.delete_topic()
    site.log_dir.create("t", 0, topic_id="B" * 21 + "A")
    site.time.now += 600 if is_led else 86_400 * 2
    deleted["all"] = not is_led
    # Nor is a folder of a retirement that goes on believed.
    by.run(site.led if is_led else dict)
    assert (5, 10) in {(row.start, row.end) for row in site.rows() if row.topic_id == log.topic_id}
