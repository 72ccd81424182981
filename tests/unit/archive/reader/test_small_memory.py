"""Requested records arrive even with very little memory."""

import random
import tracemalloc
from itertools import product
from time import monotonic

import pytest

from sidetier.archive.reader import ArchiveReader, IsolationLevel, Taken
from sidetier.archive.reader import settings as reader_settings
from sidetier.archive.reader.assembly import Assembler
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import (
    TP,
    MadeArchive,
    offsets,
    reading,
)
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog

KIB, MIB = 1 << 10, 1 << 20
BUDGETS = (64 * KIB, 200 * KIB, MIB, 4 * MIB)
SIZES = (16 * KIB, 300 * KIB, MIB)


def sized(first: int, end: int, size: int, *, transactional: bool = False) -> list[MadeBatch]:
    """Batches of one record each; timestamps equal offsets."""
    return [
        MadeBatch(
            (MadeRecord(at, at, value=bytes(size)),),
            producer_id=7 if transactional else -1,
            is_transactional=transactional,
        )
        for at in range(first, end)
    ]


def first_of(reader: ArchiveReader, tp: TopicPartition) -> Taken:
    """The first item of this partition."""
    end = monotonic() + 5
    while monotonic() < end:
        for one in reader.take(2, 0.5):
            if one.tp == tp:
                return one
    raise AssertionError(f"nothing came of {tp}; {reader.held_memory} bytes are held")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("budget", [MIB, 4 * MIB])
def test_memory_of_a_search_does_not_block_the_read(budget: int, size: int) -> None:
    archive = MadeArchive()
    archive.segment(0, sized(0, 60, size))
    archive.mark(0, 60)
    with reading(archive.store, memory_budget=budget, fetch_threads=1) as reader:
        for wanted in (20, 5, 40):
            found = reader.offset_for_time(TP, wanted)
            assert found == wanted
            reader.assign(TP, found)
            assert offsets([first_of(reader, TP)])[0] == wanted


@pytest.mark.parametrize(("threads", "budget"), list(product((1, 2, 4), BUDGETS)))
def test_every_seek_completes_with_any_memory_budget(
    threads: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also below the allowed minimum: one piece is always allowed beside the budget."""
    monkeypatch.setattr(reader_settings, "MIN_MEMORY", BUDGETS[0])
    dice = random.Random(f"{threads} {budget}")
    store = FakeStorage()
    tps = [TopicPartition("mixed", number) for number in range(len(SIZES))]
    for tp, size in zip(tps, SIZES, strict=True):
        archive = MadeArchive(store, tp=tp)
        end = TransactionalLog(next_offset=20)
        end.mark(7, commit=True)
        archive.segment(0, sized(0, 8, size))
        archive.segment(8, [*sized(8, 20, size, transactional=True), *end.batches])
        archive.mark(8, 21)
    for isolation in IsolationLevel:
        with reading(
            store, memory_budget=budget, fetch_threads=threads, isolation=isolation
        ) as reader:
            for tp in tps:
                reader.assign(tp, 3)
            for _ in range(12):
                tp, wanted = dice.choice(tps), dice.randrange(20)
                if dice.random() < 0.5:
                    assert reader.offset_for_time(tp, wanted) == wanted
                reader.seek(tp, wanted)
                assert offsets([first_of(reader, tp)])[0] == wanted


def test_large_batches_do_not_wait_for_another_partition_to_end() -> None:
    """Both partitions need all the memory; the one with small batches never pauses."""
    store = FakeStorage()
    small, large = TopicPartition("mixed", 0), TopicPartition("mixed", 1)
    for tp, size, count in ((small, 16 * KIB, 4000), (large, MIB, 4)):
        archive = MadeArchive(store, tp=tp)
        archive.segment(0, sized(0, count, size))
        archive.mark(0, count)
    with reading(store, memory_budget=MIB, fetch_threads=2) as reader:
        reader.assign(small, 0)
        reader.assign(large, 0)
        found: dict[TopicPartition, list[int]] = {small: [], large: []}
        while len(found[large]) < 4:
            for one in reader.take(3, 5):
                found[one.tp] += offsets([one])
        assert reader.peak_memory < 4 * MIB

    assert found[large] == list(range(4))
    assert len(found[small]) < 4000


def test_batch_beyond_the_budget_is_held_at_most_twice_during_assembly() -> None:
    """Once in its range and once as a batch; `memory.budget` counts the larger of the two."""
    store, size = FakeStorage(), 4 * MIB
    archive = MadeArchive(store)
    archive.segment(0, sized(0, 1, size))
    archive.mark(0, 1)
    log = archive.key(0)
    with store.get_object_input_stream(log) as stream:
        whole = stream.read()
    first, rest = memoryview(whole)[: 64 * KIB], memoryview(whole)[64 * KIB :]
    tracemalloc.start()
    try:
        assembler = Assembler(log, len(whole), 0)
        assert not list(assembler.feed(first))
        (batch,) = assembler.feed(rest)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert batch.size == len(whole)
    assert peak < 1.25 * size, "besides the range itself"

    with reading(store, memory_budget=MIB) as reader:
        reader.assign(archive.tp, 0)
        assert offsets([first_of(reader, archive.tp)]) == [0]
        assert size < reader.peak_memory < size + MIB
