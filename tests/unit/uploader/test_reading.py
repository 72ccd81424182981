"""Reading pinned files: windows, fresh streams, and the broker's page cache."""

import ctypes
import io
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidetier.uploader.sending.reading import ColdPages, FileBody, FileIdentity, chunks

PAGE = mmap.PAGESIZE
SIZE = 64 * PAGE
A_FEW = 8
"""The kernel keeps a page that another thread of it holds at the moment."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(number % 251 for number in range(SIZE)))
    return path


@pytest.fixture
def fd(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    yield descriptor
    os.close(descriptor)


def cached_pages(path: Path) -> list[int]:
    """The pages of a file that are in the page cache, told by mincore without touching them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        address = libc.mmap(
            None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0
        )
        resident = (ctypes.c_ubyte * (-(-size // PAGE)))()
        arguments = ctypes.c_void_p(address), ctypes.c_size_t(size)
        assert libc.mincore(*arguments, resident) == 0, os.strerror(ctypes.get_errno())
        libc.munmap(*arguments)
    finally:
        os.close(descriptor)
    return [number for number, flags in enumerate(resident) if flags & 1]


@pytest.fixture
def cold(path: Path, fd: int, tmp_path: Path) -> int:
    """The descriptor of the file, none of which is in the page cache."""
    _skip_unless_told(tmp_path / "probe")
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert cached_pages(path) == []
    return fd


def _skip_unless_told(probe: Path) -> None:
    """The question reads ahead behind our back, so it is asked of another file."""
    probe.write_bytes(bytes(PAGE))
    descriptor = os.open(probe, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_pages(probe):
            pytest.skip("this file system keeps its pages whatever it is told")
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return
    except OSError as error:
        pytest.skip(f"this file system cannot tell what is in the page cache: {error}")
    finally:
        os.close(descriptor)
    pytest.skip("this file system answers from the disk, whatever it is told")


def read_all(pages: ColdPages, size: int = SIZE, chunk: int = 4 * PAGE) -> bytes:
    return b"".join(bytes(part) for part in chunks(pages, 0, size, memoryview(bytearray(chunk))))


def test_what_was_cold_is_given_back(path: Path, cold: int) -> None:
    pages = ColdPages(cold)
    assert read_all(pages) == path.read_bytes()[:SIZE]
    os.posix_fadvise(cold, 0, 0, os.POSIX_FADV_DONTNEED)
    again = ColdPages(cold)
    read_all(again)
    assert len(cached_pages(path)) == SIZE // PAGE, "reading brings it in"
    assert again.give_back() == SIZE
    assert len(cached_pages(path)) <= A_FEW
    assert again.give_back() == 0


def test_what_was_hot_stays(path: Path, cold: int) -> None:
    os.pread(cold, 8 * PAGE, 16 * PAGE)  # what a consumer of the broker reads
    hot = cached_pages(path)
    assert 16 in hot
    assert 40 not in hot
    pages = ColdPages(cold)
    read_all(pages)
    pages.give_back()
    left = set(cached_pages(path))
    assert left.issuperset(hot)
    assert len(left) <= len(hot) + A_FEW


def test_unwatched_nothing_is_given_back(path: Path, cold: int) -> None:
    pages = ColdPages(cold, watch=False)
    read_all(pages)
    assert pages.give_back() == 0
    assert len(cached_pages(path)) == SIZE // PAGE


def test_a_file_system_that_cannot_tell_is_left_alone(
    path: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.preadv

    def cannot_tell(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(95, "Operation not supported")
        return plain(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", cannot_tell)
    pages = ColdPages(fd)
    assert read_all(pages) == path.read_bytes()
    assert pages.give_back() == 0


def test_any_other_error_of_the_disk_is_told(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(OSError, match="Input/output error"):
        read_all(ColdPages(fd))


@pytest.mark.parametrize(("start", "end"), [(0, SIZE), (5, 6), (100, 100), (SIZE - 1, SIZE)])
def test_chunks_are_a_window(path: Path, fd: int, start: int, end: int) -> None:
    parts = chunks(ColdPages(fd), start, end, memoryview(bytearray(1000)))
    assert b"".join(bytes(part) for part in parts) == path.read_bytes()[start:end]


def test_chunks_end_with_a_file_that_became_shorter(path: Path, fd: int) -> None:
    os.truncate(path, 10)
    assert len(read_all(ColdPages(fd))) == 10


def body(fd: int, start: int = 0, size: int = SIZE, seen: list[int] | None = None) -> FileBody:
    return FileBody(fd, size, ([] if seen is None else seen).append, start)


def test_a_body_shows_its_window_alone(path: Path, fd: int) -> None:
    data = path.read_bytes()
    with body(fd, 100, 50).open() as stream:
        assert stream.read() == data[100:150]
        assert stream.read() == b""
        assert stream.tell() == 50


def test_streams_of_one_body_do_not_disturb_each_other(path: Path, fd: int) -> None:
    data = path.read_bytes()
    shared = body(fd)
    with shared.open() as one, shared.open() as two:
        assert one.read(10) == data[:10]
        assert two.read(20) == data[:20]
        assert one.read(10) == data[10:20]
    os.fstat(fd)  # closing a stream leaves the descriptor open
    with shared.open() as again:
        assert again.read(5) == data[:5]


@pytest.mark.parametrize(
    ("offset", "whence", "position"),
    [
        (10, io.SEEK_SET, 10),
        (-10, io.SEEK_SET, 0),
        (5, io.SEEK_CUR, 12),
        (-5, io.SEEK_CUR, 2),
        (-10, io.SEEK_END, 40),
        (10, io.SEEK_END, 60),
    ],
)
def test_a_stream_can_be_rewound(
    path: Path, fd: int, offset: int, whence: int, position: int
) -> None:
    data = path.read_bytes()[100:150]
    with body(fd, 100, 50).open() as stream:
        stream.read(7)
        assert stream.seek(offset, whence) == position
        assert stream.read() == data[position:]


def test_each_read_is_told_before_it_is_made(fd: int) -> None:
    seen: list[int] = []
    with body(fd, SIZE - 30, 30, seen).open() as stream:
        stream.read(20)
        stream.read(20)
        stream.read(20)
    assert seen == [20, 10]


def test_what_it_raises_ends_the_read(fd: int) -> None:
    def stop(_: int) -> None:
        raise OSError("the daemon stops")

    with FileBody(fd, 10, stop).open() as stream, pytest.raises(OSError, match="the daemon stops"):
        stream.read(5)


def test_reading_into_a_buffer(path: Path, fd: int) -> None:
    buffer = bytearray(8)
    with body(fd, 3, 5).open() as stream:
        assert stream.readinto(buffer) == 5  # type: ignore[attr-defined]
    assert bytes(buffer) == path.read_bytes()[3:8] + bytes(3)


def test_an_identity_tells_files_and_their_states_apart(path: Path) -> None:
    first = FileIdentity.of(path.stat())
    assert FileIdentity.of(path.stat()) == first
    os.utime(path, ns=(0, 0))
    touched = FileIdentity.of(path.stat())
    assert touched != first
    os.truncate(path, 5)
    os.utime(path, ns=(0, 0))
    assert FileIdentity.of(path.stat()) != touched
