"""Reading pinned files: windows, fresh streams, and the broker's page cache."""

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


def unknown(_: int, pages: range) -> int:
    """A kernel without cachestat."""
    raise OSError(errno.ENOSYS, f"cachestat of {len(pages)} pages")


@pytest.fixture(scope="module")
def count() -> CountCached:
    """How the kernel is asked; on one before Linux 6.5 another call tells the same."""
    with tempfile.TemporaryFile() as file:
        try:
            count_cached(file.fileno(), range(1))
        except OSError:
            return count_by_mincore
    return count_cached


@pytest.fixture
def cold(path: Path, fd: int) -> int:
    """The descriptor of the file, none of which is in the page cache."""

    def is_dropped() -> bool:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return cached_pages(path) == []

    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    wait_until(is_dropped, 20, "the file to leave the page cache (no tmpfs can do that)")
    return fd


def read_all(pages: ColdPages, size: int = SIZE, chunk: int = 4 * PAGE, start: int = 0) -> bytes:
    buffer = memoryview(bytearray(chunk))
    return b"".join(bytes(part) for part in chunks(pages, start, size, buffer))


def test_what_was_cold_is_given_back(path: Path, cold: int, count: CountCached) -> None:
    pages = ColdPages(cold, count=count)
    assert read_all(pages) == path.read_bytes()[:SIZE]
    assert len(cached_pages(path)) == SIZE // PAGE, "reading brings it in"
    assert pages.give_back() == SIZE // PAGE
    assert len(cached_pages(path)) <= A_FEW
    assert pages.give_back() == 0


def test_what_was_hot_stays(path: Path, cold: int, count: CountCached) -> None:
    os.pread(cold, 7 * PAGE, 17 * PAGE)  # what a consumer of the broker reads
    hot = cached_pages(path)
    assert hot == list(range(17, 24))
    pages = ColdPages(cold, count=count)
    assert read_all(pages) == path.read_bytes()
    assert pages.give_back() == SIZE // PAGE - len(hot)
    left = set(cached_pages(path))
    assert left.issuperset(hot)
    assert len(left) <= len(hot) + A_FEW


def test_unwatched_nothing_is_given_back(path: Path, cold: int) -> None:
    pages = ColdPages(cold, watch=False)
    read_all(pages)
    assert pages.give_back() == 0
    assert len(cached_pages(path)) == SIZE // PAGE


def test_the_kernel_counts_what_is_cached(path: Path, cold: int, count: CountCached) -> None:
    os.pread(cold, 2 * PAGE, 5 * PAGE)
    asked = [range(SIZE // PAGE), range(5, 7), range(6, 7), range(5), range(7, 9)]
    assert [count(cold, pages) for pages in asked] == [2, 2, 1, 0, 0]
    assert cached_pages(path) == [5, 6], "asking brings nothing in"


def test_a_refused_question_is_an_error() -> None:
    with pytest.raises(OSError, match="cachestat"):
        count_cached(-1, range(1))


@pytest.fixture
def made_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpCache:
    """The file with a page cache in which nothing happens by itself."""
    cache = MadeUpCache(path.read_bytes(), set(range(17, 24)) | {40})
    monkeypatch.setattr(os, "preadv", cache.preadv)
    monkeypatch.setattr(os, "posix_fadvise", cache.fadvise)
    return cache


@pytest.mark.parametrize("start", [0, 1, PAGE, 3 * PAGE + 5])
@pytest.mark.parametrize("chunk", [4 * PAGE, 3 * PAGE + 7, SIZE])
def test_the_cache_is_left_as_it_was(made_up: MadeUpCache, start: int, chunk: int) -> None:
    before = set(made_up.hot)
    pages = ColdPages(0, count=made_up.count)
    assert read_all(pages, chunk=chunk, start=start) == made_up.data[start:]
    assert made_up.hot == set(range(start // PAGE, SIZE // PAGE)), "reading brings it in"
    dropped = pages.give_back()
    assert made_up.hot == before
    assert dropped == len(made_up.dropped) == len(set(made_up.dropped))


@pytest.mark.parametrize("start", [0, 1])
def test_without_an_answer_a_chunk_is_hot_up_to_its_first_cold_page(
    made_up: MadeUpCache, start: int
) -> None:
    made_up.hot = {*range(8, 16), 16, 17, 19}
    pages = ColdPages(0, count=unknown)
    assert read_all(pages, chunk=4 * PAGE - start, start=start) == made_up.data[start:]
    dropped = pages.give_back()
    assert made_up.hot == set(range(8, 18))
    assert dropped == len(made_up.dropped) == len(set(made_up.dropped))


@pytest.mark.parametrize("asked", [True, False], ids=["cachestat", "RWF_NOWAIT"])
def test_a_window_beyond_the_end_drops_what_it_read(made_up: MadeUpCache, *, asked: bool) -> None:
    made_up.data = made_up.data[: 3 * PAGE - 10]
    pages = ColdPages(0, count=made_up.count if asked else unknown)
    assert read_all(pages, chunk=SIZE) == made_up.data
    assert pages.give_back() == 3


def test_an_answer_that_cannot_be_is_not_believed(made_up: MadeUpCache) -> None:
    """On overlayfs no page is ever cached, if one asks cachestat."""
    made_up.hot = set(range(16, 24))
    pages = ColdPages(0, count=lambda *_: 0)
    read_all(pages)
    pages.give_back()
    assert made_up.hot.issuperset(range(16, 24)), "no hot page is dropped"
    assert made_up.dropped == [*range(4, 16), *range(24, 64)], "it is seen by reading"


def test_a_file_system_that_cannot_tell_is_left_alone(
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
def test_any_other_error_of_the_disk_is_told(
    fd: int, count: CountCached, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(OSError, match="Input/output error"):
        read_all(ColdPages(fd, count=count))


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


def test_where_the_bytes_lie_can_be_asked_instead_of_reading_them(fd: int) -> None:
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


def test_what_the_cap_raises_ends_it_unread(fd: int) -> None:
    def stop(_: int) -> None:
        raise InterruptedError

    with FileBody(fd, 100, stop).open() as stream:
        assert isinstance(stream, FileStream)
        with pytest.raises(InterruptedError):
            stream.take(10)
        assert stream.tell() == 0
