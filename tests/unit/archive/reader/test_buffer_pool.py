"""Buffers are reused, but never while a reference to them exists."""

import numpy as np
import pyarrow as pa
import pytest

from sidetier.archive.segment_bytes import MIN_BUFFER, BufferPool

SIZE = 2 * MIN_BUFFER


def test_buffer_without_references_is_reused() -> None:
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
def test_referenced_buffer_is_not_reused(refer: object) -> None:
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


def test_another_size_gets_its_own_buffer() -> None:
    buffers = BufferPool()
    owner = buffers.take(SIZE, 10 * SIZE).obj
    other = buffers.take(SIZE + 1, 10 * SIZE)

    assert other.obj is not owner
    assert len(other) == SIZE + 1
    assert buffers.take(SIZE, 10 * SIZE).obj is owner


def test_free_buffers_are_released_beyond_the_limit() -> None:
    buffers = BufferPool()
    owner = buffers.take(SIZE, SIZE - 1).obj
    buffers.take(SIZE + 1, SIZE - 1)

    assert buffers.take(SIZE, SIZE - 1).obj is not owner


def test_small_buffers_are_not_pooled() -> None:
    buffers = BufferPool()
    owner = buffers.take(10, SIZE).obj

    assert buffers.take(10, SIZE).obj is not owner
