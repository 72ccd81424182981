"""Reading an archive from any offset, in order."""

from contextlib import closing

import pytest

from sidetier.archive.reader import ReachedEnd, Records
from sidetier.archive.reader.reader import ArchiveReader
from sidetier.archive.reader.settings import ReaderSettings
from sidetier.archive.segment_bytes import MIN_BUFFER, BufferPool
from sidetier.segments.offsets import Offset
from tests.harness.made_archive import (
    TP,
    MadeArchive,
    access_to,
    offsets,
    read_from,
    take_to_end,
)
from tests.harness.record_batches import MadeBatch, MadeRecord


class SeenRooms(BufferPool):
    """A buffer pool that remembers the owners of its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[int] = []

    def take(self, size: int, spare: int) -> memoryview:
        room = super().take(size, spare)
        self.owners.append(id(room.obj))
        return room


@pytest.fixture
def archive() -> MadeArchive:
    made = MadeArchive()
    made.segments(0, 100, 200, 300)
    return made


@pytest.mark.parametrize("start", [0, 3, 99, 100, 150, 299])
def test_every_record_arrives_once_and_in_order(archive: MadeArchive, start: int) -> None:
    taken = read_from(archive, start)

    assert offsets(taken) == list(range(start, 300))
    assert taken[-1] == ReachedEnd(TP, Offset(300))


def test_values_are_returned_as_produced(archive: MadeArchive) -> None:
    taken = read_from(archive, 150)

    first = next(one for one in taken if isinstance(one, Records)).records.to_pylist()[0]
    assert (first["offset"], first["value"], first["timestamp"]) == (150, b"value-150", 150)


def test_consecutive_readers_use_the_same_memory() -> None:
    made, buffers = MadeArchive(), SeenRooms()
    made.segment(0, [MadeBatch((MadeRecord(0, value=b"v" * MIN_BUFFER),))])
    made.mark(0, 1)
    settings = ReaderSettings(first_range=2 * MIN_BUFFER)
    for _ in range(2):
        with closing(ArchiveReader(access_to(made.store), settings, buffers=buffers)) as reader:
            reader.assign(TP, 0)
            assert offsets(take_to_end(reader)) == [0]

    first, second = buffers.owners
    assert first == second
