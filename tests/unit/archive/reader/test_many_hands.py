"""Several threads use one reader: each partition stays in order from its last seek on."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from sidetier.archive.reader import ArchiveReader, ReachedEnd, Records
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import MadeArchive, offsets, reading

END = 400
TPS = [TopicPartition("hands", number) for number in range(4)]


def meddle_once(reader: ArchiveReader, dice: random.Random) -> None:
    tp, offset = dice.choice(TPS), dice.randrange(END)
    match dice.randrange(4):
        case 0:
            reader.pause(tp)
            reader.resume(tp)
        case 1:
            reader.seek(tp, offset)
        case 2:
            reader.assign(tp, offset)
        case _:
            reader.bounds(tp)


@contextmanager
def meddling(reader: ArchiveReader) -> Iterator[None]:
    """Run a thread that constantly seeks, assigns, pauses and queries the reader."""
    stop, dice = threading.Event(), random.Random(7)

    def meddle() -> None:
        while not stop.wait(0.002):
            meddle_once(reader, dice)

    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5)


def read_all(reader: ArchiveReader) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {tp: [] for tp in TPS}
    until = monotonic() + 20
    while any(numbers[-1:] != [END - 1] for numbers in found.values()):
        assert monotonic() < until, found
        for one in reader.take(1000, 5):
            found[one.tp] += offsets([one])
    return found


def test_each_partition_stays_in_order_under_concurrent_calls() -> None:
    store = FakeStorage()
    for tp in TPS:
        MadeArchive(store, tp=tp).segments(0, 150, 300, END)
    with reading(store, first_range=200, largest_range=2000, look_interval=0.01) as reader:
        for tp in TPS:
            reader.assign(tp, 0)
        with meddling(reader):
            until = monotonic() + 1.5
            while monotonic() < until:
                for one in reader.take(50, 0.1):
                    assert isinstance(one, Records | ReachedEnd), one
                    numbers = offsets([one])
                    assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True
        for tp in TPS:
            reader.seek(tp, 0)
        found = read_all(reader)

    assert all(numbers == list(range(END)) for numbers in found.values())
    assert reader.held_memory == 0
