"""Files of lines and of raw bytes, which a gzip may hold."""

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Final, cast

import pyarrow as pa

from sidetier.pipeline.export.files.formats.form import FileWriter
from sidetier.pipeline.export.files.formats.fragments import constant, content, joined, stretches
from sidetier.pipeline.export.files.formats.json_texts import texts

Render = Callable[[pa.Table], bytes]


class StreamForm:
    """Rows one after the other; the bytes of a file follow from its rows alone."""

    def __init__(self, extension: str, render: Render, compression: str) -> None:
        self._render = render
        self._zipped = compression == "gzip"
        self.extension = f"{extension}.gz" if self._zipped else extension

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """See `Form`."""
        del schema
        return _Writer(path.open("wb"), self._render, zipped=self._zipped)


class _Writer:
    def __init__(self, file: BinaryIO, render: Render, *, zipped: bool) -> None:
        self._file = file
        # Without a name and a time, equal rows give equal files.
        packed = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if zipped else file
        self._stream = cast("BinaryIO", packed)
        self._render = render

    def write(self, rows: pa.Table) -> None:
        self._stream.write(self._render(rows))

    def close(self) -> None:
        self._stream.close()
        self._file.close()


def json_lines(rows: pa.Table) -> bytes:
    """An object per row; bytes are base64, times ISO 8601, decimals text."""
    return _lines(batch.to_struct_array() for batch in stretches(rows))


def json_values(rows: pa.Table) -> bytes:
    """The value alone per row, where it is the only column."""
    return _lines(batch.column("value") for batch in stretches(rows))


def _lines(rows: Iterable[pa.Array]) -> bytes:
    """A JSON text per row and line."""
    found = (joined([texts(some), constant(b"\n")], len(some)) for some in rows)
    return b"".join(map(content, found))


_NOTHING: Final = b""


def raw(delimiter: bytes, key_delimiter: bytes | None) -> Render:
    """Values as they are, each with the delimiter behind it; of a null only the delimiter.

    With a key delimiter, the key and that stand before each value.
    """

    def render(rows: pa.Table) -> bytes:
        values = rows.column("value").cast(pa.binary()).to_pylist()
        if key_delimiter is None:
            return _NOTHING.join((value or _NOTHING) + delimiter for value in values)
        keys = rows.column("key").to_pylist()
        return _NOTHING.join(
            (key or _NOTHING) + key_delimiter + (value or _NOTHING) + delimiter
            for key, value in zip(keys, values, strict=True)
        )

    return render
