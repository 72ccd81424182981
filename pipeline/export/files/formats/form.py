"""What writes a file."""

from pathlib import Path
from typing import Protocol

import pyarrow as pa


class FileWriter(Protocol):
    """Writes one file in a directory of its own; nobody sees it before it is sent."""

    def write(self, rows: pa.Table) -> None:
        """Append rows; raises OSError."""
        ...

    def close(self) -> None:
        """The file is whole. Called once."""
        ...


class Form(Protocol):
    """One form of files."""

    @property
    def extension(self) -> str:
        """What names end with, without the dot before it."""
        ...

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """Begin a file."""
        ...
