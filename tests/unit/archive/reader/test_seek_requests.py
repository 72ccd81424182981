"""Requests of a seek to the store until the first record arrives."""

from dataclasses import dataclass, field

import pytest

from sidetier.archive.reader import ArchiveReader, NullReadingObserver, Records
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import TP, MadeArchive, offsets, reading, take_until
from tests.harness.record_batches import MadeBatch, MadeRecord

KIB, MIB = 1 << 10, 1 << 20


@dataclass(slots=True)
class UntilTaken(NullReadingObserver):
    """A store that remembers the requests before the last range was taken."""

    store: FakeStorage
    asked: list[str] = field(default_factory=list)

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:
        del tp, hit
        self.asked = [
            one.key.rpartition(".")[2] for one in self.store.requests if one.operation == "stream"
        ]


def sized(first: int, end: int, size: int, each: int = 4) -> list[MadeBatch]:
    """Batches of `count` records with about `size` bytes; each record has its own timestamp."""
    value = bytes(size // each)
    return [
        MadeBatch(tuple(MadeRecord(at, at * 10, value=value) for at in range(start, start + each)))
        for start in range(first, end, each)
    ]


def asked_for(archive: MadeArchive, timestamp: int, budget: int = 64 * MIB) -> list[str]:
    """Kinds of the files that were read until the first record of the timestamp arrived."""
    store = archive.store
    assert isinstance(store, FakeStorage)
    seen = UntilTaken(store)
    with reading(store, observer=seen, memory_budget=budget, fetch_threads=1) as reader:
        reader.bounds(archive.tp)
        del store.requests[:]
        found = reader.offset_for_time(archive.tp, timestamp)
        assert found == -(-timestamp // 10)
        assert first_of(reader, archive.tp, found) == found
    return seen.asked


def first_of(reader: ArchiveReader, tp: TopicPartition, offset: int) -> int:
    reader.assign(tp, offset)
    return offsets(take_until(reader, lambda one: isinstance(one, Records), most=1))[0]


@pytest.mark.parametrize(
    ("size", "budget"),
    [(KIB, MIB), (16 * KIB, MIB), (300 * KIB, MIB), (MIB, 4 * MIB), (MIB, 64 * MIB)],
)
def test_timestamp_search_reads_a_time_index_an_index_and_one_range(size: int, budget: int) -> None:
    archive = MadeArchive()
    archive.segment(0, sized(0, 80, size))
    archive.mark(0, 80)

    for timestamp in (395, 400, 410):
        assert asked_for(archive, timestamp, budget) == ["timeindex", "index", "log"]


def test_segments_above_the_answer_are_not_read() -> None:
    archive = MadeArchive()
    for base in range(0, 400, 80):
        archive.segment(base, sized(base, base + 80, KIB))
    archive.mark(320, 400)

    assert asked_for(archive, 405) == ["timeindex", "index", "log"]
    # The timestamps of the segments below are in their metadata.
    assert asked_for(archive, 1005) == ["timeindex", "index", "log"]


def test_timestamp_shared_by_many_batches_is_found_without_reading_them() -> None:
    """The indexes give start and end; the batches between them are not read."""
    archive = MadeArchive()
    same = [MadeBatch((MadeRecord(at, 5, value=bytes(16 * KIB)),)) for at in range(60)]
    late = [MadeBatch((MadeRecord(at, 9, value=bytes(16 * KIB)),)) for at in range(60, 90)]
    archive.segment(0, [*same, *late])
    archive.mark(60, 90)
    store = archive.store
    assert isinstance(store, FakeStorage)
    with reading(store) as reader:
        assert reader.offset_for_time(TP, 6) == 60
    assert len([one for one in store.requests if one.operation == "stream"]) == 3


def test_record_is_found_despite_wrong_indexes() -> None:
    """Its indexes belong to a log of the same size with other timestamps."""
    archive = MadeArchive()
    lying = MadeArchive()
    log = [
        MadeBatch((MadeRecord(at, 0 if at < 50 else 7, value=bytes(16 * KIB)),)) for at in range(60)
    ]
    lying.segment(0, [MadeBatch((MadeRecord(at, 7, value=bytes(16 * KIB)),)) for at in range(60)])
    archive.segment(0, log)
    for suffix in ("index", "timeindex"):
        key = archive.key(0).removesuffix("log") + suffix
        archive.put(key, lying.store.get_object(key).data)
    archive.mark(0, 60)
    with reading(archive.store) as reader:
        assert reader.offset_for_time(TP, 6) == 50
