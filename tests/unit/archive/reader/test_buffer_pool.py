"""Memory that is used again, and never while somebody reads it."""

import numpy as np
import pyarrow as pa
import pytest

from sidetier.archive.reader.memory import LEAST_BUFFER, BufferPool

SIZE = 2 * LEAST_BUFFER


def test_what_nobody_refers_to_is_handed_out_again() -> None:
    buffers = BufferPool()
    first = buffers.take(SIZE, 0)
    owner = first.obj
    del first

    assert buffers.take(SIZE, 0).obj is owner


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
    buffers = BufferPool()
    first = buffers.take(SIZE, 0)
    first[:] = b"a" * SIZE
    part = refer(first)
    owner = first.obj
    del first
    other = buffers.take(SIZE, 0)
    other[:] = b"b" * SIZE

    assert other.obj is not owner
    assert set(memoryview(part).tobytes()) == {ord("a")}


def test_another_size_gets_memory_of_its_own() -> None:
    buffers = BufferPool()
    owner = buffers.take(SIZE, 10 * SIZE).obj
    other = buffers.take(SIZE + 1, 10 * SIZE)

    assert other.obj is not owner
    assert len(other) == SIZE + 1
    assert buffers.take(SIZE, 10 * SIZE).obj is owner


def test_what_is_free_is_let_go_where_there_is_no_space_left() -> None:
    buffers = BufferPool()
    owner = buffers.take(SIZE, SIZE - 1).obj
    buffers.take(SIZE + 1, SIZE - 1)

    assert buffers.take(SIZE, SIZE - 1).obj is not owner


def test_what_is_small_is_not_kept() -> None:
    buffers = BufferPool()
    owner = buffers.take(10, SIZE).obj

    assert buffers.take(10, SIZE).obj is not owner
