"""Ask the kernel which pages of a file are in the page cache, without reading the file."""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
_CACHESTAT: Final = 451
"""Number of cachestat(2) on all architectures but Alpha. The C libraries have no wrapper."""

CountCached = Callable[[int, range], int]
"""Returns how many of these pages (by number) of the descriptor's file are in the page cache."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


_library: Final = ctypes.CDLL(None, use_errno=True)


def count_cached(fd: int, pages: range) -> int:
    """Count as `CountCached`, with cachestat(2), which Linux has since 6.5.

    Raises:
        OSError: an older kernel does not have it, or a system call filter refuses it (ENOSYS,
            EPERM); or the file belongs to another user and is not writable (EPERM, on newer
            kernels).
    """
    byte_range = _Range(pages.start * PAGE_BYTES, len(pages) * PAGE_BYTES)
    counts = _Counts()
    arguments = ctypes.byref(byte_range), ctypes.byref(counts), 0
    if _library.syscall(ctypes.c_long(_CACHESTAT), fd, *arguments) != 0:
        number = ctypes.get_errno() or errno.ENOSYS
        raise OSError(number, f"cachestat: {os.strerror(number)}")
    cached: int = counts.cached
    return cached


def cold_parts(count: CountCached, fd: int, pages: range) -> Iterator[range]:
    """Yield the parts of `pages` that are not in the cache, in order, by bisection.

    Makes one call of `count` where all or none of the pages are cached, otherwise two more for each
    halving on the way to a border between cached and uncached pages.
    """
    cached = count(fd, pages)
    if cached == 0:
        yield pages
    elif cached < len(pages):
        middle = len(pages) // 2
        yield from cold_parts(count, fd, pages[:middle])
        yield from cold_parts(count, fd, pages[middle:])


def pages_of(position: int, length: int) -> range:
    """Return the pages that contain these bytes, also those that they fill in part."""
    if not length:
        return range(0)
    return range(position // PAGE_BYTES, -(-(position + length) // PAGE_BYTES))
