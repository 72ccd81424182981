"""Finding and reading tail packs: requests, cleaning in between, damage, encryption."""

import random
from dataclasses import replace

import pytest

from sidetier.archive.objects.tail_index import (
    StoredTailIndex,
    TailIndex,
    read_tail_index,
    write_tail_index,
)
from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart, Reason
from sidetier.archive.tail.read import read_tails
from sidetier.segments.errors import (
    ArchiveConflictError,
    ChecksumMismatchError,
    EncryptionError,
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreTimeoutError,
)
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.encrypted_format import is_encrypted
from sidetier.storage.encrypting import EncryptingStorage
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness.encryption import RING, encrypting, without_keys
from tests.harness.encryption import settings as encryption_settings
from tests.harness.tail_packs import (
    LAYOUT,
    TOPIC_ID,
    TP,
    MadePack,
    history,
    last_stable,
    log,
    partitions,
    read_tail,
)

NOTHING = ArchivedPart()
OLD, NEW = history((0, 0)), history((0, 0), (3, 6))


def _store(store: RemoteStorage, broker: int, number: int, *ranges: tuple[int, int]) -> str:
    made = MadePack()
    for start, end in ranges:
        made.range(OLD, start, end)
    return made.store(store, broker, number)


def _read(store: RemoteStorage, archived: ArchivedPart = NOTHING) -> list[tuple[int, int]]:
    tail = TailInventory(store, LAYOUT).read().merged(TP, archived)
    headers = [batch.header for batch in read_tail(store, tail)]
    return [(header.base_offset, header.next_offset) for header in headers]


def test_the_tail_of_two_brokers_is_one_log_behind_the_archive() -> None:
    store = FakeStorage()
    _store(store, 1, 1, (0, 6))
    _store(store, 1, 2, (6, 12))  # stale from offset 6 on
    made = MadePack()
    made.claim(NEW)
    made.range(NEW, 4, 10)
    made.store(store, 2, 1)
    archived = ArchivedPart(Offset(2), OLD, TOPIC_ID)
    contents = TailInventory(store, LAYOUT).read()
    tail = contents.merged(TP, archived)
    assert (tail.start, tail.end, tail.leader_epoch, tail.gap) == (2, 10, 3, None)
    assert tail.epochs == NEW
    assert last_stable(tail) == 10
    assert {(out.reason, *out.offsets) for out in tail.left_out} == {
        (Reason.ARCHIVED, 0, 2),
        (Reason.STALE, 6, 12),
        (Reason.DUPLICATE, 4, 6),
    }
    headers = [batch.header for batch in read_tail(store, tail)]
    assert [(h.base_offset, h.leader_epoch) for h in headers] == [(2, 0), (4, 0), (6, 3), (8, 3)]


def test_requests_of_a_reading() -> None:
    store = FakeStorage()
    for broker in (1, 2):
        for number in range(1, 8):
            _store(store, broker, number, (number, number + 1))
    store.requests.clear()
    inventory = TailInventory(store, LAYOUT)
    contents = inventory.read()
    # The brokers; for each, the index object and the packs; the end of each pack.
    assert (store.count("list"), store.count("get"), store.count("stream")) == (3, 2, 14)
    assert (len(contents.packs), contents.footers, contents.problems) == (14, 14, {})
    store.requests.clear()
    assert inventory.read().footers == store.count("stream") == 0
    # Rows of packs that are gone are not kept.
    store.delete_object(contents.packs[0].key)
    _store(store, 2, 8, (8, 9))
    assert inventory.read().footers == 1
    assert len(inventory._kept) == 14


def test_each_pack_is_read_once_for_many_partitions() -> None:
    store = FakeStorage()
    for number in range(4):
        made = MadePack()
        for tp in partitions(200):
            made.range(OLD, number * 4, number * 4 + 4, tp=tp)
        made.store(store, 1, number)
    contents = TailInventory(store, LAYOUT).read()
    tails = {tp: contents.merged(tp, NOTHING) for tp in contents.rows}
    store.requests.clear()
    read = {(part.tp, part.number): part for part in read_tails(store, tails)}
    assert (len(tails), len(read), store.count("stream")) == (200, 800, 4)
    for tp in tails:
        data = [b.data for number in range(4) for b in read[tp, number].batches]
        assert b"".join(data) == b"".join(log(OLD, 0, 16))
    # In smaller ranges, if asked for.
    assert len(list(read_tails(store, tails, request_bytes=4096))) == 800
    # One partition costs one request for each pack.
    store.requests.clear()
    assert len(list(read_tail(store, tails[TopicPartition("topic-3", 7)]))) == 8
    assert store.count("stream") == 4


def test_packs_are_live_that_the_index_does_not_drop() -> None:
    store = FakeStorage()
    for number in range(1, 6):
        _store(store, 1, number, (number * 2, number * 2 + 2))
    index = write_tail_index(store, LAYOUT, 1, (2, 4), (1, 3), StoredTailIndex())
    inventory = TailInventory(store, LAYOUT)
    assert [pack.number for pack in inventory.listing(BrokerId(1)).packs] == [2, 4, 5]
    # Whatever its number: cleaning has not seen it.
    _store(store, 1, 0, (0, 2))
    assert [pack.number for pack in inventory.listing(BrokerId(1)).packs] == [0, 2, 4, 5]
    assert read_tail_index(store, LAYOUT, 1) == index
    assert index.index is not None
    assert index.index.generation == 1
    again = write_tail_index(store, LAYOUT, 1, (5,), (), index)
    assert again.index is not None
    assert again.index.generation == 2
    with pytest.raises(PreconditionFailedError):
        write_tail_index(store, LAYOUT, 1, (), (), index)
    with pytest.raises(ValueError, match="ascend"):
        write_tail_index(store, LAYOUT, 1, (5, 5), (), again)
    with pytest.raises(ValueError, match="kept and dropped"):
        write_tail_index(store, LAYOUT, 1, (4, 5), (5,), again)
    with pytest.raises(ValueError, match="from 0 to"):
        TailIndex((), (-1,), 1, "n")


def test_an_index_whose_answer_was_lost_is_written_once() -> None:
    store = FakeStorage()
    key = LAYOUT.tail_index_key(1)
    _store(store, 1, 1, (0, 2))
    store.fail("put", StoreTimeoutError("lost"), key=key, after=True)
    with pytest.raises(StoreTimeoutError):
        write_tail_index(store, LAYOUT, 1, (1,), (), StoredTailIndex())
    stored = read_tail_index(store, LAYOUT, 1)
    # The retry layer repeats the same put, and gets a refusal for its own success.
    store.fail("put", PreconditionFailedError("refused"), key=key, after=True)
    again = write_tail_index(store, LAYOUT, 1, (1,), (), stored)
    assert again == read_tail_index(store, LAYOUT, 1)


def test_a_reader_lists_again_when_cleaning_deletes_a_pack() -> None:
    store = FakeStorage()
    first = _store(store, 1, 1, (0, 4))
    _store(store, 1, 2, (4, 8))

    def clean() -> None:
        _store(store, 1, 3, (0, 4))
        write_tail_index(store, LAYOUT, 1, (2, 3), (1,), StoredTailIndex())
        store.delete_object(first)

    store.race("stream", clean, key=first)
    contents = TailInventory(store, LAYOUT).read()
    assert ([pack.number for pack in contents.packs], contents.problems) == ([2, 3], {})
    assert contents.merged(TP, NOTHING).end == 8


def test_rows_of_some_partitions_are_read_from_new_packs_and_those_that_have_them() -> None:
    """Each takeover reads the packs of all brokers."""
    store = FakeStorage()
    moved, others = TopicPartition("moved", 0), list(partitions(20))

    def pack(broker: int, number: int, *tps: TopicPartition) -> None:
        made = MadePack()
        for tp in tps:
            made.range(OLD, number * 2, number * 2 + 2, tp=tp)
        made.store(store, broker, number)

    for broker in range(4):
        for number in range(10):
            pack(broker, number, *others, *([moved] if (broker, number) == (2, 3) else []))
    inventory = TailInventory(store, LAYOUT)
    first = inventory.read(partitions=[TopicPartition("another", 1)])
    assert (first.footers, first.rows) == (40, {})
    pack(3, 10, *others)
    store.requests.clear()
    contents = inventory.read(partitions=[moved])
    assert [(row.pack.broker, row.pack.number) for row in contents.rows[moved] if row.pack] == [
        (2, 3)
    ]
    assert contents.footers == store.count("stream") == 2
    # Bounded: what is not remembered is read again.
    small = TailInventory(store, LAYOUT, max_known_partitions=30)
    assert [small.read(partitions=[moved]).footers for _ in range(2)] == [41, 41]


def test_a_pack_that_is_gone_for_ever_is_a_problem() -> None:
    store = FakeStorage()
    _store(store, 1, 1, (0, 4))
    write_tail_index(store, LAYOUT, 1, (1, 2), (), StoredTailIndex())
    contents = TailInventory(store, LAYOUT).read()
    missing = LAYOUT.tail_pack_key(1, 2)
    assert list(contents.problems) == [missing] == [pack.key for pack in contents.unread]
    assert "names this pack" in contents.problems[missing]
    store.fail("stream", ObjectNotFoundError("gone"), times=None)
    assert set(TailInventory(store, LAYOUT).read().problems) == {
        missing,
        LAYOUT.tail_pack_key(1, 1),
    }


def test_one_damaged_object_does_not_hide_the_others() -> None:
    store = FakeStorage()
    damaged = _store(store, 1, 1, (0, 4))
    _store(store, 1, 2, (4, 8))
    store.overwrite(damaged, store.contents()[damaged][:-1] + b"\x07")
    store.overwrite(
        _put(store, LAYOUT.tail_index_key(1)), b'{"version": 1, "packs": [3, 2], "dropped": []}'
    )
    contents = TailInventory(store, LAYOUT).read()
    assert [pack.number for pack in contents.packs] == [2]
    assert "upgrade Sidetier" in contents.problems[damaged]
    assert "index of tail packs" in contents.problems[LAYOUT.tail_index_key(1)]
    with pytest.raises(MalformedObjectError):
        read_tail_index(store, LAYOUT, 1)
    tail = contents.merged(TP, ArchivedPart(Offset(0), topic_id=TOPIC_ID))
    # A later pack of the same leader shows that the damaged one has no claim of a later one.
    assert (tail.end, tail.gap, tail.unread) == (0, (0, 4), None)


def test_a_reader_hears_of_a_damaged_pack_that_may_have_a_claim() -> None:
    store = FakeStorage()
    _store(store, 1, 1, (0, 6), (6, 12))
    made = MadePack()
    made.claim(NEW)
    key = made.store(store, 2, 1)
    archived = ArchivedPart(Offset(0), OLD, TOPIC_ID)
    inventory = TailInventory(store, LAYOUT)
    assert _read(store, archived)[-1] == (4, 6)
    store.overwrite(key, store.contents()[key][:-1])
    assert f"{key} cannot be read, and may show" in str(
        inventory.read().merged(TP, archived).unread
    )
    write_tail_index(store, LAYOUT, 2, (1,), (), StoredTailIndex())
    store.delete_object(key)
    assert f"{key} cannot be read, and may show" in str(
        inventory.read().merged(TP, archived).unread
    )


def _put(store: FakeStorage, key: str) -> str:
    store.put_object(key, BytesBody(b""))
    return key


def test_a_pack_with_a_large_index_takes_two_requests() -> None:
    store = FakeStorage()
    made, source = MadePack(), random.Random(1)
    for number in range(2000):
        name = f"{source.getrandbits(400):x}"
        made.range(history((1, 0)), number, number + 2, tp=TopicPartition(name, 0))
    made.range(OLD, 0, 2)
    made.store(store, 1, 1)
    store.requests.clear()
    contents = TailInventory(store, LAYOUT).read(partitions=[TP])
    assert (store.count("stream"), list(contents.rows)) == (2, [TP])


def test_changed_bytes_and_contradicting_packs_are_errors() -> None:
    store = FakeStorage()
    key = _store(store, 1, 1, (0, 4))
    tail = TailInventory(store, LAYOUT).read().merged(TP, NOTHING)
    other = MadePack()
    other.range(OLD, 0, 4, payload=b"other")
    other.store(store, 2, 1)
    both = TailInventory(store, LAYOUT).read()
    with pytest.raises(ArchiveConflictError, match=r"\[0, 4\) have other bytes in .*/2/.* than"):
        both.merged(TP, NOTHING)
    longer = MadePack()
    longer.range(OLD, 2, 8, payload=b"other")
    longer.store(store, 3, 1)
    mixed = TailInventory(store, LAYOUT).read([BrokerId(1), BrokerId(3)])
    with pytest.raises(ArchiveConflictError, match="offset 2 of leader epoch 0 has other bytes"):
        list(read_tail(store, mixed.merged(TP, NOTHING)))
    data = store.contents()[key]
    store.cut(key, 0)
    with pytest.raises(ChecksumMismatchError):
        list(read_tail(store, tail))
    store.overwrite(key, data)
    with pytest.raises(PreconditionFailedError):
        list(read_tail(store, tail))


def test_encrypted_packs_are_read_by_ranges() -> None:
    plain = FakeStorage()
    store = EncryptingStorage(plain, RING, lambda key: key.startswith("orders-"))
    made = MadePack()
    for start in range(0, 4000, 200):
        made.range(OLD, start, start + 200, payload=bytes(3000))
    key = made.store(store, 1, 1)
    assert is_encrypted(plain.contents()[key])
    assert len(plain.contents()[key]) > 5 << 20
    assert list(plain.contents()) == [key]  # no marker
    other = MadePack()
    other.range(OLD, 0, 2, tp=TopicPartition("public", 0))
    public = other.store(store, 1, 2)
    assert not is_encrypted(plain.contents()[public])
    plain.requests.clear()
    contents = TailInventory(store, LAYOUT).read()
    assert (contents.problems, len(contents.rows)) == ({}, 2)
    # The header of each pack, and its end.
    assert plain.count("stream") == 4
    assert len(list(read_tail(store, contents.merged(TP, NOTHING)))) == 2000
    # A process without keys learns from the metadata that a pack is encrypted.
    unreadable = TailInventory(without_keys(plain), LAYOUT).read()
    assert unreadable.unread == ()  # it reads other topics
    assert [pack.number for pack in unreadable.packs] == [2]
    assert "key 'k1', which is not configured" in unreadable.problems[key]


def test_an_encrypted_pack_is_bound_to_its_number() -> None:
    plain = FakeStorage()
    store = encrypting(plain)
    key, other = _store(store, 1, 1, (0, 4)), LAYOUT.tail_pack_key(1, 2)
    with pytest.raises(EncryptionError, match="another object"):
        store.copy_object(key, other)
    plain.copy_object(key, other)
    assert list(TailInventory(store, LAYOUT).read().problems) == [other]
    moved = "_sidetier/other/tail/1/packs/00000000000000000001"
    store.copy_object(key, moved)
    assert store.get_object(moved).data == store.get_object(key).data


def test_a_topic_that_must_be_encrypted_is_not_stored_in_a_plain_pack() -> None:
    store = EncryptingStorage(
        FakeStorage(), RING, refuses_plain=lambda key: key.startswith("orders-")
    )
    with pytest.raises(EncryptionError, match="refuse_plain"):
        _store(store, 1, 1, (0, 4))


def test_a_plain_pack_of_such_a_topic_is_not_read() -> None:
    plain, chosen = FakeStorage(), replace(encryption_settings(), refuse_plain=("ord.*",))
    endpoint = StorageEndpoint("memory://", encryption=chosen)
    key, store = _store(plain, 1, 1, (0, 4)), encrypting(plain)
    _store(store, 1, 2, (0, 4))
    contents = TailInventory(store, LAYOUT, refuses_plain=endpoint.refuses_plain).read()
    assert [pack.number for pack in contents.packs] == [2]
    assert "is not encrypted and has records of orders" in contents.problems[key]
