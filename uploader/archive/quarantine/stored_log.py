"""Read a stored `.log` in pieces."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from sidetier.storage.port import RemoteStorage

PIECE: Final = 4 * 1024**2
"""Bytes of one request."""


@dataclass(slots=True)
class PieceReader:
    """Reads an object at any position, as `os.pread` does. Keeps the last piece in memory."""

    store: RemoteStorage
    key: str
    size: int
    _start: int = 0
    _piece: bytes = b""

    def __call__(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position` on."""
        at = position - self._start
        if at < 0 or at + length > len(self._piece):
            end = min(self.size, position + max(length, PIECE))
            with self.store.get_object_input_stream(self.key, position, end) as stream:
                self._piece = stream.read()
            self._start, at = position, 0
        return self._piece[at : at + length]


def pieces(store: RemoteStorage, key: str, end: int) -> Iterator[memoryview]:
    """Yield the bytes from the start up to `end`, exclusive, in order."""
    reader = PieceReader(store, key, end)
    for start in range(0, end, PIECE):
        yield memoryview(reader(start, min(PIECE, end - start)))


@dataclass(frozen=True, slots=True)
class BeginningOf:
    """The first `size` bytes of a stored object, as a Body of the storage port.

    It is streamed, because a segment can be larger than the memory.
    """

    store: RemoteStorage
    key: str
    size: int

    def open(self) -> BinaryIO:
        """Return a new stream, at the first byte."""
        reader = PieceReader(self.store, self.key, self.size)
        return cast("BinaryIO", io.BufferedReader(_Stream(reader), PIECE))


class _Stream(io.RawIOBase):
    def __init__(self, reader: PieceReader) -> None:
        super().__init__()
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size}
        self._position = max(0, origin[whence] + offset)
        return self._position

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._reader.size - self._position)
        data = self._reader(self._position, wanted) if wanted > 0 else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
