"""Bodies from bytes in memory and from files."""

import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, cast, runtime_checkable

from sidetier.storage.port import Body


@dataclass(frozen=True, slots=True)
class Extent:
    """`size` bytes of an open file from `position` on, which the kernel can send directly."""

    descriptor: int
    position: int
    size: int


@runtime_checkable
class FileStream(Protocol):
    """Optional interface of a body's stream whose bytes are in an open file."""

    def take(self, size: int) -> Extent:
        """Return the position of the next `size` bytes, fewer at the body's end.

        The bytes then count as read. It blocks and raises as `read` does. The descriptor stays
        open as long as the stream.
        """
        ...


@runtime_checkable
class FillingStream(Protocol):
    """Optional interface of a body's stream that makes its bytes: into a buffer of the caller."""

    def fill(self, buffer: memoryview) -> int:
        """Write the next bytes into the buffer; return their number, less only at the end.

        It blocks and raises as `read` does.
        """
        ...


@runtime_checkable
class CountedBody(Protocol):
    """Optional interface of a body that counts the bytes read from its streams as sent."""

    def open_for_checksum(self) -> BinaryIO:
        """Open a new stream as `Body.open` does. Its bytes do not count as sent."""
        ...


@runtime_checkable
class PartOfObject(Protocol):
    """Optional interface of a body that is a part of a stored object."""

    @property
    def source(self) -> str:
        """Key of this object, on the same store. If it is encrypted, so is the part."""
        ...


@runtime_checkable
class RecordsOfTopics(Protocol):
    """Optional interface of a body with records of several topics, which its key does not name."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics. The object is encrypted if one of them is to be encrypted."""
        ...


def open_for_checksum(body: Body) -> BinaryIO:
    """Open a stream to compute the body's checksum before it is sent."""
    return body.open_for_checksum() if isinstance(body, CountedBody) else body.open()


@dataclass(frozen=True, slots=True)
class BytesBody:
    """Bytes in memory, for small objects."""

    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    def open(self) -> BinaryIO:
        """Return a new stream."""
        return io.BytesIO(self.data)


class _OpenFile(io.FileIO):
    """A `FileStream` with its own descriptor."""

    def take(self, size: int) -> Extent:
        start = self.tell()
        # The size now: of a file that was truncated,
        # fewer bytes are left, which the caller reports.
        count = max(0, min(size, os.fstat(self.fileno()).st_size - start))
        self.seek(start + count)
        return Extent(self.fileno(), start, count)


@dataclass(frozen=True, slots=True)
class FileBody:
    """File that does not change meanwhile; `size` is its size when the body was created."""

    path: Path
    size: int

    @classmethod
    def of(cls, path: Path) -> "FileBody":
        """Return a body for the file. Raises OSError if it does not exist."""
        return cls(path, path.stat().st_size)

    def open(self) -> BinaryIO:
        """Return a new unbuffered stream. Raises OSError."""
        return cast("BinaryIO", _OpenFile(self.path))
