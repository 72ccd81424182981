"""File formats: their port, Parquet, and files of lines or raw bytes, also gzipped."""

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from sidetier.pipeline.export.values.json_texts import (
    constant,
    content,
    joined,
    stretches,
    texts,
)


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

    def count(self) -> int:
        """Return the number of records in the finished file, counted in what was written to it.

        It does not depend on the number of rows that were passed to `write`: a row that left
        nothing in the file does not count.
        """
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


_EXTENSIONS: Final = {"gzip": "gz.parquet", "none": "parquet"}
"""Extensions in Confluent's sink connector. Other codecs have their name and `.parquet`."""


class ParquetForm:
    """Parquet files. Each write becomes a row group."""

    def __init__(self, compression: str) -> None:
        self._compression = compression
        self.extension = _EXTENSIONS.get(compression, f"{compression}.parquet")

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """Create a Parquet file; each write becomes a row group."""
        return _ParquetWriter(path, pq.ParquetWriter(path, schema, compression=self._compression))


class _ParquetWriter:
    def __init__(self, path: Path, writer: pq.ParquetWriter) -> None:
        self._path = path
        self._writer = writer

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> None:
        self._writer.close()

    def count(self) -> int:
        return int(pq.read_metadata(self._path).num_rows)


Render = Callable[[pa.Table], tuple[bytes, int]]
"""Returns the bytes of rows, and the number of records in these bytes."""


class StreamForm:
    """Files of concatenated rows. The bytes of a file depend only on its rows."""

    def __init__(self, extension: str, render: Render, compression: str) -> None:
        self._render = render
        self._zipped = compression == "gzip"
        self.extension = f"{extension}.gz" if self._zipped else extension

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """Create a file of rendered rows; the schema is not stored."""
        del schema
        return _StreamWriter(path.open("wb"), self._render, zipped=self._zipped)


class _StreamWriter:
    def __init__(self, file: BinaryIO, render: Render, *, zipped: bool) -> None:
        self._file = file
        # No name and no time in the gzip header, so that equal rows give equal files.
        packed = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if zipped else file
        self._stream = cast("BinaryIO", packed)
        self._render = render
        self._records = 0

    def write(self, rows: pa.Table) -> None:
        data, records = self._render(rows)
        self._stream.write(data)
        self._records += records

    def close(self) -> None:
        self._stream.close()
        self._file.close()

    def count(self) -> int:
        return self._records


def lines(data: bytes) -> tuple[bytes, int]:
    """Return rendered lines, and their number."""
    return data, data.count(b"\n")


def json_lines(rows: pa.Table) -> tuple[bytes, int]:
    """Return one JSON object per row; bytes become base64, times ISO 8601, decimals text."""
    return _lines(batch.to_struct_array() for batch in stretches(rows))


def json_values(rows: pa.Table) -> tuple[bytes, int]:
    """Return the JSON text of column `value` per row."""
    return _lines(batch.column("value") for batch in stretches(rows))


def _lines(rows: Iterable[pa.Array]) -> tuple[bytes, int]:
    """Return one line with a JSON text per row."""
    parts = (joined([texts(column), constant(b"\n")], len(column)) for column in rows)
    return lines(b"".join(map(content, parts)))


_NOTHING: Final = b""


def raw(delimiter: bytes, key_delimiter: bytes | None) -> Render:
    """Return a renderer of plain values, each followed by the delimiter; a null is empty.

    With a key delimiter, the key and the key delimiter precede each value.
    """

    def render(rows: pa.Table) -> tuple[bytes, int]:
        # A value may contain the delimiter, so the bytes do not determine the number of records.
        values = rows.column("value").cast(pa.binary()).to_pylist()
        if key_delimiter is None:
            pieces = [(value or _NOTHING) + delimiter for value in values]
            return _NOTHING.join(pieces), len(pieces)
        keys = rows.column("key").to_pylist()
        pieces = [
            (key or _NOTHING) + key_delimiter + (value or _NOTHING) + delimiter
            for key, value in zip(keys, values, strict=True)
        ]
        return _NOTHING.join(pieces), len(pieces)

    return render
