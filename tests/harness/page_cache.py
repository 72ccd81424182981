"""The page cache as tests see it: the kernel's, through mincore, and a fake."""

import ctypes
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

PAGE = mmap.PAGESIZE


def cached_pages(path: Path) -> list[int]:
    """Return a file's pages in the page cache, through mincore, without touching them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        return _resident(descriptor, size)
    finally:
        os.close(descriptor)


def count_by_mincore(fd: int, pages: range) -> int:
    """Count cached pages like `CountCached`, on any kernel."""
    return len(set(pages).intersection(_resident(fd, os.fstat(fd).st_size)))


def _resident(fd: int, size: int) -> list[int]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    arguments = ctypes.c_void_p(address), ctypes.c_size_t(size)
    try:
        resident = (ctypes.c_ubyte * (-(-size // PAGE)))()
        assert libc.mincore(*arguments, resident) == 0, os.strerror(ctypes.get_errno())
    finally:
        libc.munmap(*arguments)
    return [number for number, flags in enumerate(resident) if flags & 1]


@dataclass
class MadeUpCache:
    """A file with its own page cache, in place of the `os` functions on descriptors."""

    data: bytes
    hot: set[int] = field(default_factory=set)
    dropped: list[int] = field(default_factory=list)

    def count(self, _: int, pages: range) -> int:
        """Count cached pages like `CountCached`."""
        return len(self.hot.intersection(pages))

    def preadv(self, _: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        """Act as os.preadv; with RWF_NOWAIT, read up to the first page that is not cached."""
        pages = range(offset // PAGE, -(-min(offset + len(buffers[0]), len(self.data)) // PAGE))
        end = offset + len(buffers[0])
        if flags & os.RWF_NOWAIT:
            missing = next((page for page in pages if page not in self.hot), None)
            if missing == pages.start:
                raise BlockingIOError
            end = end if missing is None else missing * PAGE
        else:
            self.hot.update(pages)
        part = self.data[offset:end]
        buffers[0][: len(part)] = part
        return len(part)

    def fadvise(self, _: int, offset: int, length: int, advice: int) -> None:
        """Act as os.posix_fadvise: only whole pages are dropped."""
        if advice == os.POSIX_FADV_DONTNEED:
            pages = range(-(-offset // PAGE), (offset + length) // PAGE)
            self.dropped += pages
            self.hot.difference_update(pages)
