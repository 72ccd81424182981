"""Ports of file formats."""

from pathlib import Path
from typing import Protocol

import pyarrow as pa


class FileWriter(Protocol):
    """Writes one local file. Readers do not see it before it is sent to the store."""

    def write(self, rows: pa.Table) -> None:
        """Append rows.

        Raises:
            OSError: the local disk failed.
        """
        ...

    def close(self) -> None:
        """Finish the file. Called once."""
        ...


class Form(Protocol):
    """A file format."""

    @property
    def extension(self) -> str:
        """File name extension, without the leading dot."""
        ...

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """Create a file at this path for rows of this schema."""
        ...
