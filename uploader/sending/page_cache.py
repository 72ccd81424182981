"""What of a file lies in the page cache, asked of the kernel without reading any of it."""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
_CACHESTAT: Final = 451
"""The number of the system call on every architecture but Alpha; the C libraries have no name."""

CountCached = Callable[[int, range], int]
"""How many of these pages (by number) of the file behind a descriptor are in the page cache."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


_library: Final = ctypes.CDLL(None, use_errno=True)


def count_cached(fd: int, pages: range) -> int:
    """As `CountCached`, by cachestat(2), which Linux has since 6.5.

    Raises:
        OSError: an older kernel or a filter of system calls does not know it (ENOSYS, EPERM), or
            the file is of another user and may not be written (EPERM, on newer kernels).
    """
    asked = _Range(pages.start * PAGE_BYTES, len(pages) * PAGE_BYTES)
    counts = _Counts()
    arguments = ctypes.byref(asked), ctypes.byref(counts), 0
    if _library.syscall(ctypes.c_long(_CACHESTAT), fd, *arguments) != 0:
        number = ctypes.get_errno() or errno.ENOSYS
        raise OSError(number, f"cachestat: {os.strerror(number)}")
    cached: int = counts.cached
    return cached


def cold_parts(count: CountCached, fd: int, pages: range) -> Iterator[range]:
    """The parts of `pages` that are not in the cache, in order; a mixed part is halved.

    Costs one question where all or none is cached, and two for each halving on the way to a border
    between hot and cold otherwise.
    """
    cached = count(fd, pages)
    if cached == 0:
        yield pages
    elif cached < len(pages):
        middle = len(pages) // 2
        yield from cold_parts(count, fd, pages[:middle])
        yield from cold_parts(count, fd, pages[middle:])


def pages_of(position: int, length: int) -> range:
    """The pages that hold these bytes, also those that they fill in part."""
    if not length:
        return range(0)
    return range(position // PAGE_BYTES, -(-(position + length) // PAGE_BYTES))
