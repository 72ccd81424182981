"""Bodies at hand: bytes in memory, a file by its path."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO


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
        return self.path.open("rb", buffering=0)
