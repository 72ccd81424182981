"""Reading a range of a file."""

import io
import os
from typing import TYPE_CHECKING, BinaryIO, Final

from sidetier.storage.local_errors import translated

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER: Final = 256 * 1024
_SMALL: Final = 16 * 1024


class _Range(io.RawIOBase):
    """The bytes of a descriptor from `start` up to `end`; closes the descriptor."""

    def __init__(self, handle: int, key: str, start: int, end: int) -> None:
        super().__init__()
        self._handle = handle
        self._key = key
        self._next = start
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        wanted = max(0, min(len(view), self._end - self._next))
        with translated("get", self._key):
            count = os.preadv(self._handle, [view[:wanted]], self._next)
        self._next += count
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._handle)
        super().close()


def file_stream(handle: int, key: str, start: int, end: int) -> BinaryIO:
    """A buffered stream over a range of an open file, which it closes; a small one, such as an
    index, is read right away.
    """
    if end - start > _SMALL:
        return io.BufferedReader(_Range(handle, key, start, end), _BUFFER)
    try:
        with translated("get", key):
            return io.BytesIO(_read(handle, start, end))
    finally:
        os.close(handle)


def _read(handle: int, start: int, end: int) -> bytes:
    data = b""
    while start + len(data) < end:
        more = os.pread(handle, end - start - len(data), start + len(data))
        if not more:
            break
        data += more
    return data
