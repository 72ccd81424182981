"""Bodies at hand: bytes in memory, a file by its path."""

import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, cast, runtime_checkable


@dataclass(frozen=True, slots=True)
class Extent:
    """`size` bytes of an open file from `position` on, which the kernel can send by itself."""

    descriptor: int
    position: int
    size: int


@runtime_checkable
class FileStream(Protocol):
    """What the stream of a body may offer beside `read`, where its bytes lie in an open file."""

    def take(self, size: int) -> Extent:
        """Where the next `size` bytes lie, fewer at the body's end; they then count as read.

        It waits, and raises, as `read` does. The descriptor stays open as long as the stream.
        """
        ...


@dataclass(frozen=True, slots=True)
class BytesBody:
    """Bytes in memory, for small objects."""

    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    def open(self) -> BinaryIO:
        """A fresh stream."""
        return io.BytesIO(self.data)


class _OpenFile(io.FileIO):
    """A `FileStream` of its own descriptor."""

    def take(self, size: int) -> Extent:
        start = self.tell()
        taken = max(0, min(size, os.fstat(self.fileno()).st_size - start))
        self.seek(start + taken)
        return Extent(self.fileno(), start, taken)


@dataclass(frozen=True, slots=True)
class FileBody:
    """A file that nobody renames or rewrites meanwhile; `size` is what it was at the first look."""

    path: Path
    size: int

    @classmethod
    def of(cls, path: Path) -> "FileBody":
        """Raises OSError when the file is not there."""
        return cls(path, path.stat().st_size)

    def open(self) -> BinaryIO:
        """A fresh stream without a buffer of its own; raises OSError."""
        return cast("BinaryIO", _OpenFile(self.path))
