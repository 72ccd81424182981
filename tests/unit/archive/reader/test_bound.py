"""Reading up to a bound, from the archive and from an extract of it."""

import pytest

from sidetier.archive.objects.segment import StoredLog, stored_logs
from sidetier.archive.reader import (
    DamagedArchiveError,
    Failed,
    Gap,
    IsolationLevel,
    ReachedEnd,
    Records,
)
from sidetier.archive.reader.assembly import ScannedBatches
from sidetier.archive.reader.transactions import Batches, KnownTransactions, ReadCommitted
from sidetier.archive.view import Extract
from sidetier.segments.arrow import scan_headers
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import ObjectSummary
from tests.harness.made_archive import (
    TP,
    Clock,
    MadeArchive,
    batches,
    encoded,
    offsets,
    reading,
    take_to_end,
    take_until,
)
from tests.harness.record_batches import TransactionalLog
from tests.harness.splits import reads

FIRST_INDEX = 200
"""Bytes between the entries of a generated index."""


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def archive(store: FakeStorage) -> MadeArchive:
    made = MadeArchive(store)
    made.segments(0, 100, 200, 1000)
    return made


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("isolation", IsolationLevel)
def test_records_below_the_bound_are_followed_by_its_end(
    store: FakeStorage, isolation: IsolationLevel
) -> None:
    for first, until in ((0, 100), (30, 250), (103, 104), (198, 203), (990, 1000)):
        with reading(store, isolation=isolation) as reader:
            reader.assign(TP, first, until=until)
            taken = take_to_end(reader)

            assert offsets(taken) == list(range(first, until))
            assert taken[-1] == ReachedEnd(TP, Offset(until))
            assert reader.position(TP) == until
            assert reader.take(1, 0.01) == []


@pytest.mark.usefixtures("archive")
def test_nothing_is_fetched_beyond_the_bound(store: FakeStorage) -> None:
    with reading(store, isolation=IsolationLevel.READ_COMMITTED) as reader:
        reader.assign(TP, 150, until=250)
        assert offsets(take_to_end(reader)) == list(range(150, 250))

    # Two index entries lie between the start of the bound's batch and the offset where it ends for
    # sure.
    behind = len(encoded(batches(200, 250))) + 2 * (FIRST_INDEX + len(encoded(batches(0, 5))))
    (read,) = reads(store, "0200.log")
    assert read.start == 0
    assert read.end is not None
    assert len(encoded(batches(200, 250))) <= read.end <= behind


@pytest.mark.usefixtures("archive")
def test_seek_keeps_the_bound(store: FakeStorage) -> None:
    with reading(store) as reader:
        reader.assign(TP, 0, until=150)
        take_until(reader, lambda one: isinstance(one, Records), most=10)
        reader.seek(TP, 140)
        assert offsets(take_to_end(reader)) == list(range(140, 150))
        reader.seek(TP, 20)
        assert offsets(take_to_end(reader)) == list(range(20, 150))
        reader.seek(TP, 150)
        assert take_to_end(reader) == [ReachedEnd(TP, Offset(150))]
        reader.assign(TP, 400, until=400)
        assert take_to_end(reader) == [ReachedEnd(TP, Offset(400))]


@pytest.mark.usefixtures("archive")
def test_bound_above_the_end_is_waited_for(store: FakeStorage, archive: MadeArchive) -> None:
    with reading(store, look_interval=0.01) as reader:
        reader.assign(TP, 990, until=1010)
        assert take_to_end(reader)[-1] == ReachedEnd(TP, Offset(1000))
        archive.segment(1000, batches(1000, 1020))
        archive.mark(1000, 1020)
        taken = take_until(reader, lambda one: one == ReachedEnd(TP, Offset(1010)))
        assert offsets(taken) == list(range(1000, 1010))


def test_gap_is_reported_up_to_the_bound(store: FakeStorage, archive: MadeArchive) -> None:
    archive.lose(100)
    with reading(store) as reader:
        reader.assign(TP, 50, until=150)
        taken = take_to_end(reader)
        assert offsets(taken) == list(range(50, 100))
        gap = taken[-1]
        assert isinstance(gap, Gap)
        assert gap.offsets == (100, 150)
        reader.seek(TP, gap.offsets.end)
        assert take_to_end(reader) == [ReachedEnd(TP, Offset(150))]


def damage(archive: MadeArchive, base: int, end: int, within: int) -> None:
    """Damage one byte of the batch that ends before offset `within`, in the segment of this
    base.
    """
    log = bytearray(encoded(batches(base, end)))
    log[len(encoded(batches(base, within))) - 1] ^= 1
    archive.put(archive.key(base), bytes(log), {NEXT_OFFSET_KEY: str(end)})


@pytest.mark.parametrize("until", [None, 60])
def test_batch_that_cannot_be_decoded_is_reported_before_later_errors(
    store: FakeStorage, archive: MadeArchive, until: int | None
) -> None:
    damage(archive, 0, 100, 55)
    archive.lose(100)
    with reading(store) as reader:
        reader.assign(TP, 0, until=until)
        taken = take_until(reader, lambda one: not isinstance(one, Records), most=7)

        assert offsets(taken) == list(range(50))
        failed = taken[-1]
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, DamagedArchiveError)
        assert failed.error.offsets == (50, 55)
        reader.seek(TP, 55)
        assert offsets(take_to_end(reader)) == list(range(55, until or 100))


# Extracts


def extract_of(archive: MadeArchive, *bases: int, end: int, first: int = 0) -> Extract:
    prefix = archive.layout.partition_prefix(archive.tp)
    logs = stored_logs(archive.store.list_objects(prefix), prefix)
    chosen = tuple(log for log in logs if int(log.base_offset) in bases)
    return Extract(None, archive.is_pinterest, chosen, Offset(end), (Offset(first), 0))


@pytest.mark.parametrize("is_pinterest", [False, True])
def test_extract_is_read_without_listing_and_later_offsets_with_one(
    store: FakeStorage, *, is_pinterest: bool
) -> None:
    archive = MadeArchive(store, is_pinterest=is_pinterest)
    archive.segments(0, 100, 200, 300, 400)
    extract = extract_of(archive, 100, 200, end=300, first=100)
    store.requests.clear()
    with reading(store) as reader:
        reader.assign(TP, 100, until=300, extract=extract)
        assert offsets(take_to_end(reader)) == list(range(100, 300))
        assert {one.operation for one in store.requests} == {"stream"}

        reader.assign(TP, 100, until=400, extract=extract)
        assert offsets(take_to_end(reader)) == list(range(100, 400))
        reader.assign(TP, 100, extract=extract)
        assert offsets(take_to_end(reader)) == list(range(100, 400))


def test_extract_does_not_expire(store: FakeStorage, archive: MadeArchive) -> None:
    clock = Clock()
    extract = extract_of(archive, 100, 200, end=1000, first=100)
    store.requests.clear()
    with reading(store, clock=clock, first_range=500, largest_range=500) as reader:
        reader.assign(TP, 100, until=900, extract=extract)
        taken = take_until(reader, lambda one: isinstance(one, Records), most=10)
        clock.now += 3600
        taken += take_to_end(reader)
        reader.seek(TP, 150)
        taken += take_to_end(reader)

    assert offsets(taken) == [*range(100, 900), *range(150, 900)]
    assert {one.operation for one in store.requests} == {"stream"}


def test_records_beyond_the_bound_are_not_buffered() -> None:
    log = TransactionalLog()
    log.write(7, 10)
    log.write(-1, 10, transactional=False)
    data = log.encoded
    stored = StoredLog(BaseOffset(0), ObjectSummary("0.log", len(data), "e", 0))
    made = Batches(stored, ScannedBatches(data, scan_headers(data), 0), Offset(0), Offset(20))
    transactions = KnownTransactions()
    assert transactions.learn(made) is None
    held = ReadCommitted(transactions)

    assert list(held.add(made.below(Offset(10)))) == []
    before = held.held_bytes
    assert list(held.add(made.rows(slice(1, 2)).below(Offset(10)))) == []

    assert before == held.held_bytes == len(data)
    assert held.blocked_at == 0


def test_bounds_of_an_extract_are_those_of_the_archive(
    store: FakeStorage, archive: MadeArchive
) -> None:
    with reading(store) as reader:
        reader.assign(TP, 100, until=200, extract=extract_of(archive, 100, end=200, first=100))
        bounds = reader.bounds(TP, max_age=60)

    assert bounds is not None
    assert bounds.next_offset == 1000


def test_undecided_transaction_is_held_back_at_the_bound(
    store: FakeStorage,
) -> None:
    log = TransactionalLog()
    log.write(-1, 10, transactional=False)
    log.write(7, 10)
    archive = MadeArchive(store)
    archive.segment(0, log.batches)
    archive.mark(0, 20)
    extract = extract_of(archive, 0, end=20)
    with reading(store, isolation=IsolationLevel.READ_COMMITTED) as reader:
        reader.assign(TP, 0, until=15, extract=extract)
        taken = take_to_end(reader)

        assert offsets(taken) == list(range(10))
        assert taken[-1] == ReachedEnd(TP, Offset(10))


def test_transaction_that_is_open_behind_an_extract_is_decided_without_reading_segments(
    store: FakeStorage,
) -> None:
    archive = MadeArchive(store)
    bases = (0, 10, 20, 30, 40)
    for base in bases[:-1]:
        log = TransactionalLog(next_offset=base)
        log.write(7 if base == 0 else -1, 10, transactional=base == 0)
        archive.segment(base, log.encoded)
    end = TransactionalLog(next_offset=40)
    end.mark(7, commit=True)
    archive.segment(40, end.encoded)
    archive.mark(40, 41)
    for base in bases:
        archive.transaction_indexes(base, [], {7: 0} if base else {})
    extract = extract_of(archive, 0, 10, end=20)
    with reading(store, isolation=IsolationLevel.READ_COMMITTED) as reader:
        reader.assign(TP, 0, until=10, extract=extract)
        assert offsets(take_to_end(reader)) == list(range(10))
    read = {one.key for one in store.requests if one.operation == "stream"}
    assert archive.key(40) in read
    assert not read & {archive.key(20), archive.key(30)}


def test_missing_index_is_no_obstacle(store: FakeStorage, archive: MadeArchive) -> None:
    archive.lose(200, FileKind.INDEX)
    with reading(store) as reader:
        reader.assign(TP, 150, until=300)
        assert offsets(take_to_end(reader)) == list(range(150, 300))
