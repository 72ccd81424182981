"""Cleaning of the packs of brokers that are gone, as by `sidetier gc --tail-packs`, and kills."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from sidetier.archive.objects.layout import LayoutNote
from sidetier.archive.objects.quarantine import read_plan
from sidetier.archive.tail.inventory import TailInventory
from sidetier.config.storage import StorageConfig
from sidetier.leadership.kraft.image import print_uuid
from sidetier.segments.errors import (
    AccessDeniedError,
    BrokerUnavailableError,
    ConfigurationError,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.tail.cleaning import IsDeleted, not_known_to_be_deleted
from sidetier.uploader.tail.gone import CleanedTail, DeletedTopics, clean_tails
from sidetier.uploader.tail.packs import TailPlace
from sidetier.wire.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from tests.harness.daemons import LAYOUT
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.log_dir import PartitionLog
from tests.harness.made_archive import MadeArchive, access_to
from tests.harness.tail_writing import TailSite, archive_log, log_bytes, merged, tail_bytes

DAY = 86_400.0


def gc(
    site: TailSite,
    store: RemoteStorage | None = None,
    *,
    older_than: float = 7 * DAY,
    is_deleted: IsDeleted = not_known_to_be_deleted,
    dry_run: bool = False,
) -> dict[int, CleanedTail]:
    """Clean, as another host that has no log dirs; return what was done, by broker."""
    store = site.store if store is None else store
    found = clean_tails(
        access_to(store, LAYOUT),
        StorageConfig.model_validate({"url": "memory://archive"}),
        lambda _: TailPlace(store, LAYOUT, encrypts=False),
        lambda place: TailInventory(place.store, place.layout),
        older_than,
        site.time.clock,
        is_deleted=is_deleted,
        dry_run=dry_run,
    )
    return {tail.broker: tail for tail in found}


def packs(store: FakeStorage, broker: int = 1) -> tuple[int, int]:
    """The number of stored packs of a broker, and of live ones."""
    listing = TailInventory(store, LAYOUT).listing(BrokerId(broker))
    return len(list(store.list_objects(LAYOUT.tail_packs_prefix(broker)))), len(listing.packs)


def test_packs_of_a_broker_that_is_gone_are_dropped_and_deleted_by_a_later_run(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    log, live = site.log_dir.create("t", 0), other.log_dir.create("u", 0)
    for _ in range(4):
        log.append(5)
        site.run()
    site.time.now += 8 * DAY
    live.append(5)
    other.run()
    archive_log(store, log, 15)
    archive_log(store, live, 5)
    before = store.contents()
    planned = gc(site, dry_run=True)
    assert store.contents() == before
    done = gc(site)
    assert done == planned
    assert [(done[1].packs, done[1].dropped_packs, done[1].deleted_packs)] == [(4, 3, 0)]
    assert (done[1].is_cleaned, done[2].is_cleaned) == (True, False)
    assert (packs(store), packs(store, 2)) == ((4, 1), (1, 1))
    # Readers have an hour, whoever deletes.
    site.time.now += 3599
    assert gc(site)[1].deleted_packs == 0
    site.time.now += 1
    assert gc(site, dry_run=True)[1].deleted_packs == 3
    assert gc(site)[1].deleted_bytes == done[1].dropped_bytes
    assert packs(store) == (1, 1)
    assert merged(store, log, 15).end == 20
    archive_log(store, log, 20)
    gc(site)
    site.time.now += 3600
    gc(site)
    # Nothing is left of the broker.
    assert not list(store.list_objects(LAYOUT.tail_prefix(1)))
    assert list(gc(site)) == [2]


def test_records_that_are_nowhere_else_stay(site: TailSite, store: FakeStorage) -> None:
    """Not archived, in a damaged pack, or of an archive that cannot be read."""
    logs = [site.log_dir.create("t", number) for number in range(3)]
    for log in logs:
        log.append(5)
        site.run([log.tp])
    site.time.now += 8 * DAY
    for log in logs[1:]:
        archive_log(store, log, 5)
    store.put_object(LAYOUT.epoch_checkpoint_key(logs[1].tp), BytesBody(b"damaged"))
    damaged = [row.key for row in store.list_objects(LAYOUT.tail_packs_prefix(1))][2]
    store.overwrite(damaged, store.contents()[damaged][:-1])
    site.time.now += 8 * DAY
    done = gc(site)[1]
    assert packs(store) == (3, 3)
    assert set(done.kept) == {damaged, "t-1"}
    # A pack that is young and cannot be read may be of a living broker.
    site.time.now -= 8 * DAY
    assert not gc(site)[1].is_cleaned


def test_lost_records_go_to_quarantine_in_the_same_run(site: TailSite, store: FakeStorage) -> None:
    """Beside rows that are needed: a copy does not make the broker look alive."""
    log, beside = site.log_dir.create("t", 0, epoch=4), site.log_dir.create("u", 0)
    log.append(60)
    beside.append(10)
    site.run()
    lost = log_bytes(log)
    log.truncate(0)
    log.lead(6)
    log.append(100)
    archive_log(store, log, 100)
    # A sidecar would wait for an hour, too.
    site.time.now += 1
    done = gc(site, older_than=0)[1]
    assert (done.is_cleaned, done.quarantined_offsets, list(done.kept)) == (
        True,
        0,
        ["t-0, leader epoch 4"],
    )
    site.time.now += 8 * DAY
    assert gc(site, dry_run=True)[1].quarantined_offsets == 60
    done = gc(site)[1]
    assert (done.quarantined_offsets, done.dropped_packs, done.kept) == (60, 1, {})
    folder = LAYOUT.quarantine_prefix(log.tp) + f"{0:020d}-epoch-6/"
    assert read_plan(store, folder) is not None
    assert store.contents()[folder + f"{0:020d}.log"] == lost
    assert packs(store) == (2, 1)
    site.time.now += 3600
    assert gc(site)[1].deleted_packs == 1
    assert tail_bytes(store, merged(store, beside)) == log_bytes(beside)


def test_rows_of_deleted_topics_go_if_the_operator_says_so(
    site: TailSite, store: FakeStorage
) -> None:
    """Not those whose archive is not retired yet, and none while the brokers do not answer."""
    names = ("gone", "archived", "lives")
    logs = {name: site.log_dir.create(name, 0) for name in names}
    for log in logs.values():
        log.append(5)
        site.run([log.tp])
        log.append(5)
        site.run([log.tp])
    for log in logs.values():
        log.append(5)
    site.run()  # a pack of which most is needed
    archive_log(store, logs["archived"], 5)
    site.time.now += 8 * DAY

    asked: list[str] = []

    def is_deleted(topic: str, topic_id: str) -> bool:
        asked.append(topic)
        assert topic_id == logs[topic].topic_id
        return topic != "lives"

    def unknown(_topic: str, _topic_id: str) -> bool:
        raise BrokerUnavailableError("no broker answers")

    # A broker may not know a topic yet.
    site.time.now -= 7.5 * DAY
    gc(site, older_than=0, is_deleted=lambda *_: True)
    kept = {(row.tp.topic, row.start) for row in site.rows() if not row.is_claim}
    assert kept >= {(name, at) for name in ("gone", "lives") for at in (0, 5, 10)}
    site.time.now += 7.5 * DAY
    assert set(gc(site, is_deleted=unknown)[1].kept) == {"gone-0", "lives-0"}
    gc(site, is_deleted=is_deleted, dry_run=True)
    gc(site, is_deleted=is_deleted)
    # Once in each cleaning: the answer before the operator's question may be old.
    assert sorted(asked) == ["gone"] * 2 + ["lives"] * 2
    rows = {(row.tp.topic, row.start) for row in site.rows() if not row.is_claim}
    assert rows == {("archived", 5), ("archived", 10), *(("lives", at) for at in (0, 5, 10))}


def test_brokers_of_the_archived_cluster_say_which_topics_are_deleted() -> None:
    ours = UUID(int=7)
    asked: list[str] = []

    def brokers(cluster_id: str, topic_id: UUID | None) -> Cluster:
        partition = PartitionMetadata(BrokerId(1), LeaderEpoch(0), (), ())
        known = {"t": TopicMetadata("t", topic_id, is_internal=False, partitions={0: partition})}

        def metadata(topics: tuple[str, ...], **_: object) -> ClusterMetadata:
            asked.extend(topics)
            found = {name: known[name] for name in topics if name in known}
            return ClusterMetadata(cluster_id, BrokerId(1), {}, found, {})

        return cast("Cluster", SimpleNamespace(metadata=metadata))

    def deleted(cluster: Cluster) -> DeletedTopics:
        return DeletedTopics(cluster, LayoutNote(0, "ours"), LAYOUT)

    is_deleted = deleted(brokers("ours", ours))
    is_deleted.check()
    assert not is_deleted("t", print_uuid(ours.bytes))
    assert is_deleted("t", "B" * 21 + "A")
    assert is_deleted("u", print_uuid(ours.bytes))
    assert asked == ["t", "t", "u"]
    with pytest.raises(ConfigurationError, match="the brokers belong to the Kafka cluster another"):
        deleted(brokers("another", ours)).check()
    with pytest.raises(ConfigurationError, match="no topic ids"):
        deleted(brokers("ours", None))("t", "B" * 21 + "A")


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_after_any_request_is_completed_by_the_next_run(
    tmp_path: Path, *, after: bool
) -> None:
    """With records that are lost, archived, and neither."""

    def made(path: Path) -> tuple[TailSite, FakeStorage, list[PartitionLog]]:
        site = TailSite(path, FakeStorage())
        site.store = store = FakeStorage(now_ms=lambda: int(site.time.wall() * 1000))
        site.restart()
        logs = [site.log_dir.create("t", number, epoch=number) for number in range(3)]
        for _ in range(3):
            for log in logs:
                log.append(4)
            site.run()
        for log in logs[1:]:
            archive_log(store, log, 12)
        made = MadeArchive(store, LAYOUT, logs[2].tp)
        made.epoch_history((3, 0))  # another leader's records
        site.time.now += 8 * DAY
        return site, store, logs

    def check(store: FakeStorage, logs: list[PartitionLog]) -> None:
        tail = merged(store, logs[0])
        assert tail_bytes(store, tail) == log_bytes(logs[0])
        lost = {
            key: data
            for key, data in store.contents().items()
            if key.startswith(LAYOUT.quarantine_prefix(logs[2].tp)) and key.endswith(".log")
        }
        rows = TailInventory(store, LAYOUT).read().rows
        assert not rows.get(logs[1].tp)
        assert not rows.get(logs[2].tp)
        assert b"".join(lost.values()) == log_bytes(logs[2])
        # A claim, which two packs have after a kill between copy and index, may keep one of them.
        stored, live = packs(store)
        assert stored == live <= 2

    site, store, logs = made(tmp_path / "whole")
    requests = MortalStore(store)
    gc(site, requests)
    site.time.now += 3600
    gc(site, requests)
    check(store, logs)
    for lives in range(requests.made):
        site, store, logs = made(tmp_path / f"{lives}")
        mortal = MortalStore(store, lives, after=after)
        with suppress(KilledError):
            gc(site, mortal)
            site.time.now += 3600
            gc(site, mortal)
        # Nothing is lost at this moment.
        kept = merged(store, logs[0])
        assert tail_bytes(store, kept) == log_bytes(logs[0]), lives
        for _ in range(3):
            site.time.now += 3600
            gc(site)
        check(store, logs)


def test_a_broker_that_comes_back_meanwhile_keeps_its_packs(
    site: TailSite, store: FakeStorage
) -> None:
    """Its sidecar stores a pack, or cleans, while gc does."""
    log = site.packed_log(packs=3, records=5)
    archive_log(store, log, 10)
    site.time.now += 8 * DAY
    index = LAYOUT.tail_index_key(1)

    def comes_back() -> None:
        log.append(5)
        site.run()

    store.race("put", comes_back, key=index)
    assert gc(site)[1].dropped_packs == 2
    assert merged(store, log, 10).end == 20
    site.time.now += 8 * DAY
    archive_log(store, log, 15)
    store.race("put", lambda: gc(site), key=index)
    done = gc(site)[1]
    assert "the next cleaning tries again" in done.kept[index]
    gc(site)
    assert merged(store, log, 15).end == 20
    # The index object of a broker without packs goes, unless it was written meanwhile.
    archive_log(store, log, 20)
    gc(site)
    site.time.now += 3600
    store.race("delete", comes_back, key=index)
    gc(site)
    assert merged(store, log, 20).end == 25


def test_a_copy_that_is_refused_is_shown(site: TailSite, store: FakeStorage) -> None:
    site.packed_log(packs=9, records=1)
    site.time.now += 8 * DAY
    store.fail("put", AccessDeniedError("no PutObject"))
    [reason] = gc(site)[1].kept.values()
    assert reason == "not copied: no PutObject"
    assert packs(store) == (9, 9)


def test_an_error_that_no_code_expects_ends_the_cleaning_of_one_broker(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    for each, name in ((site, "t"), (other, "u")):
        each.log_dir.create(name, 0).append(1)
        each.run()
    site.time.now += 8 * DAY
    store.fail("get", ValueError("a defect"), key=LAYOUT.tail_index_key(1))
    done = gc(site)
    assert (done[1].problem, done[2].problem) == ("a defect", None)
