"""Read a pinned file without displacing the broker's pages from the page cache."""

import ctypes
import errno
import io
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, Final, NamedTuple, cast

from sidetier.storage.bodies import Extent

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


CHUNK_BYTES: Final = 1 << 20
_NO_NOWAIT: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Identifies a file and its state: truncation changes a file in place."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileIdentity":
        """Return the identity from a result of stat or fstat."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class ColdPages:
    """Reads a file, and remembers which of its pages were not in the page cache before ("cold").

    `give_back` drops these pages from the cache at the end, so that an upload of old segments does
    not displace the pages that the broker's consumers read.

    The kernel is asked before each read (`count`). If it does not support that, or never reports a
    cached page (overlayfs), `preadv2(RWF_NOWAIT)` reads the cached pages instead. That is less
    exact: it starts to load a missing page, and on a fast disk may then find it; and everything
    behind a cold page in a chunk counts as cold. Read-ahead is switched off for this descriptor
    only, because it would load the next pages before they are checked.

    Args:
        fd: Descriptor of the file.
        watch: Whether to remember cold pages; otherwise it only reads.
        count: Asks the kernel.
    """

    def __init__(self, fd: int, *, watch: bool = True, count: CountCached = count_cached) -> None:
        self._fd = fd
        self._count = count
        self._counts = False
        self._cold: list[range] = []
        self._read = self._ask_first if watch else self._read_plainly
        if watch:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read_into(self, view: memoryview, position: int) -> int:
        """Read as preadv does: return the number of bytes, 0 at the end of the file."""
        return self._read(view, position)

    def _ask_first(self, view: memoryview, position: int) -> int:
        try:
            cold = list(cold_parts(self._count, self._fd, pages_of(position, len(view))))
        except OSError:
            self._read = self._try_first
            return self._try_first(view, position)
        read = os.preadv(self._fd, [view], position)
        end = pages_of(position, read).stop
        # A short read at the end of the file has not loaded the pages behind it.
        for part in cold:
            self._note(range(part.start, min(part.stop, end)))
        if self._cold and not self._counts:
            self._check_answers()
        return read

    def _check_answers(self) -> None:
        """Check that the kernel reports a page that was just read as cached; else stop asking it.

        On overlayfs the kernel never reports a cached page. Every page would count as cold, and
        pages of the broker would be dropped.
        """
        self._counts = any(self._count(self._fd, part) for part in self._cold)
        if not self._counts:
            self._cold.clear()
            self._read = self._try_first

    def _try_first(self, view: memoryview, position: int) -> int:
        try:
            hot = os.preadv(self._fd, [view], position, os.RWF_NOWAIT)
        except BlockingIOError:
            hot = 0
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise
            # The file system has no RWF_NOWAIT, so cold pages are not known. To drop pages that the
            # broker uses would be worse than to keep the upload's pages.
            self._read = self._read_plainly
            return self._read_plainly(view, position)
        if hot == len(view):
            return hot
        rest = os.preadv(self._fd, [view[hot:]], position + hot)
        self._note(pages_of(position + hot, rest))
        return hot + rest

    def _read_plainly(self, view: memoryview, position: int) -> int:
        return os.preadv(self._fd, [view], position)

    def _note(self, cold: range) -> None:
        """Remember cold pages, and merge adjacent ranges."""
        if not cold:
            return
        if self._cold and self._cold[-1].stop >= cold.start >= self._cold[-1].start:
            before = self._cold.pop()
            cold = range(before.start, max(before.stop, cold.stop))
        self._cold.append(cold)

    def give_back(self) -> int:
        """Drop the pages that were cold from the page cache, and return their number."""
        for pages in self._cold:
            position, length = pages.start * PAGE_BYTES, len(pages) * PAGE_BYTES
            # Only pages that this upload has loaded: those that were in the cache before
            # belong to the broker or its consumers. Dirty pages are not dropped by the kernel.
            os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_DONTNEED)
        total = sum(map(len, self._cold))
        self._cold.clear()
        return total


def chunks(
    pages: ColdPages,
    start: int,
    end: int,
    buffer: memoryview,
    before_read: Callable[[int], None] = lambda _: None,
) -> Iterator[memoryview]:
    """Yield a file's bytes from `start` to `end`, exclusive. The next chunk overwrites a chunk."""
    position = start
    while position < end:
        before_read(min(len(buffer), end - position))
        count = pages.read_into(buffer[: end - position], position)
        if not count:
            return
        yield buffer[:count]
        position += count


class _Stream(io.RawIOBase):
    """A stream with its own position over a descriptor that other streams use, too."""

    def __init__(self, body: "FileBody") -> None:
        self._body = body
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._body.size}
        self._position = max(0, origin[whence] + offset)
        return self._position

    def take(self, size: int) -> Extent:
        """Return the next `size` bytes as an extent of the file, as a `FileStream` does."""
        wanted = max(0, min(size, self._body.size - self._position))
        if wanted:
            self._body.before_read(wanted)
        extent = Extent(self._body.fd, self._body.start + self._position, wanted)
        self._position += wanted
        if self._body.progress is not None:
            self._body.progress.sent = self._position
        return extent

    def read(self, size: int | None = -1) -> bytes:
        left = self._body.size - self._position
        extent = self.take(left if size is None or size < 0 else size)
        data = os.pread(extent.descriptor, extent.size, extent.position)
        self._position -= extent.size - len(data)  # the file was truncated
        return data

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class SendProgress:
    """Progress of one upload: the bytes of the `.log` that the store's client has taken.

    The upload thread writes it, and any thread reads it, without a lock: a reader may find the
    bytes of one attempt and the start of the next one, so its rate is wrong once.

    Args:
        now: Monotonic seconds.

    Attributes:
        sent: Bytes of the present attempt. It falls when a part or the whole file is sent again.
    """

    __slots__ = ("_began", "_now", "_size", "sent")

    def __init__(self, now: Callable[[], float]) -> None:
        self.sent = 0
        self._size = 0
        self._began: float | None = None
        self._now = now

    def begin(self, size: int) -> None:
        """Note that an attempt to send `size` bytes begins."""
        self.sent, self._size, self._began = 0, size, self._now()

    def reset(self) -> None:
        """Note that nothing is sent: the file is read again to compute its checksum."""
        self.sent, self._began = 0, None

    def measure(self) -> "Sent | None":
        """Return what is sent; None before an attempt, while the segment is verified."""
        began = self._began
        if began is None:
            return None
        sent, seconds = self.sent, self._now() - began
        if not sent or seconds <= 0:
            return Sent(sent, None, None)
        rate = sent / seconds
        return Sent(sent, int(rate), max(0, self._size - sent) / rate)


class Sent(NamedTuple):
    """Bytes sent by an attempt, their average rate, and the seconds that the rest takes at it.

    Rate and seconds are None before the first byte is sent.
    """

    size: int
    bytes_per_second: int | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class FileBody:
    """`size` bytes behind a descriptor, from byte `start` on, as a Body of the storage port.

    `before_read` is called with the size of each read: it enforces the bandwidth cap, and raises to
    abandon the upload. `progress` counts the bytes.
    """

    fd: int
    size: int
    before_read: Callable[[int], None]
    start: int = 0
    progress: SendProgress | None = None

    def open(self) -> BinaryIO:
        """Return a new stream. Closing it leaves the descriptor open."""
        if self.progress is not None:
            self.progress.begin(self.size)
        return cast("BinaryIO", _Stream(self))

    def open_for_checksum(self) -> BinaryIO:
        """Reset the progress: the body is sent from its start afterwards."""
        if self.progress is not None:
            self.progress.reset()
        return cast("BinaryIO", _Stream(replace(self, progress=None)))
