"""Reading pinned files: windows, new streams and the broker's page cache."""

import errno
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidetier.storage.bodies import Extent, FileStream
from sidetier.uploader.sending.reading import (
    ColdPages,
    CountCached,
    FileBody,
    FileIdentity,
    chunks,
    count_cached,
)
from tests.harness.page_cache import PAGE, MadeUpCache, cached_pages, count_by_mincore
from tests.harness.waiting import wait_until

SIZE = 64 * PAGE
A_FEW = 8
"""The kernel keeps a page while another of its threads holds it."""


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


def unknown(_: int, pages: range) -> int:
    """A kernel without cachestat."""
    raise OSError(errno.ENOSYS, f"cachestat of {len(pages)} pages")


@pytest.fixture(scope="module")
def count() -> CountCached:
    """The function that asks the kernel; before Linux 6.5 another call gives the same answer."""
    with tempfile.TemporaryFile() as file:
        try:
            count_cached(file.fileno(), range(1))
        except OSError:
            return count_by_mincore
    return count_cached


@pytest.fixture
def cold(path: Path, fd: int) -> int:
    """A descriptor of the file, none of whose pages are in the page cache."""

    def is_dropped() -> bool:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return cached_pages(path) == []

    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    wait_until(is_dropped, 20, "the file to leave the page cache (no tmpfs can do that)")
    return fd


def read_all(pages: ColdPages, size: int = SIZE, chunk: int = 4 * PAGE, start: int = 0) -> bytes:
    buffer = memoryview(bytearray(chunk))
    return b"".join(bytes(part) for part in chunks(pages, start, size, buffer))


def test_pages_that_were_cold_are_dropped_after_the_read(
    path: Path, cold: int, count: CountCached
) -> None:
    pages = ColdPages(cold, count=count)
    assert read_all(pages) == path.read_bytes()[:SIZE]
    assert len(cached_pages(path)) == SIZE // PAGE, "reading brings it in"
    assert pages.give_back() == SIZE // PAGE
    assert len(cached_pages(path)) <= A_FEW
    assert pages.give_back() == 0


def test_pages_that_were_cached_before_stay_cached(
    path: Path, cold: int, count: CountCached
) -> None:
    os.pread(cold, 7 * PAGE, 17 * PAGE)  # what a consumer of the broker reads
    hot = cached_pages(path)
    assert hot == list(range(17, 24))
    pages = ColdPages(cold, count=count)
    assert read_all(pages) == path.read_bytes()
    assert pages.give_back() == SIZE // PAGE - len(hot)
    left = set(cached_pages(path))
    assert left.issuperset(hot)
    assert len(left) <= len(hot) + A_FEW


def test_no_page_is_dropped_without_watching(path: Path, cold: int) -> None:
    pages = ColdPages(cold, watch=False)
    read_all(pages)
    assert pages.give_back() == 0
    assert len(cached_pages(path)) == SIZE // PAGE


def test_kernel_counts_the_cached_pages(path: Path, cold: int, count: CountCached) -> None:
    os.pread(cold, 2 * PAGE, 5 * PAGE)
    asked = [range(SIZE // PAGE), range(5, 7), range(6, 7), range(5), range(7, 9)]
    assert [count(cold, pages) for pages in asked] == [2, 2, 1, 0, 0]
    assert cached_pages(path) == [5, 6], "asking brings nothing in"


def test_refused_page_count_is_an_error() -> None:
    with pytest.raises(OSError, match="cachestat"):
        count_cached(-1, range(1))


@pytest.fixture
def made_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpCache:
    """A file with a simulated page cache that changes only through the test's calls."""
    cache = MadeUpCache(path.read_bytes(), set(range(17, 24)) | {40})
    monkeypatch.setattr(os, "preadv", cache.preadv)
    monkeypatch.setattr(os, "posix_fadvise", cache.fadvise)
    return cache


@pytest.mark.parametrize("start", [0, 1, PAGE, 3 * PAGE + 5])
@pytest.mark.parametrize("chunk", [4 * PAGE, 3 * PAGE + 7, SIZE])
def test_page_cache_is_left_as_it_was(made_up: MadeUpCache, start: int, chunk: int) -> None:
    before = set(made_up.hot)
    pages = ColdPages(0, count=made_up.count)
    assert read_all(pages, chunk=chunk, start=start) == made_up.data[start:]
    assert made_up.hot == set(range(start // PAGE, SIZE // PAGE)), "reading brings it in"
    dropped = pages.give_back()
    assert made_up.hot == before
    assert dropped == len(made_up.dropped) == len(set(made_up.dropped))


@pytest.mark.parametrize("start", [0, 1])
def test_chunk_counts_as_cached_up_to_its_first_cold_page_without_an_answer(
    made_up: MadeUpCache, start: int
) -> None:
    made_up.hot = {*range(8, 16), 16, 17, 19}
    pages = ColdPages(0, count=unknown)
    assert read_all(pages, chunk=4 * PAGE - start, start=start) == made_up.data[start:]
    dropped = pages.give_back()
    assert made_up.hot == set(range(8, 18))
    assert dropped == len(made_up.dropped) == len(set(made_up.dropped))


@pytest.mark.parametrize("asked", [True, False], ids=["cachestat", "RWF_NOWAIT"])
def test_window_beyond_the_end_drops_the_pages_it_read(
    made_up: MadeUpCache, *, asked: bool
) -> None:
    made_up.data = made_up.data[: 3 * PAGE - 10]
    pages = ColdPages(0, count=made_up.count if asked else unknown)
    assert read_all(pages, chunk=SIZE) == made_up.data
    assert pages.give_back() == 3


def test_impossible_page_count_is_ignored(made_up: MadeUpCache) -> None:
    """On overlayfs cachestat reports no page as cached."""
    made_up.hot = set(range(16, 24))
    pages = ColdPages(0, count=lambda *_: 0)
    read_all(pages)
    pages.give_back()
    assert made_up.hot.issuperset(range(16, 24)), "no hot page is dropped"
    assert made_up.dropped == [*range(4, 16), *range(24, 64)], "it is seen by reading"


def test_file_system_without_page_cache_answers_is_left_alone(
    path: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.preadv

    def cannot_tell(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return plain(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", cannot_tell)
    pages = ColdPages(fd, count=unknown)
    assert read_all(pages) == path.read_bytes()
    assert pages.give_back() == 0


@pytest.mark.parametrize("count", [count_cached, unknown])
def test_other_disk_errors_are_raised(
    fd: int, count: CountCached, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(OSError, match="Input/output error"):
        read_all(ColdPages(fd, count=count))


@pytest.mark.parametrize(("start", "end"), [(0, SIZE), (5, 6), (100, 100), (SIZE - 1, SIZE)])
def test_chunks_cover_the_window(path: Path, fd: int, start: int, end: int) -> None:
    parts = chunks(ColdPages(fd), start, end, memoryview(bytearray(1000)))
    assert b"".join(bytes(part) for part in parts) == path.read_bytes()[start:end]


def test_chunks_end_with_a_truncated_file(path: Path, fd: int) -> None:
    os.truncate(path, 10)
    assert len(read_all(ColdPages(fd))) == 10


def body(fd: int, start: int = 0, size: int = SIZE, seen: list[int] | None = None) -> FileBody:
    return FileBody(fd, size, ([] if seen is None else seen).append, start)


def test_body_contains_only_its_window(path: Path, fd: int) -> None:
    data = path.read_bytes()
    with body(fd, 100, 50).open() as stream:
        assert stream.read() == data[100:150]
        assert stream.read() == b""
        assert stream.tell() == 50


def test_streams_of_one_body_are_independent(path: Path, fd: int) -> None:
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
def test_stream_can_be_rewound(
    path: Path, fd: int, offset: int, whence: int, position: int
) -> None:
    data = path.read_bytes()[100:150]
    with body(fd, 100, 50).open() as stream:
        stream.read(7)
        assert stream.seek(offset, whence) == position
        assert stream.read() == data[position:]


def test_each_read_is_announced_before_it_is_made(fd: int) -> None:
    seen: list[int] = []
    with body(fd, SIZE - 30, 30, seen).open() as stream:
        stream.read(20)
        stream.read(20)
        stream.read(20)
    assert seen == [20, 10]


def test_exception_of_the_read_callback_ends_the_read(fd: int) -> None:
    def stop(_: int) -> None:
        raise OSError("the daemon stops")

    with FileBody(fd, 10, stop).open() as stream, pytest.raises(OSError, match="the daemon stops"):
        stream.read(5)


def test_reading_into_a_buffer(path: Path, fd: int) -> None:
    buffer = bytearray(8)
    with body(fd, 3, 5).open() as stream:
        assert stream.readinto(buffer) == 5  # type: ignore[attr-defined]
    assert bytes(buffer) == path.read_bytes()[3:8] + bytes(3)


def test_file_identity_changes_with_the_file_state(path: Path) -> None:
    first = FileIdentity.of(path.stat())
    assert FileIdentity.of(path.stat()) == first
    os.utime(path, ns=(0, 0))
    touched = FileIdentity.of(path.stat())
    assert touched != first
    os.truncate(path, 5)
    os.utime(path, ns=(0, 0))
    assert FileIdentity.of(path.stat()) != touched


def test_take_returns_the_extent_instead_of_the_bytes(fd: int) -> None:
    asked: list[int] = []
    body = FileBody(fd, 100, asked.append, start=50)
    with body.open() as stream:
        assert isinstance(stream, FileStream)
        assert stream.take(60) == Extent(fd, 50, 60)
        assert stream.tell() == 60
        assert stream.take(60) == Extent(fd, 110, 40), "no further than the body's end"
        assert stream.take(60).size == 0
        stream.seek(10)
        assert stream.take(1) == Extent(fd, 60, 1)
    assert asked == [60, 40, 1], "the cap holds for what is sent unread, too"


def test_exception_of_the_bandwidth_limit_ends_take_before_the_bytes(fd: int) -> None:
    def stop(_: int) -> None:
        raise InterruptedError

    with FileBody(fd, 100, stop).open() as stream:
        assert isinstance(stream, FileStream)
        with pytest.raises(InterruptedError):
            stream.take(10)
        assert stream.tell() == 0
