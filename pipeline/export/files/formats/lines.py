"""Files of lines and of raw bytes, which a gzip may hold."""

import base64
import gzip
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa

from sidetier.pipeline.export.files.formats.form import FileWriter

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
    return lines(rows.to_pylist(maps_as_pydicts="strict"))


def json_values(rows: pa.Table) -> bytes:
    """The value alone per row, where it is the only column."""
    return lines(rows.column("value").to_pylist())


def lines(rows: list[Any]) -> bytes:
    """A JSON text per row and line."""
    return "".join(f"{_line(row)}\n" for row in rows).encode()


def _line(row: object) -> str:
    try:
        return _ENCODER.encode(row)
    except ValueError:  # no JSON has NaN
        return _ENCODER.encode(_spelt(row))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


def _spelt(value: Any) -> Any:  # noqa: ANN401 -- whatever a row holds
    """NaN and infinities as text, as protocol buffers have them in JSON."""
    if isinstance(value, dict):
        return {name: _spelt(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_spelt(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)
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
