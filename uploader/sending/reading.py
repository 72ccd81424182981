"""Reading a pinned file without disturbing the broker's page cache, as often as it takes."""

import errno
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

CHUNK_BYTES: Final = 1 << 20
_NO_NOWAIT: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file this is, and in which state: truncation rewrites a file in place."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileIdentity":
        """The identity in the answer of stat or fstat."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class ColdPages:
    """Remembers which parts of a file were not in the page cache before we came.

    `preadv2(RWF_NOWAIT)` answers only from the cache; what it cannot answer is cold, is read the
    ordinary way, and given back at the end, so that an upload of old segments does not push out the
    pages that the broker's consumers read. Read-ahead is off for our descriptor alone, or it would
    make the next part look hot.
    """

    def __init__(self, fd: int, *, watch: bool = True) -> None:
        self._fd = fd
        self._watch = watch
        self._cold: list[tuple[int, int]] = []
        if watch:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read_into(self, view: memoryview, position: int) -> int:
        """As preadv: the number of bytes read, 0 at the end of the file."""
        hot = self._read_hot(view, position)
        if hot == len(view):
            return hot
        rest = os.preadv(self._fd, [view[hot:]], position + hot)
        if self._watch and rest:
            self._cold.append((position + hot, rest))
        return hot + rest

    def _read_hot(self, view: memoryview, position: int) -> int:
        if not self._watch:
            return 0
        try:
            return os.preadv(self._fd, [view], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise
            self._watch = False  # this file system cannot tell: leave its cache alone
            return 0

    def give_back(self) -> int:
        """Drop the parts that were cold from the cache; returns their bytes."""
        for position, length in self._cold:
            os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_DONTNEED)
        total = sum(length for _, length in self._cold)
        self._cold.clear()
        return total


def chunks(pages: ColdPages, start: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
    """A file's bytes from `start` up to `end`, in order; a chunk is only valid until the next."""
    position = start
    while position < end:
        count = pages.read_into(buffer[: end - position], position)
        if not count:
            return
        yield buffer[:count]
        position += count


class _Stream(io.RawIOBase):
    """A window over a descriptor that others use at the same time: it has its own position."""

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

    def read(self, size: int | None = -1) -> bytes:
        left = self._body.size - self._position
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted <= 0:
            return b""
        self._body.before_read(wanted)
        data = os.pread(self._body.fd, wanted, self._body.start + self._position)
        self._position += len(data)
        return data

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@dataclass(frozen=True, slots=True)
class FileBody:
    """`size` bytes behind a descriptor, from byte `start` on, as a Body of the storage port.

    `before_read` is called with each read's size: it holds the bandwidth cap, and raises to abandon
    the upload.
    """

    fd: int
    size: int
    before_read: Callable[[int], None]
    start: int = 0

    def open(self) -> BinaryIO:
        """A fresh stream; closing it leaves the descriptor open."""
        return cast("BinaryIO", _Stream(self))
