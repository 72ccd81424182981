"""Memory that is used again, and never while somebody reads it."""

import numpy as np
import pyarrow as pa
import pytest

from sidetier.archive.reading.rooms import LEAST_ROOM, Rooms

SIZE = 2 * LEAST_ROOM


def test_what_nobody_refers_to_is_handed_out_again() -> None:
    rooms = Rooms(lambda: 0)
    first = rooms.take(SIZE)
    owner = first.obj
    del first

    assert rooms.take(SIZE).obj is owner


@pytest.mark.parametrize(
    "refer",
    [
        lambda room: room[10:20],
        lambda room: np.frombuffer(room, dtype=np.uint8)[5:],
        lambda room: pa.py_buffer(room).slice(7, 3),
    ],
)
def test_what_is_referred_to_is_not(refer: object) -> None:
    assert callable(refer)
    rooms = Rooms(lambda: 0)
    first = rooms.take(SIZE)
    first[:] = b"a" * SIZE
    part = refer(first)
    owner = first.obj
    del first
    other = rooms.take(SIZE)
    other[:] = b"b" * SIZE

    assert other.obj is not owner
    assert set(memoryview(part).tobytes()) == {ord("a")}


def test_another_size_gets_memory_of_its_own() -> None:
    rooms = Rooms(lambda: 10 * SIZE)
    owner = rooms.take(SIZE).obj
    other = rooms.take(SIZE + 1)

    assert other.obj is not owner
    assert len(other) == SIZE + 1
    assert rooms.take(SIZE).obj is owner


def test_what_is_free_is_let_go_where_there_is_no_space_left() -> None:
    rooms = Rooms(lambda: SIZE - 1)
    owner = rooms.take(SIZE).obj
    rooms.take(SIZE + 1)

    assert rooms.take(SIZE).obj is not owner


def test_what_is_small_is_not_kept() -> None:
    rooms = Rooms(lambda: SIZE)
    owner = rooms.take(10).obj

    assert rooms.take(10).obj is not owner
