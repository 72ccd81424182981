"""Assign, seek, pause and close; requests to the store; memory; several partitions."""

import threading
from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import Final

import pytest

from sidetier.archive.reader import (
    ArchiveBounds,
    ArchiveReader,
    IsolationLevel,
    ReachedEnd,
    ReaderSettings,
    Records,
    Taken,
)
from sidetier.archive.segment_bytes import BufferPool
from sidetier.segments.buffers import is_exported
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.txn_index import AbortedTxn
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import (
    TP,
    MadeArchive,
    access_to,
    batches,
    encoded,
    offsets,
    read_from,
    reading,
    take_to_end,
    take_until,
)
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog
from tests.harness.waiting import wait_until


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def archive(store: FakeStorage) -> MadeArchive:
    made = MadeArchive(store)
    made.segments(0, 100, 200, 300)
    return made


def large_batches(first: int, end: int, size: int) -> list[MadeBatch]:
    return [MadeBatch((MadeRecord(offset, value=bytes(size)),)) for offset in range(first, end)]


def test_seek_moves_backwards_and_forwards(archive: MadeArchive) -> None:
    with reading(archive.store) as reader:
        reader.assign(TP, 0)
        take_until(reader, lambda one: isinstance(one, Records), most=7)
        assert reader.position(TP) == 7
        reader.seek(TP, 250)
        assert offsets(take_to_end(reader)) == list(range(250, 300))
        reader.seek(TP, 50)
        assert offsets(take_to_end(reader)) == list(range(50, 300))


def test_take_returns_at_most_the_requested_number_of_records(archive: MadeArchive) -> None:
    with reading(archive.store) as reader:
        reader.assign(TP, 0)
        taken = take_to_end(reader, most=3)

    sizes = [one.records.num_rows for one in taken if isinstance(one, Records)]
    assert max(sizes) == 3
    assert offsets(taken) == list(range(300))
    nexts = [one.next_offset for one in taken if isinstance(one, Records)]
    assert nexts == [offsets([one])[-1] + 1 for one in taken if isinstance(one, Records)]


def test_paused_partition_keeps_its_position(archive: MadeArchive) -> None:
    with reading(archive.store) as reader:
        reader.assign(TP, 0)
        taken = take_until(reader, lambda one: isinstance(one, Records), most=7)
        reader.pause(TP)
        assert reader.take(10, 0.1) == []
        reader.resume(TP)
        taken += take_to_end(reader)

    assert offsets(taken) == list(range(300))


def test_unassigned_partition_returns_nothing(archive: MadeArchive) -> None:
    with reading(archive.store) as reader:
        reader.assign(TP, 0)
        take_until(reader, lambda one: isinstance(one, Records), most=7)
        reader.unassign(TP)
        assert reader.take(10, 0.1) == []
        with pytest.raises(KeyError):
            reader.position(TP)
        reader.assign(TP, 290)
        assert offsets(take_to_end(reader)) == list(range(290, 300))


def test_end_is_reported_once(archive: MadeArchive) -> None:
    with reading(archive.store, look_interval=0.05) as reader:
        reader.assign(TP, 290)
        taken = take_to_end(reader)
        assert reader.take(10, 0.4) == []

    assert [one for one in taken if isinstance(one, ReachedEnd)] == [ReachedEnd(TP, Offset(300))]


def test_bounds_are_those_of_the_archive(archive: MadeArchive, store: FakeStorage) -> None:
    with reading(archive.store, clock=lambda: 7.0) as reader:
        expected = ArchiveBounds(Offset(0), Offset(300), is_pinterest=False, taken_at=7.0)
        assert reader.bounds(TP) == expected
        asked = len(store.requests)
        assert reader.bounds(TP, max_age=1.0) == expected
        assert len(store.requests) == asked


def test_close_ends_a_waiting_take(archive: MadeArchive) -> None:
    with reading(archive.store) as reader:
        reader.assign(TP, 300)
        take_to_end(reader)
        taken: list[object] = []
        waiting = threading.Thread(target=lambda: taken.append(reader.take(1, 60)))
        waiting.start()
        reader.close()
        waiting.join(5)
        assert not waiting.is_alive()
        assert taken == [[]]
        assert reader.take(1, 60) == []


@pytest.mark.usefixtures("archive")
def test_a_waiting_take_returns_the_end_of_a_new_assignment(store: FakeStorage) -> None:
    with reading(store) as reader:
        taken: list[Taken] = []
        waiting = threading.Thread(target=lambda: taken.extend(reader.take(1, 60)))
        waiting.start()
        waiting.join(0.2)  # until it waits
        reader.assign(TP, 100, until=100)
        waiting.join(20)
        assert taken == [ReachedEnd(TP, Offset(100))]


def test_close_does_not_wait_for_a_hung_store(archive: MadeArchive, store: FakeStorage) -> None:
    with store.hold("stream"), reading(archive.store) as reader:
        reader.assign(TP, 0)
        wait_until(lambda: store.count("stream"), 5, "a request")
        began = monotonic()
        reader.close()
        assert monotonic() - began < 4


def test_take_of_less_than_one_record_is_refused(archive: MadeArchive) -> None:
    with reading(archive.store) as reader, pytest.raises(ValueError, match="0 records"):
        reader.take(0, 1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"memory_budget": 1000}, "memory.budget"),
        ({"fetch_threads": 0}, "fetch.threads"),
        ({"first_range": 0}, "first range"),
        ({"look_interval": 0}, "look interval"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        ReaderSettings(**settings)  # type: ignore[arg-type]


# Requests to the store


def test_first_record_within_a_segment_needs_an_index_and_one_range(store: FakeStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 10_000, each=50))
    archive.mark(0, 10_000)
    with reading(store) as reader:
        reader.assign(TP, 5_000)
        taken = take_until(reader, lambda one: isinstance(one, Records))

    assert offsets(taken)[0] == 5_000
    asked = [one for one in store.requests if one.operation == "stream"]
    assert asked[0].key == archive.key(0, FileKind.INDEX)
    assert len(asked) <= 3
    assert store.count("list") == 1


def test_search_by_timestamp_needs_three_ranged_requests(store: FakeStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 10_000, each=50))
    archive.mark(0, 10_000)
    with reading(store) as reader:
        found = reader.offset_for_time(TP, 5_000)
        assert found == 5_000
        reader.assign(TP, found)
        first = offsets(take_until(reader, lambda one: isinstance(one, Records), most=1))
        kinds = [one.key.rpartition(".")[2] for one in store.requests if one.operation == "stream"]

    assert first == [5_000]
    assert kinds[:3] == ["timeindex", "index", "log"]
    assert kinds.count("timeindex") == kinds.count("index") == 1


def test_index_is_read_once(archive: MadeArchive, store: FakeStorage) -> None:
    with reading(store) as reader:
        for offset in (150, 180, 120):
            reader.assign(TP, offset)
            take_to_end(reader)

    assert store.count("stream", archive.key(100, FileKind.INDEX)) == 1


def test_segments_are_listed_once_for_many_polls(archive: MadeArchive, store: FakeStorage) -> None:
    with reading(archive.store) as reader:
        reader.assign(TP, 0)
        take_to_end(reader, most=1)

    assert store.count("list") == 1
    assert store.count("head") == 0


# Memory


CHANGES: Final[dict[str, Callable[[ArchiveReader], object]]] = {
    "unassign": lambda reader: reader.unassign(TP),
    "assign": lambda reader: reader.assign(TP, 300),
    "seek": lambda reader: reader.seek(TP, 300),
    "pause": lambda reader: reader.pause(TP),
}


@pytest.mark.parametrize("change", CHANGES)
def test_dropped_ranges_leave_the_budget_when_their_requests_have_ended(
    archive: MadeArchive, store: FakeStorage, change: str
) -> None:
    log = archive.key(0)
    with reading(store) as reader:
        with store.hold("stream", log):
            reader.assign(TP, 0)
            wait_until(
                lambda: reader.held_memory == len(encoded(batches(0, 300))), 20, "all requests"
            )
            wait_until(lambda: store.count("stream", log), 20, "the held request")
            CHANGES[change](reader)
            held = len(encoded(batches(0, 100)))
            wait_until(lambda: reader.held_memory == held, 20, "the others to be dropped")
        wait_until(lambda: reader.held_memory == 0, 20, "the last one to be dropped")


class Lent(BufferPool):
    """Remembers the memory that it has lent."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[bytearray] = []

    def take(self, size: int, spare: int) -> memoryview:
        lent = super().take(size, spare)
        assert isinstance(lent.obj, bytearray)
        self.owners.append(lent.obj)
        return lent

    @property
    def used(self) -> int:
        return sum(map(is_exported, self.owners))


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("change", [*CHANGES, "close"])
def test_nothing_refers_to_dropped_ranges(store: FakeStorage, change: str) -> None:
    buffers = Lent()
    with closing(ArchiveReader(access_to(store), buffers=buffers)) as reader:
        reader.assign(TP, 0)
        wait_until(lambda: buffers.used == 3, 20, "all ranges")
        CHANGES.get(change, ArchiveReader.close)(reader)
        wait_until(lambda: buffers.used == 0, 20, "all memory to be free")


@pytest.mark.parametrize("partitions", [1, 5])
def test_memory_stays_within_the_budget(store: FakeStorage, partitions: int) -> None:
    tps = [TopicPartition("large", number) for number in range(partitions)]
    for tp in tps:
        archive = MadeArchive(store, tp=tp)
        archive.segment(0, large_batches(0, 30, 50_000))
        archive.segment(30, large_batches(30, 60, 50_000))
        archive.mark(30, 60)
    budget = 1 << 20
    with reading(store, memory_budget=budget) as reader:
        for tp in tps:
            reader.assign(tp, 0)
        found: dict[TopicPartition, list[int]] = {tp: [] for tp in tps}
        ended: set[TopicPartition] = set()
        while len(ended) < partitions:
            for one in reader.take(4, 10):
                found[one.tp] += offsets([one])
                ended |= {one.tp} if isinstance(one, ReachedEnd) else set()
        cut = partitions * 50_000  # a batch that the end of a range has cut is put together
        assert budget // 4 < reader.peak_memory <= budget + cut

    assert all(numbers == list(range(60)) for numbers in found.values())


def test_batch_larger_than_the_budget_is_read(store: FakeStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, [*large_batches(0, 3, 10), *large_batches(3, 5, 3 << 20)])
    archive.mark(0, 5)

    assert offsets(read_from(archive, 0, memory_budget=1 << 20)) == list(range(5))


def test_no_partition_is_served_twice_while_another_waits(store: FakeStorage) -> None:
    tps = [TopicPartition("fair", number) for number in range(4)]
    for tp in tps:
        MadeArchive(store, tp=tp).segments(0, 200, 400)
    with reading(store, fetch_threads=2) as reader:
        for tp in tps:
            reader.assign(tp, 0)
        wait_until(lambda: store.count("stream") >= 8, 5, "all to be fetched")
        order: list[TopicPartition] = []
        while len(order) < 4:
            order += [one.tp for one in reader.take(10_000, 5)]

    assert sorted(order[:4]) == tps


# Transactions


def test_open_transaction_holds_records_back_until_it_is_decided(store: FakeStorage) -> None:
    log = TransactionalLog()
    log.write(-1, 3, transactional=False)
    log.write(7, 2)
    log.write(-1, 2, transactional=False)
    archive = MadeArchive(store)
    archive.segment(0, encoded(log.batches))
    archive.mark(0, 7)
    now = [0.0]
    with reading(store, clock=lambda: now[0]) as reader:
        reader.assign(TP, 0)
        taken = take_to_end(reader)
        assert offsets(taken) == [0, 1, 2]
        assert taken[-1] == ReachedEnd(TP, Offset(3))
        assert reader.take(10, 0.05) == []
        second = TransactionalLog(next_offset=7)
        second.mark(7, commit=True)
        second.write(-1, 1, transactional=False)
        archive.segment(7, encoded(second.batches))
        archive.mark(7, 9)
        now[0] += 10
        taken = take_to_end(reader)

    assert offsets(taken) == [3, 4, 5, 6, 8]
    assert taken[-1] == ReachedEnd(TP, Offset(9))


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_larger_than_the_memory_is_decided_by_reading_ahead(
    store: FakeStorage, *, commit: bool
) -> None:
    archive = MadeArchive(store)
    log = [
        MadeBatch((MadeRecord(0, value=bytes(10)),), producer_id=7, is_transactional=True),
        *large_batches(1, 100, 50_000),
    ]
    end = TransactionalLog(next_offset=100)
    end.mark(7, commit=commit)
    archive.segment(0, [*log, *end.batches])
    archive.mark(0, 101)
    with reading(store, memory_budget=1 << 20) as reader:
        reader.assign(TP, 0)
        taken = take_to_end(reader)
        assert reader.peak_memory <= 1 << 20

    assert offsets(taken) == [*([0] if commit else []), *range(1, 100)]
    assert taken[-1] == ReachedEnd(TP, Offset(101))


def test_read_uncommitted_returns_all_records_except_markers(store: FakeStorage) -> None:
    log = TransactionalLog()
    log.write(7, 2)
    log.mark(7, commit=False)
    log.write(8, 2)
    archive = MadeArchive(store)
    archive.segment(0, encoded(log.batches))
    archive.mark(0, 5)

    assert offsets(read_from(archive, 0, isolation=IsolationLevel.READ_UNCOMMITTED)) == [0, 1, 3, 4]
    assert offsets(read_from(archive, 0)) == []


def test_only_requested_columns_are_decoded(archive: MadeArchive) -> None:
    taken = read_from(archive, 290, columns=("value",))

    records = [one.records for one in taken if isinstance(one, Records)]
    assert all(set(one.schema.names) == {"offset", "value"} for one in records)


def test_transaction_is_decided_from_transaction_indexes_without_reading_segments(
    store: FakeStorage,
) -> None:
    archive = MadeArchive(store)
    archive.segment(
        0,
        [
            MadeBatch((MadeRecord(0, value=bytes(10)),), producer_id=7, is_transactional=True),
            *large_batches(1, 30, 50_000),
        ],
    )
    archive.segment(30, large_batches(30, 60, 50_000))
    archive.segment(60, large_batches(60, 90, 50_000))
    end = TransactionalLog(next_offset=90)
    end.mark(7, commit=False)
    archive.segment(90, encoded(end.batches))
    archive.segment(91, large_batches(91, 92, 10))
    archive.mark(91, 92)
    for base in (0, 30, 60, 90):
        archive.transaction_indexes(base, [], {7: 0} if base else {})
    aborted = AbortedTxn(7, Offset(0), Offset(90), Offset(91))
    archive.transaction_indexes(90, [aborted], {7: 0})
    archive.transaction_indexes(91, [], {})
    with reading(store, memory_budget=1 << 20) as reader:
        reader.assign(TP, 0)
        taken = take_until(reader, lambda one: isinstance(one, Records), most=1)
        read = {one.key for one in store.requests if one.operation == "stream"}

    assert offsets(taken) == [1]
    assert archive.key(60) not in read
    assert archive.key(90, FileKind.TXNINDEX) in {one.key for one in store.requests}


def test_transaction_index_with_another_checksum_is_ignored(
    store: FakeStorage,
) -> None:
    archive = MadeArchive(store)
    log = [MadeBatch((MadeRecord(0),), producer_id=7, is_transactional=True)]
    archive.segment(0, [*log, *large_batches(1, 30, 50_000)])
    end = TransactionalLog(next_offset=30)
    end.mark(7, commit=True)
    archive.segment(30, encoded(end.batches))
    archive.segment(31, large_batches(31, 32, 10))
    archive.mark(31, 32)
    archive.transaction_indexes(0, [], {})
    archive.transaction_indexes(30, [AbortedTxn(7, Offset(0), Offset(30), Offset(31))], {7: 0})
    archive.transaction_indexes(31, [], {})
    archive.put(archive.key(30, FileKind.TXNINDEX), b"an earlier try's")

    assert offsets(read_from(archive, 0, memory_budget=1 << 20)) == [*range(30), 31]
