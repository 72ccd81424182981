"""Many partitions in one reader: all records arrive once, in turns, within one memory bound."""

from collections.abc import Mapping
from time import monotonic
from typing import Any

import pytest

from sidetier.archive.reader import ArchiveReader, ReachedEnd, Records
from sidetier.archive.reader.partition import Partition
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import Clock, MadeArchive, encoded, reading, take_to_end
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.waiting import wait_until

KIB, MIB = 1 << 10, 1 << 20
TPS = [TopicPartition("many", number) for number in range(200)]
MOST = 10
"""Number of records that are read at once."""


def log_of(first: int, end: int, size: int) -> bytes:
    """Batches of one record each."""
    return encoded(MadeBatch((MadeRecord(at, at, value=bytes(size)),)) for at in range(first, end))


def read_all(reader: ArchiveReader) -> tuple[dict[TopicPartition, list[int]], int]:
    """Read every record up to each end; also return how many had arrived when the last partition
    began.
    """
    found: dict[TopicPartition, list[int]] = {tp: [] for tp in TPS}
    ended: set[TopicPartition] = set()
    come, last, deadline = 0, 0, monotonic() + 100
    while len(ended) < len(TPS):
        assert monotonic() < deadline, {tp: found[tp][-1:] for tp in found.keys() - ended}
        for one in reader.take(MOST, 5):
            assert isinstance(one, Records | ReachedEnd), one
            if isinstance(one, ReachedEnd):
                ended.add(one.tp)
                continue
            last = last if found[one.tp] else come
            come += one.records.num_rows
            found[one.tp] += one.records.column("offset").to_pylist()
    return found, last


def is_complete(found: Mapping[TopicPartition, list[int]], end: int) -> bool:
    return all(numbers == list(range(end)) for numbers in found.values())


def test_no_partition_waits_until_others_reach_their_ends() -> None:
    """Two segments each, all of them fetched before the first record is taken."""
    store, logs = FakeStorage(), [log_of(0, 4, 10), log_of(4, 8, 10)]
    for tp in TPS:
        archive = MadeArchive(store, tp=tp)
        archive.segment(0, logs[0])
        archive.segment(4, logs[1])
        archive.mark(4, 8)
    with reading(store) as reader:
        for tp in TPS:
            reader.assign(tp, 0)
        whole = len(TPS) * sum(map(len, logs))
        wait_until(lambda: reader.held_memory == whole, 60, "all to be fetched")
        found, last = read_all(reader)
    assert is_complete(found, 8)
    assert last < 0.6 * 8 * len(TPS)


def test_all_records_arrive_once_within_the_memory_bound() -> None:
    """A partition's share is far below one batch, and every tenth partition has batches above its
    range.
    """
    store, budget = FakeStorage(), MIB
    logs = {size: log_of(0, 2, size) for size in (30 * KIB, 200 * KIB)}
    for tp in TPS:
        archive = MadeArchive(store, tp=tp)
        archive.segment(0, logs[200 * KIB if tp.partition % 10 == 0 else 30 * KIB])
        archive.mark(0, 2)
    with reading(store, memory_budget=budget) as reader:
        for tp in TPS:
            reader.assign(tp, 0)
        found, _ = read_all(reader)
        peak, held = reader.peak_memory, reader.held_memory
    assert is_complete(found, 2)
    assert peak <= 2 * budget
    assert held == 0


def test_a_request_looks_at_no_idle_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, log, seeks = FakeStorage(), log_of(0, 4, 10), 10
    for tp in TPS:
        archive = MadeArchive(store, tp=tp)
        archive.segment(0, log)
        archive.mark(0, 4)
    looks: list[TopicPartition] = []
    next_request = Partition.next_request

    def counted(partition: Partition, *given: Any, **named: Any) -> object:  # noqa: ANN401
        looks.append(partition.tp)
        return next_request(partition, *given, **named)

    with reading(store, clock=Clock()) as reader:
        for tp in TPS:
            reader.assign(tp, 0)
        read_all(reader)
        monkeypatch.setattr(Partition, "next_request", counted)
        for _ in range(seeks):
            reader.seek(TPS[0], 0)
            take_to_end(reader)
    # The ends of the others may have been noticed late.
    assert len(looks) < len(TPS) + 20 * seeks
