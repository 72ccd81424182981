"""Cleaning of tail packs: what is dropped, what is written again, and kills between the writes."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from sidetier.archive.objects.tail_index import read_tail_index
from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart
from sidetier.segments.errors import StorageError, StoreUnavailableError
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.tail.cleaning import TailCleaner
from sidetier.uploader.tail.cycle import TailCycle
from sidetier.uploader.tail.packs import TailPlace
from sidetier.wire.log_offsets import OffsetKind
from tests.harness.daemons import LAYOUT
from tests.harness.log_dir import PartitionLog
from tests.harness.tail_writing import (
    TailSite,
    merged,
    replicate,
    tail_bytes,
    transactional,
)

if TYPE_CHECKING:
    from sidetier.storage.port import RemoteStorage

KEYS = LAYOUT.tail_packs_prefix(1)


def cleaner(
    site: TailSite, archived: Mapping[TopicPartition, ArchivedPart | None] | None = None
) -> TailCleaner:
    return TailCleaner(
        site.source,
        site.cycle.stores,
        lambda numbers: TailInventory(numbers.store, numbers.layout),
        lambda _: TailPlace(site.store, LAYOUT, encrypts=False),
        (archived or {}).get,
        site.broker,
        site.time.clock,
    )


def clean(site: TailSite, by: TailCleaner | None = None) -> TailCleaner:
    """Clean once the packs are old enough."""
    by = by or cleaner(site)
    site.time.now += 600
    by.run(site.led())
    return by


def live(store: FakeStorage) -> list[int]:
    """The live packs, counted from 0 in order of their creation."""
    created = sorted({each.key for each in store.requests if each.key.startswith(KEYS)} - {KEYS})
    return [created.index(pack.key) for pack in TailInventory(store, LAYOUT).packs(BrokerId(1))]


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
    log = site.log_dir.create("t", 0)
    for _ in range(6):
        log.append(5)
        site.run()
    site.archive_ends[log.tp] = 25
    by = clean(site)
    # The first pack has the claim.
    assert live(store) == [0, 5]
    assert len(list(store.list_objects(KEYS))) == 6
    assert merged(store, log, 25).end == 30
    site.time.now += 3000
    by.run(site.led())
    assert len(list(store.list_objects(KEYS))) == 6
    site.time.now += 601
    by.run(site.led())
    assert len(list(store.list_objects(KEYS))) == 2
    assert by.totals.deleted_packs == 4
    assert by.totals.live_packs == 2
    site.restart()
    log.append(5)
    site.run()
    assert live(store) == [0, 5, 6]
    assert merged(store, log, 25).end == 35


def test_new_packs_are_live_also_after_all_were_deleted(site: TailSite, store: FakeStorage) -> None:
    log = site.log_dir.create("t", 0)
    for _ in range(3):
        log.append(5)
        site.run()
    by = cleaner(site, {log.tp: ArchivedPart(Offset(99), topic_id="B" * 21 + "A")})
    log.delete_topic()
    site.log_dir.partitions[log.tp] = new = PartitionLog(log.path, log.tp, 0, 0, "B" * 21 + "A")
    clean(site, by)
    site.time.now += 4000
    by.run(site.led())
    assert not list(store.list_objects(KEYS))
    by.run(site.led())
    index = read_tail_index(store, LAYOUT, 1).index
    assert index is not None
    assert (index.packs, index.dropped) == ((), ())
    site.restart()
    new.append(5)
    site.run()
    assert live(store) == [3]
    assert merged(store, new).end == 5


def test_packs_of_which_little_is_needed_are_written_again_from_the_disk(
    site: TailSite, store: FakeStorage
) -> None:
    busy, slow = busy_and_slow(site)
    site.archive_ends[busy.tp] = 300
    gets = len([each for each in store.requests if each.operation in {"get", "stream"}])
    by = clean(site)
    assert live(store) == [10]
    reads = [each for each in store.requests if each.operation in {"get", "stream"}][gets:]
    # The index object, and the ends of the packs.
    assert len([each for each in reads if each.key.startswith(KEYS)]) == 10
    tail = merged(store, slow)
    assert tail_bytes(store, tail) == slow.written[0]
    assert [part[1:] for part in tail.slices] == [(0, 10)]
    assert merged(store, busy, 300).leader_epoch == 0
    assert by.totals.rewritten_bytes == len(slow.written[0])
    # The next one names the new pack, and the one after it has nothing to do.
    by.run(site.led())
    puts = len([each for each in store.requests if each.operation == "put"])
    by.run(site.led())
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
    assert merged(store, slow).end == 10
    site.restart()
    slow.append(2)
    site.run()
    again = clean(site)
    site.time.now += 4000
    again.run(site.led())
    assert merged(store, slow).end == 12
    assert tail_bytes(store, merged(store, slow)) == slow.written[0]
    assert len(live(store)) <= 3
    site.time.now += 4000
    again.run(site.led())
    assert len(list(store.list_objects(KEYS))) <= 3


def recreated(site: TailSite, log: PartitionLog) -> None:
    log.delete_topic()
    site.log_dir.partitions[log.tp] = new = type(log)(log.path, log.tp, 0, 0, "B" * 21 + "A")
    new.append(300)


def cut(_: TailSite, log: PartitionLog) -> None:
    log.truncate(5)
    log.lead(3)
    log.append(300, size=60)


@pytest.mark.parametrize("kind", [OffsetKind.HIGH_WATERMARK])
@pytest.mark.parametrize("act", [recreated, cut])
def test_what_is_written_again_is_confirmed_like_every_range(
    site: TailSite,
    store: FakeStorage,
    kind: OffsetKind,
    act: Callable[[TailSite, PartitionLog], None],
) -> None:
    busy, slow = busy_and_slow(site)
    before = bytes(slow.written[0])
    site.archive_ends[busy.tp] = 300
    # Between the reading and the second question.
    site.source.before[kind] = [lambda: None, lambda: act(site, slow)]
    topic_id = slow.topic_id
    led = site.led()
    site.time.now += 600
    cleaner(site).run(led)
    tail = (
        TailInventory(store, LAYOUT)
        .read()
        .merged(slow.tp, ArchivedPart(led[slow.tp].archive_end, topic_id=topic_id))
    )
    assert tail_bytes(store, tail) == before


def test_without_its_own_claim_a_leader_drops_nothing(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    """Its history shows that rows are stale, but no stored row shows it to readers yet."""
    log = site.log_dir.create("t", 0)
    log.append(10)
    site.run()
    copy = replicate(log, other)
    copy.lead(1)
    other.run()
    log.truncate(5)
    log.lead(2)
    clean(site)
    assert live(store) == [0]
    site.run()
    clean(site)
    assert merged(store, log).end == 5


def test_packs_of_former_partitions_go_when_the_archive_has_their_records(
    site: TailSite, store: FakeStorage
) -> None:
    log = site.log_dir.create("t", 0)
    for _ in range(3):
        log.append(5)
        site.run()
    tp = log.tp
    site.time.now += 600
    cleaner(site, {tp: None}).run({})
    assert live(store) == [0, 1, 2]
    by = cleaner(site, {tp: ArchivedPart(Offset(log.log_end), topic_id=log.topic_id)})
    by.run({})
    assert live(store) == [0]


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
    assert (tail.end, tail.last_stable) == (before.end, before.last_stable) == (4, 1)


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
    by.run(site.led())
    assert len(live(store)) < 5
    for _ in range(5):
        audit.append(5)
        site.run()
    assert site.cycle.safe()[audit.tp].safe_up_to == merged(store, audit).end == audit.log_end


def test_a_sidecar_that_was_paused_stores_live_packs(
    site: TailSite, store: FakeStorage, tmp_path: Path
) -> None:
    """Another sidecar of the broker has stored, cleaned and deleted packs since."""
    log = site.log_dir.create("t", 0)
    for _ in range(3):
        log.append(5)
        site.run()
    second = TailSite(tmp_path / "second", store, 1, site.time)
    second.log_dir = site.log_dir
    for _ in range(20):
        log.append(5)
        second.run()
    archived = second.archive_ends[log.tp] = log.log_end - 5
    by = clean(second)
    second.time.now += 4000
    by.run(second.led())
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
    log = site.log_dir.create("t", 0)
    for _ in range(4):
        log.append(5)
        site.run()
    site.archive_ends[log.tp] = 15
    late = next(iter(store.list_objects(KEYS))).key
    body = store.get_object(late).data
    store.delete_object(late)
    store.race("put", lambda: store.put_object(late, BytesBody(body)), key=LAYOUT.tail_index_key(1))
    clean(site)
    assert late in {pack.key for pack in TailInventory(store, LAYOUT).packs(BrokerId(1))}
